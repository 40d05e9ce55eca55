"""Factories of a pair with a syphon end together: five seconds after the first, the other is faulted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from pairbus.client.errors import ClosedError, FactoryFaultedError, MessagingError
from pairbus.client.factory import FactoryState, MessagingFactory
from pairbus.client.message import BrokeredMessage
from pairbus.pairing import NamespacePair, SendAvailabilityPairedNamespaceOptions, SyphonContext, SyphonStatus
from pairbus.pairing.pair import PATIENCE_S, end_together
from tests.simulation.pair_world import PairWorld, run
from tests.waiting import eventually_async

OPEN: Final = FactoryState.OPEN
CLOSED: Final = FactoryState.CLOSED
FAULTED: Final = FactoryState.FAULTED


def test_c17_partner_has_five_seconds() -> None:
    assert PATIENCE_S == 5.0


# Two factories


@asynccontextmanager
async def partners(world: PairWorld) -> AsyncIterator[tuple[MessagingFactory, MessagingFactory]]:
    """Yield two factories that end together."""
    first, second = world.primary_factory(), world.secondary_factory()
    sharing = asyncio.create_task(end_together(first, second))
    await asyncio.sleep(100)
    assert (first.state, second.state) == (OPEN, OPEN)
    yield first, second
    await asyncio.wait_for(sharing, 6)


async def end(factory: MessagingFactory, how: FactoryState) -> None:
    if how is CLOSED:
        await factory.close()
    else:
        factory.fault(ValueError("the test wants that"))


@pytest.mark.parametrize("which", [0, 1], ids=["primary", "secondary"])
@pytest.mark.parametrize("how", [CLOSED, FAULTED], ids=lambda state: state.value)
def test_c17_other_factory_is_faulted_five_seconds_after_the_first_has_ended(which: int, how: FactoryState) -> None:
    async def scenario(world: PairWorld) -> None:
        async with partners(world) as both:
            ended, other = both[which], both[1 - which]
            ended_s = world.loop.time()
            await end(ended, how)
            await asyncio.sleep(ended_s + 4.99 - world.loop.time())
            assert other.state is OPEN
            await asyncio.sleep(0.02)
            assert (ended.state, other.state) == (how, FAULTED)

    run(scenario)


@pytest.mark.parametrize("how", [CLOSED, FAULTED], ids=lambda state: state.value)
def test_c17_faulted_factory_rejects_work_with_the_reason(how: FactoryState) -> None:
    async def scenario(world: PairWorld) -> None:
        world.secondary.create_queue("orders")
        async with partners(world) as (first, second):
            sender = await second.create_message_sender("orders")
            await sender.send(BrokeredMessage())
            await end(first, how)
            await asyncio.sleep(5.1)
            reason = rf"fabrikam.example.* is faulted.*contoso.example.* was {how.value} more than 5 s before"
            with pytest.raises(FactoryFaultedError, match=reason) as caught:
                await second.create_message_sender("orders")
            assert isinstance(caught.value.__cause__, MessagingError)
            with pytest.raises(FactoryFaultedError, match=reason):
                await sender.send(BrokeredMessage())
            with pytest.raises(FactoryFaultedError, match=reason):
                await second.create_message_receiver("orders")

    run(scenario)


def test_c17_pending_receive_raises_when_the_factory_is_faulted() -> None:
    async def scenario(world: PairWorld) -> None:
        world.secondary.create_queue("orders")
        async with partners(world) as (first, second):
            receiver = await second.create_message_receiver("orders")
            receiving = asyncio.create_task(receiver.receive(1, timedelta(hours=1)))
            await asyncio.sleep(1)
            await first.close()
            await asyncio.sleep(5.1)
            with pytest.raises(FactoryFaultedError, match="was closed more than 5 s before"):
                await asyncio.wait_for(receiving, 5)

    run(scenario)


@pytest.mark.parametrize("after_s", [0.0, 0.1, 4.9])
@pytest.mark.parametrize("which", [0, 1], ids=["primary first", "secondary first"])
def test_c17_factories_closed_within_five_seconds_are_not_faulted(after_s: float, which: int) -> None:
    async def scenario(world: PairWorld) -> None:
        async with partners(world) as both:
            ended_s = world.loop.time()
            await both[which].close()
            await asyncio.sleep(max(0.0, ended_s + after_s - world.loop.time()))
            await both[1 - which].close()
        await asyncio.sleep(100)
        assert [factory.state for factory in both] == [CLOSED, CLOSED]
        with pytest.raises(ClosedError) as caught:
            both[1 - which].check_open()
        assert not isinstance(caught.value, FactoryFaultedError)

    run(scenario)


def test_c17_factories_closed_together_are_not_faulted() -> None:
    async def scenario(world: PairWorld) -> None:
        async with partners(world) as both:
            await asyncio.gather(*(factory.close() for factory in both))
        assert [factory.state for factory in both] == [CLOSED, CLOSED]

    run(scenario)


def test_c17_factory_closed_before_the_partnership_counts_from_its_start() -> None:
    async def scenario(world: PairWorld) -> None:
        first, second = world.primary_factory(), world.secondary_factory()
        await first.close()
        sharing = asyncio.create_task(end_together(first, second))
        await asyncio.sleep(4.9)
        assert not second.is_closed
        await asyncio.wait_for(sharing, 0.2)
        assert second.state is FAULTED

    run(scenario)


def test_c17_slow_close_ends_as_closed() -> None:
    async def scenario(world: PairWorld) -> None:
        world.secondary.create_queue("orders")
        async with partners(world) as (first, second):
            await (await second.create_message_sender("orders")).send(BrokeredMessage())
            world.secondary_network.stall()
            closing = asyncio.create_task(second.close())
            await first.close()
            await asyncio.sleep(20)
            assert (first.state, second.state) == (CLOSED, CLOSED)
            await asyncio.wait_for(closing, 20)
        world.secondary_network.cut()
        world.secondary_network.heal()

    run(scenario)


# A pair with a syphon


class QuietSyphon:
    """A third-party engine, which does nothing until it is closed."""

    instances: Final[list[QuietSyphon]] = []

    def __init__(self, context: SyphonContext) -> None:
        self.context = context
        self.is_running = False
        self.resumed: list[str] = []
        QuietSyphon.instances.append(self)

    @property
    def status(self) -> SyphonStatus:
        return SyphonStatus(engine="quiet", receives=0, syphoned=0, dead_lettered=0, waiting={})

    async def start(self) -> None:
        self.is_running = True

    def resume(self, path: str) -> None:
        self.resumed.append(path)

    async def close(self) -> None:
        self.is_running = False


class BrokenSyphon(QuietSyphon):
    """An engine that cannot start."""

    async def start(self) -> None:
        raise MessagingError("this engine does not start")


def are_running() -> list[bool]:
    return [syphon.is_running for syphon in QuietSyphon.instances]


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package with two engines."""
    package = tmp_path / "quiet-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: quiet\nVersion: 1.0\n")
    lines = ["[pairbus.syphons]", f"quiet = {__name__}:QuietSyphon", f"broken = {__name__}:BrokenSyphon"]
    (package / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    QuietSyphon.instances.clear()


def options(world: PairWorld, secondary: MessagingFactory, **given: Any) -> SendAvailabilityPairedNamespaceOptions:
    return SendAvailabilityPairedNamespaceOptions(world.secondary_manager(), secondary, 2, **given)


async def paired(world: PairWorld, **given: Any) -> tuple[MessagingFactory, MessagingFactory, NamespacePair]:
    primary, secondary = world.primary_factory(), world.secondary_factory()
    return primary, secondary, await primary.pair_namespace(options(world, secondary, **given))


@pytest.mark.usefixtures("engines")
def test_c14_engine_of_another_package_is_found_and_gets_the_context() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, secondary, pair = await paired(world, enable_syphon=True, syphon_engine="quiet")
        [syphon] = QuietSyphon.instances
        assert are_running() == [True]
        assert syphon.context.primary is primary
        assert syphon.context.secondary is secondary
        assert syphon.context.backlog_queues == ("contoso/x-servicebus-transfer/0", "contoso/x-servicebus-transfer/1")
        assert not syphon.context.is_held("orders")
        pair.engage("Orders")
        assert syphon.context.is_held("orders")
        assert not syphon.resumed
        pair.release("ORDERS")
        assert not syphon.context.is_held("orders")
        assert syphon.resumed == ["Orders"]
        status = pair.status().syphon
        assert status is not None
        assert status.engine == "quiet"
        await primary.close()
        assert are_running() == [False]
        await secondary.close()

    run(scenario)


@pytest.mark.usefixtures("engines")
@pytest.mark.parametrize("which", [0, 1], ids=["primary", "secondary"])
@pytest.mark.parametrize("how", [CLOSED, FAULTED], ids=lambda state: state.value)
@pytest.mark.parametrize("engine", ["quiet", "in-process"])
def test_c17_factories_of_a_pair_with_a_syphon_end_together(engine: str, which: int, how: FactoryState) -> None:
    async def scenario(world: PairWorld) -> None:
        primary, secondary, _ = await paired(world, enable_syphon=True, syphon_engine=engine)
        ended, other = (primary, secondary)[which], (primary, secondary)[1 - which]
        ended_s = world.loop.time()
        await end(ended, how)
        await asyncio.sleep(ended_s + 4.99 - world.loop.time())
        assert not other.is_closed
        await asyncio.sleep(0.02)
        assert other.state is FAULTED
        with pytest.raises(FactoryFaultedError, match=f"was {how.value} more than 5 s before"):
            await other.create_message_sender("orders")
        await eventually_async(lambda: not any(are_running()))

    run(scenario)


@pytest.mark.usefixtures("engines")
@pytest.mark.parametrize("engine", ["quiet", "in-process"])
def test_c17_pair_can_be_closed_in_either_order(engine: str) -> None:
    async def scenario(world: PairWorld) -> None:
        for turn in (1, -1):
            primary, secondary, _ = await paired(world, enable_syphon=True, syphon_engine=engine)
            for factory in (primary, secondary)[::turn]:
                await factory.close()
            await asyncio.sleep(10)
            assert (primary.state, secondary.state) == (CLOSED, CLOSED)

    run(scenario)


@pytest.mark.parametrize("which", [0, 1], ids=["primary", "secondary"])
@pytest.mark.parametrize("how", [CLOSED, FAULTED], ids=lambda state: state.value)
def test_c17_factory_is_not_faulted_without_a_syphon(which: int, how: FactoryState) -> None:
    async def scenario(world: PairWorld) -> None:
        world.primary.create_queue("orders")
        world.secondary.create_queue("orders")
        primary, secondary, _ = await paired(world)
        ended, other = (primary, secondary)[which], (primary, secondary)[1 - which]
        await end(ended, how)
        await asyncio.sleep(100)
        assert other.state is OPEN
        await (await other.create_message_sender("orders")).send(BrokeredMessage())

    run(scenario)


@pytest.mark.usefixtures("engines")
def test_c17_failed_pairing_creates_no_partnership() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, secondary = world.primary_factory(), world.secondary_factory()
        with pytest.raises(MessagingError, match="does not start"):
            await primary.pair_namespace(options(world, secondary, enable_syphon=True, syphon_engine="broken"))
        await primary.close()
        await asyncio.sleep(10)
        assert secondary.state is OPEN

    run(scenario)


@pytest.mark.usefixtures("engines")
@pytest.mark.parametrize("engine", ["quiet", "in-process"])
@pytest.mark.parametrize("after_ms", [0, 5, 10, 20, 25])
def test_c17_factory_closed_during_pairing_creates_no_partnership(after_ms: int, engine: str) -> None:
    async def scenario(world: PairWorld) -> None:
        primary, secondary = world.primary_factory(), world.secondary_factory()
        given = options(world, secondary, enable_syphon=True, syphon_engine=engine)
        pairing = asyncio.create_task(primary.pair_namespace(given))
        await asyncio.sleep(after_ms / 1_000)
        assert not pairing.done()
        await primary.close()
        with pytest.raises(ClosedError):
            await pairing
        await asyncio.sleep(10)
        assert secondary.state is OPEN
        assert not any(are_running())

    run(scenario)
