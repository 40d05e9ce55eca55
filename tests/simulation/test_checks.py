"""The checks can fail: each is shown a system that is broken in the way that it looks for."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any, Final

import pytest

from pairbus.client.entity_link import EntityLink, SendBatch
from pairbus.client.errors import MessagingError
from pairbus.client.message import encode_brokered
from pairbus.pairing import route
from pairbus.pairing.entity import PairedEntity, ping_message
from pairbus.pairing.events import PingSent
from pairbus.pairing.policy import FailoverPolicy, Signal
from pairbus.pairing.route import SenderDiversion
from pairbus.pairing.syphon import InProcessSyphon
from pairbus.pairing.syphon.delivery import RetryDecision
from pairbus.pairing.syphon.destination import DeliveryDestination
from pairbus.pairing.syphon.source import BacklogSource
from tests.simulation import checks
from tests.simulation.entities import ENTITIES, Entity
from tests.simulation.pair_world import PRIMARY
from tests.simulation.plan import Form, Plan, ProcessPlan, SenderPlan, Step
from tests.simulation.planned_fault import Kind, PlannedFault
from tests.simulation.simulation import play

pytestmark = pytest.mark.slow

PLAIN: Final = ENTITIES[0]
UNIQUE: Final = ENTITIES[1]
VISITS: Final = ENTITIES[2]
REFUSE: Final = PlannedFault(kind=Kind.REFUSE, at_s=10.0, lasts_s=30.0, namespace=PRIMARY)
UNCONFIRM: Final = PlannedFault(kind=Kind.UNCONFIRM, at_s=10.0, lasts_s=30.0, namespace=PRIMARY, path=UNIQUE.path)


def plan_of(entity: Entity, *planned_faults: PlannedFault, keeps_order: bool = False) -> Plan:
    """A sender that sends a message every two seconds, and a syphon."""
    steps = tuple(Step(2.0 * number, Form.ONE, 1) for number in range(30))
    application = ProcessPlan(
        name="app",
        queue_count=1,
        failover_s=0.0,
        ping_s=5.0,
        operation_s=20.0,
        senders=(SenderPlan(path=entity.path, steps=steps, sessions=1),),
    )
    syphon = ProcessPlan(name="syphon", queue_count=1, enable_syphon=True)
    return Plan(
        seed=1,
        entities=(entity,),
        processes=(application, syphon),
        planned_faults=planned_faults,
        keeps_order=keeps_order,
    )


def wrong_with(entity: Entity, *planned_faults: PlannedFault, keeps_order: bool = False) -> list[str]:
    return checks.check(play(plan_of(entity, *planned_faults, keeps_order=keeps_order)))


def assert_found(wrong: list[str], number: int, text: str) -> None:
    assert any(one.startswith(f"{number}. ") and text in one for one in wrong), wrong


@pytest.mark.parametrize("keeps_order", [False, True])
@pytest.mark.parametrize("entity", ENTITIES, ids=lambda entity: entity.path)
def test_correct_run_has_no_findings(entity: Entity, keeps_order: bool) -> None:
    assert wrong_with(entity, REFUSE, keeps_order=keeps_order) == []


# 1. What was sent is received.


def test_syphon_that_loses_messages_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    async def send(_destination: DeliveryDestination, _payloads: list[bytes]) -> None:
        """Say that it is sent."""

    monkeypatch.setattr(DeliveryDestination, "send", send)
    assert_found(wrong_with(PLAIN, REFUSE), 1, "was sent, and never received from 'plain'")


def test_syphon_that_removes_messages_before_the_send_is_detected_after_a_kill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = DeliveryDestination.send
    tasks: list[asyncio.Task[None]] = []

    async def send(destination: DeliveryDestination, payloads: list[bytes]) -> None:
        tasks.append(asyncio.get_running_loop().create_task(later(destination, payloads)))

    async def later(destination: DeliveryDestination, payloads: list[bytes]) -> None:
        await asyncio.sleep(30)
        with suppress(MessagingError):
            await real(destination, payloads)

    monkeypatch.setattr(DeliveryDestination, "send", send)
    die = PlannedFault(kind=Kind.DIE, at_s=47.0, lasts_s=10.0, process="syphon")
    assert_found(wrong_with(PLAIN, REFUSE, die), 1, "was sent, and never received from 'plain'")
    assert tasks


def test_sender_that_drops_messages_instead_of_diverting_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    async def send(*_: object) -> None:
        """Say that it is sent."""

    monkeypatch.setattr(SenderDiversion, "send", send)
    assert_found(wrong_with(VISITS, REFUSE), 1, "was sent, and never received from 'visits'")


def test_syphon_that_dead_letters_without_a_reason_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pairbus.pairing.syphon.delivery.retry_decision", lambda _error: RetryDecision.NEVER)
    disable = PlannedFault(kind=Kind.DISABLE, at_s=10.0, lasts_s=30.0, namespace=PRIMARY, path=PLAIN.path)
    assert_found(wrong_with(PLAIN, disable), 1, "though its entity is there")


# 2. Nothing is there twice where duplicates are detected.


def test_duplicates_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Entity, "_queue", Entity(path=UNIQUE.path)._queue)  # it does not detect them
    assert_found(wrong_with(UNIQUE, UNCONFIRM), 2, "was in 'unique' under [")


def test_duplicate_in_a_queue_with_detection_is_reported() -> None:
    assert wrong_with(UNIQUE, UNCONFIRM) == []


# 3. A send returns or raises an error of ours, in time.


def test_error_other_than_messaging_error_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    async def send(*_: object) -> None:
        raise RuntimeError("the test wants it")

    monkeypatch.setattr(SenderDiversion, "send", send)
    assert_found(wrong_with(PLAIN, REFUSE), 3, "raised RuntimeError('the test wants it')")


def test_send_beyond_its_timeout_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    real = SenderDiversion.send

    async def send(*given: Any) -> None:
        await asyncio.sleep(60)
        await real(*given)

    monkeypatch.setattr(SenderDiversion, "send", send)
    assert_found(wrong_with(PLAIN, REFUSE), 3, "and may take 40.050 s")


def test_logged_error_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def complete(_source: BacklogSource, _messages: list[Any]) -> None:
        logging.getLogger("pairbus.pairing").error("the test wants it")

    monkeypatch.setattr(BacklogSource, "complete", complete)
    assert_found(wrong_with(PLAIN, REFUSE), 3, "an error was logged: the test wants it")


# 4. A session arrives in order, where that is wanted.


def test_session_out_of_order_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    async def divert_nothing(_route: object, batch: Any, _started_s: float) -> Any:
        return batch

    monkeypatch.setattr(route.OrderedRoute, "_divert_followers", divert_nothing)
    busy = PlannedFault(kind=Kind.DIE, at_s=5.0, lasts_s=45.0, process="syphon")
    assert_found(wrong_with(VISITS, REFUSE, busy, keeps_order=True), 4, "came to 'visits' before")


# 5. Pings come at their interval, and while an entity is failed over.


def test_too_many_pings_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def next_tick(last_s: float, interval_s: float) -> float:
        await asyncio.sleep(interval_s / 10)
        return last_s + interval_s / 10

    monkeypatch.setattr("pairbus.pairing.entity.next_tick", next_tick)
    assert_found(wrong_with(PLAIN, REFUSE), 5, "'plain' of app-1 was pinged")


def test_too_few_pings_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def next_tick(last_s: float, interval_s: float) -> float:
        await asyncio.sleep(interval_s * 10)
        return last_s + interval_s * 10

    monkeypatch.setattr("pairbus.pairing.entity.next_tick", next_tick)
    assert_found(wrong_with(PLAIN, REFUSE), 5, "'plain' of app-1 was not pinged from")


@pytest.mark.parametrize("is_reported", [True, False])
def test_pings_of_a_healthy_entity_are_found(monkeypatch: pytest.MonkeyPatch, is_reported: bool) -> None:
    real = PairedEntity._ping

    async def twice(entity: PairedEntity) -> None:
        await real(entity)
        await asyncio.sleep(30)
        lane = EntityLink(entity._primary, entity.path)
        await lane.attempt(SendBatch([encode_brokered(ping_message())]))
        await lane.close()
        if is_reported:
            entity._listeners.publish(PingSent(at=entity._since, path=entity.path, cause=None))

    monkeypatch.setattr(PairedEntity, "_ping", twice)
    wrong = wrong_with(PLAIN, REFUSE)
    assert_found(wrong, 5, "the primary saw a ping of 'plain'")
    assert any("when it was not failed over" in one for one in wrong) is is_reported


# 6. In the end everybody is healthy, and nothing is left.


def test_entity_that_stays_failed_over_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    real = PairedEntity.signal

    def signal(entity: PairedEntity, what: Signal) -> None:
        if what is not Signal.ANSWERED:
            real(entity, what)

    monkeypatch.setattr(PairedEntity, "signal", signal)
    assert_found(wrong_with(PLAIN, REFUSE), 6, "in the end 'plain' is failed over for app-1")


def test_undelivered_backlog_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(_syphon: InProcessSyphon) -> None:
        """Do nothing."""

    monkeypatch.setattr(InProcessSyphon, "start", start)
    assert_found(wrong_with(PLAIN, REFUSE), 6, "in the end 'contoso/x-servicebus-transfer/0' has ")


def test_messages_that_are_diverted_though_all_is_well_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pairbus.pairing.route.SessionOrder.follows", lambda *_: True)
    monkeypatch.setattr(PairedEntity, "_set_direct", lambda entity: setattr(entity, "is_direct", False))
    assert_found(wrong_with(VISITS, REFUSE, keeps_order=True), 6, "all was well, and yet app-1 has diverted 1 messages")


def test_leftover_task_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[asyncio.Task[None]] = []

    async def close(_destination: DeliveryDestination) -> None:
        kept.append(asyncio.get_running_loop().create_task(asyncio.sleep(1_000_000)))

    monkeypatch.setattr(DeliveryDestination, "close", close)
    wrong = wrong_with(PLAIN, REFUSE)
    assert any("the run has broken off" in one and "left tasks behind" in one for one in wrong), wrong


# 7. What is received is what was sent.


def test_property_that_is_not_restored_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    real = DeliveryDestination.send

    async def send(destination: DeliveryDestination, payloads: list[bytes]) -> None:
        await real(destination, [payload.replace(b"number", b"nUmber") for payload in payloads])

    monkeypatch.setattr(DeliveryDestination, "send", send)
    assert_found(wrong_with(PLAIN, REFUSE), 7, "with application_properties = ")


def test_message_that_is_not_restored_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pairbus.pairing.syphon.delivery.restore_message", lambda message, *_: message.payload)
    assert_found(wrong_with(PLAIN, REFUSE), 7, "'x-ms-path': 'plain'")


# 8. An entity fails over when its interval is over, and comes back when a ping is answered.


def test_failover_that_is_too_early_or_too_late_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    real = FailoverPolicy.__init__

    def init(policy: FailoverPolicy, failover_interval_s: float, now_s: float) -> None:
        real(policy, failover_interval_s + 3.0, now_s)

    monkeypatch.setattr(FailoverPolicy, "__init__", init)
    assert_found(wrong_with(PLAIN, REFUSE), 8, "failed over after 3.000 s, and its interval is 0 s")


def test_entity_that_recovers_without_a_ping_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hope(entity: PairedEntity) -> None:
        await asyncio.sleep(4)
        entity.signal(Signal.ANSWERED)

    monkeypatch.setattr(PairedEntity, "_ping", hope)
    assert_found(wrong_with(PLAIN, REFUSE), 8, "and no ping was answered")
