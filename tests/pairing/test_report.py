"""Reports of a pair: bounded, without secrets, and read as they were written, whatever else comes being refused."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.client.errors import MessagingError
from pairbus.pairing.policy import EntityState
from pairbus.pairing.report import (
    MOST_ENTITIES,
    MOST_NAME,
    MOST_PATH,
    MOST_REASON,
    MOST_SWITCHES,
    EntityReport,
    PairReport,
    Receiver,
    SwitchReport,
    reason_of,
    report_entities,
)
from pairbus.pairing.report_json import MOST_BYTES, ReportError, read_report, write_report
from pairbus.pairing.status import PairedEntityStatus

ORDERS = EntityReport(
    path="orders", state=EntityState.FAILED_OVER, since_ms=1_000, reason="it cannot be reached", diverted=3, pings=2
)
SWITCH = SwitchReport(number=1, path="orders", state=EntityState.FAILED_OVER, at_ms=1_000, reason="away")
REPORT = PairReport(
    pair_id="a1",
    number=7,
    application="checkout",
    host="web-1",
    process=4711,
    primary="contoso",
    receiver=Receiver.SECONDARY,
    sent_ms=2_000,
    entities=(ORDERS,),
    more=0,
    switches=(SWITCH,),
    switched=1,
)

COUNTS = st.integers(0, 2**53 - 1)
STATES = st.sampled_from(EntityState)
REASONS = st.text(max_size=MOST_REASON)
PATHS = st.text(min_size=1, max_size=MOST_PATH)
NAMES = st.text(min_size=1, max_size=MOST_NAME)
ENTITIES = st.builds(
    EntityReport, path=PATHS, state=STATES, since_ms=COUNTS, reason=REASONS, diverted=COUNTS, pings=COUNTS
)
SWITCHES = st.builds(SwitchReport, number=COUNTS, path=PATHS, state=STATES, at_ms=COUNTS, reason=REASONS)
REPORTS = st.builds(
    PairReport,
    pair_id=NAMES,
    number=COUNTS,
    application=NAMES,
    host=NAMES,
    process=COUNTS,
    primary=PATHS,
    receiver=st.sampled_from(Receiver),
    sent_ms=COUNTS,
    entities=st.lists(ENTITIES, max_size=5).map(tuple),
    more=COUNTS,
    switches=st.lists(SWITCHES, max_size=5).map(tuple),
    switched=COUNTS,
)


def status(path: str, state: EntityState, cause: MessagingError | None = None) -> PairedEntityStatus:
    since = datetime(2026, 11, 15, 12, tzinfo=UTC)
    return PairedEntityStatus(path=path, state=state, since=since, cause=cause, failures=1, diverted=2, pings=3)


# What is written.


@given(REPORTS)
def test_what_is_written_is_read(report: PairReport) -> None:
    assert read_report(write_report(report)) == report


def test_c19_a_report_has_at_most_64_kb_and_counts_the_rest() -> None:
    longest = replace(ORDERS, path="\N{COFFIN}" * MOST_PATH, reason="\N{COFFIN}" * MOST_REASON)
    switches = tuple(replace(SWITCH, number=number, reason=longest.reason) for number in range(1, MOST_SWITCHES + 1))
    report = replace(REPORT, entities=(longest,) * MOST_ENTITIES, more=5, switches=switches, switched=len(switches))
    written = write_report(report)
    assert len(written) <= MOST_BYTES
    found = read_report(written)
    assert 0 < len(found.entities) < MOST_ENTITIES
    assert len(found.entities) + found.more == MOST_ENTITIES + 5
    assert found.switches == switches[-len(found.switches) :]
    assert 0 < len(found.switches) < MOST_SWITCHES


def test_the_longest_names_leave_room_enough() -> None:
    name, path = "\N{COFFIN}" * MOST_NAME, "\N{COFFIN}" * MOST_PATH
    report = replace(
        REPORT, pair_id=name, application=name, host=name, primary=path, entities=(ORDERS,) * MOST_ENTITIES
    )
    assert len(write_report(report)) <= MOST_BYTES


def test_c19_those_that_are_not_healthy_are_told_first() -> None:
    healthy = [status(f"queue-{number}", EntityState.HEALTHY) for number in range(MOST_ENTITIES)]
    away = status("orders", EntityState.FAILED_OVER, MessagingError("it cannot be reached"))
    told, more = report_entities([*healthy, away], {})
    assert (told[0].path, told[0].reason) == ("orders", "it cannot be reached")
    assert (len(told), more) == (MOST_ENTITIES, 1)


def test_c19_the_last_reason_is_told_of_one_that_is_healthy_again() -> None:
    told, _ = report_entities([status("orders", EntityState.HEALTHY)], {"orders": "it was away"})
    assert told[0].reason == "it was away"


@pytest.mark.parametrize(
    "text",
    [
        "no: Endpoint=sb://contoso;SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0;EntityPath=orders",
        "no: SharedAccessSignature sr=sb%3a%2f%2fcontoso&sig=c2VjcmV0&se=1&skn=root",
        "no: sharedaccesssignature=c2VjcmV0",
        "no: sr=contoso&sig=c2VjcmV0",
        "no: Bearer c2VjcmV0",
        "no: eyJhbGciOi.c2VjcmV0.c2ln",
        "no: password=c2VjcmV0",
    ],
)
def test_a_reason_repeats_no_secret(text: str) -> None:
    told = reason_of(MessagingError(text))
    assert "c2VjcmV0" not in told
    assert "no: " in told
    assert "…" in told


def test_a_reason_is_a_line_of_its_own_words() -> None:
    assert reason_of(MessagingError("the token\n  provider has no token for sb://contoso")) == (
        "the token provider has no token for sb://contoso"
    )
    assert len(reason_of(MessagingError("x" * 1_000))) == MOST_REASON
    assert reason_of(None) == ""


# What is read.


def changed(**fields: Any) -> bytes:
    return json.dumps({**json.loads(write_report(REPORT)), **fields}).encode()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "no JSON"),
        (b"\xff", "no JSON"),
        (b"[" * 60_000, "no JSON"),
        (b"9" * 60_000, "no JSON"),
        (b"[]", "the report is no JSON object"),
        (b"{}", "the report has no 'pair_id'"),
        (changed(application=""), "'application' of the report has to be a text of 1 to 100 characters"),
        (changed(application="x" * 101), "a text of 1 to 100 characters"),
        (changed(application=7), "a text of 1 to 100 characters"),
        (changed(process=-1), "'process' of the report has to be a whole number from 0 on"),
        (changed(process=True), "a whole number"),
        (changed(process=1.5), "a whole number"),
        (changed(process=float("nan")), "a whole number"),
        (changed(process=2**53), "a whole number"),
        (changed(receiver="nobody"), "'primary' or 'secondary'"),
        (changed(receiver=["primary"]), "'primary' or 'secondary'"),
        (changed(entities="orders"), "'entities' of the report has to be a list of at most 1000"),
        (changed(entities={}), "a list of at most 1000"),
        (changed(entities=[None]), "'entities[0]' is no JSON object"),
        (changed(entities=[{}]), "'entities[0]' has no 'path'"),
        (changed(entities=[{"path": "orders", "state": "asleep"}]), "'state' of 'entities[0]' has to be 'healthy' or"),
        (changed(entities=[{}] * 1_001), "a list of at most 1000"),
        (changed(switches=[{}] * 101), "'switches' of the report has to be a list of at most 100"),
    ],
)
def test_e3_what_is_no_report_is_refused_in_clear_words(body: bytes, words: str) -> None:
    with pytest.raises(ReportError) as caught:
        read_report(body)
    assert words in str(caught.value)


@given(st.binary(max_size=500) | st.recursive(st.none() | st.text(), st.lists).map(lambda x: json.dumps(x).encode()))
def test_e3_whatever_comes_is_a_report_or_refused(body: bytes) -> None:
    with pytest.raises(ReportError):
        read_report(body)


def test_what_is_not_known_is_passed_over() -> None:
    assert read_report(changed(mood="fine")) == REPORT
