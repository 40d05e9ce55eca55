"""The task that delivers messages, between two real servers and without Spark: the tests call it as Spark does."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pyarrow as pa
import pytest

from pairbus import (
    BrokeredMessage,
    EntityStatus,
    MessageState,
    MessagingFactory,
    NamespaceManager,
    ReceivedMessage,
)
from pairbus.client.entity_link import EntityLink, SendBatch
from pairbus.client.message import encode_brokered
from pairbus.dialect.transfer import divert
from pairbus.jobs.syphon.delivery_task import DeliveryTask
from pairbus.jobs.syphon.outcome import DeliveryOutcome, OutcomeKind
from pairbus.pairing.syphon import Held, TimeToLive
from pairbus.pairing.syphon.message import DeadLetterReason
from pairbus.spark.connections import ConnectionReference
from pairbus.testing import RunningNamespace, running_namespace
from tests.client.stage import make_queue
from tests.spans import parent_of, recorded_spans

_SCHEMA = pa.schema([("queue", pa.string()), ("messages", pa.int64())])
_MANY = 10_000
_NOBODY: frozenset[tuple[str, str]] = frozenset()


@pytest.fixture(scope="module")
def primary() -> Iterator[RunningNamespace]:
    with running_namespace("contoso", tier="relaxed") as namespace:
        yield namespace


@pytest.fixture(scope="module")
def secondary() -> Iterator[RunningNamespace]:
    with running_namespace("fabrikam") as namespace:
        yield namespace


class Scene:
    """A backlog queue, and what lands its messages."""

    def __init__(self, primary: RunningNamespace, secondary: RunningNamespace, lock_s: int = 60) -> None:
        self.primary, self.secondary = primary, secondary
        self._references = [
            ConnectionReference.parse(one.connection_string) for one in (primary, secondary)
        ]  # they can be asked for only while a namespace runs
        self.backlog = make_queue(secondary, max_delivery_count=2**31 - 1, lock_duration_ms=lock_s * 1_000)

    def landing(
        self,
        *,
        held: Held | None = None,
        busy: frozenset[tuple[str, str]] = _NOBODY,
        time_to_live: TimeToLive = TimeToLive.FULL,
    ) -> DeliveryTask:
        made = DeliveryTask(
            primary=self._references[0],
            secondary=self._references[1],
            time_to_live=time_to_live,
            held=held or Held(),
            busy=busy,
        )
        travelled: DeliveryTask = pickle.loads(pickle.dumps(made))  # noqa: S301 (it goes to the executors so)
        return travelled

    def divert(self, *messages: tuple[str, BrokeredMessage]) -> None:
        self.put([divert(encode_brokered(message), path) for path, message in messages])

    def put(self, payloads: list[bytes]) -> None:
        async def send() -> None:
            async with MessagingFactory.from_connection_string(self.secondary.connection_string) as factory:
                await EntityLink(factory, self.backlog).send(SendBatch(payloads))

        asyncio.run(send())

    def lock(self, count: int, *, defer: int | None = None) -> None:
        """Lock the first messages, as a receiver does that is killed; defer one of them, and give the others back."""

        async def receive() -> None:
            async with MessagingFactory.from_connection_string(self.secondary.connection_string) as factory:
                receiver = await factory.create_message_receiver(self.backlog)
                found: list[ReceivedMessage] = []
                while len(found) < count:
                    found += await receiver.receive(count - len(found), timedelta(seconds=10))
                if defer is not None:
                    await receiver.defer([found.pop(defer)])
                    await receiver.abandon(found)

        asyncio.run(receive())

    def share(self, messages: int = _MANY) -> dict[str, object]:
        return {"queue": self.backlog, "messages": messages}

    def land(self, *shares: dict[str, object], landing: DeliveryTask | None = None) -> list[DeliveryOutcome]:
        """Deliver shares, by default one of all messages."""
        batch = pa.RecordBatch.from_pylist([*shares] or [self.share()], schema=_SCHEMA)
        found = list((landing or self.landing())(iter([batch])))
        return [DeliveryOutcome.from_row(row) for one in found for row in one.to_pylist()]

    def lying(self, path: str | None = None, namespace: RunningNamespace | None = None) -> list[ReceivedMessage]:
        """Return the messages of a queue, by default of the backlog."""

        async def peek() -> list[ReceivedMessage]:
            where = (namespace or self.secondary).connection_string
            async with MessagingFactory.from_connection_string(where) as factory:
                receiver = await factory.create_message_receiver(path or self.backlog)
                return await receiver.peek(1_000, 1)

        return asyncio.run(peek())

    def delivered(self, path: str) -> list[str]:
        return [str(message.message_id) for message in self.lying(path, self.primary)]

    def delete_backlog(self) -> None:
        async def delete() -> None:
            async with NamespaceManager.from_connection_string(self.secondary.connection_string) as manager:
                await manager.delete_queue(self.backlog)

        asyncio.run(delete())

    def set_status(self, path: str, status: EntityStatus) -> None:
        async def update() -> None:
            async with NamespaceManager.from_connection_string(self.primary.connection_string) as manager:
                await manager.update_queue(replace(await manager.get_queue(path), status=status))

        asyncio.run(update())


@pytest.fixture
def scene(primary: RunningNamespace, secondary: RunningNamespace) -> Scene:
    return Scene(primary, secondary)


def _message(number: int, session_id: str | None = None, **properties: object) -> BrokeredMessage:
    return BrokeredMessage(b"x" * 50, message_id=f"m{number}", session_id=session_id, **properties)  # type: ignore[arg-type]


def _counts(outcomes: list[DeliveryOutcome]) -> dict[OutcomeKind, int]:
    counts: dict[OutcomeKind, int] = {}
    for outcome in outcomes:
        counts[outcome.kind] = counts.get(outcome.kind, 0) + outcome.count
    return counts


def test_c14_messages_are_restored_sent_and_only_then_removed(scene: Scene) -> None:
    first, second = make_queue(scene.primary), make_queue(scene.primary)
    scene.divert(
        *((first if number % 2 else second, _message(number, time_to_live=timedelta(hours=1))) for number in range(100))
    )
    outcomes = scene.land()
    assert _counts(outcomes) == {OutcomeKind.DELIVERED: 100}
    assert scene.delivered(first) == [f"m{number}" for number in range(1, 100, 2)]
    assert scene.delivered(second) == [f"m{number}" for number in range(0, 100, 2)]
    arrived = scene.lying(first, scene.primary)[0]
    assert arrived.application_properties == {}
    assert arrived.time_to_live == timedelta(hours=1)
    assert scene.lying() == []


def test_task_creates_spans_in_a_worker_with_a_tracer_provider(scene: Scene) -> None:
    destination = make_queue(scene.primary)
    trace_id, span_id = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    traced = BrokeredMessage(b"x", application_properties={"traceparent": f"00-{trace_id}-{span_id}-01"})
    scene.divert((destination, traced))
    with recorded_spans() as spans:
        assert _counts(scene.land()) == {OutcomeKind.DELIVERED: 1}
        span = spans.one(f"syphon {destination}")
    assert parent_of(span) == (int(trace_id, 16), int(span_id, 16))


def test_share_ends_at_its_number_of_messages_and_leaves_none_locked(scene: Scene) -> None:
    destination = make_queue(scene.primary)
    scene.divert(*((destination, _message(number)) for number in range(20)))
    assert _counts(scene.land(scene.share(12))) == {OutcomeKind.DELIVERED: 12}
    assert _counts(scene.land()) == {OutcomeKind.DELIVERED: 8}
    assert scene.delivered(destination) == [f"m{number}" for number in range(20)]


def test_share_of_an_empty_queue_ends(scene: Scene) -> None:
    assert scene.land() == []


def test_c15_messages_without_session_do_not_wait_for_those_that_others_have_locked(scene: Scene) -> None:
    destination = make_queue(scene.primary)
    scene.divert(*((destination, _message(number)) for number in range(6)))
    scene.lock(3)
    assert _counts(scene.land()) == {OutcomeKind.DELIVERED: 3}
    assert scene.delivered(destination) == ["m3", "m4", "m5"]
    assert [message.message_id for message in scene.lying()] == ["m0", "m1", "m2"]


def test_c15_session_waits_for_the_messages_that_a_killed_task_had_locked(
    primary: RunningNamespace, secondary: RunningNamespace
) -> None:
    scene = Scene(primary, secondary, lock_s=5)
    destination, other = make_queue(primary), make_queue(primary)
    scene.divert(*((destination, _message(number, session_id="a")) for number in range(6)), (other, _message(6)))
    scene.lock(3)
    assert _counts(scene.land()) == {OutcomeKind.DELIVERED: 7}
    assert scene.delivered(destination) == [f"m{number}" for number in range(6)]
    assert scene.delivered(other) == ["m6"]
    assert scene.lying() == []


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (encode_brokered(BrokeredMessage(b"lost")), DeadLetterReason.NO_DESTINATION),
        (
            encode_brokered(BrokeredMessage(b"", application_properties={"x-ms-path": "a//b"})),
            DeadLetterReason.INVALID_DESTINATION,
        ),
        (
            encode_brokered(BrokeredMessage(b"", application_properties={"x-ms-path": "orders", "x-ms-sessionid": 7})),
            DeadLetterReason.UNREADABLE,
        ),
        (divert(encode_brokered(BrokeredMessage(b"")), "nobody-there"), DeadLetterReason.ENTITY_NOT_FOUND),
    ],
    ids=["no path", "no entity's path", "wrong type", "entity gone"],
)
def test_c15_undeliverable_message_is_dead_lettered_with_the_reason(
    scene: Scene, payload: bytes, reason: DeadLetterReason
) -> None:
    destination = make_queue(scene.primary)
    scene.put([payload, divert(encode_brokered(_message(2)), destination)])
    outcomes = scene.land()
    assert _counts(outcomes) == {OutcomeKind.DEAD_LETTERED: 1, OutcomeKind.DELIVERED: 1}
    [reported] = [outcome for outcome in outcomes if outcome.kind is OutcomeKind.DEAD_LETTERED]
    [dead] = scene.lying(f"{scene.backlog}/$DeadLetterQueue")
    assert (dead.dead_letter_reason, reported.reason) == (reason.value, reason.value)
    assert dead.dead_letter_error_description == reported.description != ""
    assert scene.delivered(destination) == ["m2"]


def test_c15_messages_for_a_destination_that_is_down_are_parked_and_others_delivered(scene: Scene) -> None:
    down, up = make_queue(scene.primary), make_queue(scene.primary)
    scene.set_status(down, EntityStatus.SEND_DISABLED)
    scene.divert(*((down if number % 2 else up, _message(number, session_id=f"s{number % 3}")) for number in range(12)))
    outcomes = scene.land()
    assert _counts(outcomes) == {OutcomeKind.PARKED: 6, OutcomeKind.DELIVERED: 6}
    parked = [outcome for outcome in outcomes if outcome.kind is OutcomeKind.PARKED]
    assert {outcome.session_id for outcome in parked} == {"s0", "s1", "s2"}
    assert all(outcome.cause and "disabled" in outcome.cause for outcome in parked)
    assert {message.state for message in scene.lying()} == {MessageState.DEFERRED}
    assert scene.delivered(up) == [f"m{number}" for number in range(0, 12, 2)]


def test_c15_message_behind_a_parked_one_is_parked_too(scene: Scene) -> None:
    destination = make_queue(scene.primary)
    scene.divert((destination, _message(1, session_id="a")))
    busy = frozenset({(scene.backlog, destination.lower())})
    assert _counts(scene.land(landing=scene.landing(busy=busy))) == {OutcomeKind.PARKED: 1}
    assert scene.delivered(destination) == []


def test_c21_messages_for_a_held_entity_are_parked(scene: Scene) -> None:
    destination, other = make_queue(scene.primary), make_queue(scene.primary)
    scene.divert((destination, _message(1)), (other, _message(2)))
    held = Held(known={destination.lower(): True})
    assert _counts(scene.land(landing=scene.landing(held=held))) == {
        OutcomeKind.PARKED: 1,
        OutcomeKind.DELIVERED: 1,
    }
    assert (scene.delivered(destination), scene.delivered(other)) == ([], ["m2"])


def test_c15_task_waits_for_a_full_destination(scene: Scene) -> None:
    destination = make_queue(scene.primary, max_size_megabytes=1)
    scene.divert(*((destination, BrokeredMessage(b"x" * 60_000, message_id=f"m{number}")) for number in range(30)))
    counts = _counts(scene.land())
    assert counts[OutcomeKind.PARKED] + counts.get(OutcomeKind.DELIVERED, 0) == 30
    assert counts[OutcomeKind.PARKED] > 0
    assert len(scene.delivered(destination)) == counts.get(OutcomeKind.DELIVERED, 0)


def test_c15_unreachable_primary_returns_all_messages_unchanged(secondary: RunningNamespace) -> None:
    with running_namespace("adventure") as primary:
        scene = Scene(primary, secondary)
        destination = make_queue(primary)
        scene.divert(*((destination, _message(number)) for number in range(5)))
        primary.stop()
        outcomes = scene.land()
        assert _counts(outcomes) == {OutcomeKind.GIVEN_BACK: 5}
        assert _counts(scene.land()) == {OutcomeKind.GIVEN_BACK: 1}
        assert {message.state for message in scene.lying()} == {MessageState.ACTIVE}
        primary.start()
        deadline_s = time.monotonic() + 60
        delivered = 0
        while delivered < 5:  # the step finds out by itself that it is back, in its own time
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
            delivered += _counts(scene.land()).get(OutcomeKind.DELIVERED, 0)
        assert sorted(scene.delivered(destination)) == [f"m{number}" for number in range(5)]


def test_c16_remaining_time_to_live_is_restored_and_expired_messages_are_dead_lettered(scene: Scene) -> None:
    destination = make_queue(scene.primary)
    scene.divert(
        (destination, _message(1, time_to_live=timedelta(milliseconds=1))),
        (destination, _message(2, time_to_live=timedelta(hours=1))),
    )
    outcomes = scene.land(landing=scene.landing(time_to_live=TimeToLive.REMAINING))
    assert _counts(outcomes) == {OutcomeKind.DEAD_LETTERED: 1, OutcomeKind.DELIVERED: 1}
    [dead] = scene.lying(f"{scene.backlog}/$DeadLetterQueue")
    assert (dead.message_id, dead.dead_letter_reason) == ("m1", DeadLetterReason.EXPIRED.value)
    [arrived] = scene.lying(destination, scene.primary)
    assert arrived.time_to_live is not None
    assert timedelta(minutes=50) < arrived.time_to_live < timedelta(hours=1)


def test_c15_rejected_message_does_not_affect_the_others_of_its_batch(scene: Scene) -> None:
    destination = make_queue(scene.primary, requires_session=True)
    scene.divert(*((destination, _message(number, session_id=None if number == 3 else "a")) for number in range(6)))
    outcomes = scene.land()
    assert _counts(outcomes) == {OutcomeKind.DELIVERED: 5, OutcomeKind.DEAD_LETTERED: 1}
    assert scene.delivered(destination) == ["m0", "m1", "m2", "m4", "m5"]


def test_many_messages_of_many_destinations_are_delivered_in_order(scene: Scene) -> None:
    destinations = [make_queue(scene.primary) for _ in range(7)]
    for start in range(0, 6_000, 500):
        scene.divert(*((destinations[number % 7], _message(number)) for number in range(start, start + 500)))
    assert _counts(scene.land()) == {OutcomeKind.DELIVERED: 6_000}
    for index, path in enumerate(destinations):
        expected = [f"m{number}" for number in range(6_000) if number % 7 == index]
        assert scene.delivered(path) == expected[:1_000]


def test_c15_message_parked_by_another_receiver_is_reported_and_blocks_later_ones(scene: Scene) -> None:
    destination, other = make_queue(scene.primary), make_queue(scene.primary)
    paths = [other, destination, destination, other]
    scene.divert(*((path, _message(number, session_id="a")) for number, path in enumerate(paths)))
    scene.lock(2, defer=1)
    outcomes = scene.land()
    assert _counts(outcomes) == {OutcomeKind.DELIVERED: 2, OutcomeKind.FOUND: 1, OutcomeKind.PARKED: 1}
    [found] = [outcome for outcome in outcomes if outcome.kind is OutcomeKind.FOUND]
    assert (found.destination, found.session_id, str(found.numbers)) == (destination, "a", "2")
    assert scene.delivered(destination) == []


def test_c15_messages_held_because_the_primary_is_unreachable_are_not_parked(secondary: RunningNamespace) -> None:
    with running_namespace("adventure") as primary:
        scene = Scene(primary, secondary)
        destination = make_queue(primary)
        scene.divert(*((destination, _message(number)) for number in range(5)))
        primary.stop()
        held = Held(known={destination.lower(): True})
        assert _counts(scene.land(landing=scene.landing(held=held))) == {OutcomeKind.GIVEN_BACK: 5}
        assert {message.state for message in scene.lying()} == {MessageState.ACTIVE}
        primary.start()


def test_c15_parked_messages_stay_in_place_for_the_driver(scene: Scene) -> None:
    destination = make_queue(scene.primary)
    scene.divert(*((destination, _message(number)) for number in range(3)))
    scene.set_status(destination, EntityStatus.SEND_DISABLED)
    assert _counts(scene.land()) == {OutcomeKind.PARKED: 3}
    scene.set_status(destination, EntityStatus.ACTIVE)
    assert scene.land() == []
    assert {message.state for message in scene.lying()} == {MessageState.DEFERRED}
    assert scene.delivered(destination) == []


def test_c15_deleted_backlog_queue_does_not_fail_the_task(
    scene: Scene, primary: RunningNamespace, secondary: RunningNamespace
) -> None:
    path, other = make_queue(primary), Scene(primary, secondary)
    scene.divert((path, BrokeredMessage(b"lost", message_id="lost")))
    other.divert((path, BrokeredMessage(b"kept", message_id="kept")))
    scene.delete_backlog()
    (outcome,) = scene.land(scene.share(), other.share())
    assert (outcome.kind, outcome.queue) == (OutcomeKind.DELIVERED, other.backlog)
    assert scene.delivered(path) == ["kept"]
