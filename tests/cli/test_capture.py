"""`pairbus capture`, as an operator runs it: once or until it is stopped, and what it says of what is wrong."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from pairbus.blocking import BrokeredMessage, MessagingFactory
from pairbus.cli.main import app
from pairbus.jobs.capture.columns import WINDOW_COLUMNS
from pairbus.jobs.capture.command import DONE
from pairbus.jobs.capture.directory import CaptureDirectory
from pairbus.jobs.ending import FAILED, USAGE, WAITING
from pairbus.testing import RunningNamespace, running_namespace
from tests.cli.test_cli import ENVIRONMENT, PAIRBUS, PATIENCE_S, reason, run
from tests.docs.snippets import ROOT
from tests.docs.tables import code, codes, rows_of
from tests.jobs.capture.messages import ids

HOW_TO = ROOT / "docs" / "how-to" / "capture-to-parquet.md"
SPARK_PATIENCE_S = 300


@pytest.fixture(scope="module")
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace("contoso", queues=["orders", "empty"], topics={"news": ["audit"]}) as namespace:
        yield namespace


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command sets its own for the processes that it starts."""
    monkeypatch.setenv("PAIRBUS_SOURCE", "")
    monkeypatch.delenv("PAIRBUS_SOURCE")


def options(namespace: RunningNamespace, to: Path, entity: str = "empty") -> list[str]:
    return ["--source", namespace.connection_string, "--entity", entity, "--to", str(to)]


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


# What it does


def test_an_empty_queue_is_done_at_once_and_without_spark(namespace: RunningNamespace, tmp_path: Path) -> None:
    done = run("capture", *options(namespace, tmp_path / "files"), "--once", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert [record["event"] for record in records(done.stdout)] == ["starting", "ended"]
    assert records(done.stdout)[-1]["messages"] == 0


def test_in_a_terminal_there_are_sentences(namespace: RunningNamespace, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [*PAIRBUS, "capture", *options(namespace, tmp_path / "files"), "--once"]
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=ENVIRONMENT) as process:
        assert process.wait(PATIENCE_S) == 0
    os.close(theirs)
    shown = os.read(ours, 10_000).decode()
    os.close(ours)
    assert "capturing empty into" in shown
    assert "0 messages captured, 0 files written" in shown


def terminate(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)


def press_ctrl_c(process: subprocess.Popen[str]) -> None:
    """A terminal tells all who work in it: Spark's processes, too."""
    os.killpg(process.pid, signal.SIGINT)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stop", [terminate, press_ctrl_c])
def test_d5_it_captures_until_it_is_stopped(
    namespace: RunningNamespace, tmp_path: Path, stop: Callable[[subprocess.Popen[str]], None]
) -> None:
    with (
        MessagingFactory.from_connection_string(namespace.connection_string) as factory,
        factory.create_message_sender("orders") as orders,
        factory.create_message_sender("news") as news,
    ):
        orders.send([BrokeredMessage("one", message_id=f"orders-{number}") for number in range(50)])
        news.send([BrokeredMessage("one", message_id=f"news-{number}") for number in range(20)])
    file = tmp_path / "contoso.txt"
    file.write_text(namespace.connection_string)
    names = (
        "--entity",
        "orders",
        "--entity",
        "news/subscriptions/audit",
        "--window",
        "1s",
        "--window",
        "2MB",
        "--json",
    )
    command = [*PAIRBUS, "capture", "--source", f"@{file}", *names, "--to", str(tmp_path / "files")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            lines: list[dict[str, Any]] = []
            while sum(line.get("messages", 0) for line in lines if line["event"] == "file") < 70:
                lines.append(json.loads(next(process.stdout)))
            stop(process)
            rest, said = process.communicate(timeout=SPARK_PATIENCE_S)
        finally:
            process.kill()
    assert (process.returncode, said) == (DONE, "")
    assert [record["event"] for record in records(rest)] == ["stopping", "ended"]
    assert records(rest)[-1]["messages"] == 70
    assert ids(tmp_path / "files") == sorted(
        [f"orders-{number}" for number in range(50)] + [f"news-{number}" for number in range(20)]
    )
    assert {path.name for path in (tmp_path / "files").iterdir()} == {
        "_capture",
        "source=orders",
        "source=news%2FSubscriptions%2Faudit",
    }
    assert namespace.key not in rest


# What is wrong


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--source", "env:PAIRBUS_NO_SUCH"), "--source says env:PAIRBUS_NO_SUCH, and that variable is not set"),
        (("--source", "file:/nowhere/at/all"), "--source says file:/nowhere/at/all, and that cannot be read here"),
        (("--source", "@/nowhere/at/all"), "--source: /nowhere/at/all cannot be read"),
        (("--source", __file__), "--source is the name of a file: to have it read, write @"),
        (("--source", "nonsense"), "--source is no connection string"),
        (("--entity", "a//b"), "--entity names"),
        (("--window", "soon"), "--window: 'soon' is neither; it is a time from 1s to 1h"),
        (("--window", "1KB"), "--window: '1KB' is out of range"),
        (("--master", "yarm"), "yarm"),
        (("--master", "sc://localhost"), "Spark Connect"),
        (("--master", "spark://127.0.0.1:1"), "say env:NAME or file:/path"),
        (("--to", __file__), "is no directory"),
    ],
    ids=lambda value: value[1][:20] if isinstance(value, tuple) else "",
)
def test_what_is_not_meant_is_code_2(
    namespace: RunningNamespace, tmp_path: Path, given: tuple[str, str], said: str
) -> None:
    arguments = options(namespace, tmp_path / "files")
    if given[0] in arguments:
        arguments[arguments.index(given[0]) + 1] = given[1]
    else:
        arguments += given
    done = CliRunner().invoke(app, ["capture", *arguments])
    assert done.exit_code == USAGE
    assert said in done.stderr
    assert namespace.key not in done.output
    assert not (tmp_path / "files").exists()


@pytest.mark.parametrize("missing", ["--source", "--entity", "--to"])
def test_what_has_to_be_said_is_code_2(namespace: RunningNamespace, tmp_path: Path, missing: str) -> None:
    arguments = options(namespace, tmp_path)
    index = arguments.index(missing)
    done = CliRunner().invoke(app, ["capture", *arguments[:index], *arguments[index + 2 :]])
    assert done.exit_code == USAGE


def test_a_queue_that_is_not_there_is_code_1(namespace: RunningNamespace, tmp_path: Path) -> None:
    done = run("capture", *options(namespace, tmp_path, "nowhere"), "--once")
    assert done.returncode == FAILED
    assert "nowhere" in reason(done)


def test_a_key_that_is_wrong_is_code_1(namespace: RunningNamespace, tmp_path: Path) -> None:
    wrong = namespace.connection_string.replace(namespace.key, "d3Jvbmc=")
    done = run("capture", "--source", wrong, "--entity", "orders", "--to", tmp_path, "--once")
    assert done.returncode == FAILED
    assert "d3Jvbmc=" not in done.stderr + done.stdout


def test_a_directory_that_another_capture_has_is_code_1(namespace: RunningNamespace, tmp_path: Path) -> None:
    with closing(CaptureDirectory(tmp_path)):
        done = run("capture", *options(namespace, tmp_path))
    assert done.returncode == FAILED
    assert f"another capture writes into {tmp_path}" in reason(done)


# What is written about it


def test_the_table_of_options_is_complete() -> None:
    command: Any = typer.main.get_command(app)
    known = {option for one in command.commands["capture"].params for option in one.opts}
    told = [option for row in rows_of(HOW_TO, "option", "what it says") for option in codes(row[0])]
    assert sorted(told) == sorted(known)


def test_the_table_of_events_is_that_of_the_code() -> None:
    told = {code(row[0]) for row in rows_of(HOW_TO, "event", "other keys", "when")}
    rooms = (ROOT / "src" / "pairbus" / "jobs" / "capture").glob("*.py")
    made = {
        event for file in rooms for event in re.findall(r"(?:event=|_tell\(\s*)\"([a-z]+)\"", file.read_text("utf-8"))
    }
    assert told == made | {"log"}


def test_the_table_of_codes_is_that_of_the_code() -> None:
    told = [int(row[0]) for row in rows_of(HOW_TO, "code", "what it means")]
    assert told == [DONE, FAILED, USAGE, WAITING]


def test_the_columns_of_a_window_are_listed() -> None:
    told = [name for row in rows_of(HOW_TO, "column", "what it is") for name in codes(row[0])]
    assert told == [*WINDOW_COLUMNS.names, "source", "day", "hour"]
