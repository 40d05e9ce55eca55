"""Killed processes: durable rows are in the ledger exactly once, and rows that were never written are not."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from pairbus.ledger import LIVES, OPERATIONS, Ledger
from tests.ledger.child import run
from tests.ledger.entries import (
    NAMESPACE,
    counts_of,
    event_of,
    event_row,
    journals_in,
    key_of,
    operation_row,
    read_ledger,
)
from tests.ledger.killed_child import AT_A_TIME, ROUND, at_ms_of


@pytest.mark.parametrize(
    ("seed", "kills"),
    [
        (3, 6),
        pytest.param(1, 25, marks=pytest.mark.slow),
        pytest.param(2, 50, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    ],
)
def test_d3_durable_rows_are_neither_lost_nor_duplicated(tmp_path: Path, seed: int, kills: int) -> None:
    said = run("killed_child", tmp_path, seed, kills, deadline_s=450)
    reports = [[*map(int, line.split())] for line in said.splitlines()]
    assert len(reports) == kills
    assert sum(lives > 0 for _, lives, _ in reports) > kills // 3
    before = read_ledger(tmp_path, LIVES)
    Ledger.open(tmp_path, NAMESPACE).close()
    assert journals_in(tmp_path) == []
    check_lives(tmp_path, {number: lives for number, lives, _ in reports})
    check_operations(tmp_path, {number: operations for number, _, operations in reports})
    assert len(read_ledger(tmp_path, LIVES)) == len(before)


def check_lives(directory: Path, reported: dict[int, int]) -> None:
    """Each round has its first numbers without a gap, and at least those that were reported."""
    rounds = defaultdict(list)
    for row in read_ledger(directory, LIVES):
        number = row["ordinal"]
        first = number - number % AT_A_TIME
        assert row == event_row(event_of(number, at_ms_of(first)))
        rounds[number // ROUND].append(number % ROUND)
    for number, count in reported.items():
        found = sorted(rounds[number])
        assert found == [*range(len(found))], f"round {number}"
        assert len(found) >= count, f"round {number}"


def check_operations(directory: Path, reported: dict[int, int]) -> None:
    rounds = defaultdict(list)
    for row in read_ledger(directory, OPERATIONS):
        number = int(row["entity"].removeprefix("orders/"))
        assert row == operation_row(at_ms_of(number), key_of(number), counts_of(number))
        rounds[number // ROUND].append(number % ROUND)
    for number, count in reported.items():
        found = sorted(rounds[number])
        assert found == [*range(0, len(found) * AT_A_TIME, AT_A_TIME)], f"round {number}"
        assert len(found) >= count, f"round {number}"
