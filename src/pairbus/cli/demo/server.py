"""Namespaces of the demo, each served by a process of its own."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


@asynccontextmanager
async def serving(path: Path, settings: str, port: int = 0) -> AsyncIterator[tuple[Process, str]]:
    """``pairbus serve`` as a process of its own, and the connection string that it prints."""
    _write(path, settings)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "pairbus.cli.main", "serve", "--port", str(port)),
        *("--config", str(path / "settings.toml"), "--data", str(path / "data")),
        stdout=PIPE,
    )
    try:
        yield process, await _connection_string(process)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def _write(path: Path, settings: str) -> None:
    path.mkdir(exist_ok=True)
    (path / "settings.toml").write_text(settings)


async def _connection_string(process: Process) -> str:
    if process.stdout is not None:
        async for line in process.stdout:
            if line.startswith(b"Endpoint="):
                return line.decode().strip()
    raise RuntimeError("the server did not start")
