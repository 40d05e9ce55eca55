"""Queues that are captured: what is sent to them, what is left in them, and how far a capture has come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from pairbus.blocking import BrokeredMessage, MessagingFactory
from pairbus.jobs.capture.book import Book
from tests.jobs.capture.messages import ids

LIMIT_S: Final = 180.0
"""Generous: whoever waits may share the processors with many."""


def send(
    factory: MessagingFactory, path: str, numbers: Iterable[int], body: Callable[[], bytes] = lambda: b"one"
) -> None:
    with factory.create_message_sender(path) as sender:
        sender.send([BrokeredMessage(body(), message_id=f"{path}-{number}") for number in numbers])


def sent(path: str, numbers: Iterable[int]) -> list[str]:
    return [f"{path}-{number}" for number in numbers]


def depth(factory: MessagingFactory, path: str) -> int:
    count = cursor = 0
    with factory.create_message_receiver(path) as receiver:
        while page := receiver.peek(500, cursor):
            count += len(page)
            cursor = page[-1].sequence_number + 1
    return count


def count(root: Path) -> int:
    """How many messages a reader sees, who may come before there is anything."""
    return len(ids(root)) if root.exists() else 0


def book(root: Path) -> Book:
    return Book.from_text((root / "_capture" / "book.json").read_text())


def eventually(condition: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < ends_s, f"still not so after {LIMIT_S:.0f} s"
        time.sleep(0.1)
