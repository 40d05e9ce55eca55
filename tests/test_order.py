from __future__ import annotations

from tests.order import ordered

WORKERS = 4
ITEMS = [f"short {number}" for number in range(28)] + ["a 1", "b", "a 2", "c", "a 3", "d", "e"]


def long(item: str) -> str | None:
    return None if item.startswith("short") else item[0]


def parts(items: list[str]) -> list[list[str]]:
    """As they are handed out: each worker gets as many as those who have none yet would get on average."""
    found: list[list[str]] = []
    for number in range(WORKERS):
        length = len(items) // (WORKERS - number)
        found.append(items[:length])
        items = items[length:]
    return found


def test_half_of_the_workers_begin_with_what_takes_long_and_what_belongs_together_stays_so() -> None:
    first, second, *others = parts(ordered(ITEMS, long, WORKERS))
    assert first[:4] == ["a 1", "a 2", "a 3", "e"]
    assert second[:3] == ["b", "c", "d"]
    assert all(item.startswith("short") for part in (first[4:], second[3:], *others) for item in part)


def test_none_is_left_out() -> None:
    for workers in range(1, 9):
        assert sorted(ordered(ITEMS, long, workers)) == sorted(ITEMS)
    assert ordered([], long, WORKERS) == []


def test_more_slow_tests_than_fit_on_a_worker_are_distributed() -> None:
    items = ["short", *("a" * 9), *("b" * 9)]
    assert sorted(ordered(items, long, WORKERS)) == sorted(items)
