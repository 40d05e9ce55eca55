"""A syphon on Spark in a process of its own, which can be killed.

Run as ``python -m tests.jobs.driver`` it syphons, and says a line about each batch. The environment has the connection
strings.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Final

from pairbus.jobs.syphon.outcome import BatchReport
from pairbus.jobs.syphon.settings import SparkSyphonSettings
from pairbus.jobs.syphon.spark_syphon import SparkSyphon
from pairbus.pairing.syphon import SyphonContext, SyphonSettings
from tests.jobs.processes import kill_session, members
from tests.jobs.sent_messages import Strings, backlog_queues
from tests.spark.class_archive import java_options

_ROOT: Final = Path(__file__).resolve().parents[2]
_PRIMARY: Final = "SYPHON_PRIMARY"
_SECONDARY: Final = "SYPHON_SECONDARY"
_READY: Final = "ready"
_LIMIT_S: Final = 240.0


class Driver:
    """A driver process, with its output and exit code."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.batches: list[str] = []
        self._process = process
        self._said = asyncio.Condition()
        self._is_ready = False
        self._is_over = False
        self._reading = asyncio.create_task(self._read())

    @property
    def session(self) -> int:
        return self._process.pid

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            async with self._said:
                if line.startswith(b"batch "):
                    self.batches.append(line.decode().strip())
                self._is_ready |= line.decode().strip() == _READY
                self._said.notify_all()
        async with self._said:
            self._is_over = True
            self._said.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for what it says; it must not end before."""
        async with asyncio.timeout(_LIMIT_S), self._said:
            await self._said.wait_for(lambda: condition() or self._is_over)
        assert condition(), "it has ended before"

    async def ready(self) -> None:
        await self.until(lambda: self._is_ready)

    async def said(self, batches: int) -> None:
        await self.until(lambda: len(self.batches) >= batches)

    async def ended(self) -> int:
        async with asyncio.timeout(_LIMIT_S):
            await self._reading
            return await self._process.wait()

    async def kill(self) -> None:
        """SIGKILL for all of it: Python, Java, and the workers. To kill it twice is fine."""
        await asyncio.to_thread(kill_session, self.session)
        await self._process.wait()
        await asyncio.wait((self._reading,))


@asynccontextmanager
async def driver(
    strings: Strings,
    directory: Path,
    *,
    queues: int,
    checkpoint: str = "checkpoint",
    master: str = "local[2]",
    max_messages: int = 1_000,
    once: bool = False,
) -> AsyncIterator[Driver]:
    """A syphon; it is killed at the end, if it has not ended before."""
    (directory / "temporary").mkdir(exist_ok=True)
    # Executors of a cluster have an environment of their own: what they connect with is in files then.
    is_here = master.startswith("local")
    references = (f"env:{_PRIMARY}", f"env:{_SECONDARY}") if is_here else strings.files(directory)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.jobs.driver", "--master", master, "--checkpoint", str(directory / checkpoint)),
        *("--primary", references[0], "--secondary", references[1]),
        *("--queues", str(queues), "--max-messages", str(max_messages), *(["--once"] if once else [])),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=_ROOT,
        env={
            **os.environ,
            _PRIMARY: strings.primary,
            _SECONDARY: strings.secondary,
            "TMPDIR": str(directory / "temporary"),
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        start_new_session=True,
    )
    running = Driver(process)
    try:
        yield running
    finally:
        await running.kill()
    assert not members(running.session)


async def _syphon(arguments: argparse.Namespace) -> None:
    def say(report: BatchReport) -> None:
        print(report, flush=True)

    settings = SparkSyphonSettings(
        master=arguments.master,
        checkpoint=arguments.checkpoint,
        primary=arguments.primary,
        secondary=arguments.secondary,
        max_messages=arguments.max_messages,
        config={} if arguments.master.startswith("local") else CLUSTER_CONFIG,
    )
    strings = Strings(primary=os.environ[_PRIMARY], secondary=os.environ[_SECONDARY])
    async with strings.factories() as (primary, secondary):
        context = SyphonContext(
            primary=primary,
            secondary=secondary,
            backlog_queues=backlog_queues(arguments.queues),
            settings=SyphonSettings(long_poll=timedelta(seconds=30)),
            is_held=lambda _: False,
            publish=lambda _: None,
        )
        syphon = SparkSyphon(context, settings, on_batch=say)
        try:
            if arguments.once:
                await syphon.drain()
            else:
                await syphon.start()
                print(_READY, flush=True)
                await asyncio.Event().wait()
        finally:
            await syphon.close()


CLUSTER_CONFIG: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": java_options(),
    "spark.ui.enabled": "false",
}
"""The configuration of a driver for a cluster on this machine."""


def _end_with_parent() -> None:
    """Whoever was to kill us may be gone."""
    sys.stdin.read()
    os._exit(1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--master", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--primary", required=True)
    parser.add_argument("--secondary", required=True)
    parser.add_argument("--queues", type=int, required=True)
    parser.add_argument("--max-messages", type=int, required=True)
    parser.add_argument("--once", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    Thread(target=_end_with_parent, daemon=True).start()
    asyncio.run(_syphon(_arguments()))
