"""Requests that can be part of a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from pairbus.broker.address import Address
from pairbus.broker.message import Message
from pairbus.broker.settlement import Verdict


class Send(NamedTuple):
    """Messages for a queue or a topic.

    Sent ``via`` another queue or subscription, what cannot get to its destination (there is none, it is disabled or
    full) lies among the failed transfers of that one. A message that no entity takes is refused all the same.
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
