"""Destinations without messages are closed, even after an error."""

from __future__ import annotations

import asyncio
import logging

import pytest

from pairbus.client.errors import ServerBusyError
from pairbus.pairing.events import DestinationChanged, PairEvent
from tests.pairing.syphon_fixture import SyphonFixture, queues
from tests.simulation.pair_world import PairWorld, run


def test_c14_sweep_that_fails_is_logged_and_continues(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        fixture = SyphonFixture(world)
        failures = 0

        def fail_once(event: PairEvent) -> None:
            nonlocal failures
            if isinstance(event, DestinationChanged) and event.is_reached and not failures:
                failures += 1
                raise RuntimeError("listener failed")

        fixture.listener = fail_once
        syphon = await fixture.started()
        destination = syphon._find_destination("orders")
        destination.suspend(ServerBusyError("busy"))  # the sweep forgets this, because no message waits for it
        await asyncio.sleep(60)
        assert failures == 1
        await asyncio.sleep(640)
        assert not syphon._destinations
        await syphon.close()

    with caplog.at_level(logging.ERROR):
        run(scenario)
    assert [record.message for record in caplog.records] == [
        'background task failed owner="syphon" task=InProcessSyphon._sweep error="RuntimeError(\'listener failed\')"'
    ]
