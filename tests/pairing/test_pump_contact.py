"""Whether the primary is away, or only one of its entities: the others must not wait for one that hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from pairbus.broker import QueueDescription
from pairbus.client.amqp.sending_link import SendingLink
from pairbus.client.errors import MessagingCommunicationError, MessagingError, MessagingTimeoutError, UnauthorizedError
from pairbus.client.settings import MessagingFactorySettings
from pairbus.pairing.homecoming.contact import Contact, Namespace
from pairbus.pairing.pump import InProcessSyphon
from pairbus.server.amqp.connection import AmqpConnection
from tests.faults.trouble import Trouble
from tests.pairing.pumping import ATTEMPT_S, Pumping, queues
from tests.pairing.scenes import OUTAGES, heal, spoil
from tests.simulation.pair_world import PairWorld, run


@pytest.mark.parametrize("hanging", ["orders", "Orders", "visits"])
def test_c15_one_that_does_not_answer_an_attach_holds_up_nobody_else(hanging: str) -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders", "others")
        world.primary.create_queue("visits", QueueDescription(requires_session=True))
        pumping = Pumping(world)
        with _mute(hanging):
            syphon = await pumping.started()
            late = pumping.put(hanging, session_id="a")
            await asyncio.sleep(60)
            assert not _contact(syphon).is_away
            for _ in range(3):
                ids = pumping.put("others", 5)
                await pumping.until(lambda ids=ids: set(ids) <= set(pumping.home("others")), 2.0)  # type: ignore[misc]
                await asyncio.sleep(600)
        await pumping.drained(100.0)
        assert pumping.home(hanging) == late
        assert pumping.changes(hanging) == [False, True]
        assert pumping.changes("others") == []
        await syphon.close()

    run(scenario)


def test_c15_several_that_hang_hold_up_nobody_else_either() -> None:
    async def scenario(world: PairWorld) -> None:
        hanging = [f"hanging-{number}" for number in range(5)]
        queues(world.primary, "others", *hanging)
        pumping = Pumping(world, queues=2)
        with _mute(*hanging):
            syphon = await pumping.started()
            for number, path in enumerate(hanging):
                pumping.put(path, queue=number % 2)
            await asyncio.sleep(60)
            ids = pumping.put("others", 5, queue=1)
            await pumping.until(lambda: pumping.home("others") == ids, 2.0)
        await pumping.drained(100.0)
        await syphon.close()

    run(scenario)


def test_c15_one_that_does_not_confirm_holds_up_nobody_else() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders", "others")
        pumping = Pumping(world)
        world.primary.trouble_sends("orders", Trouble.LOST)
        syphon = await pumping.started()
        pumping.put("orders")
        await asyncio.sleep(60)
        ids = pumping.put("others", 5)
        await pumping.until(lambda: pumping.home("others") == ids, 2.0)
        assert not _contact(syphon).is_away
        world.primary.take_sends("orders")
        await pumping.drained(100.0)
        await syphon.close()

    run(scenario)


@pytest.mark.parametrize("what", OUTAGES)
def test_c15_while_the_whole_primary_is_away_nothing_is_received_and_then_all_of_it(what: str) -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders", "others", requires_duplicate_detection=True)
        pumping = Pumping(world)
        syphon = await pumping.started()
        ids = pumping.put("orders")
        await pumping.drained()
        await spoil(world.primary, world.primary_road, what)
        ids += pumping.put("orders")
        await pumping.until(lambda: _contact(syphon).is_away, 30.0)
        receives = syphon._readers[0].receives
        others = pumping.put("others", 3)
        await asyncio.sleep(300)
        assert syphon._readers[0].receives <= receives + 1  # the one that was waiting
        await heal(world.primary, world.primary_road)
        await pumping.drained(60.0)
        assert (pumping.home("orders"), pumping.home("others")) == (ids, others)
        await syphon.close()

    run(scenario)


# What counts as an answer.


class _Primary(Namespace):
    """A namespace that is asked, and answers as it is told to."""

    def __init__(self, *answers: MessagingError | None) -> None:
        self.asked: list[float] = []
        self._answers = [*answers]

    @property
    def send_attempt_s(self) -> float:
        return ATTEMPT_S

    @property
    def settings(self) -> MessagingFactorySettings:
        return MessagingFactorySettings()

    def check_open(self) -> None:
        """It is."""

    async def open_sending_link(self, path: str, properties: Mapping[str, object] | None = None) -> SendingLink:
        raise AssertionError(f"an entity was asked: {path}, {properties}")

    async def greet(self, path: str) -> None:
        assert path == "orders"
        self.asked.append(asyncio.get_running_loop().time())
        answer = self._answers.pop(0)
        if isinstance(answer, MessagingTimeoutError):
            await asyncio.get_running_loop().create_future()
        if answer is not None:
            raise answer

    def reached(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("answer", [None, UnauthorizedError("no")])
def test_c15_any_answer_is_one(answer: MessagingError | None) -> None:
    async def scenario(world: PairWorld) -> None:
        primary = _Primary(answer)
        contact = Contact(primary, lambda: None)
        assert not await contact.doubt("orders", world.loop.time())
        assert primary.asked == [world.loop.time()]
        await contact.close()

    run(scenario)


@pytest.mark.parametrize("answer", [MessagingTimeoutError("silence"), MessagingCommunicationError("it is gone")])
def test_c15_silence_is_none_and_it_is_asked_less_and_less_often(answer: MessagingError) -> None:
    async def scenario(world: PairWorld) -> None:
        primary = _Primary(answer, answer, answer, answer, None)
        changes: list[float] = []
        contact = Contact(primary, lambda: changes.append(world.loop.time()))
        asking = [asyncio.ensure_future(contact.doubt("orders", world.loop.time())) for _ in range(3)]
        assert await asyncio.gather(*asking) == [True] * 3  # who doubts at the same time shares the answer
        await contact.wait()
        assert not contact.is_away
        pauses = [later - before for before, later in zip(primary.asked, primary.asked[1:], strict=False)]
        waited_s = ATTEMPT_S if isinstance(answer, MessagingTimeoutError) else 0.0
        assert pauses == pytest.approx([pause_s + waited_s for pause_s in (1, 2, 4, 8)])
        assert len(changes) == 2
        await contact.close()

    run(scenario)


def test_c15_who_has_answered_since_is_not_asked() -> None:
    async def scenario(world: PairWorld) -> None:
        primary = _Primary()
        contact = Contact(primary, lambda: None)
        since_s = world.loop.time()
        await asyncio.sleep(1)
        contact.answered()
        assert not await contact.doubt("orders", since_s)
        assert primary.asked == []
        await contact.close()

    run(scenario)


# Helpers.


def _contact(syphon: InProcessSyphon) -> Contact:
    return syphon._contact


@contextmanager
def _mute(*paths: str) -> Iterator[None]:
    """Let servers leave it unanswered when somebody attaches to send to one of these; all else goes on."""
    attached, muted = AmqpConnection._attached, {*paths}

    def sometimes(connection: AmqpConnection, event: Any) -> Any:
        is_muted = getattr(event.attach.target, "address", None) in muted
        return None if is_muted else attached(connection, event)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AmqpConnection, "_attached", sometimes)
        yield
    muted.clear()  # connections that are open go on with it
