"""Trying out a pair with a message of its own, on a queue of its own."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import uuid4

from pairbus.client.errors import InternalServerError, MessagingTimeoutError
from pairbus.client.factory import MessagingFactory
from pairbus.client.management.descriptions import QueueDescription
from pairbus.client.message import BrokeredMessage
from pairbus.client.received_message import ReceivedMessage
from pairbus.dialect.backlog_path import DRILL

_LEFT_BEHIND: Final = timedelta(hours=1)
_LIFETIME: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillReport:
    """How long a marked message took on its detour."""

    path: str
    """The queue of the primary that it was sent to, which was made for it and is gone."""

    diverted_in: timedelta
    """From the send to its confirmation by a backlog queue."""

    delivered_in: timedelta
    """From there to its receipt from the primary."""

    @property
    def total(self) -> timedelta:
        return self.diverted_in + self.delivered_in


def drill_queue() -> QueueDescription:
    """A queue for one drill. If its message does not come home in time, the queue waits for it a while longer."""
    return QueueDescription(f"{DRILL}/{uuid4().hex}", auto_delete_on_idle=_LEFT_BEHIND)


def drill_message() -> BrokeredMessage:
    mark = uuid4().hex
    return BrokeredMessage(b"a drill", message_id=mark, time_to_live=_LIFETIME, application_properties={DRILL: mark})


async def await_drill(
    primary: MessagingFactory, path: str, sent: BrokeredMessage, max_wait_time: timedelta
) -> timedelta:
    """Receive the marked message from the primary; gives how long that took."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    async with await primary.create_message_receiver(path) as receiver:
        received = await receiver.receive(max_wait_time=max_wait_time)
        if not received:
            raise MessagingTimeoutError(
                f"the message of the drill is in the backlog, and nobody has brought it home within {max_wait_time}; "
                "is a syphon running for this pair?",
                entity=path,
            )
        took = timedelta(seconds=loop.time() - began_s)
        _check(sent, received[0], path)
        await receiver.complete(received[0])
    return took


def _check(sent: BrokeredMessage, received: ReceivedMessage, path: str) -> None:
    names = ("message_id", "body", "time_to_live", "application_properties")
    differing = [name for name in names if getattr(sent, name) != getattr(received, name)]
    if differing:
        raise InternalServerError(
            f"the message of the drill came home with another {', '.join(differing)}", entity=path, is_transient=False
        )
