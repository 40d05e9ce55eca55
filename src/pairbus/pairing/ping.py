"""Asking an entity whether it takes messages again."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Final
from uuid import uuid4

from pairbus.client.errors import MessagingError, MessagingTimeoutError
from pairbus.client.lane import Lane
from pairbus.client.message import BrokeredMessage, encode_brokered
from pairbus.dialect.annotations import PING_CONTENT_TYPE

_LIFETIME: Final = timedelta(seconds=1)
_A_HAIR: Final = 1e-9


def ping_message() -> BrokeredMessage:
    """A message that the namespace answers like any other, and gives to nobody.

    It has a session id because some entities take nothing without one; to the others it means nothing.
    """
    return BrokeredMessage(content_type=PING_CONTENT_TYPE, time_to_live=_LIFETIME, session_id=uuid4().hex)


async def ping(lane: Lane, limit_s: float, on_late_answer: Callable[[], None]) -> MessagingError | None:
    """Ping an entity once; return why there was no answer within ``limit_s``.

    A ping that was sent is not withdrawn then: its link gives up after the attempt time-out, and ``on_late_answer`` is
    called if the answer comes before that. So an entity that answers slower than it is pinged is found healthy, too.
    """
    payload = encode_brokered(ping_message())
    answer: asyncio.Future[None] | None = None
    try:
        async with asyncio.timeout(limit_s) as limit:
            answer = (await lane.link()).send(payload)
            answer.add_done_callback(_is_answer)  # the answer of one that nobody waits for is read all the same
            await asyncio.shield(answer)
    except MessagingError as error:
        return error.at(lane.path)
    except TimeoutError:
        if not limit.expired():
            raise
        if answer is not None:
            answer.add_done_callback(partial(_call_if_answered, on_late_answer))
        return MessagingTimeoutError(f"no answer to a ping within {limit_s:g} s", entity=lane.path)
    return None


def _call_if_answered(on_answer: Callable[[], None], answer: asyncio.Future[None]) -> None:
    if _is_answer(answer):
        on_answer()


def _is_answer(answer: asyncio.Future[None]) -> bool:
    return not answer.cancelled() and answer.exception() is None


async def next_tick(last_s: float, interval_s: float) -> float:
    """Wait for the next moment that lies a multiple of the interval after ``last_s``, and return it."""
    loop = asyncio.get_running_loop()
    intervals = max(1, math.ceil((loop.time() - last_s) / interval_s - _A_HAIR))  # those that were missed are left out
    due_s = last_s + intervals * interval_s
    await asyncio.sleep(due_s - loop.time())
    return due_s
