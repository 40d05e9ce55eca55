"""A namespace in a process of its own, with a store that is soon full, to be killed."""

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
    """A store is given whole gigabytes; a test has no time to fill one."""

    store_megabytes: int = 32

    @property
    def max_store_bytes(self) -> int:
        return self.store_megabytes * MEGABYTE


def small_settings(path: Path, store_megabytes: int) -> SmallSettings:
    return SmallSettings(
        data=path / "data",
        name="contoso",
        port=(0,),
        tier=Tier.STANDARD,
        entities=parse_declaration({"queues": [{"name": "orders"}]}),
        side_buffer=path / "side",
        ledger=path / "ledger",
        ledger_lives=True,
        store_megabytes=store_megabytes,
    )


def serve(path: Path, store_megabytes: int, reports: Connection) -> None:
    async def served() -> None:
        async with NamespaceServer(small_settings(path, store_megabytes)) as server:
            reports.send((server.ports[0], server.key, server.connection_string))
            await asyncio.Event().wait()

    asyncio.run(served())


@dataclass(frozen=True, slots=True)
class Served:
    """What a client needs, and how it is killed."""

    port: int
    key: str
    connection_string: str
    process: BaseProcess

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


@contextmanager
def serving(path: Path, store_megabytes: int) -> Iterator[Served]:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(path, store_megabytes, theirs))
    process.start()
    try:
        assert ours.poll(START_S), "it did not start"
        port, key, connection_string = ours.recv()
        yield Served(port, key, connection_string, process)
    finally:
        process.kill()
        process.join()
