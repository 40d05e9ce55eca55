"""Outages of the whole primary and of single entities: a hanging entity must not delay the others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from pairbus.broker import QueueDescription
from pairbus.client.amqp.sending_link import SendingLink
from pairbus.client.errors import MessagingCommunicationError, MessagingError, MessagingTimeoutError, UnauthorizedError
from pairbus.client.settings import MessagingFactorySettings
from pairbus.pairing.syphon import InProcessSyphon
from pairbus.pairing.syphon.destination import NamespaceHealth, ReachableNamespace
from tests.faults.trouble import Trouble
from tests.pairing.scenes import OUTAGES, heal, spoil
from tests.pairing.syphon_fixture import ATTEMPT_S, SyphonFixture, queues
from tests.simulation.pair_world import PairWorld, run


@pytest.mark.parametrize("hanging", ["orders", "Orders", "visits"])
def test_c15_unanswered_attach_does_not_delay_other_destinations(hanging: str) -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders", "others")
        world.primary.create_queue("visits", QueueDescription(requires_session=True))
        fixture = SyphonFixture(world)
        with _mute(world, hanging):
            syphon = await fixture.started()
            late = fixture.put(hanging, session_id="a")
            await asyncio.sleep(60)
            assert not _contact(syphon).is_away
            for _ in range(3):
                ids = fixture.put("others", 5)
                await fixture.until(lambda ids=ids: set(ids) <= set(fixture.delivered("others")), 2.0)  # type: ignore[misc]
                await asyncio.sleep(600)
        await fixture.drained(100.0)
        assert fixture.delivered(hanging) == late
        assert fixture.changes(hanging) == [False, True]
        assert fixture.changes("others") == []
        await syphon.close()

    run(scenario)


def test_c15_several_hanging_destinations_do_not_delay_others() -> None:
    async def scenario(world: PairWorld) -> None:
        hanging = [f"hanging-{number}" for number in range(5)]
        queues(world.primary, "others", *hanging)
        fixture = SyphonFixture(world, queues=2)
        with _mute(world, *hanging):
            syphon = await fixture.started()
            for number, path in enumerate(hanging):
                fixture.put(path, queue=number % 2)
            await asyncio.sleep(60)
            ids = fixture.put("others", 5, queue=1)
            await fixture.until(lambda: fixture.delivered("others") == ids, 2.0)
        await fixture.drained(100.0)
        await syphon.close()

    run(scenario)


def test_c15_unconfirmed_send_does_not_delay_other_destinations() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders", "others")
        fixture = SyphonFixture(world)
        world.primary.trouble_sends("orders", Trouble.LOST)
        syphon = await fixture.started()
        fixture.put("orders")
        await asyncio.sleep(60)
        ids = fixture.put("others", 5)
        await fixture.until(lambda: fixture.delivered("others") == ids, 2.0)
        assert not _contact(syphon).is_away
        world.primary.take_sends("orders")
        await fixture.drained(100.0)
        await syphon.close()

    run(scenario)


@pytest.mark.parametrize("what", OUTAGES)
def test_c15_nothing_is_received_while_the_primary_is_unreachable_and_all_after_that(what: str) -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders", "others", requires_duplicate_detection=True)
        fixture = SyphonFixture(world)
        syphon = await fixture.started()
        ids = fixture.put("orders")
        await fixture.drained()
        await spoil(world.primary, world.primary_network, what)
        ids += fixture.put("orders")
        await fixture.until(lambda: _contact(syphon).is_away, 30.0)
        receives = syphon._runners[0].source.receives
        others = fixture.put("others", 3)
        await asyncio.sleep(300)
        assert syphon._runners[0].source.receives <= receives + 1  # the pending receive
        await heal(world.primary, world.primary_network)
        await fixture.drained(60.0)
        assert (fixture.delivered("orders"), fixture.delivered("others")) == (ids, others)
        await syphon.close()

    run(scenario)


# Responses.


class _Primary(ReachableNamespace):
    """A namespace whose responses to probes are scripted."""

    def __init__(self, *answers: MessagingError | None) -> None:
        self.probes_s: list[float] = []
        self._answers = [*answers]

    @property
    def send_attempt_s(self) -> float:
        return ATTEMPT_S

    @property
    def settings(self) -> MessagingFactorySettings:
        return MessagingFactorySettings()

    def check_open(self) -> None:
        """Do nothing: it is open."""

    async def open_sending_link(self, path: str, properties: Mapping[str, object] | None = None) -> SendingLink:
        raise AssertionError(f"an entity was asked: {path}, {properties}")

    async def greet(self, path: str) -> None:
        assert path == "orders"
        self.probes_s.append(asyncio.get_running_loop().time())
        answer = self._answers.pop(0)
        if isinstance(answer, MessagingTimeoutError):
            await asyncio.get_running_loop().create_future()
        if answer is not None:
            raise answer

    def reached(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("answer", [None, UnauthorizedError("no")])
def test_c15_any_response_counts_as_reachable(answer: MessagingError | None) -> None:
    async def scenario(world: PairWorld) -> None:
        primary = _Primary(answer)
        contact = NamespaceHealth(primary, lambda: None)
        assert not await contact.doubt("orders", world.loop.time())
        assert primary.probes_s == [world.loop.time()]
        await contact.close()

    run(scenario)


@pytest.mark.parametrize("answer", [MessagingTimeoutError("silence"), MessagingCommunicationError("it is gone")])
def test_c15_no_response_counts_as_unreachable_and_probes_back_off(answer: MessagingError) -> None:
    async def scenario(world: PairWorld) -> None:
        primary = _Primary(answer, answer, answer, answer, None)
        changes: list[float] = []
        contact = NamespaceHealth(primary, lambda: changes.append(world.loop.time()))
        asking = [asyncio.ensure_future(contact.doubt("orders", world.loop.time())) for _ in range(3)]
        assert await asyncio.gather(*asking) == [True] * 3  # concurrent callers share one probe
        await contact.wait()
        assert not contact.is_away
        pauses = [later - before for before, later in zip(primary.probes_s, primary.probes_s[1:], strict=False)]
        waited_s = ATTEMPT_S if isinstance(answer, MessagingTimeoutError) else 0.0
        assert pauses == pytest.approx([pause_s + waited_s for pause_s in (1, 2, 4, 8)])
        assert len(changes) == 2
        await contact.close()

    run(scenario)


def test_c15_namespace_that_has_responded_since_is_not_probed() -> None:
    async def scenario(world: PairWorld) -> None:
        primary = _Primary()
        contact = NamespaceHealth(primary, lambda: None)
        since_s = world.loop.time()
        await asyncio.sleep(1)
        contact.answered()
        assert not await contact.doubt("orders", since_s)
        assert primary.probes_s == []
        await contact.close()

    run(scenario)


# Helpers.


def _contact(syphon: InProcessSyphon) -> NamespaceHealth:
    return syphon._health


@contextmanager
def _mute(world: PairWorld, *paths: str) -> Iterator[None]:
    """Let the primary ignore attaches of senders to these paths; everything else works."""
    for path in paths:
        world.primary.trouble_sends(path, Trouble.UNATTACHED)
    yield
    for path in paths:
        world.primary.take_sends(path)
