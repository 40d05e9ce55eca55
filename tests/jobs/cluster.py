"""A real standalone cluster on this machine: a master and its workers, each a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Final

import pyspark

from pairbus.spark.java import java_home, packaged_java_home
from tests.jobs.processes import kill_session, members
from tests.spark.class_archive import java_options

_SPARK_HOME: Final = Path(pyspark.__file__).parent
_LOOPBACK: Final = "127.0.0.1"
_ADDRESS: Final = re.compile(rf"spark://{_LOOPBACK}:\d+")
_MEMORY: Final = "1g"

EXECUTOR: Final = "CoarseGrainedExecutorBackend"
"""A part of the command line of an executor."""

PYTHON: Final = "pyspark.daemon"
"""A part of the command line of a process that runs Python for an executor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster: its address and its processes."""

    master: str
    workers: tuple[int, ...]

    def processes(self, word: str) -> list[int]:
        """The processes that workers have started with a word in their command."""
        return [process for worker in self.workers for process in members(worker, word)]


@contextmanager
def cluster(directory: Path, workers: int = 2) -> Iterator[Cluster]:
    """A master, and workers with a processor each; all of it is gone in the end, whatever happened to it."""
    with ExitStack() as stack:
        master = stack.enter_context(_daemon("master.Master", directory / "master"))
        address = _said(master, _ADDRESS)
        found: list[int] = []
        for index in range(workers):
            place = directory / f"worker-{index}"
            options = ("--cores", "1", "--memory", _MEMORY, "--work-dir", str(place), address)
            worker = stack.enter_context(_daemon("worker.Worker", place, *options))
            _said(worker, re.compile(r"Successfully registered with master"))
            found.append(worker.pid)
        yield Cluster(master=address, workers=tuple(found))


@contextmanager
def _daemon(name: str, directory: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    directory.mkdir(parents=True)
    command = (_SPARK_HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{name}")
    where = ("--host", _LOOPBACK, "--port", "0", "--webui-port", "0")
    with subprocess.Popen(
        [*map(str, (*command, *where)), *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(directory),
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            kill_session(process.pid)


def _environment(directory: Path) -> dict[str, str]:
    java = java_home(os.environ, packaged_java_home())
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_", "JAVA_"))}
    return {
        **kept,
        **({} if java is None else {"JAVA_HOME": str(java)}),
        "SPARK_HOME": str(_SPARK_HOME),
        "SPARK_LOCAL_IP": _LOOPBACK,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": java_options(),
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        "TMPDIR": str(directory),
        "SPARK_LOCAL_DIRS": str(directory),
    }


def _said(process: subprocess.Popen[str], words: re.Pattern[str]) -> str:
    """Wait until it has said something; what comes later is read and forgotten."""
    assert process.stderr is not None
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line)
        if (found := words.search(line)) is not None:
            Thread(target=process.stderr.read, daemon=True).start()
            return found[0]
    raise RuntimeError(f"it has not come up: {''.join(lines[-20:])}")
