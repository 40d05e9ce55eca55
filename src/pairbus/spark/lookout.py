"""What lies in an entity, seen by peeking: nothing is received."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from pairbus.client.received_message import MessageState, ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.client.times import to_ms
from pairbus.spark.offset import Portion
from pairbus.spark.sequence_marks import SequenceMarks
from pairbus.spark.sequence_ranges import SequenceRanges

_AT_ONCE: Final = 1_000
_FIRST_AT_ONCE: Final = 100


async def are_first(receiver: MessageReceiver, numbers: set[int]) -> bool:
    """Return whether nothing that could be received lies before these messages in their partitions, or between them."""
    return not await is_any_there(receiver, SequenceMarks.of(numbers).ranges - SequenceRanges.of(numbers))


async def still_there(receiver: MessageReceiver, portion: Portion) -> set[int]:
    """The numbers of a portion whose messages could be received, or are locked; what is deferred is somebody else's."""
    return {
        message.sequence_number
        async for message in active_messages(receiver, portion.numbers, _AT_ONCE)
        if portion.holds(message.sequence_number, to_ms(message.enqueued_time))
    }


async def is_any_there(receiver: MessageReceiver, numbers: SequenceRanges) -> bool:
    """Whether a message with one of these numbers could be received, or is locked."""
    async with aclosing(active_messages(receiver, numbers, _FIRST_AT_ONCE)) as found:
        async for _ in found:
            return True
    return False


async def active_messages(
    receiver: MessageReceiver, numbers: SequenceRanges, at_once: int
) -> AsyncGenerator[ReceivedMessage]:
    """Peek at the messages with these numbers that could be received, or are locked."""
    async with aclosing(messages(receiver, numbers, at_once)) as found:
        async for message in found:
            if message.state is MessageState.ACTIVE:
                yield message


async def messages(receiver: MessageReceiver, numbers: SequenceRanges, at_once: int) -> AsyncGenerator[ReceivedMessage]:
    """Peek at the messages with these numbers, whatever their state."""
    rest = numbers
    while rest:
        first, last = rest.ranges[0].first, rest.ranges[-1].last
        page = await receiver.peek(min(at_once, last - first + 1), first)
        for message in page:
            if message.sequence_number in numbers:
                yield message
        rest = rest.since(page[-1].sequence_number + 1) if page else SequenceRanges()
