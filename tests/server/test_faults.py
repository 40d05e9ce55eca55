"""The table of injected faults: what is engaged, until when, and what it denies."""

from __future__ import annotations

from typing import Any

import pytest

from pairbus.broker import Address
from pairbus.dialect.management import Operation
from pairbus.fault_kinds import FAULT_RULES, CrashComponent, FaultKind, FaultRequest, FaultScope
from pairbus.server.amqp.management.node import OPERATIONS
from pairbus.server.audit import Actor
from pairbus.server.errors import BadRequestError, FaultNotFoundError, InjectedFaultError, ServerBusyError, refusal_of
from pairbus.server.faults import (
    FAULT_OPERATIONS,
    MAX_FAULTS,
    ComponentCrashError,
    Fault,
    FaultEvent,
    Faults,
    denying_kind,
)
from pairbus.server.http.routes import ROUTES
from pairbus.store.faulty import StoreTrouble

NOW = 1_000_000
ORDERS = Address.of("orders")
NEWS = Address.of("news")
ALL = Address.of("news", "all")


def request(kind: FaultKind, **arguments: Any) -> FaultRequest:
    needed: dict[str, Any] = {"latency_ms": 200, "component": CrashComponent.TIMERS, "sequence_number": 1}
    required = FAULT_RULES[kind].requires
    return FaultRequest(kind=kind, **({} if required is None else {required: needed[required]}) | arguments)


def engage(faults: Faults, kind: FaultKind, scope: Address | None = None, **arguments: Any) -> Fault:
    return faults.engage(request(kind, **arguments), scope, NOW)


def is_denied(faults: Faults, operation: str, address: Address | None, now_ms: int = NOW) -> bool:
    try:
        faults.check(operation, address, now_ms)
    except (InjectedFaultError, ServerBusyError):
        return True
    return False


# Operations


def test_every_operation_belongs_to_one_way_of_being_unavailable() -> None:
    rules = {Operation.ENUMERATE_RULES, Operation.ADD_RULE, Operation.REMOVE_RULE}
    by_right = {"send": FaultKind.CANNOT_SEND, "listen": FaultKind.CANNOT_RECEIVE}
    for operation, service in OPERATIONS.items():
        expected = FaultKind.CANNOT_MANAGE if operation in rules else by_right[service.right.value.lower()]
        assert denying_kind(operation) is expected, operation
    for route in ROUTES:
        expected_kind = None if route.operation in FAULT_OPERATIONS else FaultKind.CANNOT_MANAGE
        assert denying_kind(route.operation) is expected_kind, route.operation
    assert denying_kind("send") is FaultKind.CANNOT_SEND
    assert denying_kind("receive") is FaultKind.CANNOT_RECEIVE
    assert denying_kind("attach") is None


@pytest.mark.parametrize("kind", [kind for kind, rule in FAULT_RULES.items() if rule.lasts])
@pytest.mark.parametrize("operation", sorted(FAULT_OPERATIONS))
def test_no_fault_denies_the_administration_of_faults(kind: FaultKind, operation: str) -> None:
    faults = Faults()
    engage(faults, kind)
    assert not is_denied(faults, operation, None)


def test_server_busy_denies_every_other_operation() -> None:
    faults = Faults()
    engage(faults, FaultKind.SERVER_BUSY, ORDERS)
    operations = ["send", "receive", "attach", *OPERATIONS, "get-entity"]
    assert all(is_denied(faults, operation, ORDERS) for operation in operations)
    assert not any(is_denied(faults, operation, NEWS) for operation in operations)
    with pytest.raises(ServerBusyError, match=r"fault 1 \(server-busy\) is injected at 'orders'; wait at least 10 s"):
        faults.check("send", ORDERS, NOW)


def test_refusal_looks_like_a_timeout() -> None:
    faults = Faults()
    engage(faults, FaultKind.CANNOT_SEND)
    with pytest.raises(InjectedFaultError) as caught:
        faults.check("send", ORDERS, NOW)
    refusal = refusal_of(caught.value)
    assert (refusal.condition, refusal.status) == ("com.microsoft:timeout", 408)
    assert refusal.description.startswith("fault 1 (cannot-send) is injected at the namespace: wait until it ends")


# Scopes


def test_fault_at_a_subscription_affects_neither_its_topic_nor_its_siblings() -> None:
    faults = Faults()
    engage(faults, FaultKind.CANNOT_RECEIVE, ALL)
    assert is_denied(faults, "receive", ALL)
    assert not is_denied(faults, "receive", Address.of("news", "others"))
    assert not is_denied(faults, "receive", NEWS)
    assert not is_denied(faults, "receive", None)


def test_fault_at_a_topic_affects_its_subscriptions() -> None:
    faults = Faults()
    engage(faults, FaultKind.CANNOT_MANAGE, NEWS)
    assert is_denied(faults, "get-entity", NEWS)
    assert is_denied(faults, "get-subscription", ALL)
    assert not is_denied(faults, "list-queues", None)


@pytest.mark.parametrize("kind", FaultKind)
@pytest.mark.parametrize("scope", FaultScope)
def test_fault_is_accepted_only_where_it_has_an_effect(kind: FaultKind, scope: FaultScope) -> None:
    faults = Faults()
    address = {FaultScope.NAMESPACE: None, FaultScope.ENTITY: ORDERS, FaultScope.SUBSCRIPTION: ALL}[scope]
    if scope in FAULT_RULES[kind].scopes:
        engage(faults, kind, address)
    else:
        with pytest.raises(BadRequestError, match=rf"{kind} applies to .*, not to {scope.value}"):
            engage(faults, kind, address)
        assert len(faults) == 0


# Time


def test_fault_ends_at_its_time() -> None:
    events: list[tuple[str, int]] = []
    faults = Faults()
    faults.on_change.add(lambda event, fault, _origin: events.append((event, fault.id)))
    engage(faults, FaultKind.CANNOT_SEND, ORDERS, duration_ms=500)
    engage(faults, FaultKind.CANNOT_SEND, NEWS)
    assert faults.next_end_ms() == NOW + 500
    assert is_denied(faults, "send", ORDERS, NOW + 499)
    assert not is_denied(faults, "send", ORDERS, NOW + 500)
    assert [fault.scope for fault in faults.engaged(NOW + 500)] == [NEWS]
    assert is_denied(faults, "send", NEWS, NOW + 10**12)
    assert faults.next_end_ms() is None
    assert events == [("engaged", 1), ("engaged", 2), ("expired", 1)]


def test_cleared_fault_is_over_and_cannot_be_cleared_again() -> None:
    faults = Faults()
    fault = engage(faults, FaultKind.CANNOT_SEND)
    assert faults.clear(fault.id, NOW) is fault
    assert not is_denied(faults, "send", ORDERS)
    with pytest.raises(FaultNotFoundError, match="there is no fault 1; pairbus fault list shows"):
        faults.clear(fault.id, NOW)


def test_changes_are_reported_with_their_origin() -> None:
    seen: list[tuple[FaultEvent, Actor]] = []
    faults = Faults()
    faults.on_change.add(lambda event, _fault, origin: seen.append((event, origin)))
    first, second = Actor(key_name="alice", peer="10.0.0.1"), Actor(key_name="bob", peer="10.0.0.2")
    faults.engage(request(FaultKind.SLOW), None, NOW, first)
    faults.clear_all(NOW, second)
    assert seen == [(FaultEvent.ENGAGED, first), (FaultEvent.CLEARED, second)]


def test_fault_that_cannot_begin_is_not_engaged() -> None:
    def fail(_fault: Fault) -> None:
        raise BadRequestError("not here")

    faults = Faults()
    faults.on_engage.add(fail)
    with pytest.raises(BadRequestError, match="not here"):
        engage(faults, FaultKind.CANNOT_SEND)
    assert len(faults) == 0


def test_number_of_faults_is_bounded() -> None:
    faults = Faults()
    for _ in range(MAX_FAULTS):
        engage(faults, FaultKind.CANNOT_SEND)
    with pytest.raises(BadRequestError, match="100 faults are engaged, the maximum"):
        engage(faults, FaultKind.CANNOT_SEND)
    faults.clear_all(NOW)
    engage(faults, FaultKind.CANNOT_SEND)


# Effects


def test_longest_delay_counts() -> None:
    faults = Faults()
    engage(faults, FaultKind.SLOW, latency_ms=100)
    engage(faults, FaultKind.SLOW, ORDERS, latency_ms=250)
    assert (faults.delay_s(ORDERS, NOW), faults.delay_s(NEWS, NOW), faults.delay_s(None, NOW)) == (0.25, 0.1, 0.1)


def test_last_trouble_of_the_storage_counts() -> None:
    faults = Faults()
    assert faults.store_trouble(NOW) is None
    engage(faults, FaultKind.STORAGE_FULL)
    stall = engage(faults, FaultKind.STORAGE_STALL)
    assert faults.store_trouble(NOW) is StoreTrouble.STALL
    faults.clear(stall.id, NOW)
    assert faults.store_trouble(NOW) is StoreTrouble.FULL


def test_component_crashes_once_for_each_fault() -> None:
    faults = Faults()
    engage(faults, FaultKind.COMPONENT_CRASH, component=CrashComponent.DISPATCHER)
    faults.crash(CrashComponent.TIMERS)
    with pytest.raises(ComponentCrashError, match="crashes the component 'dispatcher'"):
        faults.crash(CrashComponent.DISPATCHER)
    faults.crash(CrashComponent.DISPATCHER)
    assert len(faults) == 0


# Requests


def test_document_of_a_request_is_read_back() -> None:
    made = FaultRequest(kind=FaultKind.SLOW, entity="orders", duration_ms=30_000, latency_ms=200)
    assert FaultRequest.of_document(made.document()) == made
    assert made.document()["kind"] == "slow"


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ([], "a fault must be a JSON object, got []"),
        ({}, "a fault needs a kind: cannot-send, "),
        ({"kind": "broken"}, "kind must be one of cannot-send, .*, got 'broken'"),
        ({"kind": None}, "a fault needs a kind: "),
        ({"kind": "slow"}, "slow needs latency_ms"),
        ({"kind": "slow", "latency_ms": 0}, "latency_ms must be a whole number between 1 and 600000, got 0"),
        ({"kind": "slow", "latency_ms": True}, "latency_ms must be a whole number .*, got True"),
        ({"kind": "slow", "latency_ms": 1.5}, "latency_ms must be a whole number .*, got 1.5"),
        ({"kind": "cannot-send", "latency_ms": 5}, "cannot-send does not take latency_ms"),
        ({"kind": "cannot-send", "duration_ms": -1}, "duration_ms must be a whole number .*, got -1"),
        ({"kind": "cannot-send", "entity": 5}, "entity must be the path of an entity, got 5"),
        ({"kind": "cannot-send", "entity": ""}, "entity must be the path of an entity, got ''"),
        ({"kind": "cannot-send", "drop_connections": True}, "cannot-send does not take drop_connections"),
        ({"kind": "cannot-connect", "drop_connections": "yes"}, "drop_connections must be true or false, got 'yes'"),
        ({"kind": "component-crash"}, "component-crash needs component"),
        ({"kind": "component-crash", "component": "engine"}, "component must be one of dispatcher, .*, got 'engine'"),
        ({"kind": "quarantine", "sequence_number": 1, "duration_ms": 1}, "quarantine happens once"),
        ({"kind": "quarantine", "sequence_number": 2**63}, "sequence_number must be a whole number"),
        ({"kind": "cannot-send", "colour": "red"}, "a fault has no field 'colour'; its fields are kind, entity, "),
    ],
)
def test_invalid_document_is_rejected(document: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason.replace("[]", r"\[\]")):
        FaultRequest.of_document(document)
