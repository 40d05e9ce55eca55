"""Destinations without messages are closed, even after closing one has failed."""

from __future__ import annotations

import asyncio
import logging

import pytest

from pairbus.pairing.syphon.destination import DeliveryDestination
from tests.pairing.syphon_fixture import SyphonFixture, queues
from tests.simulation.pair_world import PairWorld, run


def test_c14_sweep_that_fails_is_logged_and_started_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    close = DeliveryDestination.close
    failures = [RuntimeError("close failed")]

    async def fail_once(self: DeliveryDestination) -> None:
        if failures:
            raise failures.pop()
        await close(self)

    monkeypatch.setattr(DeliveryDestination, "close", fail_once)

    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders", "others")
        fixture = SyphonFixture(world)
        syphon = await fixture.started()
        fixture.put("orders")
        await asyncio.sleep(700)
        assert not failures
        assert syphon._sweeping is None
        fixture.put("others")
        await asyncio.sleep(700)
        assert not syphon._destinations
        await syphon.close()

    with caplog.at_level(logging.ERROR):
        run(scenario)
    assert [record.message for record in caplog.records] == ['background task failed owner="syphon"']
