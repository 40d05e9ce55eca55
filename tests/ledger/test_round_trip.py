"""Whatever is written comes back: all texts, all numbers, all times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.ledger import LIVES, OPERATIONS, Event, Kind, Ledger, LedgerSettings, Life, Sort, Stage, Tally
from tests.ledger.entries import Row, life_row, operation_row, read_ledger
from tests.thoroughness import times

TEXTS = st.text(st.characters(), max_size=20)
"""With half pairs of surrogates."""

NUMBERS = st.integers(-(2**63), 2**63 - 1)
TIMES = st.integers(-62_135_596_800_000, 253_402_300_799_999)
"""All that a calendar has."""

LIFE = st.builds(
    Life,
    st.one_of(st.integers(1_794_798_000_000, 1_794_802_000_000), TIMES),
    NUMBERS,
    st.sampled_from(Event),
    st.sampled_from(Stage),
    TEXTS,
    NUMBERS,
    NUMBERS,
    TEXTS,
    st.none() | TEXTS,
    st.none() | TEXTS,
    NUMBERS,
)


def tally_of(counts: tuple[int, ...]) -> Tally:
    tally = Tally()
    tally.operations, tally.messages, tally.bytes, tally.units, tally.request_units = counts
    return tally


SORT = st.builds(Sort, st.sampled_from(Kind), st.sampled_from(Stage), TEXTS, TEXTS, TEXTS)
TALLY = st.builds(tally_of, st.tuples(*[NUMBERS] * 5))


def clean(row: Row) -> Row:
    """As UTF-8 can have it."""
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
def test_events_come_back(namespace: str, groups: list[list[Life]]) -> None:
    def write(ledger: Ledger) -> None:
        for lives in groups:
            ledger.write_lives(lives)

    expected = [clean(life_row(life, namespace)) for lives in groups for life in lives]
    assert written(LIVES, namespace, write) == in_order(expected)


@given(TEXTS, TIMES, st.lists(st.tuples(SORT, TALLY), max_size=5))
@settings(max_examples=times(60), deadline=None)
def test_operations_come_back(namespace: str, at_ms: int, rows: list[tuple[Sort, Tally]]) -> None:
    expected = [clean(operation_row(at_ms, sort, tally, namespace=namespace)) for sort, tally in rows]
    found = written(OPERATIONS, namespace, lambda ledger: ledger.write_operations(at_ms, rows, 0))
    assert found == in_order(expected)
