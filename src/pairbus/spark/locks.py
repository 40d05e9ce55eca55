"""Locked messages of a stream, and peeks at the messages of its entity."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final
from uuid import UUID

from pairbus.client.received_message import MessageState, ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.client.session import MessageSession
from pairbus.client.validation import to_ms
from pairbus.dialect.sent import read_enqueued
from pairbus.spark.offset import Portion
from pairbus.spark.sequences import SequenceMarks, SequenceRanges

_MAX_REQUEST: Final = 1_000
"""Maximum number of messages in one request."""


@dataclass(slots=True, kw_only=True)
class LockedMessage:
    """A message locked by the stream. The driver does not keep its body: the task peeks it."""

    number: int
    enqueued_ms: int
    token: UUID
    locked_s: float
    """Time of the lock or its last renewal, on the clock of the event loop."""

    size_bytes: int = 0
    session: MessageSession | None = None
    """The session whose lock covers the message."""

    locked_until: datetime | None = None
    """Not kept: the clock of the namespace may differ from that of this machine."""

    is_settled: bool = False
    """True once the lock need not be renewed any longer."""

    @classmethod
    def of(cls, message: ReceivedMessage, now_s: float) -> LockedMessage | None:
        """Return the locked message, or ``None`` if it cannot be identified."""
        token, enqueued = message.lock_token, read_enqueued(message.payload)
        if token is None or enqueued.sequence_number is None or enqueued.time_ms is None:
            return None
        return cls(
            number=enqueued.sequence_number,
            enqueued_ms=enqueued.time_ms,
            token=token,
            locked_s=now_s,
            size_bytes=len(message.payload),
        )

    def message(self) -> ReceivedMessage:
        """Return an object that a receiver can settle."""
        return ReceivedMessage(b"", lock_token=self.token)


def request_groups(locked_messages: Iterable[LockedMessage]) -> Iterator[list[LockedMessage]]:
    """Split messages into groups of the size that one request may have."""
    iterator = iter(locked_messages)
    while group := list(islice(iterator, _MAX_REQUEST)):
        yield group


_DEFAULT_S: Final = 60.0
_SHORTEST_S: Final = 5.0
_DOUBT_S: Final = 600.0
_UNDER_WAY_S: Final = 1.0


class LockTime:
    """Estimate of an entity's lock duration: the service only states when a lock ends, on a clock that may be off.

    A lost lock lasted no longer than it was held. It may have been lost for another reason, so that bound applies for a
    limited time.
    """

    def __init__(self) -> None:
        self._s: float | None = None
        self._doubted_s = -_DOUBT_S

    @property
    def careful_s(self) -> float:
        """Time to rely on a lock; short before the first lock is known."""
        return self._s or _SHORTEST_S

    @property
    def patient_s(self) -> float:
        """Time after which the lock of another receiver has certainly expired."""
        return (self._s or _DEFAULT_S) + _UNDER_WAY_S

    def note(self, message: ReceivedMessage) -> None:
        """Update the estimate. A message is not locked before it is enqueued, nor, if the clocks of this machine and of
        the namespace agree, before it arrives. If they disagree, the estimate may be too long until a lock is lost.
        """
        if message.locked_until is None:
            return
        if asyncio.get_running_loop().time() - self._doubted_s > _DOUBT_S:
            self._s = None
        ends = message.locked_until.timestamp()
        self._shorten(min(ends - message.enqueued_time.timestamp(), ends - time.time() + _UNDER_WAY_S))

    def was_lost(self, held_s: float, now_s: float) -> None:
        """Note that a lock expired after no longer than ``held_s``."""
        self._shorten(held_s)
        self._doubted_s = now_s

    def _shorten(self, lock_s: float) -> None:
        self._s = max(_SHORTEST_S, min(self._s or _DEFAULT_S, lock_s))


_FIRST_PEEK: Final = 100


async def are_first(receiver: MessageReceiver, numbers: set[int]) -> bool:
    """Return whether nothing that could be received lies before these messages in their partitions, or between them."""
    return not await is_any_there(receiver, SequenceMarks.of(numbers).ranges - SequenceRanges.of(numbers))


async def still_there(receiver: MessageReceiver, portion: Portion) -> set[int]:
    """Return the numbers of a portion whose messages are available or locked; deferred ones belong to others."""
    return {
        message.sequence_number
        async for message in active_messages(receiver, portion.numbers, _MAX_REQUEST)
        if portion.holds(message.sequence_number, to_ms(message.enqueued_time))
    }


async def is_any_there(receiver: MessageReceiver, numbers: SequenceRanges) -> bool:
    """Return whether a message with one of these numbers is available or locked."""
    async with aclosing(active_messages(receiver, numbers, _FIRST_PEEK)) as found:
        async for _ in found:
            return True
    return False


async def active_messages(
    receiver: MessageReceiver, numbers: SequenceRanges, page_size: int
) -> AsyncGenerator[ReceivedMessage]:
    """Peek the messages with these numbers that are available or locked."""
    async with aclosing(messages(receiver, numbers, page_size)) as found:
        async for message in found:
            if message.state is MessageState.ACTIVE:
                yield message


async def messages(
    receiver: MessageReceiver, numbers: SequenceRanges, page_size: int
) -> AsyncGenerator[ReceivedMessage]:
    """Peek the messages with these numbers, in any state."""
    rest = numbers
    while rest:
        first, last = rest.ranges[0].first, rest.ranges[-1].last
        page = await receiver.peek(min(page_size, last - first + 1), first)
        for message in page:
            if message.sequence_number in numbers:
                yield message
        rest = rest.since(page[-1].sequence_number + 1) if page else SequenceRanges()
