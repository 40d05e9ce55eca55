"""Rows are read back as written: all texts, all numbers, all times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.ledger import (
    LIVES,
    OPERATIONS,
    Ledger,
    LedgerEvent,
    LedgerSettings,
    LifecycleEvent,
    OperationCounts,
    OperationKey,
    OperationKind,
    Stage,
)
from tests.ledger.entries import Row, event_row, operation_row, read_ledger
from tests.thoroughness import times

TEXTS = st.text(st.characters(), max_size=20)
"""Including lone surrogates."""

NUMBERS = st.integers(-(2**63), 2**63 - 1)
TIMES = st.integers(-62_135_596_800_000, 253_402_300_799_999)
"""The whole calendar."""

LIFE = st.builds(
    LifecycleEvent,
    st.one_of(st.integers(1_794_798_000_000, 1_794_802_000_000), TIMES),
    NUMBERS,
    st.sampled_from(LedgerEvent),
    st.sampled_from(Stage),
    TEXTS,
    NUMBERS,
    NUMBERS,
    TEXTS,
    st.none() | TEXTS,
    st.none() | TEXTS,
    NUMBERS,
)


def counts_of(counts: tuple[int, ...]) -> OperationCounts:
    tally = OperationCounts()
    tally.operations, tally.messages, tally.bytes, tally.units, tally.request_units = counts
    return tally


KEY = st.builds(OperationKey, st.sampled_from(OperationKind), st.sampled_from(Stage), TEXTS, TEXTS, TEXTS)
COUNTS = st.builds(counts_of, st.tuples(*[NUMBERS] * 5))


def clean(row: Row) -> Row:
    """Return the text as UTF-8 can represent it."""
    return {name: _clean(value) if isinstance(value, str) else value for name, value in row.items()}


def _clean(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: [*map(repr, row.values())])


def written(table: str, namespace: str, write: Callable[[Ledger], Any]) -> list[Row]:
    with TemporaryDirectory() as directory:
        ledger = Ledger.open(Path(directory), namespace, LedgerSettings(flush_s=10))
        write(ledger)
        ledger.close()
        return in_order(read_ledger(Path(directory), table))


@given(TEXTS, st.lists(st.lists(LIFE, max_size=5), max_size=3))
@settings(max_examples=times(60), deadline=None)
def test_events_are_read_back_as_written(namespace: str, groups: list[list[LifecycleEvent]]) -> None:
    def write(ledger: Ledger) -> None:
        for events in groups:
            ledger.write_events(events)

    expected = [clean(event_row(event, namespace)) for events in groups for event in events]
    assert written(LIVES, namespace, write) == in_order(expected)


@given(TEXTS, TIMES, st.lists(st.tuples(KEY, COUNTS), max_size=5))
@settings(max_examples=times(60), deadline=None)
def test_operations_are_read_back_as_written(
    namespace: str, at_ms: int, rows: list[tuple[OperationKey, OperationCounts]]
) -> None:
    expected = [clean(operation_row(at_ms, sort, tally, namespace=namespace)) for sort, tally in rows]
    found = written(OPERATIONS, namespace, lambda ledger: ledger.write_operations(at_ms, rows, 0))
    assert found == in_order(expected)
