"""B2: when a facet is past its threshold, and which operations it denies."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.broker import NewMessage
from pairbus.dialect.management import Operation
from pairbus.server.amqp.management.node import OPERATIONS
from pairbus.server.errors import ServerBusyError, refusal_of
from pairbus.server.http.routes import ROUTES
from pairbus.server.settings import SETTINGS, Settings, SettingsError
from pairbus.server.throttle.shares import EntityBudgets
from pairbus.server.throttle.throttle import ADDING, FACETS, REMOVING_MANY, SHARED, FacetStatus, Throttle
from tests.docs.snippets import ROOT
from tests.docs.tables import code, rows_of

MIB: Final = 1 << 20
THRESHOLDS: Final = {
    "throttle_store_percent": 50.0,
    "throttle_disk_mb": 100,
    "throttle_memory_mb": 200,
    "throttle_processor_percent": 80.0,
    "throttle_delay_ms": 500,
}
WELL: Final = {
    "connections": 1,
    "store": 0,
    "disk": 1_000 * MIB,
    "memory": 100 * MIB,
    "processor": 0.1,
    "delay": 0.0,
}
TROUBLE: Final = {"store": 600 * MIB, "disk": 50 * MIB, "memory": 300 * MIB, "processor": 0.9, "delay": 0.6}
FAIR: Final = ("processor", "delay")
"""The facets for which the loudest are denied first."""

BY_NAME: Final = {facet.name: facet for facet in FACETS}
ROOM_MAKERS: Final = (
    Operation.UPDATE_DISPOSITION,
    Operation.RECEIVE_BY_SEQUENCE_NUMBER,
    Operation.RENEW_LOCK,
    Operation.RENEW_SESSION_LOCK,
    Operation.SET_SESSION_STATE,
    Operation.CANCEL_SCHEDULED_MESSAGE,
    Operation.REMOVE_RULE,
    "attach",
)
ASKED_BY_THE_SERVER: Final = {"send", "attach", "purge"}
"""Operations that are in neither table."""


def settings(**given: Any) -> Settings:
    return Settings(data=Path("there"), max_store_gb=1, **given)


def throttle() -> Throttle:
    return Throttle(settings(**THRESHOLDS))


def memory(reading: float | None, *, is_denying: bool = False) -> FacetStatus:
    return FacetStatus(facet=BY_NAME["memory"], threshold=100.0, is_denying=is_denying).after(reading)


# Past the threshold, and back.


@pytest.mark.parametrize(("reading", "denies"), [(0, False), (99, False), (100, True), (1_000, True)])
def test_b2_facet_denies_from_its_threshold_on(reading: float, denies: bool) -> None:
    assert memory(reading).is_denying is denies


@pytest.mark.parametrize(("reading", "denies"), [(99, True), (90, True), (89, False), (0, False)])
def test_b2_facet_that_denies_has_to_be_well_below_before_it_stops(reading: float, denies: bool) -> None:
    assert memory(reading, is_denying=True).is_denying is denies


@pytest.mark.parametrize("was", [False, True])
def test_b2_missing_reading_changes_nothing(was: bool) -> None:
    status = memory(None, is_denying=was)
    assert (status.reading, status.is_denying, status.pressure) == (None, was, None)


def test_b2_low_disk_space_denies() -> None:
    status = FacetStatus(facet=BY_NAME["disk"], threshold=90.0)
    assert not status.after(91).is_denying
    low = status.after(90)
    assert low.is_denying
    assert low.after(100).is_denying
    assert not low.after(101).is_denying
    assert status.after(180).pressure == pytest.approx(0.5)
    assert status.after(0).pressure == float("inf")


def test_b2_closed_connection_makes_room_at_once() -> None:
    full = FacetStatus(facet=BY_NAME["connections"], threshold=2.0).after(2)
    assert full.is_denying
    assert not full.after(1).is_denying


@given(st.lists(st.floats(0, 200)))
def test_b2_facet_does_not_flap(readings: list[float]) -> None:
    status = memory(0)
    last_turn = 0.0
    for reading in readings:
        before, status = status, status.after(reading)
        assert status.is_denying or reading < 100
        assert not status.is_denying or reading >= 90
        if status.is_denying != before.is_denying:
            assert abs(reading - last_turn) >= 10 or last_turn == 0.0
            last_turn = 100 if status.is_denying else 90


# What is denied.


@pytest.mark.parametrize("name", TROUBLE)
def test_b2_each_facet_denies_sends_and_other_additions(name: str) -> None:
    node = throttle()
    assert node.update(WELL) == []
    assert not node.is_busy
    (changed,) = node.update({**WELL, name: TROUBLE[name]})
    assert (changed.facet.name, changed.is_denying, node.is_busy) == (name, True, True)
    denied = ADDING - SHARED if name in FAIR else ADDING
    for operation in denied:
        reason = node.deny(operation)
        assert reason is not None
        assert f"'{name}' is at {changed.shown_reading}" in reason
        assert f"its threshold is {changed.shown_threshold}" in reason
    assert node.denied[name] == len(denied) == node.denied.total()
    (changed,) = node.update(WELL)
    assert (changed.is_denying, node.is_busy, node.deny("send")) == (False, False, None)


@pytest.mark.parametrize("name", TROUBLE)
@pytest.mark.parametrize("operation", ROOM_MAKERS)
def test_b2_receiving_settling_and_closing_are_never_denied(name: str, operation: str) -> None:
    node = throttle()
    node.update({**WELL, name: TROUBLE[name]})
    assert node.deny(operation) is None
    assert node.denied.total() == 0


@pytest.mark.parametrize("name", TROUBLE)
def test_b2_reads_are_never_denied(name: str) -> None:
    node = throttle()
    node.update({**WELL, name: TROUBLE[name]})
    for route in ROUTES:
        if route.method == "GET":
            assert node.reason(route.operation) is None
    for operation in OPERATIONS:
        if operation.rpartition(":")[2].startswith(("get", "peek", "enumerate")):
            assert node.reason(operation) is None


@pytest.mark.parametrize(
    ("name", "goes_on"), [("store", True), ("disk", True), ("memory", True), ("processor", False), ("delay", False)]
)
def test_b2_bulk_removal_is_denied_for_lack_of_time_but_not_of_space(name: str, goes_on: bool) -> None:
    node = throttle()
    node.update({**WELL, name: TROUBLE[name]})
    for operation in REMOVING_MANY:
        assert (node.reason(operation) is None) is goes_on


def test_b2_connection_facet_denies_no_request_and_counts_closed_connections() -> None:
    node = Throttle(settings(max_connections=2))
    node.update({**WELL, "connections": 2})
    assert BY_NAME["connections"].denies == frozenset()
    assert not node.is_busy
    assert [node.admit("connections", count) for count in (1, 2, 1)] == [True, False, True]
    assert node.denied["connections"] == 1


def test_b2_denial_names_the_first_facet_of_the_table() -> None:
    node = throttle()
    node.update({**WELL, "memory": TROUBLE["memory"], "delay": TROUBLE["delay"]})
    assert "'memory'" in (node.deny("send") or "")
    assert "'delay'" in (node.deny("purge") or "")
    assert (node.denied["memory"], node.denied["delay"]) == (1, 1)


def test_b2_reading_the_reason_is_not_counted() -> None:
    node = throttle()
    node.update({**WELL, "memory": TROUBLE["memory"]})
    assert node.reason("send") is not None
    assert node.denied.total() == 0


def test_b2_without_thresholds_nothing_is_denied() -> None:
    for node in (Throttle(), Throttle(settings())):
        node.update(TROUBLE)
        assert not node.is_busy
        assert node.reason("send") is None


def test_b2_reason_becomes_server_busy_on_both_protocols() -> None:
    node = throttle()
    node.update({**WELL, "delay": 2.5})
    refusal = refusal_of(ServerBusyError(node.deny("send") or ""))
    assert (refusal.condition, refusal.status) == ("com.microsoft:server-busy", 503)
    assert "'delay' is at 2.50 s, and its threshold is 0.50 s" in refusal.description
    assert "10 seconds" in refusal.description


# Fair shares.


def test_b2_shortage_of_time_denies_sends_of_the_loudest_entity_first() -> None:
    node = throttle()
    loud, quiet = EntityBudgets("loud"), EntityBudgets("quiet")
    node.update(WELL)
    node.divide_sends(0.0)
    for _ in range(900):
        assert node.deny_send(loud, [NewMessage(b"")], 0.5) is None
    for _ in range(100):
        assert node.deny_send(quiet, [NewMessage(b"")], 0.5) is None
    node.update({**WELL, "processor": 1.0})
    node.divide_sends(1.0)
    assert node.shares.share == pytest.approx(700, rel=0.01), "of 800, 100 go to one, and the rest to the other"
    reasons = [node.deny_send(loud, [NewMessage(b"")], 1.0) for _ in range(900)]
    admitted = reasons.count(None)
    assert 690 <= admitted <= 700
    assert not any(reasons[:admitted])
    assert f"may send {node.shares.share:.0f} messages a second" in (reasons[-1] or "")
    assert "'processor' is at 100 %, and its threshold is 80 %" in (reasons[-1] or "")
    assert not any(node.deny_send(quiet, [NewMessage(b"")], 1.0) for _ in range(100))
    assert node.denied["processor"] == 900 - admitted
    node.update(WELL)
    node.divide_sends(2.0)
    assert node.deny_send(loud, [NewMessage(b"")] * 5_000, 2.0) is None


def test_b2_long_delay_denies_sends_of_everyone() -> None:
    node = throttle()
    for delay_s, is_denied in ((0.5, False), (1.99, False), (2.0, True), (1.81, True), (1.79, False), (0.1, False)):
        node.update({**WELL, "delay": delay_s})
        assert (node.deny("send") is not None) is is_denied, delay_s


@pytest.mark.parametrize("name", ["throttle_processor_percent", "throttle_delay_ms"])
def test_b2_sends_are_counted_only_if_they_may_be_divided(name: str) -> None:
    assert not Throttle().counts_sends
    assert not Throttle(settings(throttle_memory_mb=100)).counts_sends
    assert Throttle(settings(**{name: 50})).counts_sends


def test_table_names_existing_operations() -> None:
    known = {route.operation for route in ROUTES} | {*OPERATIONS} | ASKED_BY_THE_SERVER
    assert known >= ADDING | REMOVING_MANY
    assert not ADDING & REMOVING_MANY
    for facet in FACETS:
        assert facet.denies <= known


# Thresholds.


def test_b2_threshold_has_the_value_of_its_setting() -> None:
    found = {status.facet.name: status.threshold for status in throttle().statuses}
    assert found == {
        "connections": 5_000,
        "store": 512 * MIB,
        "disk": 100 * MIB,
        "memory": 200 * MIB,
        "processor": pytest.approx(0.8),
        "delay": pytest.approx(0.5),
    }
    assert {facet.setting for facet in FACETS} == {*THRESHOLDS, "max_connections"} <= SETTINGS.keys()


@pytest.mark.parametrize("name", THRESHOLDS)
def test_b2_threshold_is_off_where_it_is_not_set(name: str) -> None:
    assert getattr(settings(), name) is None


@pytest.mark.parametrize("name", THRESHOLDS)
@pytest.mark.parametrize("value", [0, -1])
def test_b2_invalid_threshold_is_refused(name: str, value: int) -> None:
    with pytest.raises(SettingsError, match=rf"{name} must be .*, got {value}"):
        settings(**{name: value})


@pytest.mark.parametrize("name", ["throttle_store_percent", "throttle_processor_percent"])
@pytest.mark.parametrize("value", [100.5, float("nan"), float("inf")])
def test_b2_percentage_above_100_is_refused(name: str, value: float) -> None:
    assert getattr(settings(**{name: 100.0}), name) == 100
    with pytest.raises(SettingsError, match=f"{name} must be"):
        settings(**{name: value})


# Texts.


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("memory", 512, "512 bytes"),
        ("memory", 1.5 * MIB, "1.5 MB"),
        ("store", 300 * 1_024 * MIB, "300 GB"),
        ("processor", 0.934, "93 %"),
        ("delay", 1.2345, "1.23 s"),
        ("connections", 5_000, "5,000"),
    ],
)
def test_readings_are_shown_in_their_units(name: str, value: float, shown: str) -> None:
    assert BY_NAME[name].shown(value) == shown


def test_page_on_operating_lists_every_facet() -> None:
    rows = rows_of(ROOT / "docs" / "how-to" / "operate.md", "facet", "setting", "what is read", "also denies")
    assert {(code(name), code(setting)) for name, setting, _, _ in rows} == {
        (facet.name, facet.setting) for facet in FACETS
    }
    for name, _, _, more in rows:
        assert ("removing many" in more) is bool(BY_NAME[code(name)].denies & REMOVING_MANY)
