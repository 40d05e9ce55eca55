"""`pairbus capture` as an operator runs it: once or until stopped, and its errors."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from pairbus.blocking import BrokeredMessage, MessagingFactory
from pairbus.cli.main import app
from pairbus.jobs.capture.command import DONE
from pairbus.jobs.capture.files import WINDOW_COLUMNS, CaptureDirectory
from pairbus.jobs.lines import FAILED, USAGE, WAITING
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
    """The command sets its variables for the processes that it starts."""
    monkeypatch.setenv("PAIRBUS_SOURCE", "")
    monkeypatch.delenv("PAIRBUS_SOURCE")


def options(namespace: RunningNamespace, to: Path, entity: str = "empty") -> list[str]:
    return ["--source", namespace.connection_string, "--entity", entity, "--to", str(to)]


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


# Behaviour


def test_once_on_an_empty_queue_exits_without_starting_spark(namespace: RunningNamespace, tmp_path: Path) -> None:
    done = run("capture", *options(namespace, tmp_path / "files"), "--once", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert [record["event"] for record in records(done.stdout)] == ["starting", "ended"]
    assert records(done.stdout)[-1]["messages"] == 0


def test_terminal_output_is_sentences(namespace: RunningNamespace, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [*PAIRBUS, "capture", *options(namespace, tmp_path / "files"), "--once"]
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=ENVIRONMENT) as process:
        assert process.wait(PATIENCE_S) == 0
    os.close(theirs)
    shown = os.read(ours, 10_000).decode()
    os.close(ours)
    assert "capturing empty into" in shown
    assert "0 messages captured, 0 files written" in shown


def press_ctrl_c(process: subprocess.Popen[str]) -> None:
    """A terminal sends the signal to all its processes, Spark's included."""
    os.killpg(process.pid, signal.SIGINT)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_d5_capture_runs_until_stopped(namespace: RunningNamespace, tmp_path: Path) -> None:
    """By Ctrl-C; tests/docs/test_shell_commands.py ends a capture with SIGTERM."""
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
            press_ctrl_c(process)
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


# Errors


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--source", "env:PAIRBUS_NO_SUCH"), "--source is env:PAIRBUS_NO_SUCH, but that variable is not set"),
        (("--source", "file:/nowhere/at/all"), "--source is file:/nowhere/at/all, but that file cannot be read here"),
        (("--source", "@/nowhere/at/all"), "--source: /nowhere/at/all cannot be read"),
        (("--source", __file__), "--source is the name of a file; to read the connection string from it, write @"),
        (("--source", "nonsense"), "--source is not a connection string"),
        (("--entity", "a//b"), "--entity has"),
        (("--window", "soon"), "--window: a window must be a time from 1s to 1h"),
        (("--window", "1KB"), "--window: a window must be a time from 1s to 1h"),
        (("--master", "yarm"), "yarm"),
        (("--master", "sc://localhost"), "Spark Connect"),
        (("--master", "spark://127.0.0.1:1"), "use env:NAME or file:/path"),
        (("--to", __file__), "is not a directory"),
    ],
    ids=lambda value: value[1][:20] if isinstance(value, tuple) else "",
)
def test_invalid_option_exits_with_2(
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
def test_missing_required_option_exits_with_2(namespace: RunningNamespace, tmp_path: Path, missing: str) -> None:
    arguments = options(namespace, tmp_path)
    index = arguments.index(missing)
    done = CliRunner().invoke(app, ["capture", *arguments[:index], *arguments[index + 2 :]])
    assert done.exit_code == USAGE


def test_missing_queue_exits_with_1(namespace: RunningNamespace, tmp_path: Path) -> None:
    done = run("capture", *options(namespace, tmp_path, "nowhere"), "--once")
    assert done.returncode == FAILED
    assert "nowhere" in reason(done)


def test_wrong_key_exits_with_1(namespace: RunningNamespace, tmp_path: Path) -> None:
    wrong = namespace.connection_string.replace(namespace.key, "d3Jvbmc=")
    done = run("capture", "--source", wrong, "--entity", "orders", "--to", tmp_path, "--once")
    assert done.returncode == FAILED
    assert "d3Jvbmc=" not in done.stderr + done.stdout


def test_directory_in_use_by_another_capture_exits_with_1(namespace: RunningNamespace, tmp_path: Path) -> None:
    with closing(CaptureDirectory(tmp_path)):
        done = run("capture", *options(namespace, tmp_path))
    assert done.returncode == FAILED
    assert f"another capture writes into {tmp_path}" in reason(done)


# Documentation


def test_page_lists_every_option() -> None:
    command: Any = typer.main.get_command(app)
    known = {option for one in command.commands["capture"].params for option in one.opts}
    reported = [option for row in rows_of(HOW_TO, "option", "description") for option in codes(row[0])]
    assert sorted(reported) == sorted(known)


def test_page_lists_every_event() -> None:
    reported = {code(row[0]) for row in rows_of(HOW_TO, "event", "other keys", "when")}
    modules = (ROOT / "src" / "pairbus" / "jobs" / "capture").glob("*.py")
    made = {
        event for file in modules for event in re.findall(r"(?:event=|_tell\(\s*)\"([a-z]+)\"", file.read_text("utf-8"))
    }
    assert reported == made | {"log"}


def test_page_lists_every_exit_code() -> None:
    reported = [int(row[0]) for row in rows_of(HOW_TO, "code", "what it means")]
    assert reported == [DONE, FAILED, USAGE, WAITING]


def test_page_lists_the_columns_of_a_window() -> None:
    reported = [name for row in rows_of(HOW_TO, "column", "what it is") for name in codes(row[0])]
    assert reported == [*WINDOW_COLUMNS.names, "source", "day", "hour"]
