"""What happened by itself, and whoever holds a link should know."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from pairbus.broker.address import Address


class SessionLost(NamedTuple):
    """The lock on a session has run out."""

    address: Address
    session_id: str
    session_token: bytes


class EntityGone(NamedTuple):
    """The entity was deleted, by request or because nobody used it."""

    address: Address


class Quarantined(NamedTuple):
    """A message could not be read and was taken out of service."""

    address: Address
    sequence: int
    message_id: str
    """Empty where the record that holds it cannot be read either."""

    damaged: str
    """What of the message is damaged: its record or its body."""


class AccessChanged(NamedTuple):
    """Keys of the namespace or of an entity were changed or removed: what they have opened has to be checked again."""


Notice: TypeAlias = SessionLost | EntityGone | Quarantined | AccessChanged
