"""`pairbus send` as users and scripts run it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pairbus.broker import Right
from pairbus.wire import Int
from tests.cli.everyday import CommandFixture, interrupt
from tests.cli.test_cli import PAIRBUS, PATIENCE_S
from tests.cli.test_pair import unused_address, with_key
from tests.waiting import eventually
from tests.wire.values import identity


def lines_file(folder: Path, *documents: Any) -> Path:
    file = folder / "messages.jsonl"
    texts = [one if isinstance(one, str) else json.dumps(one) for one in documents]
    file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return file


# Single messages.


def test_body_option_is_the_body(desk: CommandFixture) -> None:
    queue = desk.queue()
    assert desk.spoken("send", queue, "--body", "one espresso") == f"1 message sent to '{queue}'\n"
    assert desk.receive(queue)[0].body == b"one espresso"


@pytest.mark.parametrize("arguments", [(), ("--file", "-")], ids=["nothing said", "-"])
def test_standard_input_is_the_body_to_its_last_byte(desk: CommandFixture, arguments: tuple[str, ...]) -> None:
    queue = desk.queue()
    desk.spoken("send", queue, *arguments, stdin=b"\xff\x00 one\n")
    assert desk.receive(queue)[0].body == b"\xff\x00 one\n"


def test_file_option_is_the_body(desk: CommandFixture, tmp_path: Path) -> None:
    queue = desk.queue()
    (tmp_path / "body").write_bytes(bytes(range(256)))
    desk.spoken("send", queue, "--file", tmp_path / "body")
    assert desk.receive(queue)[0].body == bytes(range(256))


def test_options_set_the_fields_of_the_message(desk: CommandFixture) -> None:
    queue = desk.queue(requires_session=False)
    options = {
        "--message-id": "order-1",
        "--session-id": "table 4",
        "--correlation-id": "c",
        "--label": "order",
        "--content-type": "text/plain",
        "--ttl": "90s",
    }
    properties = (
        "a=b=c",
        "table:int=4",
        "when:timestamp=1970-01-01T00:00:01Z",
        "hot:boolean=true",
        "a:b:string=c",
        "empty=",
    )
    desk.spoken(
        "send",
        queue,
        "--body",
        "x",
        *(word for option in options.items() for word in option),
        *(word for text in properties for word in ("--property", text)),
    )
    (message,) = desk.receive(queue)
    assert (message.message_id, message.session_id, message.correlation_id) == ("order-1", "table 4", "c")
    assert (message.label, message.content_type) == ("order", "text/plain")
    assert message.time_to_live == timedelta(seconds=90)
    assert identity(message.application_properties) == identity(
        {
            "a": "b=c",
            "table": Int(4),
            "when": datetime.fromtimestamp(1, UTC),
            "hot": True,
            "a:b": "c",
            "empty": "",
        }
    )


def test_schedule_option_schedules_the_message(desk: CommandFixture) -> None:
    queue = desk.queue()
    desk.spoken("send", queue, "--body", "x", "--schedule", "1h")
    desk.spoken("send", queue, "--body", "x", "--schedule", "2090-01-02T03:04:05Z")
    first, second = map(json.loads, desk.spoken("peek", queue, "--json").splitlines())
    assert (first["state"], second["scheduled_enqueue_time"]) == ("scheduled", "2090-01-02T03:04:05.000Z")
    due = datetime.fromisoformat(first["scheduled_enqueue_time"]) - datetime.now(UTC)
    assert timedelta(minutes=59) < due <= timedelta(hours=1)


def test_json_option_prints_one_object(desk: CommandFixture) -> None:
    queue = desk.queue()
    assert json.loads(desk.spoken("send", queue, "--body", "x", "--json")) == {"entity": queue, "sent": 1}


def test_send_to_a_topic(desk: CommandFixture) -> None:
    desk.spoken("send", "events", "--body", "to all")
    assert desk.receive("events/Subscriptions/audit")[0].body == b"to all"


def test_entity_path_of_the_connection_string_is_the_default(desk: CommandFixture, tmp_path: Path) -> None:
    queue = desk.queue()
    file = tmp_path / "connection.txt"
    file.write_text(f"{desk.namespace.connection_string};EntityPath={queue}\n", encoding="utf-8")
    assert f"'{queue}'" in desk.spoken("send", "--connection", f"@{file}", "--body", "x")
    assert desk.count(queue) == 1


# Files of messages.


def test_count_option_sends_messages_with_distinct_ids(desk: CommandFixture) -> None:
    queue = desk.queue(requires_duplicate_detection=True)
    assert desk.spoken("send", queue, "--body", "x", "--count", 10_000) == f"10,000 messages sent to '{queue}'\n"
    assert desk.count(queue) == 10_000


def test_lines_option_sends_the_messages_of_a_file(desk: CommandFixture, tmp_path: Path) -> None:
    queue = desk.queue()
    file = lines_file(tmp_path, {"body": "one", "label": "a"}, "", {"body_base64": "/w==", "message_id": "2"})
    assert desk.spoken("send", queue, "--lines", file) == f"2 messages sent to '{queue}'\n"
    one, two = desk.receive(queue, 2)
    assert (one.body, one.label, two.body, two.message_id) == (b"one", "a", b"\xff", "2")


def test_invalid_line_is_reported_before_any_message_is_sent(desk: CommandFixture, tmp_path: Path) -> None:
    queue = desk.queue()
    documents = [{"body": "x" * 100}] * 20_000  # more than is read at a time
    file = lines_file(tmp_path, *documents, {"boddy": 1})
    done = desk.run("send", queue, "--lines", file)
    assert done.code == 2
    assert f"{file}, line 20,001: unknown field 'boddy'; did you mean 'body'?; nothing was sent" in done.reason
    assert desk.count(queue) == 0


def test_from_line_option_resumes_a_file(desk: CommandFixture, tmp_path: Path) -> None:
    queue = desk.queue()
    file = lines_file(tmp_path, *({"body": str(number)} for number in range(1, 6)))
    desk.spoken("send", queue, "--lines", file, "--from-line", 4)
    assert [message.body for message in desk.receive(queue, 2)] == [b"4", b"5"]


def test_new_ids_option_avoids_duplicates(desk: CommandFixture, tmp_path: Path) -> None:
    queue = desk.queue(requires_duplicate_detection=True)
    file = lines_file(tmp_path, {"message_id": "1"}, {"message_id": "1"})
    desk.spoken("send", queue, "--lines", file)
    assert desk.count(queue) == 1
    desk.spoken("send", queue, "--lines", file, "--new-ids")
    assert desk.count(queue) == 3


def test_empty_file_of_lines_sends_nothing(desk: CommandFixture, tmp_path: Path) -> None:
    queue = desk.queue()
    assert desk.spoken("send", queue, "--lines", lines_file(tmp_path)) == f"0 messages sent to '{queue}'\n"


def test_rejection_half_way_names_the_lines(desk: CommandFixture, tmp_path: Path) -> None:
    queue = desk.queue()
    small = [{"body": "x" * 1000}] * 300
    file = lines_file(tmp_path, *small, {"body": "x" * 300_000}, *small)
    done = desk.run("send", queue, "--lines", file)
    assert done.code == 1
    reported = done.reason
    assert "lines " in reported
    assert "resume with --from-line " in reported
    first = int(reported.rsplit(" ", 1)[1])
    assert 1 < first <= 301
    assert desk.count(queue) >= first - 1


@pytest.mark.slow
def test_lines_of_a_pipe_are_sent_as_they_arrive(desk: CommandFixture) -> None:
    queue = desk.queue()
    with desk.started("send", queue, "--lines", "-", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        for number in range(1, 4):
            process.stdin.write(b'{"body": "x"}\n')
            process.stdin.flush()
            eventually(lambda number=number: desk.count(queue) == number)  # type: ignore[misc]
        process.stdin.write(b"nonsense\n")
        out, complaints = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (2, b"")
    assert b"pairbus: standard input, line 4: invalid JSON" in complaints
    assert complaints.endswith(b"; 3 sent\n")


STOPS = pytest.mark.parametrize(
    ("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"]
)


@STOPS
def test_ctrl_c_and_sigterm_stop_send_while_it_waits_for_input(
    desk: CommandFixture, number: signal.Signals, expected: int
) -> None:
    queue = desk.queue()
    with desk.started("send", queue, "--lines", "-", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b'{"body": "x"}\n')
        process.stdin.flush()
        eventually(lambda: desk.count(queue) == 1)
        code, complaints = interrupt(process, number)
    assert code == expected
    # The message may be stored before its confirmation arrives.
    unheard = "0 sent, 1 unconfirmed"
    assert complaints in {"pairbus: stopped: 1 sent\n", f"pairbus: stopped: {unheard}\n"}


def test_sigterm_stops_send_that_ignores_sigint(desk: CommandFixture) -> None:
    """Shells make background commands of a script ignore SIGINT; SIGTERM must still work."""
    queue = desk.queue()
    ignoring = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    with desk.started("send", queue, "--lines", "-", stdin=subprocess.PIPE, **ignoring) as process:
        assert process.stdin is not None
        process.stdin.write(b'{"body": "x"}\n')
        process.stdin.flush()
        eventually(lambda: desk.count(queue) == 1)
        code, complaints = interrupt(process, signal.SIGTERM)
    assert code == 143
    assert complaints.startswith("pairbus: stopped: ")


def test_terminal_input_prompts_for_a_body_and_can_be_interrupted(desk: CommandFixture) -> None:
    ours, theirs = pty.openpty()
    try:
        with desk.started("send", "orders", stdin=theirs) as process:
            assert process.stderr is not None
            assert process.stderr.readline() == b"enter the body, then press Ctrl-D:\n"
            code, complaints = interrupt(process)
    finally:
        os.close(ours)
        os.close(theirs)
    assert (code, complaints) == (130, "pairbus: stopped\n")


# Errors.


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("q/Subscriptions/s", "--body", "x"), "cannot send to 'q/Subscriptions/s'; name a queue or a topic"),
        (("q/$DeadLetterQueue", "--body", "x"), "cannot send to"),
        (("q?x", "--body", "x"), "must not contain '?'"),
        (("q", "--body", "x", "--file", "y"), "use one of them"),
        (("q", "--file", "/nowhere/at/all"), "/nowhere/at/all cannot be read: No such file"),
        (("q", "--lines", "/nowhere/at/all"), "/nowhere/at/all cannot be read: No such file"),
        (("q", "--lines", "x", "--label", "y"), "each line describes its message"),
        (("q", "--lines", "x", "--count", "2"), "each line describes its message"),
        (("q", "--body", "x", "--from-line", "2"), "require --lines"),
        (("q", "--body", "x", "--message-id", "y", "--count", "2"), "--message-id applies to a single message"),
        (("q", "--body", "x", "--property", "y"), "must be NAME=TEXT"),
        (("q", "--body", "x", "--property", "y:int=z"), "--property y:int: 'z' is not a whole number"),
        (
            ("q", "--body", "x", "--property", "y:int=99999999999"),
            "--property y:int: 99999999999 does not fit int (-2147483648 to 2147483647)",
        ),
        (("q", "--body", "x", "--property", "y:ubyte=-1"), "--property y:ubyte: -1 does not fit ubyte (0 to 255)"),
        (("q", "--body", "x", "--property", "y:double=z"), "'z' is not a number"),
        (("q", "--body", "x", "--property", "y:uuid=z"), "'z' is not 32 hexadecimal digits"),
        (("q", "--body", "x", "--property", "y:timestamp=z"), "'z' is not a time such as"),
        (("q", "--body", "x", "--property", "y:timestamp=2030-01-02"), "has no time zone; append Z for UTC"),
        (("q", "--body", "x", "--property", "y:binary=z"), "invalid base64"),
        (("q", "--body", "x", "--property", "table:integer=4"), "the type must be one of string, boolean,"),
        (("q", "--body", "x", "--property", "a:b=4"), "write NAME:string=TEXT"),
        (("q", "--body", "x", "--ttl", "soon"), "--ttl must be a number and a unit"),
        (("q", "--body", "x", "--ttl", "0s"), "--ttl must be at least"),
        (("q", "--body", "x", "--schedule", "soon"), "--schedule must be a time such as"),
        (("q", "--body", "x", "--session-id", "s" * 200), "session_id has 200 characters"),
        (("--body", "x"), "has no EntityPath"),
        (("q", "--connection", "nonsense", "--body", "x"), "--connection is not a connection string"),
        (("q", "--connection", "@/nowhere", "--body", "x"), "/nowhere cannot be read"),
        (("q", "--connection", __file__, "--body", "x"), f"; to read the connection string from it, write @{__file__}"),
        (("q", "--connection", "x" * 5_000, "--body", "x"), "--connection is not a connection string"),
    ],
)
def test_invalid_arguments_print_one_line_and_exit_with_2(
    desk: CommandFixture, arguments: tuple[str, ...], said: str
) -> None:
    done = desk.run("send", *arguments)
    assert (done.code, done.stdout) == (2, "")
    assert said in done.reason


@pytest.mark.parametrize("count", [1, 1_000])
def test_missing_entity_exits_with_1(desk: CommandFixture, count: int) -> None:
    done = desk.run("send", "nowhere", "--body", "x", "--count", count)
    assert done.code == 1
    assert "there is no queue or topic 'nowhere'" in done.reason
    assert done.reason.endswith("; nothing was sent")


def test_invalid_number_is_described_plainly(desk: CommandFixture) -> None:
    for given, said in (("x", "must be a whole number"), ("0", "must be at least 1")):
        done = desk.run("send", "q", "--body", "x", "--count", given)
        assert (done.code, done.stdout) == (2, "")
        assert f"Invalid value for '--count': {said}" in done.stderr


def test_from_line_beyond_the_file_exits_with_2(desk: CommandFixture, tmp_path: Path) -> None:
    file = lines_file(tmp_path, {"body": "one"})
    done = desk.run("send", desk.queue(), "--lines", file, "--from-line", 99)
    assert (done.code, done.stdout) == (2, "")
    assert done.reason == f"pairbus: --from-line is 99, but {file} has no message from that line on"


# The connection string.


def test_output_of_serve_is_accepted_as_connection_file(desk: CommandFixture, tmp_path: Path) -> None:
    queue, file = desk.queue(), tmp_path / "contoso.txt"
    file.write_text(f"namespace: contoso\nports: 5672\n{desk.namespace.connection_string}\n", encoding="utf-8")
    assert "1 message sent" in desk.spoken("send", queue, "--connection", f"@{file}", "--body", "x")


@pytest.mark.parametrize(("count", "said"), [(0, "got 0 of 2 lines"), (2, "got 2 of 4 lines")])
def test_connection_file_must_have_one_connection_string(
    desk: CommandFixture, tmp_path: Path, count: int, said: str
) -> None:
    file = tmp_path / "contoso.txt"
    file.write_text("\n".join(["one", "two", *[desk.namespace.connection_string] * count]), encoding="utf-8")
    done = desk.run("send", "q", "--connection", f"@{file}", "--body", "x")
    assert done.code == 2
    assert done.reason.endswith(said)
    assert desk.namespace.key not in done.reason


# The certificate.


@pytest.fixture
def secure(desk: CommandFixture, tmp_path: Path) -> str:
    """The connection string of the namespace with TLS."""
    file = tmp_path / "secure.txt"
    file.write_text(desk.namespace.connection_string.replace("UseDevelopmentEmulator=true;", ""), encoding="utf-8")
    return f"@{file}"


@pytest.mark.parametrize("arguments", [("send", "orders", "--body", "x"), ("entities", "list")], ids=["AMQP", "HTTP"])
def test_untrusted_certificate_error_names_ssl_cert_file(
    desk: CommandFixture, secure: str, arguments: tuple[str, ...]
) -> None:
    done = desk.run(*arguments, "--connection", secure)
    assert done.code == 1
    assert "its certificate is not trusted (" in done.reason
    assert "; set SSL_CERT_FILE to the certificate file of the authority" in done.reason
    assert "pairbus trust --data DIR" in done.reason
    assert "ca_file" not in done.reason


def test_ssl_cert_file_makes_the_certificate_trusted(desk: CommandFixture, secure: str) -> None:
    """Run in a separate process, because trusted certificates are read once."""
    command = [*PAIRBUS, "send", desk.queue(), "--connection", secure, "--body", "x"]
    environment = desk.environment | {"SSL_CERT_FILE": str(desk.namespace.ca_file)}
    done = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "SSL_CERT_FILE names {file}, which cannot be read: No such file"),
        ("dear", "SSL_CERT_FILE must name a certificate file in PEM, got {file}"),
    ],
)
def test_invalid_ssl_cert_file_is_rejected(
    desk: CommandFixture, secure: str, tmp_path: Path, content: str | None, said: str
) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    done = desk.run("entities", "list", "--connection", secure, SSL_CERT_FILE=str(file))
    assert done.code == 2
    assert said.format(file=file) in done.reason


def test_too_large_message_exits_with_1(desk: CommandFixture, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(os.urandom(300_000))
    done = desk.run("send", desk.queue(), "--file", tmp_path / "large")
    assert done.code == 1
    assert "262,144" in done.reason or "262144" in done.reason


def test_key_is_never_printed(desk: CommandFixture) -> None:
    queue = desk.queue()
    listener = with_key(desk.namespace, Right.LISTEN)
    wrong = desk.namespace.connection_string.replace(desk.namespace.key, desk.namespace.key[::-1])
    for text in (listener, wrong, desk.namespace.connection_string.replace("SharedAccessKey=", "SharedAccessKye=")):
        done = desk.run("send", queue, "--connection", text, "--body", "x")
        assert done.code in {1, 2}
        key = text.partition("SharedAccessKey=")[2].partition(";")[0] or desk.namespace.key
        for part in (done.stdout, done.reason):
            assert key not in part
            assert desk.namespace.key not in part


@pytest.mark.slow
def test_unreachable_namespace_is_reported_soon(desk: CommandFixture) -> None:
    with unused_address() as text:
        done = desk.run("send", "q", "--connection", text, "--body", "x")
    assert done.code == 1
    assert done.reason.endswith("; nothing was sent")
    assert "cannot be reached: Connection refused; check that the namespace is running" in done.reason
    assert "Errno" not in done.reason


@pytest.mark.slow
def test_namespace_lost_half_way_prints_the_line_to_resume_from(desk: CommandFixture, tmp_path: Path) -> None:
    queue = desk.queue()
    file = lines_file(tmp_path, *({"body": f"{number:06}" + "x" * 2_000} for number in range(20_000)))
    with desk.started("send", queue, "--lines", file) as process:
        eventually(lambda: desk.count(queue) > 0)
        desk.namespace.stop()
        _, complaints = process.communicate(timeout=2 * PATIENCE_S)
    desk.namespace.start()
    assert process.returncode == 1
    reported = complaints.decode()
    first = int(reported.strip().rsplit(" ", 1)[1])
    assert "resume with --from-line" in reported
    desk.spoken("send", queue, "--lines", file, "--from-line", first)
    assert desk.count(queue) >= 20_000
    bodies = {message.body for message in desk.receive(queue, desk.count(queue))}
    assert len(bodies) == 20_000
