"""`pairbus drill` as an operator runs it: with a syphon in the command, elsewhere, or without one."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import TypeVar
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from pairbus import MessagingFactory, NamespaceManager, SendAvailabilityPairedNamespaceOptions
from pairbus.broker import Right
from pairbus.cli.drill import NO_OUTAGES, OUTAGES
from pairbus.cli.main import app
from pairbus.fault_kinds import FaultKind
from pairbus.pairing.backlog import ensure_backlog_queues
from pairbus.testing import RunningNamespace, running_namespace
from tests.cli.test_cli import ENVIRONMENT, PAIRBUS, PATIENCE_S, reason, run
from tests.cli.test_pair import Namespaces, options, unused_address, with_key

T = TypeVar("T")


@pytest.fixture(scope="module")
def namespaces() -> Iterator[Namespaces]:
    with running_namespace("contoso") as primary, running_namespace("fabrikam") as secondary:
        yield Namespaces(primary, secondary)


@pytest.fixture
def name() -> str:
    return f"contoso-{uuid4().hex[:8]}"


def paths_of(namespace: RunningNamespace) -> list[str]:
    async def listing() -> list[str]:
        async with NamespaceManager.from_connection_string(namespace.connection_string) as manager:
            return [queue.path for queue in await manager.get_queues()]

    return asyncio.run(listing())


def make_backlog(namespaces: Namespaces, name: str, count: int) -> None:
    async def making() -> None:
        async with NamespaceManager.from_connection_string(namespaces.secondary.connection_string) as manager:
            await ensure_backlog_queues(manager, name, count)

    asyncio.run(making())


def count_in(namespace: RunningNamespace, name: str) -> int:
    """Count the messages in the backlog queues of a primary, dead letters included."""

    async def counting() -> int:
        async with NamespaceManager.from_connection_string(namespace.connection_string) as manager:
            infos = await manager.get_queues_runtime_info()
            return sum(info.message_count for info in infos if info.path.startswith(f"{name}/"))

    return asyncio.run(counting())


@asynccontextmanager
async def syphoning(namespaces: Namespaces, name: str) -> AsyncIterator[None]:
    """A syphon in another process."""
    first, second = namespaces.primary.connection_string, namespaces.secondary.connection_string
    async with (
        MessagingFactory.from_connection_string(second) as secondary,
        MessagingFactory.from_connection_string(first) as primary,
        NamespaceManager.from_connection_string(second) as manager,
    ):
        await primary.pair_namespace(
            SendAvailabilityPairedNamespaceOptions(manager, secondary, 2, enable_syphon=True, primary_name=name)
        )
        yield


def beside_a_syphon(namespaces: Namespaces, name: str, work: Callable[[], T]) -> T:
    async def beside() -> T:
        async with syphoning(namespaces, name):
            return await asyncio.to_thread(work)

    return asyncio.run(beside())


# Behaviour


def test_c21_drill_with_syphon_option_leaves_nothing_behind(namespaces: Namespaces, name: str) -> None:
    make_backlog(namespaces, name, 2)
    before = paths_of(namespaces.primary)
    done = run("drill", *namespaces.options, "--backlog-queues", 2, "--name", name, "--syphon")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"diverted in: \d+\.\d{3} s\ndelivered in: \d+\.\d{3} s\ntotal: \d+\.\d{3} s\n", done.stdout)
    assert count_in(namespaces.secondary, name) == 0
    assert paths_of(namespaces.primary) == before


def test_c21_drill_message_is_delivered_by_another_syphon(namespaces: Namespaces, name: str) -> None:
    arguments = ("drill", *namespaces.options, "--backlog-queues", 2, "--name", name, "--json")
    done = beside_a_syphon(namespaces, name, lambda: run(*arguments))
    assert (done.returncode, done.stderr) == (0, "")
    reported = json.loads(done.stdout)
    assert reported["path"].startswith("x-pairbus-drill/")
    assert reported["path"] not in paths_of(namespaces.primary)
    assert 0 < reported["diverted_in_s"] < reported["total_s"]
    assert reported["total_s"] == pytest.approx(reported["diverted_in_s"] + reported["delivered_in_s"])


@pytest.mark.slow
def test_c21_drill_without_a_syphon_exits_with_1(namespaces: Namespaces, name: str) -> None:
    make_backlog(namespaces, name, 1)
    done = run("drill", *namespaces.options, "--backlog-queues", 1, "--name", name, "--timeout", 1)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no syphon has delivered it" in reason(done)
    assert "add --syphon" in done.stderr
    assert count_in(namespaces.secondary, name) == 1


@pytest.mark.slow
def test_terminal_output_shows_the_times(namespaces: Namespaces, name: str) -> None:
    command = [*PAIRBUS, "drill", *namespaces.options, "--backlog-queues", "2", "--name", name]
    shown = beside_a_syphon(namespaces, name, lambda: in_a_terminal(command))
    assert re.search(r"^ +diverted in  \d+\.\d{3} s\r\n *delivered in  \d+\.\d{3} s\r\n +total  \d", shown)


def in_a_terminal(command: list[str]) -> str:
    ours, theirs = pty.openpty()
    environment = ENVIRONMENT | {"COLUMNS": "80", "TERM": "xterm"}
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=environment) as process:
        os.close(theirs)
        try:
            shown = ""
            while "total" not in shown:
                shown += os.read(ours, 4096).decode()
            shown += os.read(ours, 4096).decode() if not re.search(r"total.*\n", shown) else ""
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
            os.close(ours)
    return re.sub(r"\x1b\[[0-9;]*m", "", shown)


# With a fault


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cannot-send", "cannot-connect"])
def test_b1_drill_with_a_fault_diverts_the_message_and_delivers_it(
    namespaces: Namespaces, name: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    make_backlog(namespaces, name, 2)
    before = paths_of(namespaces.primary)
    arguments = ("--backlog-queues", 2, "--name", name, "--syphon", "--fault", kind, "--yes", "--json")
    done = run("drill", *namespaces.options, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert told["fault"] == kind
    assert 0 < told["diverted_in_s"] < told["total_s"]
    assert namespaces.primary.faults.list() == []
    assert count_in(namespaces.secondary, name) == 0
    assert paths_of(namespaces.primary) == before
    events = [line.getMessage().split()[1] for line in caplog.records if line.getMessage().startswith("fault ")]
    assert events == ["engaged", "cleared"]


def test_drill_with_a_fault_needs_a_primary_that_allows_faults(namespaces: Namespaces, name: str) -> None:
    make_backlog(namespaces, name, 1)
    with running_namespace("contoso", allow_faults=False) as primary:
        both = options(primary.connection_string, namespaces.secondary.connection_string)
        done = run("drill", *both, "--backlog-queues", 1, "--name", name, "--fault", "cannot-send")
    assert (done.returncode, done.stdout) == (1, "")
    assert "this server does not allow faults: start it with --allow-faults" in reason(done)


def test_drill_with_cannot_connect_asks_first(namespaces: Namespaces, name: str) -> None:
    done = run("drill", *namespaces.options, "--name", name, "--fault", "cannot-connect")
    assert done.returncode == 2
    assert "add --yes to cut" in reason(done)
    assert namespaces.primary.faults.list() == []


def test_drill_with_a_fault_that_is_no_outage_says_why_and_exits_with_2(namespaces: Namespaces) -> None:
    assert {*OUTAGES, *NO_OUTAGES} == {*FaultKind}
    done = run("drill", *namespaces.options, "--fault", "storage-stall")
    assert done.returncode == 2
    assert "--fault storage-stall is no outage for a pair: sends get server busy" in reason(done)


def test_drill_with_an_unknown_fault_exits_with_2(namespaces: Namespaces) -> None:
    done = run("drill", *namespaces.options, "--fault", "broken")
    assert done.returncode == 2
    assert "--fault must be one of cannot-send, cannot-connect, got 'broken'" in reason(done)


# Errors


@pytest.mark.slow
def test_drill_with_primary_down_diverts_nothing(namespaces: Namespaces, name: str) -> None:
    with unused_address() as primary:
        done = run("drill", *options(primary, namespaces.secondary.connection_string), "--name", name)
    assert done.returncode == 1
    assert "a drill requires the primary namespace to be up" in reason(done)
    assert "secret" not in done.stderr
    assert not [path for path in paths_of(namespaces.secondary) if path.startswith(name)]


@pytest.mark.slow
def test_secondary_down_exits_with_1(namespaces: Namespaces, name: str) -> None:
    with unused_address() as secondary:
        done = run("drill", *options(namespaces.primary.connection_string, secondary), "--name", name, "--syphon")
    assert done.returncode == 1
    assert "the queues of the secondary namespace cannot be listed" in reason(done)
    assert "secret" not in done.stderr


def test_c21_drill_creates_no_backlog_queues(namespaces: Namespaces, name: str) -> None:
    make_backlog(namespaces, name, 2)
    done = run("drill", *namespaces.options, "--backlog-queues", 3, "--name", name, "--syphon")
    assert done.returncode == 1
    assert f"has no '{name}/x-servicebus-transfer/2' (1 of 3 are missing)" in reason(done)
    assert len([path for path in paths_of(namespaces.secondary) if path.startswith(name)]) == 2


def test_primary_key_without_manage_exits_with_1(namespaces: Namespaces, name: str) -> None:
    primary = with_key(namespaces.primary, Right.SEND, Right.LISTEN)
    done = run("drill", *options(primary, namespaces.secondary.connection_string), "--name", name)
    assert done.returncode == 1
    assert "a drill requires the Manage claim on the primary namespace" in reason(done)


def test_invalid_timeout_exits_with_2(namespaces: Namespaces) -> None:
    done = run("drill", *namespaces.options, "--timeout", 0)
    assert done.returncode == 2
    assert "--timeout" in done.stderr


# The options


def test_help_shows_an_example() -> None:
    shown = CliRunner().invoke(app, ["drill", "--help"], env={"COLUMNS": "120", "TERM": "dumb"}).output
    assert "Example: pairbus drill --primary @contoso.txt --secondary @fabrikam.txt --syphon" in shown
    for option in ("--primary", "--secondary", "--backlog-queues", "--name", "--syphon", "--timeout", "--json"):
        assert option in shown
