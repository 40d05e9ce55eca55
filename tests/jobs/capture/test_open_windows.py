"""State of a capture: windows open, grow and close by time and size, and a repeated batch is recognised."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import pytest

from pairbus.jobs.capture.config import CaptureDamagedError, WindowLimits
from pairbus.jobs.capture.window import Catch, OpenWindows, Piece
from pairbus.spark.offset import Portion
from pairbus.spark.sequences import SequenceRanges

LIMITS: Final = WindowLimits(length=timedelta(seconds=10), size_bytes=100)
FOREVER: Final = WindowLimits(length=timedelta(hours=1))


def catch(first: int, last: int, entity: str = "orders", size_bytes: int = 10, *, is_old: bool = False) -> Catch:
    name = f"{entity}-{first}"
    piece = Piece(name=name, messages=last - first + 1, size_bytes=size_bytes, first=first)
    portion = Portion(numbers=SequenceRanges([(first, last)]), until_ms=last)
    return Catch(entity=entity, portion=portion, piece=None if is_old else piece)


def names(book: OpenWindows) -> list[tuple[bool, list[str]]]:
    return [(window.is_open, [piece.name for piece in window.pieces]) for window in book.windows]


def test_d5_window_is_closed_at_maximum_age() -> None:
    book = OpenWindows().entered([catch(1, 5)], 1_000, LIMITS).entered([catch(6, 7)], 9_000, LIMITS)
    assert book.closed_when_due(10_999, LIMITS).closed == ()
    (window,) = book.closed_when_due(11_000, LIMITS).closed
    assert (window.opened_ms, window.closed_ms, window.messages, window.size_bytes) == (1_000, 11_000, 7, 20)


def test_d5_window_is_closed_before_maximum_size() -> None:
    book = OpenWindows().entered(
        [catch(1, 1, size_bytes=60), catch(2, 2, size_bytes=40), catch(3, 3, size_bytes=1)], 0, LIMITS
    )
    assert names(book) == [(False, ["orders-1", "orders-2"]), (True, ["orders-3"])]


def test_oversized_message_has_a_separate_window() -> None:
    pieces = [catch(1, 1), catch(2, 2, size_bytes=500), catch(3, 3)]
    book = OpenWindows().entered(pieces, 0, LIMITS)
    assert names(book) == [(False, ["orders-1"]), (False, ["orders-2"]), (True, ["orders-3"])]


def test_windows_are_separate_for_case_insensitive_entities() -> None:
    book = (
        OpenWindows()
        .entered([catch(1, 1), catch(1, 1, "bills")], 0, FOREVER)
        .entered([catch(2, 2, "ORDERS")], 5, FOREVER)
    )
    assert names(book) == [(True, ["bills-1"]), (True, ["orders-1", "ORDERS-2"])]


def test_windows_keep_the_order_of_a_queue() -> None:
    book = OpenWindows().entered([catch(5, 6), catch(1, 2), catch(3, 4)], 0, FOREVER)
    assert names(book) == [(True, ["orders-1", "orders-3", "orders-5"])]


def test_empty_batch_changes_nothing() -> None:
    book = OpenWindows().entered([catch(1, 5)], 0, LIMITS)
    assert book.entered([], 5, LIMITS) == book


def test_last_batch_includes_repeated_messages() -> None:
    book = OpenWindows().entered([catch(1, 5)], 0, LIMITS)
    assert str(book.taken["orders"].numbers) == "1..5"
    book = book.entered([catch(1, 5, is_old=True), catch(6, 8, "Orders")], 1, LIMITS)
    assert str(book.taken["orders"].numbers) == "1..8"
    assert names(book) == [(True, ["orders-1", "Orders-6"])]
    assert [*book.entered([catch(1, 1, "bills")], 2, LIMITS).taken] == ["bills"]


def test_all_windows_are_closed_at_the_end_and_removed_once_written() -> None:
    book = OpenWindows().entered([catch(1, 5), catch(1, 1, "bills")], 7, LIMITS).closed_all(7)
    assert len(book.closed) == 2
    assert book.pieces == {"orders-1", "bills-1"}
    assert book.without(book.closed[0]).without(book.closed[1]).windows == ()


def test_window_is_closed_after_clock_is_set_back() -> None:
    book = OpenWindows().entered([catch(1, 5)], 1_000_000, LIMITS)
    assert len(book.closed_when_due(500_000, LIMITS).closed) == 1


def test_file_is_named_after_its_window() -> None:
    (window,) = OpenWindows().entered([catch(17, 18, "news/Subscriptions/a b")], 1_794_803_696_789, LIMITS).windows
    assert str(window.path) == (
        "source=news%2FSubscriptions%2Fa%20b/day=2026-11-16/hour=04/20261116T043456.789Z-17.parquet"
    )


@pytest.mark.parametrize("entity", ["a" * 260, "€" * 130, f"{'a' * 100}/{'b' * 150}"], ids=["plain", "quoted", "parts"])
def test_long_directory_name_is_cut_and_unique(entity: str, tmp_path: Path) -> None:
    books = [OpenWindows().entered([catch(1, 1, name)], 0, LIMITS) for name in (entity, f"{entity}x")]
    one, other = (tmp_path / book.windows[0].path for book in books)
    assert one.parent != other.parent
    for path in (one, other):
        path.parent.mkdir(parents=True)
        path.touch()
        assert is_readable(path.relative_to(tmp_path).parts[0])


def is_readable(name: str) -> bool:
    """Return whether it can be decoded: a cut inside an escape could not."""
    return unquote(name, errors="strict").startswith("source=")


def test_state_survives_serialization() -> None:
    book = OpenWindows().entered([catch(1, 5), catch(9, 9, "bills")], 7, LIMITS).closed_when_due(10_007, LIMITS)
    assert book.closed
    assert OpenWindows.from_text(book.to_text()) == book


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"version": 2}', '{"version": 1, "taken": [], "windows": []}'])
def test_invalid_state_is_rejected(text: str) -> None:
    with pytest.raises(CaptureDamagedError, match=r"it cannot be read|another version"):
        OpenWindows.from_text(text)
