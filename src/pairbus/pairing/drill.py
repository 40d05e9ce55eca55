"""A drill: tests a pair with a marked message on a temporary queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import uuid4

from pairbus.client.errors import InternalServerError, MessagingTimeoutError
from pairbus.client.factory import MessagingFactory
from pairbus.client.management.descriptions import QueueDescription
from pairbus.client.message import BrokeredMessage
from pairbus.client.received_message import ReceivedMessage
from pairbus.dialect.paths import DRILL

_IDLE_BEFORE_DELETION: Final = timedelta(hours=1)
_LIFETIME: Final = timedelta(hours=1)

DrillOutage = Callable[[str], AbstractAsyncContextManager[object]]
"""Makes sends to the queue with this path fail for as long as the context manager is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillReport:
    """The times of a marked message on its way through the backlog."""

    path: str
    """The temporary queue of the primary, which was deleted."""

    diverted_in: timedelta
    """Time from the send to the confirmation by a backlog queue."""

    delivered_in: timedelta
    """Time from there to the receipt from the primary."""

    @property
    def total(self) -> timedelta:
        return self.diverted_in + self.delivered_in


def drill_queue() -> QueueDescription:
    """Return the queue of one drill. After a timeout it stays for some time, for a late delivery."""
    return QueueDescription(f"{DRILL}/{uuid4().hex}", auto_delete_on_idle=_IDLE_BEFORE_DELETION)


def drill_message() -> BrokeredMessage:
    mark = uuid4().hex
    return BrokeredMessage(b"a drill", message_id=mark, time_to_live=_LIFETIME, application_properties={DRILL: mark})


async def await_drill(
    primary: MessagingFactory, path: str, sent: BrokeredMessage, max_wait_time: timedelta
) -> timedelta:
    """Receive the marked message from the primary; return how long that took."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    async with await primary.create_message_receiver(path) as receiver:
        received = await receiver.receive(max_wait_time=max_wait_time)
        if not received:
            raise MessagingTimeoutError(
                f"the message of the drill is in the backlog, and no syphon has delivered it within {max_wait_time}; "
                "is a syphon running for this pair?",
                entity=path,
            )
        took = timedelta(seconds=loop.time() - began_s)
        _check(sent, received[0], path)
        await receiver.complete(received[0])
    return took


def check_diverted(path: str, diverted: int) -> None:
    """Raise ``InternalServerError`` if the message of a drill was not diverted."""
    if not diverted:
        raise InternalServerError(
            "the primary confirmed the message of the drill during the outage: it was not diverted",
            entity=path,
            is_transient=False,
        )


def _check(sent: BrokeredMessage, received: ReceivedMessage, path: str) -> None:
    names = ("message_id", "body", "time_to_live", "application_properties")
    differing = [name for name in names if getattr(sent, name) != getattr(received, name)]
    if differing:
        raise InternalServerError(
            f"the message of the drill was delivered with a different {', '.join(differing)}",
            entity=path,
            is_transient=False,
        )
