"""Pings: their form, their times, that they are never delivered, and the effect of a response."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import pytest

from pairbus.broker import QueueDescription, SubscriptionDescription
from pairbus.client.amqp.sending_link import SendingLink
from pairbus.client.errors import (
    EntityDisabledError,
    EntityNotFoundError,
    MessagingCommunicationError,
    MessagingTimeoutError,
    ServerBusyError,
)
from pairbus.client.factory import MessagingFactory
from pairbus.client.token_provider import Token, TokenProvider
from pairbus.dialect.annotations import PING_CONTENT_TYPE
from pairbus.pairing import FAILURE_RULES, EntityChanged, EntityState, PingSent
from pairbus.pairing.entity import PairedEntity
from pairbus.pairing.events import Listeners
from tests.faults.trouble import Trouble
from tests.pairing.scenes import (
    ATTEMPT_S,
    ORDERS,
    OTHERS,
    Scene,
    begin,
    letter,
    paired,
    seconds,
    until,
)
from tests.simulation.pair_world import PairWorld, run

MOMENT_S: Final = 0.1
NEWS: Final = "news"
OUTAGE: Final = (MessagingTimeoutError, MessagingCommunicationError)


class FactoryThatFailsOnce:
    """A factory whose first sending link fails with an error that is not a ``MessagingError``."""

    def __init__(self, factory: MessagingFactory) -> None:
        self.failures = 0
        self._factory = factory

    def __getattr__(self, name: str) -> Any:
        return getattr(self._factory, name)

    async def open_sending_link(self, path: str, properties: Mapping[str, object] | None = None) -> SendingLink:
        if not self.failures:
            self.failures += 1
            raise RuntimeError("the factory failed")
        return await self._factory.open_sending_link(path, properties)


def test_c13_ping_is_an_empty_message_with_a_time_to_live_of_one_second() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _failed_over(world)
        await scene.heal()
        await asyncio.sleep(61)
        (ping,) = scene.primary.seen
        assert ping.is_ping
        message = ping.message
        assert (message.content_type, message.body) == (PING_CONTENT_TYPE, b"")
        assert message.time_to_live == seconds(1)
        assert message.application_properties == {}
        assert message.session_id

    run(scenario)


def test_c13_each_ping_has_a_unique_session_id() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, ping_s=5)
        for _ in range(4):
            world.primary_network.refuse()
            await (await scene.sender()).send(letter())
            await scene.heal()
            await asyncio.sleep(6)
        assert len({one.message.session_id for one in scene.primary.pings}) == 4

    run(scenario)


def test_c13_ping_that_fails_unexpectedly_is_logged_and_repeated(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: PairWorld) -> None:
        world.primary.create_queue(ORDERS)
        primary = FactoryThatFailsOnce(world.primary_factory())
        listeners = Listeners()
        changes: list[EntityState] = []
        listeners.add(lambda event: changes.append(event.state) if isinstance(event, EntityChanged) else None)
        entity = PairedEntity(
            ORDERS,
            primary,
            failover_interval_s=0,
            ping_interval_s=5,
            rules=FAILURE_RULES,
            listeners=listeners,
        )
        entity.failed(ServerBusyError("busy", entity=ORDERS))
        entity.failed(MessagingCommunicationError("lost", entity=ORDERS))
        await asyncio.sleep(20)
        assert primary.failures == 1
        assert changes[-2:] == [EntityState.FAILED_OVER, EntityState.HEALTHY]
        await entity.close()

    run(scenario)
    (line,) = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert line.startswith('background task failed owner="pings of orders" task=PairedEntity._ping error="RuntimeError')


@pytest.mark.parametrize("ping_s", [1.0, 7.5, 60.0, 1_800.0])
def test_c13_one_ping_is_sent_every_ping_interval(ping_s: float) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _failed_over(world, ping_s=ping_s)
        over_s = scene.changes[-1][0]
        await scene.heal()
        world.primary.trouble_sends(ORDERS, Trouble.BUSY)
        await asyncio.sleep(5 * ping_s + 0.5)
        times_s = [at_s for at_s, _ in world.primary.denied]
        assert times_s == pytest.approx([over_s + turn * ping_s for turn in range(1, 6)], abs=MOMENT_S)
        assert scene.entity().pings == 5

    run(scenario)


def test_c13_only_failed_over_entities_are_pinged() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(
            world, interval_s=600, ping_s=1, factory=world.primary_factory(operation_timeout=seconds(2))
        )
        sender = await scene.sender()
        await sender.send(letter())
        await asyncio.sleep(600)
        assert not scene.primary.pings
        world.primary.trouble_sends(ORDERS, Trouble.LOST)
        sending = begin(sender.send(letter()))
        await asyncio.gather(sending, return_exceptions=True)
        world.primary.take_sends(ORDERS)
        await asyncio.sleep(500)
        assert scene.state() is EntityState.FAILING
        assert not scene.primary.pings
        assert not _pings(scene)

    run(scenario)


def test_c13_entity_has_one_ping_task_for_all_its_senders() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, ping_s=10)
        senders = [await scene.sender(path) for path in (ORDERS, OTHERS, "ORDERS") for _ in range(10)]
        world.primary_network.refuse()
        await asyncio.gather(*(sender.send(letter()) for sender in senders))
        await scene.heal()
        for path in (ORDERS, OTHERS):
            world.primary.trouble_sends(path, Trouble.BUSY)
        for _ in range(10):
            await asyncio.gather(*(sender.send(letter()) for sender in senders))
            await asyncio.sleep(10)
        assert len(world.primary.denied) in {18, 20}  # two entities, every ten seconds
        assert {path: sum(event.path == path for event in _pings(scene)) for path in (ORDERS, OTHERS)} == {
            ORDERS: len(world.primary.denied) // 2,
            OTHERS: len(world.primary.denied) // 2,
        }

    run(scenario)


def test_c13_each_factory_pings_independently() -> None:
    async def scenario(world: PairWorld) -> None:
        first, second = await paired(world, ping_s=10), await paired(world, ping_s=10)
        world.primary_network.refuse()
        await (await first.sender()).send(letter())
        await (await second.sender()).send(letter())
        await first.heal()
        await asyncio.sleep(11)
        assert len([one for one in first.primary.seen if one.is_ping]) == 2
        assert first.state() is second.state() is EntityState.HEALTHY

    run(scenario)


@pytest.mark.parametrize(
    "kind",
    [
        QueueDescription(),
        QueueDescription(requires_session=True),
        QueueDescription(requires_duplicate_detection=True),
        QueueDescription(partitioned=True, max_size_megabytes=1024),
        QueueDescription(dead_letter_on_expiration=True),
    ],
    ids=["plain", "sessions", "duplicate detection", "partitioned", "dead letters"],
)
def test_c13_queue_confirms_a_ping_and_never_delivers_it(kind: QueueDescription) -> None:
    async def scenario(world: PairWorld) -> None:
        world.primary.create_queue(ORDERS, kind)
        scene = await _failed_over(world, ping_s=5, session_id="s")
        before = world.primary.info(ORDERS)
        await scene.heal()
        await asyncio.sleep(4)
        assert not scene.primary.pings
        await asyncio.sleep(60)
        assert len(scene.primary.pings) == 1
        assert scene.state() is EntityState.HEALTHY
        assert await scene.delivered() == []
        assert await scene.delivered(f"{ORDERS}/$DeadLetterQueue") == []
        after = world.primary.info(ORDERS)
        assert (after.ready_count, after.dead_letter_count, after.size_bytes) == (0, 0, 0)
        assert after.ready_count == before.ready_count

    run(scenario)


def test_c13_topic_confirms_a_ping_and_no_subscription_gets_it() -> None:
    async def scenario(world: PairWorld) -> None:
        world.primary.create_topic(NEWS, ["plain"])
        world.primary.create_subscription(NEWS, "sessions", SubscriptionDescription(requires_session=True))
        world.primary.create_subscription(NEWS, "dead", SubscriptionDescription(dead_letter_on_expiration=True))
        scene = await _failed_over(world, path=NEWS, ping_s=5)
        await scene.heal()
        await asyncio.sleep(60)
        assert len(scene.primary.pings) == 1
        assert scene.state(NEWS) is EntityState.HEALTHY
        for name in ("plain", "sessions", "dead"):
            path = f"{NEWS}/Subscriptions/{name}"
            assert await scene.delivered(path) == await scene.delivered(f"{path}/$DeadLetterQueue") == []
            info = world.primary.info(path)
            assert (info.ready_count, info.dead_letter_count) == (0, 0)

    run(scenario)


def test_c13_successful_ping_switches_all_senders_back_and_stops_pings() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, ping_s=30)
        clients = [await scene.sender() for _ in range(5)]
        queue = await scene.factory.create_queue_client(ORDERS)
        world.primary_network.refuse()
        await asyncio.gather(*(sender.send(letter()) for sender in clients), queue.send(letter()))
        await scene.heal()
        await until(lambda: scene.state() is EntityState.HEALTHY)
        scene.secondary.seen.clear()
        await asyncio.gather(*(sender.send(letter("home")) for sender in clients), queue.send(letter("home")))
        assert (await scene.delivered()).count(b"home") == 6
        assert scene.secondary.seen == []
        await asyncio.sleep(600)
        assert len(scene.primary.pings) == 1
        assert scene.entity().cause is None
        assert [state for _, _, state in scene.changes] == [
            EntityState.FAILING,
            EntityState.FAILED_OVER,
            EntityState.HEALTHY,
        ][-len(scene.changes) :]

    run(scenario)


def test_c13_entities_recover_independently() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, ping_s=10)
        world.primary_network.refuse()
        for path in (ORDERS, OTHERS):
            await (await scene.sender(path)).send(letter())
        world.primary.disable(OTHERS)
        await scene.heal()
        await asyncio.sleep(60)
        assert scene.state() is EntityState.HEALTHY
        assert scene.state(OTHERS) is EntityState.FAILED_OVER
        assert isinstance(scene.entity(OTHERS).cause, EntityDisabledError)
        world.primary.enable(OTHERS)
        await asyncio.sleep(11)
        assert scene.state(OTHERS) is EntityState.HEALTHY

    run(scenario)


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("refuse", MessagingCommunicationError),
        ("stall", OUTAGE),
        ("hang", OUTAGE),
        ("disable", EntityDisabledError),
        ("delete", EntityNotFoundError),
        ("busy", ServerBusyError),
    ],
)
def test_c13_messages_stay_in_the_backlog_while_pings_fail(what: str, error: Any) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _failed_over(world, ping_s=10)
        await scene.heal()
        match what:
            case "hang":
                world.primary.trouble_sends(ORDERS, Trouble.LOST)
            case "busy":
                world.primary.trouble_sends(ORDERS, Trouble.BUSY)
            case "disable":
                world.primary.disable(ORDERS)
            case "delete":
                world.primary.delete(ORDERS)
            case _:
                await scene.spoil(what)
        await asyncio.sleep(60)
        assert scene.state() is EntityState.FAILED_OVER
        pings = _pings(scene)
        assert len(pings) in {5, 6}
        assert all(isinstance(ping.cause, error) for ping in pings)
        assert isinstance(scene.entity().cause, error)
        await (await scene.sender()).send(letter("diverted"))
        assert b"diverted" in await scene.bodies()

    run(scenario)


@pytest.mark.parametrize("what", ["hang", "stall", "drop", "slow"])
@pytest.mark.parametrize("ping_s", [1.0, 7.5])
def test_c13_hanging_ping_does_not_delay_the_next_one(what: str, ping_s: float) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _failed_over(world, ping_s=ping_s)
        over_s = scene.changes[-1][0]
        await scene.heal()
        match what:
            case "hang":
                world.primary.trouble_sends(ORDERS, Trouble.LOST)
            case "slow":
                world.primary_network.slow(20)
            case _:
                await scene.spoil(what)
        for turn in range(1, 21):
            await asyncio.sleep(over_s + turn * ping_s + MOMENT_S - scene.now_s)
            assert scene.entity().pings == turn
            assert len(_pings(scene)) >= turn - 1  # the previous one has ended
        assert scene.state() is EntityState.FAILED_OVER

    run(scenario)


@pytest.mark.parametrize("silence_s", [2.5, 3.0, 11.0, 16.0, 23.7])
@pytest.mark.parametrize("has_connection", [True, False])
def test_c13_recovery_after_a_black_hole_takes_one_attempt_and_one_interval(
    silence_s: float, has_connection: bool
) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, ping_s=1)
        sender = await scene.sender()
        if has_connection:
            await sender.send(letter("before"))
        world.primary_network.stall()
        await sender.send(letter("diverted"))
        await asyncio.sleep(silence_s)
        world.primary_network.let_new_through()  # connections opened meanwhile never get a response
        await asyncio.sleep(ATTEMPT_S + 1 + MOMENT_S)
        assert scene.state() is EntityState.HEALTHY
        assert len(scene.primary.pings) == 1

    run(scenario)


def test_c13_entity_that_responds_slower_than_it_is_pinged_recovers() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _failed_over(world, ping_s=1)
        await scene.heal()
        world.primary_network.slow(0.55)
        await asyncio.sleep(30)
        assert scene.state() is EntityState.HEALTHY

    run(scenario)


def test_c13_second_outage_is_pinged_like_the_first() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _failed_over(world, ping_s=10)
        await scene.heal()
        await asyncio.sleep(25)
        world.primary_network.refuse()
        await (await scene.sender()).send(letter())
        over_s = scene.changes[-1][0]
        await scene.heal()
        scene.primary.seen.clear()
        await asyncio.sleep(25)
        assert [one.at_s for one in scene.primary.pings] == pytest.approx([over_s + 10], abs=MOMENT_S)

    run(scenario)


def test_c13_pings_stop_with_the_factory() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _failed_over(world, ping_s=5)
        world.primary_network.stall()
        await asyncio.sleep(6)  # a ping is under way
        await scene.factory.close()
        await scene.heal()
        await asyncio.sleep(60)
        assert not scene.primary.pings

    run(scenario)


async def _failed_over(
    world: PairWorld, path: str = ORDERS, ping_s: float = 60.0, session_id: str | None = None
) -> Scene:
    """Return a scene with an entity that has failed over, because the primary refuses connections."""
    scene = await paired(world, ping_s=ping_s)
    world.primary_network.refuse()
    await (await scene.sender(path)).send(letter(session_id=session_id))
    assert scene.state(path) is EntityState.FAILED_OVER
    return scene


def _pings(scene: Scene) -> list[PingSent]:
    return [event for event in scene.events if isinstance(event, PingSent)]


def test_c13_failing_token_provider_does_not_end_the_pings() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        sender = await scene.sender()
        await sender.send(letter("first"))
        world.primary_network.refuse()
        await sender.send(letter("diverted"))
        provider, broken = scene.factory._credentials, _Broken()
        assert isinstance(provider, TokenProvider)
        scene.factory._credentials = broken
        world.primary_network.heal()
        await asyncio.sleep(3.5 * scene.pair._settings.ping_interval_s)
        assert scene.state() is EntityState.FAILED_OVER
        broken.mended = provider
        await asyncio.sleep(1.5 * scene.pair._settings.ping_interval_s)
        assert scene.state() is EntityState.HEALTHY

    run(scenario)


class _Broken(TokenProvider):
    def __init__(self) -> None:
        self.mended: TokenProvider | None = None

    async def get_token(self, audience: str) -> Token:
        if self.mended is not None:
            return await self.mended.get_token(audience)
        raise RuntimeError(f"the application's own mistake with {audience}")
