"""`pairbus syphon` as an operator runs it: once or until stopped, with or without Spark."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import typer.main
from typer.testing import CliRunner

from pairbus import (
    BrokeredMessage,
    MessagingFactory,
    NamespaceManager,
    QueueDescription,
    SendAvailabilityPairedNamespaceOptions,
)
from pairbus.broker import Right
from pairbus.cli.main import app
from pairbus.client.management.descriptions import EntityStatus
from pairbus.dialect.paths import backlog_path
from pairbus.jobs.lines import DONE, FAILED, USAGE, WAITING
from pairbus.jobs.syphon.outcome import BatchReport
from pairbus.jobs.syphon.spark_syphon import batch_line
from pairbus.testing import RunningNamespace, running_namespace
from tests.cli.test_cli import ENVIRONMENT, PAIRBUS, PATIENCE_S, reason, run
from tests.cli.test_drill import count_in, make_backlog
from tests.cli.test_pair import Namespaces, create, options, unused_address, with_key
from tests.docs.snippets import ROOT
from tests.docs.tables import code, codes, rows_of
from tests.jobs.processes import members
from tests.waiting import eventually

SPARK_PATIENCE_S = 240
NO_TIME = timedelta(milliseconds=200)
IN_PROCESS = ("--engine", "in-process")


@pytest.fixture(scope="module")
def namespaces() -> Iterator[Namespaces]:
    with running_namespace("contoso", queues=["orders", "bills"]) as primary, running_namespace("fabrikam") as second:
        yield Namespaces(primary, second)


@pytest.fixture
def name() -> str:
    return f"contoso-{uuid4().hex[:8]}"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command sets its variables for the processes that it starts."""
    for variable in ("PAIRBUS_PRIMARY", "PAIRBUS_SECONDARY"):
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)


def divert(namespaces: Namespaces, name: str | None, path: str, count: int) -> None:
    """Put messages into the backlog."""
    first, second = namespaces.primary.connection_string, namespaces.secondary.connection_string

    async def diverting() -> None:
        async with (
            NamespaceManager.from_connection_string(second) as manager,
            MessagingFactory.from_connection_string(second) as secondary,
            MessagingFactory.from_connection_string(first) as primary,
        ):
            options = SendAvailabilityPairedNamespaceOptions(manager, secondary, 2, primary_name=name)
            pair = await primary.pair_namespace(options)
            pair.engage()
            sender = await primary.create_message_sender(path)
            for start in range(0, count, 500):
                numbers = range(start, min(count, start + 500))
                await sender.send([BrokeredMessage(f"{path} {number}") for number in numbers])

    asyncio.run(diverting())


def received(namespace: RunningNamespace, path: str) -> list[str]:
    """Receive the delivered messages."""

    async def receiving() -> list[str]:
        async with MessagingFactory.from_connection_string(namespace.connection_string) as factory:
            queue = await factory.create_queue_client(path)
            found = []
            while messages := await queue.receive(100, max_wait_time=NO_TIME):
                found += [message.text() for message in messages]
                await queue.complete(messages)
            return found

    return asyncio.run(receiving())


def set_status(namespace: RunningNamespace, path: str, status: EntityStatus) -> None:
    async def setting() -> None:
        async with NamespaceManager.from_connection_string(namespace.connection_string) as manager:
            await manager.update_queue(await changed(manager))

    async def changed(manager: NamespaceManager) -> QueueDescription:
        return replace(await manager.get_queue(path), status=status)

    asyncio.run(setting())


def records(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def record_of(done: subprocess.CompletedProcess[str], event: str) -> dict[str, Any]:
    return next(record for record in records(done) if record["event"] == event)


# Behaviour


def test_c14_in_process_once_delivers_everything(namespaces: Namespaces, name: str) -> None:
    divert(namespaces, name, "orders", 20)
    done = run("syphon", *namespaces.options, *IN_PROCESS, "--name", name, "--once", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(received(namespaces.primary, "orders")) == sorted(f"orders {number}" for number in range(20))
    assert count_in(namespaces.secondary, name) == 0
    assert record_of(done, "starting")["backlog_queues"] == 2
    ended = record_of(done, "ended")
    assert (ended["delivered"], ended["dead_lettered"]) == (20, 0)
    for namespace in (namespaces.primary, namespaces.secondary):
        assert namespace.key not in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("counted", [(), ("--backlog-queues", 2)])
def test_c15_backlog_of_every_name_of_the_primary_is_drained(
    namespaces: Namespaces, counted: tuple[object, ...]
) -> None:
    divert(namespaces, None, "orders", 3)
    divert(namespaces, f"localhost-{namespaces.primary.port}", "orders", 2)  # as an earlier version named it
    done = run("syphon", *namespaces.options, *IN_PROCESS, *counted, "--once", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert record_of(done, "starting")["backlog_queues"] == 4
    assert len(received(namespaces.primary, "orders")) == 5


@pytest.mark.slow
def test_c14_syphon_that_starts_in_an_outage_drains_when_the_primary_is_back(namespaces: Namespaces) -> None:
    divert(namespaces, None, "bills", 3)
    arguments = ("syphon", *namespaces.options, *IN_PROCESS, "--json")
    namespaces.primary.stop()
    with running(*arguments) as process:
        assert process.stdout is not None
        while json.loads(process.stdout.readline())["event"] != "starting":  # before it, the outage is logged
            pass
        namespaces.primary.start()
        eventually(lambda: count_in(namespaces.secondary, "contoso") == 0)
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    assert len(received(namespaces.primary, "bills")) == 3


def test_c15_lines_have_the_guarantee_of_each_destination(namespaces: Namespaces, name: str) -> None:
    unique = f"{name}-unique"
    create(
        namespaces.primary,
        QueueDescription(
            unique,
            requires_duplicate_detection=True,
            duplicate_detection_history_time_window=timedelta(hours=1),
        ),
    )
    divert(namespaces, name, "orders", 3)
    divert(namespaces, name, unique, 3)
    done = run("syphon", *namespaces.options, *IN_PROCESS, "--name", name, "--once", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = {one["destination"]: one for one in records(done) if one["event"] == "destination"}
    assert [record["event"] for record in records(done)].count("destination") == len(found) == 2
    assert (found["orders"]["guarantee"], found["orders"]["window_seconds"]) == ("at least once", None)
    assert (found[unique]["guarantee"], found[unique]["window_seconds"]) == ("exactly once", 3_600)
    assert found["orders"]["reason"] is found[unique]["reason"] is None
    assert len(received(namespaces.primary, "orders")) == len(received(namespaces.primary, unique)) == 3


def test_c15_key_without_manage_is_the_reason_of_the_guarantee(namespaces: Namespaces, name: str) -> None:
    divert(namespaces, name, "orders", 2)
    given = options(with_key(namespaces.primary, Right.SEND), namespaces.secondary.connection_string)
    done = run("syphon", *given, *IN_PROCESS, "--name", name, "--once")
    assert (done.returncode, done.stderr) == (0, "")
    line = 'event=destination destination=orders guarantee="at least once" window_seconds=""'
    assert f'{line} reason="not known, the key lacks Manage"\n' in done.stdout
    assert len(received(namespaces.primary, "orders")) == 2


def test_lines_are_key_value_pairs_by_default(namespaces: Namespaces, name: str) -> None:
    divert(namespaces, name, "orders", 1)
    done = run("syphon", *namespaces.options, *IN_PROCESS, "--name", name, "--once")
    assert done.returncode == 0
    last = done.stdout.splitlines()[-1]
    assert re.fullmatch(r"time=\S+\+00:00 event=ended delivered=1 dead_lettered=0 brought_home=1", last)
    assert received(namespaces.primary, "orders") == ["orders 0"]


def test_empty_backlog_starts_no_engine(namespaces: Namespaces, name: str) -> None:
    make_backlog(namespaces, name, 2)
    done = run("syphon", *namespaces.options, "--name", name, "--once", "--json")  # Spark would take longer
    assert (done.returncode, done.stderr) == (0, "")
    assert record_of(done, "ended")["delivered"] == 0


def test_c15_waiting_messages_exit_with_3_and_name_the_cause(namespaces: Namespaces, name: str) -> None:
    divert(namespaces, name, "orders", 3)
    divert(namespaces, name, "bills", 2)
    set_status(namespaces.primary, "bills", EntityStatus.SEND_DISABLED)
    try:
        done = run("syphon", *namespaces.options, *IN_PROCESS, "--name", name, "--once", "--json")
    finally:
        set_status(namespaces.primary, "bills", EntityStatus.ACTIVE)
    assert done.returncode == 3
    assert reason(done) == "pairbus: 2 messages still wait in the backlog, for 'bills'"
    waiting = record_of(done, "waiting")
    assert (waiting["destination"], waiting["messages"]) == ("bills", 2)
    assert "disabled" in waiting["cause"].lower()
    assert len(received(namespaces.primary, "orders")) == 3
    assert count_in(namespaces.secondary, name) == 2
    assert run("syphon", *namespaces.options, *IN_PROCESS, "--name", name, "--once").returncode == 0
    assert len(received(namespaces.primary, "bills")) == 2


def test_c15_primary_down_exits_with_3(namespaces: Namespaces, name: str) -> None:
    divert(namespaces, name, "orders", 3)
    with unused_address() as primary:
        given = options(primary, namespaces.secondary.connection_string)
        done = run("syphon", *given, "--name", name, "--once", "--json")  # on Spark, which is not even started
    assert done.returncode == 3
    waiting = record_of(done, "waiting")
    assert (waiting["destination"], waiting["messages"]) == ("orders", 3)
    assert "refused" in waiting["cause"] or "reach" in waiting["cause"]
    assert "secret" not in done.stdout + done.stderr


def test_c15_undeliverable_messages_are_reported_and_not_waited_for(namespaces: Namespaces, name: str) -> None:
    divert(namespaces, name, "never-there", 1)
    done = run("syphon", *namespaces.options, *IN_PROCESS, "--name", name, "--once", "--json")
    assert done.returncode == 0
    assert record_of(done, "ended")["dead_lettered"] == 1
    reported = [record["message"] for record in records(done) if record["event"] == "log"]
    assert any("messages dead-lettered" in text and "never-there" in text for text in reported)


def test_c14_syphon_runs_until_a_signal(namespaces: Namespaces, name: str) -> None:
    make_backlog(namespaces, name, 2)
    arguments = ("syphon", *namespaces.options, *IN_PROCESS, "--name", name, "--json")
    with running(*arguments) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "starting"
        divert(namespaces, name, "orders", 5)
        eventually(lambda: count_in(namespaces.secondary, name) == 0)
        process.send_signal(signal.SIGTERM)
        said, complaints = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, complaints) == (0, "")
    events = [json.loads(line)["event"] for line in said.splitlines()]
    assert events.count("destination") == 1
    assert [event for event in events if event != "destination"][-2:] == ["stopping", "ended"]
    assert len(received(namespaces.primary, "orders")) == 5


@contextmanager
def running(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [*PAIRBUS, *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=ENVIRONMENT) as process:
        try:
            yield process
        finally:
            process.kill()


def test_backlog_queues_option_works_without_manage(namespaces: Namespaces, name: str) -> None:
    divert(namespaces, name, "orders", 2)
    keys = with_key(namespaces.primary, Right.SEND), with_key(namespaces.secondary, Right.LISTEN)
    arguments = ("syphon", *options(*keys), *IN_PROCESS, "--name", name, "--once")
    refused = run(*arguments)
    assert refused.returncode == 1
    assert "does not let the key of --secondary list the backlog queues" in reason(refused)
    assert "the claim 'Manage'" in reason(refused)
    assert "set the number of queues with --backlog-queues" in reason(refused)
    assert run(*arguments, "--backlog-queues", 2).returncode == 0
    assert len(received(namespaces.primary, "orders")) == 2


def test_connection_strings_are_accepted_by_reference(namespaces: Namespaces, name: str, tmp_path: Path) -> None:
    make_backlog(namespaces, name, 1)
    file = tmp_path / "fabrikam"
    file.write_text(namespaces.secondary.connection_string)
    for second in (f"file:{file}", f"@{file}"):
        given = options("env:CONTOSO", second)
        done = run("syphon", *given, "--name", name, "--once", CONTOSO=namespaces.primary.connection_string)
        assert (done.returncode, done.stderr) == (0, "")


# In a terminal


class Terminal:
    """A command in a terminal, with its output."""

    def __init__(self, process: subprocess.Popen[bytes], screen: int) -> None:
        self.process = process
        self.shown = ""
        self._screen = screen

    def until(self, text: str) -> None:
        """Read the output until it contains a text."""
        ends_s = time.monotonic() + PATIENCE_S
        while text not in self.shown:
            assert time.monotonic() < ends_s, f"never shown: {text}"
            if select.select([self._screen], [], [], 0.1)[0]:
                self.shown += os.read(self._screen, 4096).decode(errors="replace")

    def end(self) -> int:
        """Read the rest of the output, and return the exit code."""
        code = self.process.wait(PATIENCE_S)
        with suppress(OSError):  # the other end was closed
            while select.select([self._screen], [], [], 0)[0]:
                self.shown += os.read(self._screen, 4096).decode(errors="replace")
        return code


@contextmanager
def in_a_terminal(*arguments: object) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    environment = ENVIRONMENT | {"COLUMNS": "100", "TERM": "xterm"}
    command = [*PAIRBUS, *map(str, arguments)]
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=environment) as process:
        os.close(theirs)
        try:
            yield Terminal(process, ours)
        finally:
            process.kill()
            os.close(ours)


@pytest.mark.slow
def test_terminal_shows_a_bar_and_lines(namespaces: Namespaces, name: str) -> None:
    divert(namespaces, name, "orders", 20)
    with in_a_terminal("syphon", *namespaces.options, *IN_PROCESS, "--name", name) as terminal:
        terminal.until("20 delivered, 0 in the backlog")
        terminal.process.send_signal(signal.SIGINT)
        terminal.until("20 messages were delivered")
        assert terminal.end() == 0
    assert "delivering the messages of" in terminal.shown
    assert is_cursor_shown(terminal.shown)
    assert len(received(namespaces.primary, "orders")) == 20


def test_terminal_reports_an_empty_backlog(namespaces: Namespaces, name: str) -> None:
    make_backlog(namespaces, name, 1)
    with in_a_terminal("syphon", *namespaces.options, *IN_PROCESS, "--name", name) as terminal:
        terminal.until("backlog empty, waiting for messages")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 0


def test_second_ctrl_c_restores_the_terminal(namespaces: Namespaces, name: str) -> None:
    with silent() as secondary:  # no work that would end before the second signal
        given = options(namespaces.primary.connection_string, secondary)
        with in_a_terminal("syphon", *given, *IN_PROCESS, "--name", name, "--backlog-queues", 1) as terminal:
            terminal.until("delivering the messages of")
            assert not is_cursor_shown(terminal.shown)
            terminal.process.send_signal(signal.SIGINT)
            terminal.until("stopping")
            terminal.process.send_signal(signal.SIGINT)
            assert terminal.end() == -signal.SIGINT
    assert is_cursor_shown(terminal.shown)


def is_cursor_shown(text: str) -> bool:
    """Return whether the last control sequence shows the cursor."""
    return text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l")


@contextmanager
def silent() -> Iterator[str]:
    """The connection string of a namespace that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        key = "SharedAccessKeyName=some;SharedAccessKey=secret;UseDevelopmentEmulator=true"
        yield f"Endpoint=sb://127.0.0.1:{listener.getsockname()[1]};{key}"


# On Spark


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_d2_spark_once_delivers_everything(namespaces: Namespaces, name: str, tmp_path: Path) -> None:
    divert(namespaces, name, "orders", 200)
    divert(namespaces, name, "never-there", 1)
    checkpoint = tmp_path / "checkpoint"
    arguments = ("--master", "local[2]", "--checkpoint", checkpoint, "--name", name, "--once", "--json")
    command = [*PAIRBUS, "syphon", *namespaces.options, *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=SPARK_PATIENCE_S, env=ENVIRONMENT
    )
    assert done.returncode == 0, done.stderr
    assert len(received(namespaces.primary, "orders")) == 200
    batches = [record for record in records(done) if record["event"] == "batch"]
    assert sum(batch["delivered"] for batch in batches) == 200
    assert sum(batch["dead_lettered"] for batch in batches) == 1
    assert record_of(done, "ended")["delivered"] == 200
    destination = record_of(done, "destination")
    assert (destination["destination"], destination["guarantee"]) == ("orders", "at least once")
    written = [file.read_bytes() for file in checkpoint.rglob("*") if file.is_file()]
    assert written
    for namespace in (namespaces.primary, namespaces.secondary):
        assert namespace.key not in done.stdout + done.stderr
        assert not any(namespace.key.encode() in data for data in written)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_d2_spark_syphon_runs_until_ctrl_c_and_leaves_no_process(namespaces: Namespaces, name: str) -> None:
    divert(namespaces, name, "orders", 50)
    command = [*PAIRBUS, "syphon", *namespaces.options, "--master", "local[2]", "--name", name]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env=ENVIRONMENT, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            delivered = 0
            while delivered < 50:
                said = next(line for line in process.stdout if "event=batch" in line)
                delivered += int(said.partition(" delivered=")[2].split()[0])
            os.killpg(process.pid, signal.SIGINT)  # like a terminal: to all processes
            rest, complaints = process.communicate(timeout=SPARK_PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 0, complaints
    assert delivered == 50
    assert "event=stopping" in rest
    assert "event=ended delivered=50" in rest
    assert "Traceback" not in complaints
    assert len(received(namespaces.primary, "orders")) == 50
    eventually(lambda: not members(process.pid))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("once", [(), ("--once",)], ids=["running", "once"])
def test_d2_on_spark_stop_during_a_batch_counts_all_its_messages(
    namespaces: Namespaces, name: str, once: tuple[str, ...]
) -> None:
    divert(namespaces, name, "bills", 8_000)
    divert(namespaces, name, "never-there", 3)
    arguments = ("--master", "local[2]", "--name", name, "--json", *once)
    with running("syphon", *namespaces.options, *arguments) as process:
        eventually(lambda: has_number(namespaces.primary, "bills", 100))
        process.terminate()
        said, complaints = process.communicate(timeout=SPARK_PATIENCE_S)
    reported = [json.loads(line) for line in said.splitlines()]
    (ended,) = [one for one in reported if one["event"] == "ended"]
    batches = [one for one in reported if one["event"] == "batch"]
    assert ended["delivered"] == len(received(namespaces.primary, "bills")) > 0, complaints
    assert ended["delivered"] == sum(batch["delivered"] for batch in batches)
    assert ended["dead_lettered"] == sum(batch["dead_lettered"] for batch in batches)
    assert "uncounted_batches" not in ended


def has_number(namespace: RunningNamespace, path: str, least: int) -> bool:
    """Return whether an entity has a message with this number or a larger one."""

    async def looking() -> bool:
        async with MessagingFactory.from_connection_string(namespace.connection_string) as factory:
            receiver = await factory.create_message_receiver(path)
            return bool(await receiver.peek(1, least))

    return asyncio.run(looking())


# Errors


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--primary", "env:NOBODY_HAS_SET_IT"), "--primary is env:NOBODY_HAS_SET_IT, but that variable is not set"),
        (("--primary", "file:/nowhere/at/all"), "--primary is file:/nowhere/at/all, but that file cannot be read here"),
        (("--primary", "@/nowhere/at/all"), "--primary: /nowhere/at/all cannot be read"),
        (("--primary", "nonsense"), "--primary is not a connection string"),
        (("--long-poll", "soon"), "--long-poll must be a time from 1 second to 1 day"),
        (("--long-poll", "2d"), "--long-poll must be a time"),
        (("--master", "spark://127.0.0.1:1"), "use env:NAME or file:/path"),
        (("--master", "yarm"), "yarm"),
        (("--engine", "in-process", "--master", "local[2]"), "in-process"),
        (("--name", "a//b"), "--name"),
    ],
    ids=[
        "no variable",
        "no file",
        "no @file",
        "nonsense",
        "no time",
        "too long",
        "cluster",
        "no master",
        "not its own",
        "name",
    ],
)
def test_invalid_option_exits_with_2(namespaces: Namespaces, given: tuple[str, str], said: str) -> None:
    arguments = [*namespaces.options]
    if given[0] in arguments:
        arguments[arguments.index(given[0]) + 1] = given[1]
    else:
        arguments += given
    done = CliRunner().invoke(app, ["syphon", *arguments])
    assert done.exit_code == 2
    assert said in done.stderr
    for namespace in (namespaces.primary, namespaces.secondary):
        assert namespace.key not in done.output


@pytest.mark.parametrize(
    "arguments",
    [("--engine", "steam"), ("--time-to-live", "half"), ("--backlog-queues", "0"), ("--max-messages", "0")],
    ids=lambda arguments: arguments[0],
)
def test_option_out_of_range_exits_with_2(namespaces: Namespaces, arguments: tuple[str, str]) -> None:
    assert CliRunner().invoke(app, ["syphon", *namespaces.options, *arguments]).exit_code == 2


def test_cluster_reads_connection_strings_from_variables(namespaces: Namespaces, name: str) -> None:
    make_backlog(namespaces, name, 1)
    done = run(
        "syphon",
        *("--master", "spark://127.0.0.1:1", "--name", name, "--once"),
        PAIRBUS_PRIMARY=namespaces.primary.connection_string,
        PAIRBUS_SECONDARY=namespaces.secondary.connection_string,
    )
    assert (done.returncode, done.stderr) == (0, "")  # nothing to deliver, so no request is made


def test_missing_backlog_queues_exit_with_1(namespaces: Namespaces, name: str) -> None:
    make_backlog(namespaces, name, 1)
    done = run("syphon", *namespaces.options, *IN_PROCESS, "--name", f"{name}-other", "--once")
    assert done.returncode == 1
    assert f"has no backlog queues of '{name}-other'" in reason(done)
    counted = run("syphon", *namespaces.options, *IN_PROCESS, "--name", name, "--once", "--backlog-queues", 2)
    assert counted.returncode == 1
    assert backlog_path(name, 1) in reason(counted)


def test_e4_missing_backlog_queue_is_reported_once_with_advice(namespaces: Namespaces, name: str) -> None:
    make_backlog(namespaces, name, 1)
    for mode in (("--once",), ()):
        done = run("syphon", *namespaces.options, *IN_PROCESS, "--name", name, "--backlog-queues", 2, *mode)
        assert done.returncode == 1
        assert reason(done).count(backlog_path(name, 1)) == 1
        assert "omit --backlog-queues" in reason(done)
        assert "create them with pairbus pair" in reason(done)


def with_wrong_key(namespace: RunningNamespace) -> str:
    return namespace.connection_string.replace(namespace.key, "d3Jvbmc=")


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        (("--backlog-queues", "1"), "check the key of --secondary, and that it has the claim Listen"),
        ((), "does not let the key of --secondary list the backlog queues"),
    ],
    ids=["counted", "found"],
)
def test_e4_wrong_secondary_key_exits_with_1(
    namespaces: Namespaces, name: str, given: tuple[str, ...], advice: str
) -> None:
    keys = options(namespaces.primary.connection_string, with_wrong_key(namespaces.secondary))
    done = run("syphon", *keys, *IN_PROCESS, "--name", name, "--once", *given)
    assert done.returncode == 1
    assert "no key of that name signed it" in reason(done)
    assert advice in reason(done)
    assert "Send, Listen or Manage" not in reason(done)
    assert "d3Jvbmc=" not in done.stderr


@pytest.mark.slow
def test_e4_wrong_primary_key_is_the_cause_of_waiting_messages(namespaces: Namespaces, name: str) -> None:
    divert(namespaces, name, "orders", 1)
    keys = options(with_wrong_key(namespaces.primary), namespaces.secondary.connection_string)
    done = run("syphon", *keys, *IN_PROCESS, "--name", name, "--once", "--json")
    assert done.returncode == 3
    assert "check the key of --primary, and that it has the claim Send" in record_of(done, "waiting")["cause"]
    assert "d3Jvbmc=" not in done.stdout + done.stderr


def test_e4_wrong_primary_key_is_reported_with_an_empty_backlog(namespaces: Namespaces, name: str) -> None:
    make_backlog(namespaces, name, 1)
    keys = options(with_wrong_key(namespaces.primary), namespaces.secondary.connection_string)
    done = run("syphon", *keys, *IN_PROCESS, "--name", name, "--once", "--json")
    assert done.returncode == 0
    assert record_of(done, "refused")["namespace"].startswith("amqp://localhost")
    assert "d3Jvbmc=" not in done.stdout + done.stderr


def test_e4_misspelt_key_of_a_connection_string_is_named(namespaces: Namespaces) -> None:
    first, second = namespaces.primary.connection_string, namespaces.secondary.connection_string
    slips = {
        first.replace("sb://", "sb//"): "must be written as sb://host",
        first.replace("SharedAccessKey=", "SharedAccesKey="): "called SharedAccesKey, which is unknown",
    }
    for slip, said in slips.items():
        done = CliRunner().invoke(app, ["syphon", *options(slip, second)])
        assert done.exit_code == 2
        assert said in done.stderr
        assert namespaces.primary.key not in done.output


# Namespaces that do not answer


@pytest.mark.parametrize("given", [(), ("--backlog-queues", "1")], ids=["found", "counted"])
def test_e4_unreachable_secondary_is_reported_soon(namespaces: Namespaces, name: str, given: tuple[str, ...]) -> None:
    with unused_address() as secondary:
        keys = options(namespaces.primary.connection_string, secondary)
        said = first_warning("syphon", *keys, *IN_PROCESS, "--name", name, *given, "--json")
    assert "cannot be reached" in said["message"]
    assert 'action="retrying"' in said["message"]


@pytest.mark.slow
def test_e4_silent_namespace_is_reported_soon(namespaces: Namespaces, name: str) -> None:
    make_backlog(namespaces, name, 1)
    first, second = namespaces.primary.connection_string, namespaces.secondary.connection_string
    with silent() as nothing:
        for keys in (options(first, nothing), options(nothing, second)):
            said = first_warning("syphon", *keys, *IN_PROCESS, "--name", name, "--json")
            assert said["event"] == "silent"
            assert said["namespace"] in str(keys).replace("sb://", "amqp://")


def first_warning(*arguments: object) -> dict[str, Any]:
    """Return the first warning of a command that keeps running, and end it with a signal."""
    with running(*arguments) as process:
        assert process.stdout is not None
        records = map(json.loads, process.stdout)
        found: dict[str, Any] = next(one for one in records if one["event"] in {"log", "silent"})
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
        return found


# Documentation


HOW_TO = ROOT / "docs" / "how-to" / "syphon-on-spark.md"


def test_page_lists_every_option() -> None:
    command: Any = typer.main.get_command(app)
    known = {option for one in command.commands["syphon"].params for option in one.opts}
    reported = [option for row in rows_of(HOW_TO, "option", "description") for option in codes(row[0])]
    assert sorted(reported) == sorted(known)


def test_submitted_file_takes_the_same_options_without_the_engine() -> None:
    command: Any = typer.main.get_command(app)
    known = {option for one in command.commands["syphon"].params for option in one.opts}
    done = subprocess.run(
        [sys.executable, "-m", "pairbus.jobs.syphon.main", "--help"], capture_output=True, text=True, check=True
    )
    of_spark_submit = {"--conf", "--packages"}
    assert set(re.findall(r"^  (--[a-z-]+)", done.stdout, re.MULTILINE)) == known - {"--engine", *of_spark_submit}


def test_page_lists_every_event() -> None:
    reported = {code(row[0]) for row in rows_of(HOW_TO, "event", "other keys", "when")}
    package = ROOT / "src" / "pairbus" / "jobs" / "syphon"
    texts = [file.read_text("utf-8") for file in (*package.glob("*.py"), package.parent / "lines.py")]
    made = {event for text in texts for event in re.findall(r"(?:event=|_(?:report|warn)\(\s*)\"([a-z]+)\"", text)}
    assert reported == made


def test_page_lists_the_keys_of_a_batch() -> None:
    line = batch_line(BatchReport(batch=1, counts={}, destinations={}, seconds=1.0, repeats_at_most=1_500))
    (row,) = [row for row in rows_of(HOW_TO, "event", "other keys", "when") if row[0] == "`batch`"]
    assert codes(row[1]) == [*line.facts]
    kinds = [code(row[0]) for row in rows_of(HOW_TO, "outcome of a batch", "meaning")]
    assert kinds == [name for name in line.facts if name not in {"batch", "seconds", "repeats_at_most"}]


def test_page_lists_every_exit_code() -> None:
    reported = [int(row[0]) for row in rows_of(HOW_TO, "code", "what it means")]
    assert reported == [DONE, FAILED, USAGE, WAITING]
