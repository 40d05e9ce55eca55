"""A message that is locked for a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final
from uuid import UUID

from pairbus.client.received_message import ReceivedMessage
from pairbus.dialect.enqueued import read_enqueued

_AT_ONCE: Final = 1_000
"""How many messages one request names."""


@dataclass(slots=True, kw_only=True)
class Claim:
    """A message that is locked for the stream. Its body is read by whoever runs the task: the driver keeps none."""

    number: int
    enqueued_ms: int
    token: UUID
    locked_s: float
    """When it was locked, or its lock renewed, on the clock of the loop."""

    @classmethod
    def of(cls, message: ReceivedMessage, now_s: float) -> Claim | None:
        """``None`` for a message that nobody can name."""
        token, enqueued = message.lock_token, read_enqueued(message.payload)
        if token is None or enqueued.sequence_number is None or enqueued.time_ms is None:
            return None
        return cls(number=enqueued.sequence_number, enqueued_ms=enqueued.time_ms, token=token, locked_s=now_s)

    def message(self) -> ReceivedMessage:
        """What a receiver can settle."""
        return ReceivedMessage(b"", lock_token=self.token)


def in_requests(claims: Iterable[Claim]) -> Iterator[list[Claim]]:
    """As many at a time as one request may name."""
    iterator = iter(claims)
    while group := list(islice(iterator, _AT_ONCE)):
        yield group
