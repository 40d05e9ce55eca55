"""What lies in an entity, seen by peeking: nothing is received."""

from __future__ import annotations

from typing import Final

from pairbus.client.received_message import MessageState
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
    found: set[int] = set()
    cursor = portion.numbers
    while cursor:
        first, last = cursor.ranges[0].first, cursor.ranges[-1].last
        page = await receiver.peek(min(_AT_ONCE, last - first + 1), first)
        for message in page:
            number = message.sequence_number
            if message.state is MessageState.ACTIVE and portion.holds(number, to_ms(message.enqueued_time)):
                found.add(number)
        cursor = cursor.since(page[-1].sequence_number + 1) if page else SequenceRanges()
    return found
