"""D2: the syphon on a standalone cluster, whose executors are killed; and how much it brings home."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from pairbus import EntityStatus, MessagingFactory, NamespaceManager
from pairbus.jobs.syphon.delivery_task import MAX_REPEATS
from tests.jobs.cluster import EXECUTOR, PYTHON, Cluster, cluster
from tests.jobs.driver import driver
from tests.jobs.processes import kill
from tests.jobs.sent_messages import MixedMessages, SentMessages, Strings, depth, make_backlog, make_queues
from tests.pairing.processes import NamespaceProcess
from tests.waiting import eventually_async

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked for in /proc"),
]

LIMIT_S: Final = 500.0
BATCH: Final = 500
QUEUES: Final = 4


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def strings(tmp_path: Path) -> Iterator[Strings]:
    with ExitStack() as stack:
        primary, secondary = (
            stack.enter_context(NamespaceProcess(tmp_path / name)) for name in ("contoso", "fabrikam")
        )
        yield Strings(primary=primary.connection_string, secondary=secondary.connection_string)


def play(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, LIMIT_S))


async def bring_home_20_000(strings: Strings, directory: Path, master: str) -> None:
    async with strings.factories() as (primary, secondary):
        queues = await make_backlog(strings.secondary, 10, timedelta(minutes=1))
        sent_messages = SentMessages(await make_queues(strings.primary, "home", 40), queues, sessions=20)
        await sent_messages.load(secondary, 20_000)
        async with driver(strings, directory, queues=10, master=master, max_messages=4_000, once=True) as syphon:
            assert await syphon.ended() == 0
        arrived = await sent_messages.arrivals(primary)
        print(f"{master}: {arrived}", *syphon.batches, sep="\n")
        arrived.assert_exact()
        assert not arrived.disordered
        assert await depth(secondary, queues) == 0


def test_d2_20_000_messages_of_10_queues_are_delivered_to_40_destinations_on_one_machine(
    strings: Strings, tmp_path: Path
) -> None:
    play(bring_home_20_000(strings, tmp_path, "local[2]"))


def test_d2_20_000_messages_of_10_queues_are_delivered_to_40_destinations_on_a_cluster(
    running: Cluster, strings: Strings, tmp_path: Path
) -> None:
    play(bring_home_20_000(strings, tmp_path, running.master))


@pytest.mark.parametrize("seed", [1])
def test_e1_executors_and_their_workers_are_killed_while_a_destination_is_down_and_the_job_goes_on(
    running: Cluster, strings: Strings, tmp_path: Path, seed: int
) -> None:
    random = Random(seed)  # noqa: S311 (the same each time)
    kills = [EXECUTOR, PYTHON]

    async def scenario() -> None:
        async with strings.factories() as (primary, secondary):
            queues = await make_backlog(strings.secondary, QUEUES)
            sent_messages = await MixedMessages.make(strings.primary, queues, seed)
            down = SentMessages(
                await make_queues(strings.primary, "down", 1, status=EntityStatus.SEND_DISABLED),
                queues,
                seed=7,
                sessions=5,
            )
            await sent_messages.load(secondary, 2_000)
            async with driver(strings, tmp_path, queues=QUEUES, master=running.master, max_messages=BATCH) as syphon:
                for word in kills:
                    before = len(syphon.batches)
                    await down.load(secondary, 200)
                    await sent_messages.load(secondary, 2_000)
                    await syphon.said(before + 1)
                    await asyncio.sleep(random.uniform(0, 0.5))
                    await kill_one(running, word, random)
                await enable(strings.primary, "down-0")
                await emptied(secondary, queues)
            (await down.arrivals(primary)).assert_complete()
            assert await sent_messages.check(primary) <= len(kills) * MAX_REPEATS

    play(scenario())


async def kill_one(cluster: Cluster, word: str, random: Random) -> None:
    """Kill one of the processes with a word in their command, as soon as there is one."""
    found: list[int] = []

    def is_there() -> bool:
        found[:] = sorted(cluster.processes(word))
        return bool(found)

    await eventually_async(is_there)
    kill(random.choice(found))


async def enable(primary: str, path: str) -> None:
    async with NamespaceManager.from_connection_string(primary) as manager:
        await manager.update_queue(replace(await manager.get_queue(path), status=EntityStatus.ACTIVE))


async def emptied(secondary: MessagingFactory, queues: tuple[str, ...]) -> None:
    async def is_empty() -> bool:
        return await depth(secondary, queues) == 0

    await eventually_async(is_empty, 240)
