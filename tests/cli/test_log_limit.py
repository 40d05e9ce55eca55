"""E5: whatever a peer does, the log of a server grows by a bounded number of lines a second."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from pairbus.cli.serve import LINES_A_SECOND, LogLimit


class Clock:
    now_s = 100.5

    def __call__(self) -> float:
        return self.now_s


class Lines(logging.Handler):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.addFilter(LogLimit(clock))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def logged(clock: Clock) -> Lines:
    return Lines(clock)


@pytest.fixture
def log(logged: Lines) -> Iterator[logging.Logger]:
    logger = logging.getLogger("limited")
    logger.setLevel(logging.INFO)
    logger.addHandler(logged)
    yield logger
    logger.removeHandler(logged)


def test_lines_of_one_kind_beyond_the_limit_are_suppressed(log: logging.Logger, logged: Lines) -> None:
    for number in range(LINES_A_SECOND + 5):
        log.info("handshake failed peer=%s", number)
    assert logged.lines == [f"handshake failed peer={number}" for number in range(LINES_A_SECOND)]


def test_suppressed_lines_are_counted_in_the_next_that_passes(log: logging.Logger, logged: Lines, clock: Clock) -> None:
    for number in range(LINES_A_SECOND + 5):
        log.info("handshake failed peer=%s", number)
    clock.now_s += 1
    log.info("handshake failed peer=%s reason=%s", 1, "another kind")
    log.info("handshake failed peer=%s", "100%")
    log.info("handshake failed peer=%s", 2)
    assert logged.lines[LINES_A_SECOND:] == [
        "handshake failed peer=1 reason=another kind",
        "handshake failed peer=100% suppressed=5",
        "handshake failed peer=2",
    ]


def test_lines_of_other_kinds_and_loggers_pass(log: logging.Logger, logged: Lines) -> None:
    other = log.getChild("other")  # its lines come to the same handler
    for _ in range(LINES_A_SECOND + 5):
        log.info("login failed")
    log.warning("storage stalled")
    other.info("login failed")
    assert logged.lines[LINES_A_SECOND:] == ["storage stalled", "login failed"]
