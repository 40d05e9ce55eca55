"""What lies in an entity, seen by peeking: nothing is received."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from pairbus.client.received_message import MessageState, ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.client.times import to_ms
from pairbus.spark.offset import Portion
from pairbus.spark.sequence_ranges import SequenceRanges

_AT_ONCE: Final = 1_000
_FIRST_AT_ONCE: Final = 100


async def are_first(receiver: MessageReceiver, numbers: set[int]) -> bool:
    """Whether nothing that could be received lies before these messages, or between them."""
    cursor, last = 0, max(numbers)
    while cursor < last:
        page = await receiver.peek(_FIRST_AT_ONCE, cursor)
        if not page:
            return True
        for one in page:
            is_before = one.sequence_number < last and one.sequence_number not in numbers
            if is_before and one.state is MessageState.ACTIVE:
                return False
        cursor = page[-1].sequence_number + 1
    return True


async def still_there(receiver: MessageReceiver, portion: Portion) -> set[int]:
    """The numbers of a portion whose messages could be received, or are locked; what is deferred is somebody else's."""
    return {
        message.sequence_number
        async for message in _active(receiver, portion.numbers, _AT_ONCE)
        if portion.holds(message.sequence_number, to_ms(message.enqueued_time))
    }


async def is_any_there(receiver: MessageReceiver, numbers: SequenceRanges) -> bool:
    """Whether a message with one of these numbers could be received, or is locked."""
    async with aclosing(_active(receiver, numbers, _FIRST_AT_ONCE)) as found:
        async for _ in found:
            return True
    return False


async def _active(receiver: MessageReceiver, numbers: SequenceRanges, at_once: int) -> AsyncGenerator[ReceivedMessage]:
    rest = numbers
    while rest:
        first, last = rest.ranges[0].first, rest.ranges[-1].last
        page = await receiver.peek(min(at_once, last - first + 1), first)
        for message in page:
            if message.state is MessageState.ACTIVE and message.sequence_number in numbers:
                yield message
        rest = rest.since(page[-1].sequence_number + 1) if page else SequenceRanges()
