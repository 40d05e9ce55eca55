"""Diversion: the choice of a backlog queue, the diverted form, and failing backlog queues."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final
from uuid import UUID

import pytest

from pairbus.broker import QueueDescription, Right
from pairbus.client.errors import (
    BacklogUnavailableError,
    EntityDisabledError,
    EntityNotFoundError,
    MessagingCommunicationError,
    MessagingError,
    MessagingTimeoutError,
    ServerBusyError,
)
from pairbus.client.message import AmqpView, BodyKind, BrokeredMessage
from pairbus.client.received_message import MessageState, ReceivedMessage
from pairbus.client.sender import MessageSender
from pairbus.dialect.transfer import PATH, SCHEDULED_ENQUEUE_TIME, SESSION_ID, TIME_TO_LIVE
from pairbus.pairing import BacklogQueueChanged
from pairbus.wire import Byte, Float, Int, Sections, Symbol, UByte, UInt, ULong
from tests.faults.fault import Fault, Kind, Way
from tests.faults.trouble import Trouble
from tests.pairing.scenes import (
    ATTEMPT_S,
    ORDERS,
    OTHERS,
    Scene,
    allow,
    app_manager,
    backlog_path,
    begin,
    letter,
    letters,
    paired,
    seconds,
    texts,
    took,
)
from tests.simulation.pair_world import PairWorld, run

MOMENT_S: Final = 0.1
TROUBLES: Final = ("disabled", "deleted", "busy", "hanging")
OUTAGE: Final = (MessagingTimeoutError, MessagingCommunicationError)
KINDS: Final[Mapping[str, Callable[[MessageSender], Any]]] = {
    "a message": lambda sender: sender.send(letter("0")),
    "a list": lambda sender: sender.send(letters(3)),
    "a batch": lambda sender: sender.send_batch(letters(3)),
}
LATER: Final = datetime(2030, 1, 1, 12, tzinfo=UTC)


# C10: each sender picks a queue, and keeps it.


def test_c10_sender_picks_a_random_queue_and_keeps_it() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=5)
        scene.pair.engage()
        senders = [await scene.sender() for _ in range(30)]
        for turn in range(4):
            await asyncio.gather(*(sender.send(letter(f"{name}/{turn}")) for name, sender in enumerate(senders)))
        queues = [{_name(message) for message in await scene.queue(index)} for index in range(5)]
        assert sum(map(len, queues)) == 30  # no message is in two queues
        assert sum(map(bool, queues)) > 1
        assert len(await scene.backlog()) == 120

    run(scenario)


def test_c10_sender_changes_its_queue_only_after_a_failure() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=5, ping_s=5)
        sender = await scene.sender()
        for _ in range(6):  # several outages
            world.primary_network.refuse()
            await sender.send(letter())
            await scene.heal()
            await asyncio.sleep(6)
            await sender.send(letter("home"))
        assert sorted([len(await scene.queue(index)) for index in range(5)]) == [0, 0, 0, 0, 6]

    run(scenario)


@pytest.mark.parametrize("trouble", ["disabled", "busy", "hanging"])
def test_c10_failed_queue_is_left_by_all_senders_and_returns(trouble: str) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=3)
        scene.pair.engage()
        senders = [await scene.sender() for _ in range(12)]
        await asyncio.gather(*(sender.send(letter("first")) for sender in senders))
        _spoil_queue(world, 1, trouble)
        longest_s = ATTEMPT_S + MOMENT_S if trouble == "hanging" else MOMENT_S
        assert await took(_all(sender.send(letter("second")) for sender in senders)) < longest_s
        assert _used(scene) == [True, False, True]
        assert _queue_events(scene) == [(backlog_path(1), False)]
        scene.secondary.seen.clear()
        new = await scene.sender(OTHERS)
        await new.send(letter("third"))
        assert scene.secondary.seen[0].path != backlog_path(1)
        _heal_queue(world, 1, trouble)
        scene.secondary.watch()
        for _ in range(60):
            await asyncio.sleep(1)
            await senders[0].send(letter("later"))
        assert _used(scene) == [True, True, True]
        assert _queue_events(scene)[-1] == (backlog_path(1), True)
        assert Counter(await scene.bodies()) == {b"first": 12, b"second": 12, b"third": 1, b"later": 60}

    run(scenario)


def test_c10_sends_waiting_for_a_hanging_queue_change_it_together() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=2)
        scene.pair.engage()
        world.secondary.trouble_sends(backlog_path(0), Trouble.LOST)
        senders = [await scene.sender() for _ in range(20)]
        work = [sender.send(letter(f"{number}-{turn}")) for number, sender in enumerate(senders) for turn in range(3)]
        assert await took(_all(work)) < ATTEMPT_S + MOMENT_S
        assert len(await scene.queue(1)) == 60
        late = [await scene.sender() for _ in range(10)]
        assert await took(_all(sender.send(letter("late")) for sender in late)) < ATTEMPT_S + MOMENT_S

    run(scenario)


def test_c10_working_queue_is_found_although_all_others_hang() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=5, factory=world.primary_factory(operation_timeout=seconds(30)))
        scene.pair.engage()
        for index in range(4):
            world.secondary.trouble_sends(backlog_path(index), Trouble.LOST)
        senders = [await scene.sender() for _ in range(10)]
        await asyncio.gather(*(sender.send(letter(str(number))) for number, sender in enumerate(senders)))
        assert sorted(await scene.bodies()) == texts(10)

    run(scenario)


def test_c10_queue_out_of_rotation_is_retried_by_one_send_at_a_time() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=2)
        scene.pair.engage()
        world.secondary.trouble_sends(backlog_path(0), Trouble.BUSY)
        senders = [await scene.sender() for _ in range(10)]
        for _ in range(150):
            await asyncio.gather(*(sender.send(letter()) for sender in senders))
            await asyncio.sleep(1)
        times_s = [at_s for at_s, _ in world.secondary.denied]
        first_s = [at_s for at_s in times_s if at_s < times_s[0] + 1]
        trials_s = [times_s[0], *times_s[len(first_s) :]]
        gaps_s = [later - earlier for earlier, later in pairwise(trials_s)]
        assert all(gap_s >= 10 for gap_s in gaps_s)  # the pause of a busy queue
        assert gaps_s == sorted(gaps_s)
        assert len(gaps_s) < 6
        assert len(await scene.queue(1)) == 1_500

    run(scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_c10_error_lists_every_cause_when_no_queue_is_left(kind: str) -> None:
    async def scenario(world: PairWorld) -> None:
        allow(world.secondary, Right.MANAGE)
        factory = world.primary_factory(operation_timeout=seconds(30))
        scene = await paired(world, count=4, factory=factory, manager=app_manager(world))
        allow(world.secondary, Right.LISTEN)  # so that the deleted queue cannot be created again
        sender = await scene.sender()
        for index, trouble in enumerate(TROUBLES):
            _spoil_queue(world, index, trouble)
        world.primary_network.refuse()
        began_s = scene.now_s
        with pytest.raises(BacklogUnavailableError) as caught:
            await KINDS[kind](sender)
        assert scene.now_s - began_s < 30 + ATTEMPT_S + MOMENT_S
        error = caught.value
        assert [*error.causes] == [backlog_path(index) for index in range(4)]
        kinds: list[Any] = [EntityDisabledError, EntityNotFoundError, ServerBusyError, OUTAGE]
        assert all(isinstance(cause, kind) for cause, kind in zip(error.causes.values(), kinds, strict=True))
        assert all(path in str(error) for path in error.causes)
        assert (error.entity, error.is_transient) == (ORDERS, True)
        assert isinstance(error.__cause__, MessagingError)
        assert await scene.delivered() == []
        for index, trouble in enumerate(TROUBLES):
            _heal_queue(world, index, trouble)
        assert await scene.bodies() == []  # the caller keeps the message
        await sender.send(letter("again"))
        assert await scene.bodies() == [b"again"]

    run(scenario)


@pytest.mark.parametrize("what", ["refuse", "hide", "stall", "kill"])
def test_c10_send_raises_in_time_with_both_namespaces_down_and_works_afterwards(what: str) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=3, factory=world.primary_factory(operation_timeout=seconds(20)))
        sender = await scene.sender()
        world.primary_network.refuse()
        network = world.secondary_network
        match what:
            case "refuse":
                network.refuse()
            case "hide":
                network.cut()
                network.hide()
            case "stall":
                network.stall()
            case _:
                world.secondary.kill()
        began_s = scene.now_s
        with pytest.raises(BacklogUnavailableError) as caught:
            await sender.send(letter("lost"))
        assert scene.now_s - began_s < 20 + 2 * ATTEMPT_S + MOMENT_S
        assert len(caught.value.causes) == 3
        waiting = begin(sender.send(letter("waits")))
        await asyncio.sleep(5)
        if what == "kill":
            world.secondary.start()
        network.cut()
        network.heal()
        await waiting
        assert (await scene.bodies()).count(b"waits") == 1

    run(scenario)


def test_c10_sender_waits_for_a_retry_that_is_due_before_its_timeout() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=2)
        scene.pair.engage()
        for index in range(2):
            world.secondary.disable(backlog_path(index))
        sender = await scene.sender()
        sending = begin(sender.send(letter("patient")))
        await asyncio.sleep(10)
        assert not sending.done()
        world.secondary.enable(backlog_path(1))
        assert await took(_all([_done(sending)])) < 20
        assert [message.body for message in await scene.queue(1)] == [b"patient"]

    run(scenario)


def test_c10_confirmed_messages_of_a_list_are_not_diverted() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=1)
        sender = await scene.sender()
        await sender.send(letter("opens the link"))
        lane = world.primary_network.open_relays[0].up
        lane.expect([Fault(kind=Kind.STALL, way=Way.UP, after_bytes=lane.passed_bytes + 350_000)])
        messages = [BrokeredMessage(bytes(100_000), message_id=str(number)) for number in range(9)]
        await sender.send(messages)
        home = [message.message_id for message in await scene.messages()][1:]
        away = [message.message_id for message in await scene.backlog()]
        assert home
        assert away
        assert [*home, *away] == [str(number) for number in range(9)]

    run(scenario)


def test_c10_messages_confirmed_by_a_backlog_queue_are_not_sent_to_another() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=2)
        scene.pair.engage()
        sender = await scene.sender()
        await sender.send(letter("chooses"))
        (chosen,) = {one.path for one in scene.secondary.seen}
        scene.secondary.on_seen = lambda: world.secondary.trouble_sends(chosen, Trouble.LOST)
        messages = [BrokeredMessage(bytes(100_000), message_id=str(number)) for number in range(9)]
        await sender.send(messages)
        ids = [message.message_id for message in await scene.backlog()]
        assert sorted(one for one in ids if one != "chooses") == [str(number) for number in range(9)]
        assert all([len(await scene.queue(index)) > 1 for index in range(2)])

    run(scenario)


def test_c10_queue_with_a_lower_size_limit_than_known_does_not_block_a_message() -> None:
    async def scenario(world: PairWorld) -> None:
        small = QueueDescription(max_message_bytes=100_000, max_delivery_count=1_000)
        world.secondary.create_queue(backlog_path(1), small)
        host, deny = world.secondary.host, world.secondary.host.deny
        host.deny = lambda what, at: "busy" if (what, str(at)) == ("attach", backlog_path(1)) else None
        scene = await paired(world, count=2)
        host.deny = deny
        senders = [await scene.sender() for _ in range(10)]
        message = BrokeredMessage(bytes(200_000))
        await senders[0].send(message)  # accepted while the queue works
        world.primary_network.refuse()
        await senders[0].send(letter())
        await asyncio.sleep(15)
        await senders[0].send(letter())  # its retry puts the queue back
        for sender in senders:
            await sender.send(message)
        assert len(await scene.queue(0)) >= 10

    run(scenario)


def test_c10_send_with_a_closed_secondary_factory_names_it_in_the_error() -> None:
    async def scenario(world: PairWorld) -> None:
        secondary = world.secondary_factory()
        scene = await paired(world, secondary=secondary)
        sender = await scene.sender()
        await secondary.close()
        await sender.send(letter("direct"))
        scene.pair.engage()
        with pytest.raises(BacklogUnavailableError, match="closed"):
            await sender.send(letter("lost"))
        scene.pair.release()
        await sender.send(letter("direct"))
        assert await scene.delivered() == [b"direct", b"direct"]

    run(scenario)


@pytest.mark.parametrize("step", range(6))
def test_c10_send_cancelled_during_a_retry_does_not_affect_others(step: int) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=1)
        scene.pair.engage()
        world.secondary.trouble_sends(backlog_path(0), Trouble.LOST)
        sender, other = await scene.sender(), await scene.sender()
        victims = [begin(sender.send(letter("victim"))) for _ in range(3)]
        await asyncio.sleep(1 + 2.5 * step)
        for victim in victims:
            victim.cancel()
        await asyncio.gather(*victims, return_exceptions=True)
        world.secondary.take_sends(backlog_path(0))
        await asyncio.gather(sender.send(letter("a")), other.send(letter("b")))
        assert sorted(await scene.bodies()) == [b"a", b"b"]

    run(scenario)


def test_c10_cancelled_diverted_send_is_not_counted_and_affects_no_other() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=1)
        scene.pair.engage()
        sender = await scene.sender()
        await sender.send(letter("first"))
        world.secondary.trouble_sends(backlog_path(0), Trouble.LOST)
        cancelled = asyncio.create_task(sender.send(letter("cancelled")))
        await asyncio.sleep(1)
        world.secondary.take_sends(backlog_path(0))
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await asyncio.gather(*(sender.send(letter(f"later {number}")) for number in range(3)))
        assert await scene.bodies() == [b"first", *(b"later %d" % number for number in range(3))]
        assert scene.entity().diverted == 4
        assert _used(scene) == [True]

    run(scenario)


def test_c10_diverted_counts_match_the_backlog() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=3)
        scene.pair.engage()
        senders = [await scene.sender() for _ in range(9)]
        await asyncio.gather(*(sender.send(letters(5)) for sender in senders))
        status = scene.pair.status()
        assert status.diverted == sum(one.diverted for one in status.backlog_queues) == 45
        depth = await scene.pair.backlog_depth()
        assert [depth[one.path] for one in status.backlog_queues] == [one.diverted for one in status.backlog_queues]

    run(scenario)


# C11: the diverted form.


def test_c11_plain_message_has_the_diverted_form() -> None:
    async def scenario(world: PairWorld) -> None:
        found = await _diverted(world, BrokeredMessage(b"body", message_id="m"))
        assert found.application_properties == {PATH: ORDERS}
        assert (found.body, found.message_id) == (b"body", "m")

    run(scenario)


def test_c11_session_time_to_live_and_scheduled_time_are_moved_to_properties() -> None:
    async def scenario(world: PairWorld) -> None:
        message = BrokeredMessage(
            b"body",
            session_id="the session",
            time_to_live=seconds(90.5),
            scheduled_enqueue_time=LATER,
            application_properties={"mine": "too"},
        )
        found = await _diverted(world, message)
        assert found.application_properties == {
            "mine": "too",
            PATH: ORDERS,
            SESSION_ID: "the session",
            TIME_TO_LIVE: 90_500,
            SCHEDULED_ENQUEUE_TIME: LATER,
        }
        assert (found.session_id, found.time_to_live, found.scheduled_enqueue_time) == (None, None, None)
        assert found.state is MessageState.ACTIVE
        sections = Sections(_payload(found))
        assert sections.properties().absolute_expiry_time is None
        assert sections.properties().creation_time is not None

    run(scenario)


@pytest.mark.parametrize(
    ("name", "value", "key", "kept"),
    [
        ("session_id", "s", SESSION_ID, "s"),
        ("session_id", "ü" * 128, SESSION_ID, "ü" * 128),
        ("session_id", "", SESSION_ID, ""),
        ("time_to_live", seconds(0.001), TIME_TO_LIVE, 1),
        ("time_to_live", seconds(60 * 86_400), TIME_TO_LIVE, 60 * 86_400_000),
        ("scheduled_enqueue_time", LATER, SCHEDULED_ENQUEUE_TIME, LATER),
    ],
)
def test_c11_unset_properties_are_not_added(name: str, value: Any, key: str, kept: Any) -> None:
    async def scenario(world: PairWorld) -> None:
        found = await _diverted(world, BrokeredMessage(b"", **{name: value}))
        assert found.application_properties == {PATH: ORDERS, key: kept}

    run(scenario)


def test_c11_other_properties_are_unchanged() -> None:
    message = BrokeredMessage(
        {"json": True},
        message_id=UUID(int=7),
        partition_key="key",
        session_id="key",
        via_partition_key="via",
        label="label",
        content_type="text/plain",
        correlation_id=12,
        to="to",
        reply_to="reply to",
        reply_to_session_id="reply to session",
        time_to_live=seconds(100),
        application_properties={
            "byte": Byte(-1),
            "ubyte": UByte(1),
            "int": Int(2),
            "uint": UInt(3),
            "long": 4,
            "ulong": ULong(5),
            "float": Float(0.5),
            "double": 1.5,
            "bool": True,
            "null": None,
            "text": "täxt",
            "symbol": Symbol("symbol"),
            "bytes": b"bytes",
            "uuid": UUID(int=9),
            "time": LATER,
        },
        amqp=AmqpView(
            durable=False,
            priority=9,
            user_id=b"user",
            content_encoding="gzip",
            group_sequence=3,
            annotations={"x-opt-mine": Int(7)},
            delivery_annotations={"x-opt-delivery": "yes"},
            footer={"x-foot": 1},
        ),
    )

    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        scene.pair.engage(ORDERS)
        sender, other = await scene.sender(), await scene.sender(OTHERS)
        await asyncio.gather(sender.send(message), other.send(message))
        diverted, direct = scene.secondary.seen[0].payload, scene.primary.seen[0].payload
        away, home = Sections(diverted), Sections(direct)
        assert away.header() == home.header()._replace(ttl=None)
        assert away.properties() == home.properties()._replace(group_id=None, absolute_expiry_time=None)
        assert _typed(away.message_annotations()) == _typed(home.message_annotations())
        assert _typed(away.delivery_annotations()) == _typed(home.delivery_annotations())
        assert _typed(away.footer()) == _typed(home.footer())
        assert away.data() == home.data()
        named = _typed(away.application_properties())
        for name in (PATH, SESSION_ID, TIME_TO_LIVE):
            del named[name]
        assert named == _typed(home.application_properties())

    run(scenario)


@pytest.mark.parametrize(
    ("kind", "body"), [(BodyKind.VALUE, {"a": [1, None]}), (BodyKind.SEQUENCE, [1, "two"]), (BodyKind.DATA, b"")]
)
def test_c11_restored_message_equals_the_original(kind: BodyKind, body: Any) -> None:
    async def scenario(world: PairWorld) -> None:
        for path in (ORDERS, OTHERS):
            world.primary.create_queue(path, QueueDescription(requires_session=True))
        scene = await paired(world)
        scene.pair.engage(ORDERS)
        message = BrokeredMessage(
            body, body_kind=kind, session_id="s", time_to_live=seconds(3_600), scheduled_enqueue_time=LATER
        )
        sender, other = await scene.sender(), await scene.sender(OTHERS)
        await asyncio.gather(sender.send(message), other.send(message))
        await scene.deliver_all()
        direct, brought = scene.primary.seen
        assert (direct.path, brought.path) == (OTHERS, ORDERS)
        assert direct.payload == brought.payload

    run(scenario)


def test_c11_many_destinations_share_a_backlog_queue() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=1)
        world.primary.create_topic("some/topic", ["all"])
        scene.pair.engage()
        for path in (ORDERS, OTHERS, "some/topic"):
            await (await scene.sender(path)).send(letter(path))
        found = await scene.queue(0)
        assert [message.application_properties[PATH] for message in found] == [ORDERS, OTHERS, "some/topic"]
        await scene.deliver_all()
        assert [one.path for one in scene.primary.seen] == [ORDERS, OTHERS, "some/topic"]

    run(scenario)


def test_c11_lists_and_batches_have_the_same_diverted_form() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=1)
        scene.pair.engage()
        sender = await scene.sender()
        await sender.send(letters(3, session_id="s"))
        await sender.send_batch(letters(3, session_id="s"))
        found = await scene.queue(0)
        assert [message.body for message in found] == 2 * texts(3)
        assert all(message.application_properties == {PATH: ORDERS, SESSION_ID: "s"} for message in found)

    run(scenario)


def test_c11_short_time_to_live_does_not_expire_in_the_backlog() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=1)
        scene.pair.engage()
        await (await scene.sender()).send(letter("short", time_to_live=seconds(1)))
        await asyncio.sleep(10_000)
        assert await scene.bodies() == [b"short"]

    run(scenario)


# Helpers.


async def _diverted(world: PairWorld, message: BrokeredMessage) -> ReceivedMessage:
    scene = await paired(world)
    scene.pair.engage()
    await (await scene.sender()).send(message)
    (found,) = await scene.backlog()
    return found


def _payload(message: ReceivedMessage) -> bytes:
    return message._sections().payload


def _typed(values: Any) -> dict[Any, tuple[type, Any]]:
    return {name: (type(value), value) for name, value in values.items()}


def _name(message: ReceivedMessage) -> str:
    return str(message.message_id).split("/", maxsplit=1)[0]


def _used(scene: Scene) -> list[bool]:
    return [one.is_used for one in scene.pair.status().backlog_queues]


def _queue_events(scene: Scene) -> list[tuple[str, bool]]:
    return [(event.path, event.is_used) for event in scene.events if isinstance(event, BacklogQueueChanged)]


def _spoil_queue(world: PairWorld, index: int, trouble: str) -> None:
    path = backlog_path(index)
    match trouble:
        case "disabled":
            world.secondary.disable(path)
        case "deleted":
            world.secondary.delete(path)
        case "busy":
            world.secondary.trouble_sends(path, Trouble.BUSY)
        case _:
            world.secondary.trouble_sends(path, Trouble.LOST)


def _heal_queue(world: PairWorld, index: int, trouble: str) -> None:
    path = backlog_path(index)
    match trouble:
        case "disabled":
            world.secondary.enable(path)
        case "deleted":
            world.secondary.create_queue(path, QueueDescription(max_delivery_count=1_000))
        case _:
            world.secondary.take_sends(path)


async def _all(work: Any) -> None:
    await asyncio.gather(*work)


async def _done(task: asyncio.Task[Any]) -> None:
    await task
