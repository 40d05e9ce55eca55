"""Reports of a pair: their size, no secrets, encoding and decoding, and the rejection of invalid ones."""

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
    MOST_BYTES,
    MOST_ENTITIES,
    MOST_NAME,
    MOST_PATH,
    MOST_REASON,
    MOST_SWITCHES,
    EntityReport,
    PairReport,
    ReportError,
    ReportRecipient,
    SwitchReport,
    read_report,
    reason_of,
    report_entities,
    write_report,
)
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
    receiver=ReportRecipient.SECONDARY,
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
    receiver=st.sampled_from(ReportRecipient),
    sent_ms=COUNTS,
    entities=st.lists(ENTITIES, max_size=5).map(tuple),
    more=COUNTS,
    switches=st.lists(SWITCHES, max_size=5).map(tuple),
    switched=COUNTS,
)


def status(path: str, state: EntityState, cause: MessagingError | None = None) -> PairedEntityStatus:
    since = datetime(2026, 11, 15, 12, tzinfo=UTC)
    return PairedEntityStatus(path=path, state=state, since=since, cause=cause, failures=1, diverted=2, pings=3)


# Encoding.


@given(REPORTS)
def test_report_survives_encoding_and_decoding(report: PairReport) -> None:
    assert read_report(write_report(report)) == report


def test_c19_report_has_at_most_64_kb_and_counts_the_rest() -> None:
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


def test_report_with_the_longest_names_fits() -> None:
    name, path = "\N{COFFIN}" * MOST_NAME, "\N{COFFIN}" * MOST_PATH
    report = replace(
        REPORT, pair_id=name, application=name, host=name, primary=path, entities=(ORDERS,) * MOST_ENTITIES
    )
    assert len(write_report(report)) <= MOST_BYTES


def test_c19_unhealthy_entities_are_reported_first() -> None:
    healthy = [status(f"queue-{number}", EntityState.HEALTHY) for number in range(MOST_ENTITIES)]
    unreachable = status("orders", EntityState.FAILED_OVER, MessagingError("it cannot be reached"))
    reported, more = report_entities([*healthy, unreachable], {})
    assert (reported[0].path, reported[0].reason) == ("orders", "it cannot be reached")
    assert (len(reported), more) == (MOST_ENTITIES, 1)


def test_c19_last_reason_of_a_recovered_entity_is_reported() -> None:
    reported, _ = report_entities([status("orders", EntityState.HEALTHY)], {"orders": "it was away"})
    assert reported[0].reason == "it was away"


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
def test_reason_contains_no_secret(text: str) -> None:
    reported = reason_of(MessagingError(text))
    assert "c2VjcmV0" not in reported
    assert "no: " in reported
    assert "…" in reported


def test_reason_is_one_line() -> None:
    assert reason_of(MessagingError("the token\n  provider failed for sb://contoso")) == (
        "the token provider failed for sb://contoso"
    )
    assert len(reason_of(MessagingError("x" * 1_000))) == MOST_REASON
    assert reason_of(None) == ""


# Decoding.


def changed(**fields: Any) -> bytes:
    return json.dumps({**json.loads(write_report(REPORT)), **fields}).encode()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"[" * 60_000, "not valid JSON"),
        (b"9" * 60_000, "not valid JSON"),
        (b"[]", "the report must be a JSON object"),
        (b"{}", "the report has no 'pair_id'"),
        (changed(application=""), "'application' of the report must be a text of 1 to 100 characters"),
        (changed(application="x" * 101), "a text of 1 to 100 characters"),
        (changed(application=7), "a text of 1 to 100 characters"),
        (changed(process=-1), "'process' of the report must be a whole number >= 0, got -1"),
        (changed(process=True), "a whole number"),
        (changed(process=1.5), "a whole number"),
        (changed(process=float("nan")), "a whole number"),
        (changed(process=2**53), "a whole number"),
        (changed(receiver="nobody"), "'primary' or 'secondary'"),
        (changed(receiver=["primary"]), "'primary' or 'secondary'"),
        (changed(entities="orders"), "'entities' of the report must be a list of at most 1000"),
        (changed(entities={}), "a list of at most 1000"),
        (changed(entities=[None]), "'entities[0]' must be a JSON object"),
        (changed(entities=[{}]), "'entities[0]' has no 'path'"),
        (changed(entities=[{"path": "orders", "state": "asleep"}]), "'state' of 'entities[0]' must be 'healthy' or"),
        (changed(entities=[{}] * 1_001), "a list of at most 1000"),
        (changed(switches=[{}] * 101), "'switches' of the report must be a list of at most 100"),
    ],
)
def test_e3_invalid_report_is_rejected_with_a_clear_error(body: bytes, words: str) -> None:
    with pytest.raises(ReportError) as caught:
        read_report(body)
    assert words in str(caught.value)


@given(st.binary(max_size=500) | st.recursive(st.none() | st.text(), st.lists).map(lambda x: json.dumps(x).encode()))
def test_e3_any_body_is_a_report_or_rejected(body: bytes) -> None:
    with pytest.raises(ReportError):
        read_report(body)


def test_unknown_members_are_ignored() -> None:
    assert read_report(changed(mood="fine")) == REPORT
