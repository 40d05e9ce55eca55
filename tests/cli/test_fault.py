"""`pairbus fault` as an operator uses it, against a real namespace."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pairbus.broker import Right
from pairbus.cli.main import app
from pairbus.testing import RunningNamespace, running_namespace
from tests.cli.test_cli import run as run_process
from tests.cli.test_cli import serving
from tests.cli.test_pair import unused_address, with_key


@pytest.fixture(scope="module")
def contoso() -> Iterator[RunningNamespace]:
    with running_namespace(queues=["orders"], topics={"news": ["all"]}) as namespace:
        yield namespace


@pytest.fixture(autouse=True)
def without_faults(contoso: RunningNamespace) -> Iterator[None]:
    yield
    contoso.faults.clear()


def run(*arguments: str) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "120", "TERM": "dumb"})


def at(namespace: RunningNamespace) -> tuple[str, str]:
    return "--connection", namespace.connection_string


def test_fault_is_added_listed_and_cleared(contoso: RunningNamespace) -> None:
    added = run("fault", "add", "slow", "news/subscriptions/all", "--latency", "200ms", "--for", "5m", *at(contoso))
    assert (added.exit_code, added.stderr) == (0, "")
    number = re.fullmatch(
        r"fault (\d+) engaged: slow at 'news/Subscriptions/all' \(latency 200ms\) until \S+Z\n", added.stdout
    )
    assert number is not None
    assert [fault.kind for fault in contoso.faults.list()] == ["slow"]
    listed = run("fault", "list", *at(contoso))
    head, line = listed.stdout.splitlines()
    assert head.split("\t") == ["id", "kind", "scope", "arguments", "until", "key", "peer"]
    assert line.split("\t")[:4] == [number[1], "slow", "news/Subscriptions/all", "latency 200ms"]
    key, peer = line.split("\t")[5:]
    assert (key, peer.rpartition(":")[0]) == ("RootManageSharedAccessKey", "127.0.0.1")
    cleared = run("fault", "clear", number[1], *at(contoso))
    assert cleared.stdout.startswith(f"fault {number[1]} cleared: slow at 'news/Subscriptions/all'")
    assert contoso.faults.list() == []


def test_list_shows_when_a_fault_ends(contoso: RunningNamespace) -> None:
    run("fault", "add", "cannot-send", "orders", *at(contoso))
    run("fault", "add", "slow", "--latency", "1ms", "--for", "5m", *at(contoso))
    lines = run("fault", "list", *at(contoso)).stdout.splitlines()[1:]
    untils = [line.split("\t")[4] for line in lines]
    assert untils[0] == "it is cleared"
    assert untils[1].endswith("Z")


def test_json_output_is_one_object(contoso: RunningNamespace) -> None:
    added = json.loads(run("fault", "add", "cannot-send", "orders", "--json", *at(contoso)).stdout)
    assert (added["kind"], added["entity"], added["until"]) == ("cannot-send", "orders", None)
    assert json.loads(run("fault", "list", "--json", *at(contoso)).stdout) == {"faults": [added]}
    assert json.loads(run("fault", "clear", "--all", "--json", *at(contoso)).stdout) == {"faults": [added]}
    assert run("fault", "clear", "--all", *at(contoso)).stdout == "no faults are engaged\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["broken"], "kind must be one of cannot-send, "),
        (["bogus"], "storage-full, component-crash, quarantine, got 'bogus'"),
        (["component-crash"], "component-crash needs --component"),
        (["cannot-connect", "orders"], "cannot-connect applies to the namespace, not to a queue or topic"),
        (["storage-full", "orders"], "storage-full applies to the namespace, not to a queue or topic"),
        (["cannot-send", "news/Subscriptions/all"], "or a queue or topic, not to a subscription"),
        (["quarantine", "--sequence-number", "1"], "a queue or topic or a subscription, not to the namespace"),
        (["slow"], "slow needs --latency"),
        (["slow", "--latency", "soon"], "--latency must be a number and a unit"),
        (["cannot-send", "--latency", "1s"], "cannot-send does not take --latency"),
        (["cannot-send", "--for", "30d"], "--for must be a whole number between"),
        (["cannot-send", "--drop-connections"], "cannot-send does not take --drop-connections"),
        (["component-crash", "--component", "engine"], "component must be one of dispatcher, "),
        (["quarantine", "orders", "--sequence-number", "1", "--for", "1s"], "quarantine happens once"),
        (["cannot-send", "orders/"], "must not be empty, or begin or end with a slash"),
    ],
)
def test_invalid_argument_exits_with_2(contoso: RunningNamespace, arguments: list[str], said: str) -> None:
    done = run("fault", "add", *arguments, *at(contoso))
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["add", "cannot-send", "absent"], "there is no queue or topic 'absent'"),
        (["add", "quarantine", "orders", "--sequence-number", "9"], "'orders' has no message 9"),
        (["clear", "999"], "there is no fault 999; pairbus fault list shows"),
    ],
)
def test_error_of_the_namespace_exits_with_1(contoso: RunningNamespace, arguments: list[str], said: str) -> None:
    done = run("fault", *arguments, *at(contoso))
    assert (done.exit_code, done.stdout) == (1, "")
    assert said in done.stderr


@pytest.mark.parametrize("arguments", [[], ["1", "--all"]])
def test_clear_needs_an_id_or_all(contoso: RunningNamespace, arguments: list[str]) -> None:
    done = run("fault", "clear", *arguments, *at(contoso))
    assert done.exit_code == 2
    assert "name the ID of a fault, or add --all" in done.stderr


def test_cannot_connect_is_cleared_by_the_command(contoso: RunningNamespace) -> None:
    assert run("fault", "add", "cannot-connect", "--drop-connections", *at(contoso)).exit_code == 0
    assert run("entities", "list", *at(contoso)).exit_code == 1
    assert run("fault", "clear", "--all", *at(contoso)).exit_code == 0
    assert run("entities", "list", *at(contoso)).exit_code == 0


def test_key_without_manage_exits_with_1(contoso: RunningNamespace) -> None:
    done = run("fault", "list", "--connection", with_key(contoso, Right.SEND, Right.LISTEN))
    assert done.exit_code == 1
    assert "does not include the claim 'Manage'" in done.stderr
    assert "check the key or token, and that it has the required claim" in done.stderr


def test_receiving_from_a_namespace_that_cannot_be_connected_to_gives_advice(contoso: RunningNamespace) -> None:
    assert run("fault", "add", "cannot-connect", *at(contoso)).exit_code == 0
    done = run("receive", "orders", *at(contoso))
    assert done.exit_code == 1
    assert "check that the namespace is" in done.stderr


def test_namespace_that_is_down_exits_with_1() -> None:
    with unused_address() as connection:
        done = run("fault", "list", "--connection", connection)
    assert done.exit_code == 1
    assert "secret" not in done.stderr


@pytest.mark.slow
def test_server_needs_the_option_and_warns_of_it(tmp_path: Path) -> None:
    with serving(tmp_path / "one") as served:
        done = run_process("fault", "list", "--connection", served.text)
        assert done.returncode == 1
        assert "this server does not allow faults: start it with --allow-faults" in done.stderr
    with serving(tmp_path / "two", "--allow-faults") as served:
        assert run_process("fault", "list", "--connection", served.text).returncode == 0
        code, complaints = served.stop()
    assert code == 0
    assert "WARNING: allow_faults lets every key with the Manage claim inject faults" in complaints
