"""Listeners that switch the pair: all listeners get the events in the order in which they happened."""

from __future__ import annotations

import pytest

from pairbus.pairing import EntityChanged, EntityState, PairEvent
from tests.pairing.scenes import ORDERS, paired
from tests.simulation.pair_world import PairWorld, run


@pytest.mark.parametrize("is_first", [True, False])
def test_c19_event_caused_by_a_listener_follows_the_current_one(is_first: bool) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        await scene.sender()
        states: list[EntityState] = []

        def note(event: PairEvent) -> None:
            assert isinstance(event, EntityChanged)
            states.append(event.state)

        def guard(event: PairEvent) -> None:
            if isinstance(event, EntityChanged) and event.state is EntityState.HELD_OVER:
                scene.pair.release(event.path)

        for listener in (guard, note) if is_first else (note, guard):
            scene.pair.subscribe(listener)
        stream = scene.pair.events()
        scene.pair.engage(ORDERS)
        assert states == [EntityState.HELD_OVER, EntityState.HEALTHY]
        streamed = [await anext(stream) for _ in range(2)]
        assert [event.state for event in streamed if isinstance(event, EntityChanged)] == states
        assert scene.state() is EntityState.HEALTHY

    run(scenario)


def test_c19_coroutine_function_is_rejected_as_a_listener() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)

        async def listen(_event: PairEvent) -> None:
            """A coroutine function, which would never be awaited."""

        with pytest.raises(TypeError, match="events"):
            scene.pair.subscribe(listen)  # type: ignore[arg-type]

    run(scenario)
