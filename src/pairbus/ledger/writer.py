"""Carries rows from where they wait into the book, and bears with the disk."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from pairbus.ledger.book import Book
from pairbus.ledger.columns import LIVES
from pairbus.ledger.page import OperationRow, Page, life_pages, operation_pages
from pairbus.ledger.waiting import Counted, Taken, Waiting

_log = logging.getLogger(__name__)

_ROUNDS: Final = 16
"""How often a turn takes what waits, before it looks after the files again."""

_LAST_ROUNDS: Final = 1_000


class Writer:
    """Does everything in turns. None of them raises: one that fails says why in ``error``, and the next goes on."""

    def __init__(self, book: Book, waiting: Waiting, namespace: str, pause: Callable[[], object]) -> None:
        """``pause`` is called now and then, so that others can work."""
        self.operations_written = 0
        self.lives_written = 0
        self.hand_overs_written = 0
        """All hand-overs of events up to this one are on disk, or can never be."""

        self.error: str | None = None
        self._book = book
        self._waiting = waiting
        self.namespace = namespace
        self._pause = pause
        self._pages: deque[Page] = deque()
        """What was taken, and is not on disk yet."""

        self._taken: Taken | None = None
        """What was taken, and is not converted yet."""

        self._taken_hand_over = 0

    def turn(self, now_ms: int) -> None:
        """Put on disk what waits, and close what is due."""
        self._attempt(lambda: self._write(now_ms, _ROUNDS), lambda: self._book.close_due(now_ms))

    def finish(self, now_ms: int) -> None:
        """Put the rest on disk, and close everything; what the disk does not take now is lost."""
        self._attempt(lambda: self._write(now_ms, _LAST_ROUNDS), self._book.close)
        unconverted = 0 if self._taken is None else len([*_rows(self._taken)])
        lost = self._waiting.lives + unconverted + sum(page.row_count for page in self._pages if page.table != LIVES)
        if lost:
            _log.error("the ledger in %s was closed without its last %d rows", self._book.directory, lost)

    def _attempt(self, *steps: Callable[[], object]) -> None:
        """Each on its own: a file that cannot be closed does not keep rows from being written."""
        failures = [failure for failure in map(_failure_of, steps) if failure is not None]
        before, self.error = self.error, str(failures[0]) or repr(failures[0]) if failures else None
        if failures and before is None:
            defect = None if isinstance(failures[0], OSError) else failures[0]
            text = "the ledger in %s cannot be written; what comes is kept in memory, within bounds: %s"
            _log.error(text, self._book.directory, self.error, exc_info=defect)
        elif before is not None and not failures:
            _log.warning("the ledger in %s is written again", self._book.directory)

    def _write(self, now_ms: int, rounds: int) -> None:
        """Nothing more is taken while there is something left: what waits there is counted together, within bounds."""
        for _ in range(rounds):
            while self._pages:
                self._append(self._pages[0], now_ms)
                self._pages.popleft()
            self.hand_overs_written = self._taken_hand_over
            if self._taken is None:
                self._taken = self._waiting.take()
            taken = self._taken
            if taken is None:
                return
            self._convert(taken, now_ms)
            self._taken = None
            self._taken_hand_over = taken.hand_over

    def _convert(self, taken: Taken, now_ms: int) -> None:
        """What cannot be a row is a defect, and must not be tried for ever. All of it is converted, or nothing."""
        lives = life_pages(self.namespace, taken.lives, self._pause)
        operations = operation_pages(self.namespace, [*_rows(taken)], self._pause)
        self._pages += [*lives.pages, *operations.pages]
        if lives.refused:
            _log.error("%d events cannot be written to the ledger", len(lives.refused), exc_info=lives.failure)
            self._waiting.give_up(lives.refused, now_ms)
        if operations.refused:
            count = len(operations.refused)
            _log.error("%d rows of operations cannot be written to the ledger", count, exc_info=operations.failure)

    def _append(self, page: Page, now_ms: int) -> None:
        rows = page.row_count
        self._book.append(page, now_ms)
        if page.table == LIVES:
            self.lives_written += rows
            self._waiting.done(rows)
        else:
            self.operations_written += rows


def _failure_of(step: Callable[[], object]) -> Exception | None:
    try:
        step()
    except Exception as failure:  # noqa: BLE001 (whatever it is, the next turn tries again)
        return failure
    return None


def _rows(taken: Taken) -> Iterator[OperationRow]:
    for second in taken.seconds:
        yield from map(_row, second.counted())
    yield from map(_row, taken.merged)


def _row(counted: Counted) -> OperationRow:
    tally = counted.tally
    return (
        counted.at_ms,
        *counted.sort,
        tally.operations,
        tally.messages,
        tally.bytes,
        tally.units,
        tally.request_units,
        counted.connections,
    )
