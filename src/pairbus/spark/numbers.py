"""Which sequence numbers an entity has, found by peeking at few messages."""

from __future__ import annotations

from pairbus.client.factory import MessagingFactory
from pairbus.client.receiver import MessageReceiver


async def first_number(receiver: MessageReceiver, least: int) -> int | None:
    """The number of the first message from ``least`` on, whatever its state."""
    found = await receiver.peek(1, least)
    return found[0].sequence_number if found else None


async def last_number(receiver: MessageReceiver, least: int = 0) -> int:
    """The number of the last message, or ``least`` if there is none behind it.

    Nobody tells the last number of an entity. Whether there is a message behind a number costs one peek, so the last
    is found in steps that double, and then in halves.
    """
    last, step = least, 1
    while (found := await first_number(receiver, last + step)) is not None:
        last, step = found, 2 * step
    beyond = last + step
    while beyond - last > 1:
        middle = (last + beyond) // 2
        found = await first_number(receiver, middle)
        if found is None:
            beyond = middle
        else:
            last = found
    return last


async def last_number_of(factory: MessagingFactory, path: str) -> int:
    """The same for an entity that nobody else looks at here."""
    receiver = await factory.create_message_receiver(path)
    try:
        return await last_number(receiver)
    finally:
        await receiver.close()
