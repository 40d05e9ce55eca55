"""E1, D2: a syphon that is killed at any point, with all of its processes, loses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from pairbus.jobs.syphon.delivery_task import MAX_REPEATS
from tests.jobs.driver import driver
from tests.jobs.sent_messages import MixedMessages, Strings, depth, make_backlog
from tests.pairing.processes import NamespaceProcess

LIMIT_S: Final = 800.0
EACH_TIME: Final = 1_500
BATCH: Final = 500
QUEUES: Final = 3
KILLS: Final = 3
REPEATS: Final = MAX_REPEATS * 3
"""The messages that two tasks and a driver may have sent and not yet removed."""


@pytest.fixture
def strings(tmp_path: Path) -> Iterator[Strings]:
    if not Path("/proc/self/stat").exists():
        pytest.skip("processes are looked for in /proc")
    with ExitStack() as stack:
        primary, secondary = (
            stack.enter_context(NamespaceProcess(tmp_path / name)) for name in ("contoso", "fabrikam")
        )
        yield Strings(primary=primary.connection_string, secondary=secondary.connection_string)


def play(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, LIMIT_S))


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("seed", [1])
def test_e1_driver_that_is_killed_and_restarted_delivers_everything(
    strings: Strings, tmp_path: Path, seed: int
) -> None:
    random = Random(seed)  # noqa: S311 (the same each time)

    async def scenario() -> None:
        async with strings.factories() as (primary, secondary):
            queues = await make_backlog(strings.secondary, QUEUES)
            sent_messages = await MixedMessages.make(strings.primary, queues, seed)
            for kill in range(KILLS):
                await sent_messages.load(secondary, EACH_TIME)
                checkpoint = "checkpoint" if kill != KILLS - 1 else "another"
                async with driver(
                    strings, tmp_path, queues=QUEUES, checkpoint=checkpoint, max_messages=BATCH
                ) as running:
                    if kill == 1:
                        await running.ready()
                        await asyncio.sleep(random.uniform(0, 6))  # while the first batch is planned, or under way
                    else:
                        await running.said(random.randrange(1, 1 + EACH_TIME // BATCH))  # so many there are in any case
                        await asyncio.sleep(random.random() / 2)
                    await running.kill()
                    print(f"killed after {len(running.batches)} batches")
            async with driver(strings, tmp_path, queues=QUEUES, max_messages=BATCH, once=True) as running:
                assert await running.ended() == 0
            assert await sent_messages.check(primary) <= KILLS * REPEATS
            assert await depth(secondary, queues) == 0

    play(scenario())
