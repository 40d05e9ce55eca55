"""A capture that was killed before its window was finished, and the data directory of what it captures."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from pairbus.blocking import MessagingFactory, NamespaceManager
from tests.jobs.capture.entities import book, send, sent
from tests.jobs.capture.messages import ids
from tests.jobs.capture.test_killed import process
from tests.pairing.processes import NamespaceProcess
from tests.waiting import eventually

KIND: Final = "capture"
NAME: Final = "contoso"
FILES: Final = "files"
BOOK: Final = f"{FILES}/_capture/book.json"
_QUEUES: Final = ("orders", "visits")
_EACH: Final = 60
_BATCH: Final = 10


def make(directory: Path) -> dict[str, Any]:
    """Capture a part of what is in two queues, and return what must be captured in the end."""
    to = directory / FILES
    with NamespaceProcess(directory / NAME) as served:
        connection = served.connection_string
        with (
            NamespaceManager.from_connection_string(connection) as manager,
            MessagingFactory.from_connection_string(connection) as factory,
        ):
            for queue in _QUEUES:
                manager.create_queue(queue)
                send(factory, queue, range(_EACH), lambda: b"captured")
        entities = [option for queue in _QUEUES for option in ("--entity", queue)]
        limits = ("--max-messages", _BATCH, "--window", "1h")
        with process(connection, *entities, "--to", to, *limits):
            eventually(lambda: _captured(to) > _BATCH)  # one batch is committed, and another one is in its window
        served.kill()
    everything = sorted(name for queue in _QUEUES for name in sent(queue, range(_EACH)))
    assert _captured(to) < len(everything), "there is nothing left to be captured"
    assert all(window.is_open for window in book(to).windows)
    assert not ids(to), "a window was finished"
    return {"name": NAME, "source": book(to).source, "entities": [*_QUEUES], "captured": everything}


def _captured(to: Path) -> int:
    """Return how many messages are in windows."""
    path = to / "_capture" / "book.json"
    return sum(window.messages for window in book(to).windows) if path.exists() else 0
