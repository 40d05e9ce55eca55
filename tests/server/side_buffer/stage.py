"""A namespace with a store in memory that fails on demand, and a side buffer on disk."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pairbus.backoff import Backoff
from pairbus.broker import STANDARD, Address
from pairbus.server.access import Authorizer
from pairbus.server.amqp.services import AmqpServices
from pairbus.server.clock import SystemClock
from pairbus.server.counters import Counters
from pairbus.server.dispatcher import Dispatcher
from pairbus.server.host import NamespaceHost
from pairbus.server.side_buffer.buffer import SideBuffer
from pairbus.store import Batch, GroupCommitter, StoreError, apply, keys
from pairbus.store.errors import StoreFailedError, StoreFullError
from pairbus.store.memory import MemoryCommit
from pairbus.store.records import decode_stamped
from pairbus.store.write_batch import RESERVE_BYTES
from tests.server.amqp.test_failed_commits import GatedStore, Stage
from tests.server.amqp.wire_client import DEADLINE_S
from tests.waiting import eventually_async

MEGABYTE = 1024 * 1024
ORDERS = Address.of("orders")
VISITS = Address.of("visits")
FAILED = StoreFailedError("the store", "the test wants it so")
FULL = StoreFullError("the store", "the test wants it so")


class TroubledStore(GatedStore):
    """A store that fails every commit while ``trouble`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.trouble: StoreError | None = None
        self.trouble_after_next: StoreError | None = None
        """The error of the commit after the next one."""
        self.attempts = 0
        """Number of commits that were attempted."""
        self.merged: list[list[str]] = []
        """The entities merged with each commit."""
        self.merging_gate = threading.Event()
        self.merging_gate.set()
        self.is_merging = threading.Event()
        """Set once a commit with merged messages waits at the gate, or has passed it."""

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
        if self.trouble_after_next is not None:
            self.fail_next_run(self.trouble_after_next)
            self.trouble_after_next = None
        if entities:
            self.merged.append(entities)

    def give_room(self, size_bytes: int) -> None:
        """Raise the limit by a size, on top of the reserve for settling."""
        self.max_bytes = self.used_bytes + RESERVE_BYTES + size_bytes


class BufferedStage(Stage):
    """A namespace with a side buffer."""

    store: TroubledStore

    def __init__(self, left: Mapping[bytes, bytes] | None = None) -> None:
        """``left`` is what the store of an earlier namespace holds."""
        self.store = TroubledStore()
        if left is not None:
            apply(self.store, left)
        loop = asyncio.get_running_loop()
        keeper = GroupCommitter(self.store, self._make, SystemClock()(), wake=loop.call_soon_threadsafe)
        self.host = NamespaceHost("contoso", STANDARD, keeper, SystemClock(), loop)
        self.services = AmqpServices(
            self.host, Authorizer(self.host), Dispatcher(self.host), Counters(), idle_timeout_ms=240_000
        )

    def open_buffer(self, path: Path, max_bytes: int = MEGABYTE) -> SideBuffer:
        buffer = SideBuffer.open(path, "contoso", self.host, max_bytes, Backoff(0.01, 0.02))
        self.host.side_buffer = buffer
        buffer.start()
        return buffer

    @property
    def buffer(self) -> SideBuffer:
        assert self.host.side_buffer is not None
        return self.host.side_buffer

    def numbers(self, address: Address = ORDERS) -> list[str]:
        """Return the bodies of the messages in a queue, in order."""
        return [body.decode() for body in self.kept(address)]

    async def merged(self) -> None:
        await eventually_async(lambda: not self.buffer.counts.held)

    async def rounds(self, number: int = 5) -> None:
        """Wait for a number of further commit attempts."""
        attempts = self.store.attempts
        await eventually_async(lambda: self.store.attempts >= attempts + number)

    def ids(self, address: Address = ORDERS) -> list[str]:
        found = self.host.use_namespace().peek(address, 0, 10_000, self.host.now_ms())
        return [each.record.message_id for each in found]


@asynccontextmanager
async def staged(
    path: Path, max_bytes: int = MEGABYTE, left: Mapping[bytes, bytes] | None = None
) -> AsyncIterator[BufferedStage]:
    stage = BufferedStage(left)
    try:
        if left is None:
            await stage.furnish()
        stage.open_buffer(path, max_bytes)
        yield stage
    finally:
        stage.store.trouble = None
        stage.store.gate.set()
        stage.store.reads.set()
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
