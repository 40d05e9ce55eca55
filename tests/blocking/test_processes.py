"""Forks and ends of processes: each in a process that is there for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pairbus.blocking import MessagingFactory, NamespaceManager, QueueDescription
from pairbus.testing import RunningNamespace, running_namespace
from tests.blocking import programs
from tests.blocking.programs import QUEUE, SESSIONS

ROOT = Path(__file__).resolve().parents[2]
START = """
import atexit, sys
before = []
atexit.register(lambda: [work() for work in before])
from tests.blocking import programs
programs.BEFORE = before
getattr(programs, sys.argv[1])(sys.argv[2])
"""

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has neither forks nor such signals")


@pytest.fixture
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace(queues=[QUEUE]) as running:
        with NamespaceManager.from_connection_string(running.connection_string) as manager:
            manager.create_queue(QueueDescription(SESSIONS, requires_session=True))
        yield running


def run(program: Callable[[str], None], namespace: RunningNamespace) -> subprocess.CompletedProcess[str]:
    # Newer versions of Python warn of any fork beside threads, which is what this is about.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", START, program.__name__]
    process = subprocess.Popen(
        [*command, namespace.connection_string],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        said, complained = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its children too
        process.communicate()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, said, complained)


def bodies(namespace: RunningNamespace) -> list[bytes]:
    with MessagingFactory.from_connection_string(namespace.connection_string) as factory:
        return [message.body for message in factory.create_message_receiver(QUEUE).peek(100)]


def test_objects_used_before_fork_raise_in_child_and_work_in_parent(
    namespace: RunningNamespace,
) -> None:
    done = run(programs.fork, namespace)
    assert (done.returncode, done.stderr) == (0, "")
    assert bodies(namespace) == [
        b"parent, before",
        b"child, with what was not used before",
        b"child",
        b"grandchild",
        b"parent, after",
        b"parent, with what was used by the child only",
    ]


def test_fork_beside_sending_threads_disturbs_neither_side(namespace: RunningNamespace) -> None:
    done = run(programs.fork_while_threads_send, namespace)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "program",
    [
        programs.leave_everything_open,
        programs.end_while_the_loop_is_blocked,
        programs.use_it_at_the_end,
        programs.use_it_after_the_end,
    ],
    ids=lambda program: program.__name__,
)
def test_program_exits_silently_with_open_objects(namespace: RunningNamespace, program: Callable[[str], None]) -> None:
    done = run(program, namespace)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    if program is programs.use_it_at_the_end:
        assert bodies(namespace) == [b"hello", b"goodbye"]


def test_waiting_program_is_ended_by_ctrl_c(namespace: RunningNamespace) -> None:
    done = run(programs.interrupt_the_end, namespace)
    assert done.returncode == -2
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")
    assert "During handling" not in done.stderr
