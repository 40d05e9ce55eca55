"""Asking an entity whether it takes messages again."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final
from uuid import uuid4

from pairbus.client.errors import MessagingError
from pairbus.client.lane import Lane
from pairbus.client.message import BrokeredMessage, encode_brokered
from pairbus.client.parcel import Parcel
from pairbus.dialect.annotations import PING_CONTENT_TYPE

_LIFETIME: Final = timedelta(seconds=1)


def ping_message() -> BrokeredMessage:
    """A message that the namespace answers like any other, and gives to nobody.

    It has a session id because some entities take nothing without one; to the others it means nothing.
    """
    return BrokeredMessage(content_type=PING_CONTENT_TYPE, time_to_live=_LIFETIME, session_id=uuid4().hex)


async def ping(lane: Lane) -> MessagingError | None:
    """Ping an entity once; gives why there was no answer."""
    try:
        await lane.attempt(Parcel([encode_brokered(ping_message())]))
    except MessagingError as error:
        return error.at(lane.path)
    return None


async def ticks(interval_s: float, begin_s: float) -> float:
    """Wait for the next of the moments that lie an interval apart; those that have passed are left out."""
    loop = asyncio.get_running_loop()
    passed = int((loop.time() - begin_s) / interval_s + 1e-9)
    due_s = begin_s + (passed + 1) * interval_s
    await asyncio.sleep(due_s - loop.time())
    return due_s
