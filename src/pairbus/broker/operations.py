"""Requests that can be part of a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from pairbus.broker.address import Address
from pairbus.broker.message import Message
from pairbus.broker.settlement import Verdict


class Send(NamedTuple):
    """Messages for a queue or a topic.

    Sent ``via`` another entity, what the destination refuses lies among that entity's failed transfers instead.
    """

    address: Address
    messages: Sequence[Message]
    via: Address | None = None


class Settle(NamedTuple):
    """A word on a message that is locked."""

    address: Address
    lock_token: bytes
    verdict: Verdict = Verdict()


Operation: TypeAlias = Send | Settle
