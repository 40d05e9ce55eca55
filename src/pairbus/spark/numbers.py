"""Find the sequence numbers of an entity by peeking at few messages.

A peek returns messages in the order of their numbers, and goes on from one partition to the next.
"""

from __future__ import annotations

from collections.abc import Callable

from pairbus.client.factory import MessagingFactory
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.spark.sequence_marks import SequenceMarks, partition_of, start_of


async def first_message(receiver: MessageReceiver, least: int) -> ReceivedMessage | None:
    """Return the first message from number ``least`` on, whatever its state."""
    found = await receiver.peek(1, least)
    return found[0] if found else None


async def first_number(receiver: MessageReceiver, least: int) -> int | None:
    """Return the number of the first message from ``least`` on, whatever its state."""
    found = await first_message(receiver, least)
    return None if found is None else found.sequence_number


def _any(_message: ReceivedMessage) -> bool:
    return True


async def last_number(receiver: MessageReceiver, least: int = 0, fits: Callable[[ReceivedMessage], bool] = _any) -> int:
    """Return the number of the last message that fits behind ``least`` and in its partition, or ``least`` if none does.

    ``fits`` must hold for all messages up to some number, and for none behind it. The service does not report the last
    number of an entity, but one peek shows whether there is a message behind a number: so the search goes on in steps
    that double, and then in halves.
    """
    partition = partition_of(least)

    async def next_fitting(number: int) -> int | None:
        found = await first_message(receiver, number)
        if found is None or partition_of(found.sequence_number) != partition or not fits(found):
            return None
        return found.sequence_number

    last, step = least, 1
    while (found := await next_fitting(last + step)) is not None:
        last, step = found, 2 * step
    beyond = last + step
    while beyond - last > 1:
        middle = (last + beyond) // 2
        found = await next_fitting(middle)
        if found is None:
            beyond = middle
        else:
            last = found
    return last


async def last_numbers(receiver: MessageReceiver) -> SequenceMarks:
    """Return the number of the last message of each partition that has any."""
    found: list[int] = []
    first = await first_number(receiver, 1)
    while first is not None:
        found.append(await last_number(receiver, first))
        first = await first_number(receiver, start_of(partition_of(first) + 1) + 1)
    return SequenceMarks.of(found)


async def last_numbers_of(factory: MessagingFactory, path: str) -> SequenceMarks:
    """Return the same for an entity that has no receiver here yet."""
    receiver = await factory.create_message_receiver(path)
    try:
        return await last_numbers(receiver)
    finally:
        await receiver.close()
