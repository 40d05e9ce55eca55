"""The limit of messages that are sent and not yet removed from the backlog."""

from __future__ import annotations

import asyncio

from pairbus.pairing.syphon.send_limit import SendLimit


def test_sender_gets_what_is_free_and_waits_for_a_useful_batch() -> None:
    async def scenario() -> None:
        limit = SendLimit(100)
        assert await limit.acquire(80) == 80
        waiting = asyncio.create_task(limit.acquire(50))
        behind = asyncio.create_task(limit.acquire(1))
        await asyncio.sleep(0)
        limit.release(4)
        await asyncio.sleep(0.01)
        assert not waiting.done(), "24 are less than a quarter"
        assert not behind.done(), "senders take turns"
        limit.release(2)
        assert await waiting == 26
        limit.release(1)
        assert await behind == 1

    asyncio.run(scenario())


def test_cancelled_sender_does_not_hold_up_the_next() -> None:
    async def scenario() -> None:
        limit = SendLimit(10)
        assert await limit.acquire(20) == 10
        waiting = asyncio.create_task(limit.acquire(5))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait((waiting,))
        limit.release(10)
        assert await limit.acquire(5) == 5

    asyncio.run(scenario())
