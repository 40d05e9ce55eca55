"""A namespace with a small store in a separate process, which tests kill."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from pairbus.server import NamespaceServer, Settings, Tier
from pairbus.server.declaration import parse_declaration

START_S = 120.0
MEGABYTE = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallSettings(Settings):
    """Settings with a store of some megabytes: a test has no time to fill gigabytes."""

    store_megabytes: int = 32

    @property
    def max_store_bytes(self) -> int:
        return self.store_megabytes * MEGABYTE


def small_settings(path: Path, store_megabytes: int, side_buffer_mb: int = 256) -> SmallSettings:
    return SmallSettings(
        data=path / "data",
        name="contoso",
        port=(0,),
        tier=Tier.STANDARD,
        entities=parse_declaration({"queues": [{"name": "orders"}]}),
        side_buffer=path / "side",
        side_buffer_mb=side_buffer_mb,
        ledger=path / "ledger",
        ledger_lives=True,
        store_megabytes=store_megabytes,
    )


def serve(path: Path, store_megabytes: int, side_buffer_mb: int, reports: Connection) -> None:
    async def served() -> None:
        async with NamespaceServer(small_settings(path, store_megabytes, side_buffer_mb)) as server:
            reports.send((server.ports[0], server.key, server.connection_string))
            await asyncio.Event().wait()

    asyncio.run(served())


@dataclass(frozen=True, slots=True)
class Served:
    """A running namespace: its port, its credentials and its process."""

    port: int
    key: str
    connection_string: str
    process: BaseProcess

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


@contextmanager
def starting(path: Path, store_megabytes: int, side_buffer_mb: int = 256) -> Iterator[tuple[BaseProcess, Connection]]:
    """Start a namespace, without waiting; the connection reports when it is ready."""
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(path, store_megabytes, side_buffer_mb, theirs))
    process.start()
    try:
        yield process, ours
    finally:
        process.kill()
        process.join()


@contextmanager
def serving(path: Path, store_megabytes: int, side_buffer_mb: int = 256) -> Iterator[Served]:
    with starting(path, store_megabytes, side_buffer_mb) as (process, reports):
        assert reports.poll(START_S), "the namespace did not start"
        port, key, connection_string = reports.recv()
        yield Served(port, key, connection_string, process)
