"""`pairbus pair` as an operator runs it, against two real namespaces, healthy or not."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from pairbus.broker import AuthorizationRule, Right
from pairbus.cli.main import app
from pairbus.cli.pair_verification import Harm, differences
from pairbus.client import NamespaceManager, QueueDescription
from pairbus.client.management.descriptions import EntityStatus
from pairbus.dialect.connection_string import parse_connection_string
from pairbus.dialect.paths import DRILL, backlog_path
from pairbus.pairing.backlog import backlog_description
from pairbus.pairing.primary_names import RECORD
from pairbus.server.host import NamespaceHost
from pairbus.testing import RunningNamespace, running_namespace
from tests.cli.test_cli import ENVIRONMENT, PAIRBUS, PATIENCE_S, reason, run


@dataclass(frozen=True, slots=True)
class Namespaces:
    """Two namespaces for all tests; each test uses another name for the primary."""

    primary: RunningNamespace
    secondary: RunningNamespace

    @property
    def options(self) -> tuple[str, ...]:
        return options(self.primary.connection_string, self.secondary.connection_string)


@pytest.fixture(scope="module")
def namespaces() -> Iterator[Namespaces]:
    with running_namespace("contoso", queues=["orders"]) as primary, running_namespace("fabrikam") as secondary:
        yield Namespaces(primary, secondary)


@pytest.fixture
def name() -> str:
    return f"contoso-{uuid4().hex[:8]}"


def options(primary: str, secondary: str) -> tuple[str, ...]:
    return ("--primary", primary, "--secondary", secondary)


def create(namespace: RunningNamespace, description: QueueDescription) -> None:
    async def creating() -> None:
        async with NamespaceManager.from_connection_string(namespace.connection_string) as manager:
            await manager.create_queue(description)

    asyncio.run(creating())


def backlog_queue(name: str, index: int = 0, **changes: Any) -> QueueDescription:
    return replace(backlog_description(backlog_path(name, index)), **changes)


def with_key(namespace: RunningNamespace, *rights: Right) -> str:
    """The connection string of a key that has these rights only."""
    key_name = f"key-{uuid4().hex}"

    def add(host: NamespaceHost) -> None:
        rule = AuthorizationRule(name=key_name, rights=rights, primary_key="first", secondary_key="second")
        rules = host.use_namespace().authorization_rules(host.now_ms())
        host.use_namespace().set_authorization_rules([*rules, rule], host.now_ms())

    namespace.call(add)
    return str(replace(parse_connection_string(namespace.connection_string), key_name=key_name, key="first"))


@contextmanager
def unused_address() -> Iterator[str]:
    """A connection string with a reserved port that no server listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        key = "SharedAccessKeyName=some;SharedAccessKey=secret;UseDevelopmentEmulator=true"
        yield f"Endpoint=sb://127.0.0.1:{taken.getsockname()[1]};{key}"


# Behaviour


def test_c5_missing_backlog_queues_are_created_and_existing_ones_used(namespaces: Namespaces, name: str) -> None:
    first = run("pair", *namespaces.options, "--backlog-queues", 2, "--name", name)
    assert (first.returncode, first.stderr) == (0, "")
    assert f"primary: amqp://localhost:{namespaces.primary.port}, '{name}', reachable" in first.stdout
    assert "secondary: " in first.stdout
    assert "the key has Manage, Send and Listen" in first.stdout
    for index in range(2):
        assert f"{backlog_path(name, index)}: created; can be sent to and received from\n" in first.stdout
    second = run("pair", *namespaces.options, "--backlog-queues", 3, "--name", name)
    assert second.returncode == 0
    assert f"{backlog_path(name, 1)}: exists; can be sent to and received from\n" in second.stdout
    assert f"{backlog_path(name, 2)}: created; " in second.stdout
    for namespace in (namespaces.primary, namespaces.secondary):
        assert namespace.key not in first.stdout + second.stdout


def test_c15_guarantees_of_queues_and_topics_are_printed(name: str) -> None:
    topics = {"news": ["all"]}
    with running_namespace("contoso", queues=["orders"], topics=topics) as contoso, running_namespace() as fabrikam:
        window = timedelta(hours=1)
        create(
            contoso,
            QueueDescription(
                "Bills", requires_duplicate_detection=True, duplicate_detection_history_time_window=window
            ),
        )
        for hidden in (backlog_path("other", 0), f"{DRILL}/1", f"localhost-1/{RECORD}/other"):
            create(contoso, QueueDescription(hidden))
        arguments = ("pair", *options(contoso.connection_string, fabrikam.connection_string), "--name", name)
        lines = run(*arguments, "--backlog-queues", 1).stdout.partition("\n\n")[0].splitlines()
        document = json.loads(run(*arguments, "--backlog-queues", 1, "--json").stdout)
        of_one = run(*arguments, "--backlog-queues", 1, "--entity", "news").stdout
    assert lines[3:] == [
        "queue Bills: exactly once while an outage is shorter than 1:00:00",
        "topic news: at least once",
        "queue orders: at least once",
    ]
    assert document["destinations"] == [
        {"path": "Bills", "kind": "queue", "guarantee": "exactly once", "window_seconds": 3600, "reason": None},
        {"path": "news", "kind": "topic", "guarantee": "at least once", "window_seconds": None, "reason": None},
        {"path": "orders", "kind": "queue", "guarantee": "at least once", "window_seconds": None, "reason": None},
    ]
    assert document["unknown_destinations"] is None
    assert "topic news: at least once\n" in of_one
    assert "queue orders" not in of_one


@pytest.mark.slow
def test_c5_default_name_is_the_one_that_the_primary_announces(namespaces: Namespaces) -> None:
    done = run("pair", *namespaces.options, "--backlog-queues", 1, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["primary_name"] == namespaces.primary.name == "contoso"
    assert [one["path"] for one in found["backlog_queues"]] == [backlog_path(found["primary_name"], 0)]


@pytest.mark.slow
def test_c5_default_number_of_backlog_queues_is_ten(namespaces: Namespaces, name: str) -> None:
    done = run("pair", *namespaces.options, "--name", name, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [one["path"] for one in found["backlog_queues"]] == [backlog_path(name, index) for index in range(10)]
    assert {one["origin"] for one in found["backlog_queues"]} == {"made"}
    assert (found["is_ready"], found["warnings"], found["primary_failure"]) == (True, [], None)


def test_c5_queue_with_other_settings_is_used_and_reported(namespaces: Namespaces, name: str) -> None:
    create(namespaces.secondary, backlog_queue(name, max_size_in_megabytes=1024, requires_duplicate_detection=True))
    done = run("pair", *namespaces.options, "--backlog-queues", 2, "--name", name)
    assert done.returncode == 0
    reported = f"{backlog_path(name, 0)}: exists with other settings: max_size_in_megabytes is 1024 instead of 5120"
    assert f"{reported}, requires_duplicate_detection is on instead of off; can be sent to" in done.stdout
    assert reason(done).startswith(f"pairbus: WARNING: requires_duplicate_detection is on instead of off in '{name}/")


@pytest.mark.slow
def test_c5_json_contains_the_differences(namespaces: Namespaces, name: str) -> None:
    create(namespaces.secondary, backlog_queue(name, default_message_time_to_live=timedelta(hours=1)))
    done = run("pair", *namespaces.options, "--backlog-queues", 1, "--name", name, "--json")
    (queue,) = json.loads(done.stdout)["backlog_queues"]
    assert queue["origin"] == "different"
    (difference,) = queue["differences"]
    assert difference.pop("consequence")
    assert difference == {"field": "default_message_time_to_live", "found": "1:00:00", "ours": "never"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"requires_session": True}, "the queue rejects diverted messages"),
        ({"status": EntityStatus.SEND_DISABLED}, "status is SendDisabled instead of Active"),
        ({"status": EntityStatus.RECEIVE_DISABLED}, "cannot be received from: "),
    ],
    ids=["sessions", "no sends", "no receives"],
)
def test_unusable_backlog_queue_exits_with_1(
    namespaces: Namespaces, name: str, changes: dict[str, Any], said: str
) -> None:
    create(namespaces.secondary, backlog_queue(name, 1, **changes))
    done = run("pair", *namespaces.options, "--backlog-queues", 3, "--name", name, "--json")
    assert done.returncode == 1
    assert f"1 of 3 backlog queues cannot be used; '{backlog_path(name, 1)}': " in reason(done)
    found = json.loads(done.stdout)
    assert not found["is_ready"]
    assert [bool(queue["defects"]) for queue in found["backlog_queues"]] == [False, True, False]
    assert any(said in defect for defect in found["backlog_queues"][1]["defects"])


@pytest.mark.slow
def test_pair_is_set_up_while_the_primary_is_down(namespaces: Namespaces, name: str) -> None:
    with unused_address() as primary:
        given = options(primary, namespaces.secondary.connection_string)
        done = run("pair", *given, "--backlog-queues", 1, "--name", name)
    assert done.returncode == 0
    assert "unreachable" in done.stdout
    assert "all queues and topics: at least once (not known: " in done.stdout
    assert f"{backlog_path(name, 0)}: created" in done.stdout
    assert reason(done).startswith("pairbus: WARNING: the primary namespace is unreachable: ")
    assert "secret" not in done.stdout + done.stderr


@pytest.mark.slow
def test_busy_primary_prints_a_warning(namespaces: Namespaces, name: str) -> None:
    with running_namespace("busy") as busy:
        busy.server_busy = True
        given = options(busy.connection_string, namespaces.secondary.connection_string)
        done = run("pair", *given, "--backlog-queues", 1, "--name", name)
    assert done.returncode == 0
    assert "WARNING: the primary namespace is unreachable" in reason(done)


@pytest.mark.slow
def test_primary_key_with_send_only_is_sufficient(namespaces: Namespaces, name: str) -> None:
    given = options(with_key(namespaces.primary, Right.SEND), namespaces.secondary.connection_string)
    done = run("pair", *given, "--backlog-queues", 1, "--name", name)
    assert (done.returncode, done.stderr) == (0, "")
    assert "all queues and topics: at least once (not known, the key lacks Manage)\n" in done.stdout
    document = json.loads(run("pair", *given, "--backlog-queues", 1, "--name", name, "--json").stdout)
    assert document["destinations"] == []
    assert document["unknown_destinations"]["reason"] == "not known, the key lacks Manage"


@pytest.mark.slow
def test_primary_with_backlog_queues_prints_a_warning(name: str) -> None:
    with running_namespace("contoso") as contoso, running_namespace("fabrikam") as fabrikam:
        create(fabrikam, backlog_description(backlog_path(name, 0)))
        given = options(fabrikam.connection_string, contoso.connection_string)
        done = run("pair", *given, "--backlog-queues", 1, "--name", "swapped")
    assert done.returncode == 0
    assert "WARNING: the primary itself has backlog queues, for 'contoso" in reason(done)
    assert "if --primary and --secondary are swapped" in reason(done)


@pytest.mark.slow
def test_entity_path_of_the_primary_is_checked(namespaces: Namespaces, name: str) -> None:
    given = options(f"{namespaces.primary.connection_string}EntityPath=orders", namespaces.secondary.connection_string)
    done = run("pair", *given, "--backlog-queues", 1, "--name", name)
    assert (done.returncode, done.stderr) == (0, "")
    assert "queue orders: at least once\n" in done.stdout


@pytest.mark.slow
def test_entity_that_is_not_a_path_exits_with_1(namespaces: Namespaces, name: str) -> None:
    done = run("pair", *namespaces.options, "--backlog-queues", 1, "--name", name, "--entity", "orders?x")
    assert done.returncode == 1
    assert reason(done).startswith("pairbus: the entity of the primary is not a queue or topic: ")


def test_printed_program_runs(namespaces: Namespaces, name: str) -> None:
    done = run("pair", *namespaces.options, "--backlog-queues", 1, "--name", name)
    _, _, program = done.stdout.partition("Code for the application:\n\n")
    assert f'backlog_queue_count=1, primary_name="{name}"' in program
    environment = ENVIRONMENT | {
        "PAIRBUS_PRIMARY": namespaces.primary.connection_string,
        "PAIRBUS_SECONDARY": namespaces.secondary.connection_string,
    }
    command = [sys.executable, "-c", program]
    subprocess.run(command, check=True, timeout=PATIENCE_S, env=environment)


@pytest.mark.slow
def test_terminal_output_is_a_table(namespaces: Namespaces, name: str) -> None:
    ours, theirs = pty.openpty()
    command = [*PAIRBUS, "pair", *namespaces.options, "--backlog-queues", "1", "--name", name]
    environment = ENVIRONMENT | {"COLUMNS": "120", "TERM": "xterm"}
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=environment) as process:
        os.close(theirs)
        try:
            shown = ""
            while "asyncio.run(main())" not in shown:
                shown += os.read(ours, 4096).decode()
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
            os.close(ours)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert re.search(rf"│ {backlog_path(name, 0)} +│ created +│ can be sent to and received from +│", plain)
    assert re.search(r"│ orders +│ queue +│ at least once +│", plain)


@pytest.mark.slow
def test_certificate_authority_is_read_from_ssl_cert_file(namespaces: Namespaces, name: str) -> None:
    secondary = namespaces.secondary
    given = options(namespaces.primary.connection_string, secondary.tls_connection_string)
    arguments = ("pair", *given, "--backlog-queues", 1, "--name", name)
    assert run(*arguments, SSL_CERT_FILE=str(secondary.ca_file)).returncode == 0
    done = run(*arguments)
    assert done.returncode == 1
    assert "is not trusted" in reason(done)


# Sources of connection strings


@pytest.mark.slow
def test_connection_strings_are_read_from_variables_and_files(
    namespaces: Namespaces, name: str, tmp_path: Path
) -> None:
    file = tmp_path / "secondary.txt"
    file.write_text(f"{namespaces.secondary.connection_string}\n", encoding="utf-8")
    variables = {"PAIRBUS_PRIMARY": namespaces.primary.connection_string, "PAIRBUS_SECONDARY": f"@{file}"}
    done = run("pair", "--backlog-queues", 1, "--name", name, **variables)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "slip",
    [
        "secret",
        "SharedAccessKeyName=some;SharedAccessKey=secret",
        "Endpoint=sb://localhost SharedAccessKeyName=some SharedAccessKey=secret",
        "Endpoint=sb://localhost:5672 SharedAccessKeyName=some SharedAccessKey=secret",
        "Endpoint=sb://localhost\nSharedAccessKeyName=some\nSharedAccessKey=secret",
        "Endpoint=sb://localhost;SharedAccessKey:secret=",
        "Endpoint=sb://localhost;SharedAccessKey=secret",
        "Endpoint=sb://localhost;SharedAccessKeyName=some;SharedAccessKey=secret;SharedAccessKey=secret",
        "Endpoint=sb://localhost;EntityPath=secret",
    ],
)
def test_invalid_connection_string_exits_with_2_and_is_not_printed(slip: str) -> None:
    other = "Endpoint=sb://other;SharedAccessKeyName=some;SharedAccessKey=secret"
    done = CliRunner().invoke(app, ["pair", *options(slip, other)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert re.fullmatch(r"pairbus: --primary .+\n", done.stderr)
    assert "secret" not in done.stderr.lower()


@pytest.mark.slow
def test_missing_file_exits_with_2(tmp_path: Path) -> None:
    done = run("pair", *options(f"@{tmp_path / 'nowhere.txt'}", "x"))
    assert done.returncode == 2
    assert "nowhere.txt cannot be read" in reason(done)


@pytest.mark.slow
def test_binary_file_exits_with_2(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"\xff\xfe\x00secret")
    done = run("pair", *options(f"@{tmp_path / 'key'}", "x"))
    assert done.returncode == 2
    assert "is not a text file" in reason(done)


# Errors


def test_c4_same_namespace_twice_exits_with_2(namespaces: Namespaces) -> None:
    text = namespaces.primary.connection_string
    done = run("pair", *options(text, text))
    assert done.returncode == 2
    assert "name two different namespaces" in reason(done)


@pytest.mark.slow
def test_c4_invalid_number_of_queues_exits_with_2(namespaces: Namespaces) -> None:
    done = run("pair", *namespaces.options, "--backlog-queues", 0)
    assert done.returncode == 2
    assert "--backlog-queues" in done.stderr


@pytest.mark.slow
def test_c4_invalid_name_exits_with_2(namespaces: Namespaces) -> None:
    done = run("pair", *namespaces.options, "--name", "a//b")
    assert done.returncode == 2
    assert reason(done).endswith("got 'a//b'")


@pytest.mark.slow
def test_missing_connection_exits_with_2() -> None:
    done = run("pair")
    assert done.returncode == 2
    assert "PAIRBUS_PRIMARY" in done.stderr


@pytest.mark.slow
def test_secondary_down_prints_one_line_and_exits_with_1(namespaces: Namespaces, name: str) -> None:
    with unused_address() as secondary:
        done = run("pair", *options(namespaces.primary.connection_string, secondary), "--name", name)
    assert (done.returncode, done.stdout) == (1, "")
    assert "try again when it is up" in reason(done)
    assert "secret" not in done.stderr


@pytest.mark.slow
def test_secondary_key_without_manage_exits_with_1(namespaces: Namespaces, name: str) -> None:
    secondary = with_key(namespaces.secondary, Right.SEND, Right.LISTEN)
    done = run("pair", *options(namespaces.primary.connection_string, secondary), "--name", name)
    assert done.returncode == 1
    assert "lacks Manage" in reason(done)
    assert "it needs Manage, Send and Listen" in done.stderr


@pytest.mark.slow
def test_wrong_primary_key_exits_with_1(namespaces: Namespaces, name: str) -> None:
    wrong = str(replace(parse_connection_string(namespaces.primary.connection_string), key="secret"))
    done = run("pair", *options(wrong, namespaces.secondary.connection_string), "--name", name)
    assert done.returncode == 1
    assert "the key of the primary namespace" in reason(done)
    assert "secret" not in done.stderr


@pytest.mark.slow
def test_topic_at_a_backlog_path_exits_with_1(namespaces: Namespaces, name: str) -> None:
    async def creating() -> None:
        async with NamespaceManager.from_connection_string(namespaces.secondary.connection_string) as manager:
            await manager.create_topic(backlog_path(name, 0))

    asyncio.run(creating())
    done = run("pair", *namespaces.options, "--backlog-queues", 1, "--name", name)
    assert done.returncode == 1
    assert f"'{backlog_path(name, 0)}'" in reason(done)


# Differences


def test_c5_queue_created_by_the_service_has_no_differences() -> None:
    made = backlog_queue(
        "contoso",
        requires_session=False,
        requires_duplicate_detection=False,
        enable_partitioning=False,
        status=EntityStatus.ACTIVE,
    )
    assert differences(made) == ()
    assert differences(replace(made, max_delivery_count=2_000)) == ()  # the value of a service that caps it
    (difference,) = differences(replace(made, max_delivery_count=10))
    assert difference.harm is Harm.RISK
    (difference,) = differences(replace(made, lock_duration=timedelta(seconds=30)))
    assert (difference.harm, difference.consequence) == (Harm.NONE, "")
    assert str(difference) == "lock_duration is 0:00:30 instead of 0:01:00"


# The options


def test_help_shows_an_example() -> None:
    shown = CliRunner().invoke(app, ["pair", "--help"], env={"COLUMNS": "120", "TERM": "dumb"}).output
    assert "Example: pairbus pair --primary @contoso.txt --secondary @fabrikam.txt" in shown
    for option in ("--primary", "--secondary", "--backlog-queues", "--name", "--json", "PAIRBUS_SECONDARY"):
        assert option in shown


@pytest.mark.slow
def test_traceback_does_not_show_local_variables() -> None:
    assert not app.pretty_exceptions_show_locals
