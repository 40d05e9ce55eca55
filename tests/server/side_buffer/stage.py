"""A namespace with a store in memory that fails when a test wants it to, and a side buffer on disk."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pairbus.broker import STANDARD, Address
from pairbus.server.access import Gatekeeper
from pairbus.server.amqp.services import AmqpServices
from pairbus.server.clock import SystemClock
from pairbus.server.counters import Counters
from pairbus.server.dispatcher import Dispatcher
from pairbus.server.host import NamespaceHost
from pairbus.server.side_buffer.buffer import SideBuffer
from pairbus.server.side_buffer.merger import Pauses
from pairbus.store import Batch, Keeper, StoreError, keys
from pairbus.store.errors import StoreFailedError, StoreFullError
from pairbus.store.journal import RESERVE_BYTES
from pairbus.store.memory import MemoryCommit
from pairbus.store.records import decode_stamped
from tests.server.amqp.test_failed_commits import GatedStore, Stage
from tests.server.amqp.wire_client import DEADLINE_S

MEGABYTE = 1024 * 1024
ORDERS = Address.of("orders")
VISITS = Address.of("visits")
FAILED = StoreFailedError("the store", "the test wants it so")
FULL = StoreFullError("the store", "the test wants it so")


class TroubledStore(GatedStore):
    """Fails every commit for as long as it has trouble."""

    def __init__(self) -> None:
        super().__init__()
        self.trouble: StoreError | None = None
        self.attempts = 0
        """How often something was to be committed."""
        self.merged: list[list[str]] = []
        """Of which entities something was merged, by commit."""
        self.merging_gate = threading.Event()
        self.merging_gate.set()
        self.is_merging = threading.Event()
        """A commit that merges something waits at its gate, or has passed it."""

    def prepare(self, batch: Batch) -> MemoryCommit:
        self.attempts += 1
        return super().prepare(batch)

    def write(self, commit: MemoryCommit) -> None:
        values = [value for key, value in commit.batch.items() if key.startswith(keys.MERGED) and value is not None]
        entities = [entity for position, entity, _ in map(decode_stamped, values) if position]
        if entities:
            self.is_merging.set()
            assert self.merging_gate.wait(DEADLINE_S)
        if self.trouble is not None:
            self.fail_next_run(self.trouble)
        super().write(commit)
        if entities:
            self.merged.append(entities)

    def give_room(self, size_bytes: int) -> None:
        """Let it take so much more, and what is kept for settling."""
        self.max_bytes = self.used_bytes + RESERVE_BYTES + size_bytes


class BufferedStage(Stage):
    """The same with a side buffer beside it."""

    store: TroubledStore

    def __init__(self) -> None:
        self.store = TroubledStore()
        loop = asyncio.get_running_loop()
        keeper = Keeper(self.store, self._make, SystemClock()(), wake=loop.call_soon_threadsafe)
        self.host = NamespaceHost("contoso", STANDARD, keeper, SystemClock(), loop)
        self.services = AmqpServices(
            self.host, Gatekeeper(self.host), Dispatcher(self.host), Counters(), idle_timeout_ms=240_000
        )

    def open_buffer(self, path: Path, max_bytes: int = MEGABYTE) -> SideBuffer:
        buffer = SideBuffer.open(path, "contoso", self.host, max_bytes, Pauses(first_s=0.01, longest_s=0.02))
        self.host.side_buffer = buffer
        buffer.start()
        return buffer

    @property
    def buffer(self) -> SideBuffer:
        assert self.host.side_buffer is not None
        return self.host.side_buffer

    def numbers(self, address: Address = ORDERS) -> list[str]:
        """What lies in a queue, by its bodies, in order."""
        return [body.decode() for body in self.kept(address)]

    async def merged(self) -> None:
        await eventually(lambda: not self.buffer.tally.held)

    async def rounds(self, number: int = 5) -> None:
        """Wait until it was tried so often to merge something."""
        attempts = self.store.attempts
        await eventually(lambda: self.store.attempts >= attempts + number)

    def ids(self, address: Address = ORDERS) -> list[str]:
        found = self.host.namespace.peek(address, 0, 10_000, self.host.now_ms())
        return [each.record.message_id for each in found]


async def eventually(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0.002)


@asynccontextmanager
async def staged(path: Path, max_bytes: int = MEGABYTE) -> AsyncIterator[BufferedStage]:
    stage = BufferedStage()
    try:
        await stage.furnish()
        stage.open_buffer(path, max_bytes)
        yield stage
    finally:
        stage.store.trouble = None
        stage.store.gate.set()
        stage.store.merging_gate.set()
        connections: list[Any] = [*stage.services.connections]
        for connection in connections:
            connection.connection_lost()
        await stage.buffer.close()
        stage.host.close()


def play(scene: Callable[[BufferedStage], Awaitable[None]], path: Path, max_bytes: int = MEGABYTE) -> None:
    async def played() -> None:
        async with staged(path, max_bytes) as stage:
            await scene(stage)

    asyncio.run(played())
