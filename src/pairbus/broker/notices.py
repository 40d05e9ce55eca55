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


Notice: TypeAlias = SessionLost | EntityGone
