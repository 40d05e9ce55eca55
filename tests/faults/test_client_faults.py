"""The client on a faulty network, determined by a seed, in virtual time.

A failure names its seed, and the schedule that was made of it as Python: ``run`` plays it again.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Final

import pytest

from tests.faults.fault import Schedule
from tests.faults.traffic import exchange
from tests.faults.visits import visit
from tests.faults.world import ORDERS, UNIQUE, World, run
from tests.thoroughness import times

QUICK: Final = range(times(200))
QUICK_VISITS: Final = range(times(40))
THOUSANDS: Final = range(1, 3)
"""Each stands for so many seeds: one test each would take longer to collect than to run."""
AT_ONCE: Final = 50


def _play(seed: int, scenario: Callable[[World, Random], Coroutine[Any, Any, object]]) -> None:
    random = Random(seed)  # noqa: S311 (which faults, and what traffic)
    schedule = Schedule.seeded(random)

    async def seeded(world: World) -> None:
        await scenario(world, random)

    try:
        run(seeded, schedule, seed)
    except BaseException as error:
        error.add_note(f"seed {seed}: {schedule!r}")
        raise


def _exchange(seed: int) -> None:
    _play(seed, lambda world, random: exchange(world, UNIQUE if seed % 2 else ORDERS, random))


@pytest.mark.parametrize("seed", QUICK)
def test_e1_confirmed_messages_survive_random_faults(seed: int) -> None:
    _exchange(seed)


@pytest.mark.parametrize("seed", QUICK_VISITS)
def test_a5_sessions_keep_messages_and_order_under_random_faults(seed: int) -> None:
    _play(seed, visit)


@pytest.mark.parametrize("seed", range(500, 505))
def test_run_with_the_same_seed_is_identical(seed: int) -> None:
    played: list[list[tuple[str, float]]] = []

    async def scenario(world: World, random: Random) -> None:
        await exchange(world, UNIQUE, random)
        played.append(world.durations)

    _play(seed, scenario)
    _play(seed, scenario)
    assert played[0] == played[1]


@pytest.mark.slow
@pytest.mark.parametrize("thousand", THOUSANDS)
def test_e1_confirmed_messages_survive_many_random_faults(thousand: int) -> None:
    for seed in range(thousand * 1_000, thousand * 1_000 + AT_ONCE):
        _exchange(seed)


@pytest.mark.slow
@pytest.mark.parametrize("thousand", THOUSANDS)
def test_a5_sessions_keep_messages_and_order_under_many_random_faults(thousand: int) -> None:
    for seed in range(thousand * 1_000, thousand * 1_000 + AT_ONCE):
        _play(seed, visit)
