"""Queues to capture: sending to them, counting their messages, and the progress of a capture."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from pairbus.blocking import BrokeredMessage, MessagingFactory
from pairbus.jobs.capture.window import OpenWindows
from tests.jobs.capture.messages import ids

LIMIT_S: Final = 180.0
"""Generous: the processors may be shared with many."""


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
    """Return the number of messages that a reader sees, 0 before there is a file."""
    return len(ids(root)) if root.exists() else 0


def book(root: Path) -> OpenWindows:
    return OpenWindows.from_text((root / "_capture" / "book.json").read_text())
