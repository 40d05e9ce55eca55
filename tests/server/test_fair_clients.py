"""B2 on the wire: a client that receives, peeks or manages at full speed does not starve another queue."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from pairbus import QueueDescription
from pairbus.blocking import BrokeredMessage, MessagingFactory, NamespaceManager
from tests.server.served_process import ServedProcess, served_process
from tests.waiting import eventually

pytestmark = pytest.mark.slow

ROUND_TRIPS: Final = 50
SLOWEST_S: Final = 5.0
USUAL_S: Final = 1.0
LOUD_MESSAGES: Final = 500

CLIENTS: Final = {
    "receiver": """
        receiver = await factory.create_message_receiver("loud")
        while True:
            await receiver.abandon(await receiver.receive(100))
            report()
""",
    "peek": """
        receiver = await factory.create_message_receiver("loud")
        while True:
            await receiver.peek(250, 0)
            report()
""",
    "management": """
        while True:
            await manager.get_queues()
            report()
""",
}
"""The call that each task of a loud client repeats."""

SCRIPT: Final = """
import asyncio
import sys

from pairbus import MessagingFactory, NamespaceManager

TASKS = 20
count = 0

def report():
    global count
    count += 1
    if count == 20:
        print("loud", flush=True)

async def repeat(factory, manager):
    async with factory, manager:
%s

async def main():
    where = sys.argv[1]
    await asyncio.gather(*(
        repeat(MessagingFactory.from_connection_string(where), NamespaceManager.from_connection_string(where))
        for _ in range(TASKS)
    ))

asyncio.run(main())
"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedProcess]:
    with (
        served_process(tmp_path, "--data", tmp_path / "data") as served,
        MessagingFactory.from_connection_string(served.connection_string) as factory,
        NamespaceManager.from_connection_string(served.connection_string) as manager,
    ):
        manager.create_queue(QueueDescription("loud", max_delivery_count=2_000))
        for number in range(100):  # they are listed at each management request
            manager.create_queue(f"other-{number}")
        with factory.create_message_sender("loud") as sender:
            sender.send([BrokeredMessage(b"x" * 100) for _ in range(LOUD_MESSAGES)])
        yield served


@contextmanager
def loud_client(served: ServedProcess, kind: str) -> Iterator[None]:
    """Run a client in a process of its own, once it is loud."""
    script = SCRIPT % CLIENTS[kind].rstrip().removeprefix("\n")
    process = subprocess.Popen(
        [sys.executable, "-c", script, served.connection_string], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "loud\n"
        yield
        assert process.poll() is None, "it was loud until the end"
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("kind", CLIENTS)
def test_b2_loud_client_does_not_starve_another_queue(served: ServedProcess, kind: str) -> None:
    took_s: list[float] = []
    with (
        loud_client(served, kind),
        MessagingFactory.from_connection_string(served.connection_string) as factory,
        factory.create_message_sender("orders") as sender,
        factory.create_message_receiver("orders") as receiver,
    ):
        for number in range(ROUND_TRIPS):
            began_s = time.monotonic()
            sender.send(BrokeredMessage(f"{number}"))
            (message,) = eventually(receiver.receive)
            receiver.complete(message)
            took_s.append(time.monotonic() - began_s)
            assert message.text() == f"{number}"
    assert statistics.median(took_s) < USUAL_S
    assert max(took_s) < SLOWEST_S
