"""`pairbus receive` settles messages as asked, and loses none."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from pairbus.blocking import BodyKind, BrokeredMessage, MessagingFactory
from pairbus.cli.message_lines import READ_ONLY
from pairbus.wire import (
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from tests.cli.everyday import CommandFixture, interrupt
from tests.cli.test_cli import PATIENCE_S
from tests.cli.test_send import STOPS
from tests.waiting import eventually

AT_ONCE = ("--wait", "0s")


def documents(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def sent_part(document: dict[str, Any]) -> dict[str, Any]:
    """Remove the fields that the namespace sets anew on each send."""
    return {name: value for name, value in document.items() if name not in READ_ONLY}


# Settlement.


def test_default_receive_removes_nothing(desk: CommandFixture) -> None:
    queue = desk.queue()
    desk.send(queue, "one espresso")
    reported = desk.spoken("receive", queue)
    assert reported.startswith("#1  ")
    assert reported.endswith("\none espresso\n\n")
    (message,) = desk.receive(queue)
    assert message.delivery_count == 1


def test_abandoned_messages_are_received_once_each(desk: CommandFixture) -> None:
    queue = desk.queue()
    desk.send(queue, "one", "two", "three")
    assert desk.spoken("receive", queue, "--count", 5, "--body", "--wait", "300ms", "--abandon") == "one\ntwo\nthree\n"
    assert [message.body for message in desk.receive(queue, 3)] == [b"one", b"two", b"three"]


def test_complete_removes_messages(desk: CommandFixture) -> None:
    queue = desk.queue()
    desk.send(queue, "one", "two")
    assert desk.spoken("receive", queue, "--complete", "--body") == "one\n"
    assert desk.count(queue) == 1


def test_delete_removes_messages(desk: CommandFixture) -> None:
    queue = desk.queue()
    desk.send(queue, "one", "two", "three")
    assert desk.spoken("receive", queue, "--delete", "--count", 2, "--body") == "one\ntwo\n"
    assert [message.body for message in desk.receive(queue)] == [b"three"]


def test_dead_letters_have_a_reason_and_can_be_resubmitted(desk: CommandFixture, tmp_path: Path) -> None:
    queue = desk.queue()
    desk.send(queue, BrokeredMessage("one", message_id="1", application_properties={"table": Int(4)}))
    desk.spoken("receive", queue, "--dead-letter", "--reason", "cold", "--description", "it stood too long")
    reported = desk.spoken("peek", queue, "--dead-letters")
    assert "dead letter reason cold  dead letter error description it stood too long" in reported
    assert "table=4" in reported
    assert "DeadLetterReason" not in reported
    file = tmp_path / "dead.jsonl"
    desk.spoken("receive", queue, "--dead-letters", "--all", "--complete", "--lines", file, *AT_ONCE)
    (document,) = documents(file)
    assert (document["entity"], document["dead_letter_reason"]) == (f"{queue}/$DeadLetterQueue", "cold")
    assert desk.count(queue) == 0
    desk.spoken("send", queue, "--lines", file)
    (message,) = desk.receive(queue)
    assert (message.body, message.message_id, message.application_properties) == (b"one", "1", {"table": Int(4)})


def test_deferred_message_is_received_by_its_number(desk: CommandFixture) -> None:
    queue = desk.queue()
    desk.send(queue, "one", "two")
    line, _ = desk.spoken("receive", queue, "--defer", "--count", 2, "--json").splitlines()
    number = json.loads(line)["sequence_number"]
    assert desk.run("receive", queue, *AT_ONCE).code == 3
    assert desk.spoken("receive", queue, "--deferred", number, "--body") == "one\n"
    assert desk.spoken("receive", queue, "--deferred", number, "--deferred", number + 1, "--complete", "--body") == (
        "one\ntwo\n"
    )
    missing = desk.run("receive", queue, "--deferred", number)
    assert missing.code == 1
    assert "pairbus: " in missing.reason


def test_receive_from_a_subscription(desk: CommandFixture) -> None:
    desk.send("events", "to all")
    assert desk.spoken("receive", "events/subscriptions/audit", "--complete", "--body") == "to all\n"


def test_receive_from_sessions(desk: CommandFixture) -> None:
    queue = desk.queue(requires_session=True)
    desk.send(queue, *(BrokeredMessage(f"{name} {n}", session_id=name) for n in (1, 2) for name in ("a", "b")))
    assert desk.spoken("receive", queue, "--session", "b", "--all", "--complete", "--body", *AT_ONCE) == "b 1\nb 2\n"
    assert desk.spoken("receive", queue, "--next-session", "--complete", "--body", *AT_ONCE) == "a 1\n"
    assert desk.run("receive", queue, "--session", "b", *AT_ONCE).code == 3
    assert "session a" in desk.spoken("receive", queue, "--session", "a", "--delete").replace("session id", "session")
    nothing = desk.run("receive", queue, "--next-session", "--wait", "200ms")
    assert (nothing.code, "no message arrived" in nothing.reason) == (3, True)
    without = desk.run("receive", queue)
    assert without.code == 1
    assert "--session ID" in without.reason
    assert "--next-session" in without.reason


def test_empty_queue_prints_one_line_and_exits_with_3(desk: CommandFixture) -> None:
    queue = desk.queue()
    done = desk.run("receive", queue, "--complete", "--wait", "200ms")
    assert (done.code, done.stdout, done.reason) == (3, "", f"pairbus: no message arrived from '{queue}' within 200ms")
    done = desk.run("receive", queue, "--all", "--complete", *AT_ONCE)
    assert (done.code, done.stdout, done.reason) == (0, "", f"pairbus: no message arrived from '{queue}' within 0s")


# Export and import.

ONE_OF_EACH = {
    "null": None,
    "boolean": True,
    "ubyte": UByte(255),
    "ushort": UShort(1),
    "uint": UInt(1),
    "ulong": ULong(2**64 - 1),
    "byte": Byte(-1),
    "short": Short(-1),
    "int": Int(-1),
    "long": -(2**63),
    "float": Float(0.1),
    "double": 1.0,
    "infinite": float("inf"),
    "decimal32": Decimal32(b"\x22\x50\x00\x01"),
    "decimal64": Decimal64(bytes(8)),
    "decimal128": Decimal128(bytes(16)),
    "char": Char("𝄞"),
    "timestamp": datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC),
    "ancient": Timestamp(-(2**62)),
    "uuid": UUID(int=5),
    "binary": b"\xff\x00",
    "string": "\u2028\n\ufeff\x00",
    "symbol": Symbol("s"),
}


def test_exported_and_imported_messages_are_equal(desk: CommandFixture, tmp_path: Path) -> None:
    queue, first, second = desk.queue(), tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    desk.send(
        queue,
        BrokeredMessage(
            b"\xff\xfe",
            message_id=UUID(int=7),
            correlation_id=b"\x00\x01",
            session_id="s",
            partition_key="s",
            label="l",
            content_type="c",
            to="t",
            reply_to="r",
            reply_to_session_id="rs",
            time_to_live=timedelta(days=400),
            application_properties=ONE_OF_EACH,
        ),
        BrokeredMessage([1, Symbol("x"), {"a": None}], body_kind=BodyKind.VALUE),
        BrokeredMessage([b"\xff", {UInt(1): "y"}], body_kind=BodyKind.SEQUENCE),
        "\r\n text \u2029",
        b"".decode(),
    )
    desk.spoken("receive", queue, "--count", 5, "--complete", "--lines", first)
    assert desk.count(queue) == 0
    desk.spoken("send", queue, "--lines", first)
    reported = desk.spoken("receive", queue, "--count", 5, "--complete", "--lines", second, "--json")
    assert json.loads(reported) == {"entity": queue, "received": 5, "settled": "complete"}
    before, after = documents(first), documents(second)
    assert [sent_part(one) for one in before] == [sent_part(one) for one in after]
    assert {*before[0]["application_properties"]} == {*ONE_OF_EACH}
    assert before[0]["application_properties"]["ulong"] == {"ulong": 2**64 - 1}


def test_messages_of_the_azure_sdk_are_exported_and_imported(desk: CommandFixture, tmp_path: Path) -> None:
    queue, file = desk.queue(), tmp_path / "messages.jsonl"
    properties: dict[Any, Any] = {"i": 5, "f": 1.5, "b": True, "t": "text", "o": b"o", "u": UUID(int=5)}
    with ServiceBusClient.from_connection_string(desk.namespace.connection_string) as client:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages(ServiceBusMessage("one", subject="s", application_properties=properties))
        with client.get_queue_receiver(queue) as receiver:
            before = receiver.peek_messages()[0]
            desk.spoken("receive", queue, "--complete", "--lines", file)
            desk.spoken("send", queue, "--lines", file)
            (after,) = receiver.receive_messages(max_wait_time=PATIENCE_S)
    assert after.application_properties == before.application_properties
    assert (after.subject, str(after), after.message_id) == ("s", "one", before.message_id)


def test_ten_thousand_messages_are_exported_and_imported(desk: CommandFixture, tmp_path: Path) -> None:
    queue, file = desk.queue(), tmp_path / "messages.jsonl"
    desk.send(queue, *(str(number) for number in range(10_000)))
    reported = desk.spoken("receive", queue, "--all", "--complete", "--lines", file, "--wait", "200ms")
    assert reported == f"10,000 messages of '{queue}' written to {file} and completed\n"
    assert [document["body"] for document in documents(file)] == [*map(str, range(10_000))]
    assert desk.count(queue) == 0
    desk.spoken("send", queue, "--lines", file)
    assert desk.count(queue) == 10_000


def test_lines_are_appended_to_the_file(desk: CommandFixture, tmp_path: Path) -> None:
    queue, file = desk.queue(), tmp_path / "messages.jsonl"
    for body in ("one", "two"):
        desk.send(queue, body)
        desk.spoken("receive", queue, "--complete", "--lines", file)
    assert [document["body"] for document in documents(file)] == ["one", "two"]


def test_file_with_an_incomplete_last_line_is_rejected(desk: CommandFixture, tmp_path: Path) -> None:
    queue, file = desk.queue(), tmp_path / "messages.jsonl"
    desk.send(queue, "one")
    file.write_text('{"body": "half', encoding="utf-8")
    done = desk.run("receive", queue, "--complete", "--lines", file)
    assert done.code == 1
    assert "is incomplete" in done.reason
    assert (file.read_text("utf-8"), desk.count(queue)) == ('{"body": "half', 1)


HAS_FULL_DISK = pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk that is always full")


@HAS_FULL_DISK
@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("/dev/full", "No space left on device; nothing received; 1 not written and abandoned"),
        ("/nowhere/at/all", "No such file or directory"),
    ],
)
def test_message_that_cannot_be_written_stays_in_the_queue(desk: CommandFixture, file: str, said: str) -> None:
    queue = desk.queue()
    desk.send(queue, "one", "two")
    done = desk.run("receive", queue, "--all", "--complete", "--lines", file)
    assert done.code == 1
    assert done.reason == f"pairbus: {file} cannot be written: {said}"
    assert [message.body for message in desk.receive(queue, 2, timedelta(seconds=2))] == [b"one", b"two"]


@HAS_FULL_DISK
def test_delete_loses_at_most_one_message_and_reports_it(desk: CommandFixture) -> None:
    queue = desk.queue()
    desk.send(queue, "one", "two")
    done = desk.run("receive", queue, "--delete", "--count", 2, "--lines", "/dev/full")
    assert done.code == 1
    assert done.reason.endswith("; nothing received; 1 deleted and not written")
    assert desk.count(queue) == 1


# Closed and full outputs.


def into_head(desk: CommandFixture, *arguments: object) -> tuple[int, str, list[bytes]]:
    """Run `pairbus receive … | head -3`; return the exit status, standard error, and the output of head."""
    with desk.started("receive", *arguments) as process:
        shown = subprocess.run(
            ["head", "-3"], stdin=process.stdout, stdout=subprocess.PIPE, check=True, timeout=PATIENCE_S
        ).stdout
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        return process.wait(PATIENCE_S), process.stderr.read().decode(), shown.splitlines()


def bodies(desk: CommandFixture, queue: str, count: int) -> list[bytes]:
    return [message.body for message in desk.receive(queue, count, timedelta(seconds=1))]


NUMBERED = [f"{number:03}" for number in range(250)]
THREE, REST = [one.encode() for one in NUMBERED[:3]], [one.encode() for one in NUMBERED[3:]]


def test_complete_into_head_removes_what_head_printed_and_nothing_else(desk: CommandFixture) -> None:
    queue = desk.queue()
    desk.send(queue, *NUMBERED)
    code, said, shown = into_head(desk, queue, "--all", "--complete", "--body")
    assert (code, shown) == (141, THREE)
    assert re.fullmatch(
        r"pairbus: standard output was closed; 3 received and completed; [12] not written and abandoned\n", said
    )
    assert bodies(desk, queue, 250) == REST


def test_complete_into_a_named_pipe_that_is_closed_removes_what_was_read(desk: CommandFixture, tmp_path: Path) -> None:
    queue, pipe = desk.queue(), tmp_path / "pipe"
    desk.send(queue, *NUMBERED)
    os.mkfifo(pipe)
    with desk.started("receive", queue, "--all", "--complete", "--lines", pipe) as process:
        with pipe.open("rb", buffering=0) as reader:
            read = [json.loads(reader.readline())["body"].encode() for _ in range(3)]
        assert process.stderr is not None
        assert process.wait(PATIENCE_S) == 141
        assert process.stderr.read().decode().startswith(f"pairbus: {pipe} was closed; 3 received and completed; ")
    assert (read, bodies(desk, queue, 250)) == (THREE, REST)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports to the writer what was read")
def test_complete_into_a_socket_that_is_closed_removes_what_was_read(desk: CommandFixture) -> None:
    queue = desk.queue()
    desk.send(queue, *NUMBERED)
    reader, writer = socket.socketpair()
    with reader, desk.started("receive", queue, "--all", "--complete", "--body", stdout=writer) as process:
        writer.close()
        read = b""
        while read.count(b"\n") < 3:
            read += reader.recv(1)
        reader.close()
        assert process.wait(PATIENCE_S) == 141
    left = bodies(desk, queue, 250)
    assert (read.split(), len(left) >= len(REST), {*read.split(), *left}) == (THREE, True, {*THREE, *REST})


def test_output_that_was_closed_before_the_command_started_is_status_141(desk: CommandFixture) -> None:
    queue = desk.queue()
    desk.send(queue, "one")
    command = f'exec "{sys.executable}" -m pairbus receive {queue} --complete --body >&-'
    ended = subprocess.run(["sh", "-c", command], env=desk.environment, stderr=subprocess.PIPE, check=False)
    assert (ended.returncode, b"Traceback" in ended.stderr) == (141, False)
    assert desk.count(queue) == 1


def test_abandon_into_head_leaves_everything(desk: CommandFixture) -> None:
    queue = desk.queue()
    desk.send(queue, *NUMBERED)
    code, said, shown = into_head(desk, queue, "--count", 250, "--body")
    assert (code, shown) == (141, THREE)
    assert said.startswith("pairbus: standard output was closed; 3 received and abandoned; ")
    assert bodies(desk, queue, 250) == THREE + REST


def test_delete_into_head_loses_at_most_one_message(desk: CommandFixture) -> None:
    queue = desk.queue()
    desk.send(queue, *NUMBERED)
    code, said, shown = into_head(desk, queue, "--all", "--delete", "--body")
    assert (code, shown) == (141, THREE)
    assert said == "pairbus: standard output was closed; 3 received and deleted; 1 deleted and not written\n"
    assert bodies(desk, queue, 250) == REST[1:]


@HAS_FULL_DISK
def test_complete_onto_a_full_disk_removes_nothing(desk: CommandFixture) -> None:
    queue = desk.queue()
    desk.send(queue, *NUMBERED)
    arguments = ("receive", queue, "--all", "--complete", "--body")
    with Path("/dev/full").open("wb") as full, desk.started(*arguments, stdout=full) as process:
        assert process.stderr is not None
        assert process.wait(PATIENCE_S) == 1
        assert process.stderr.read().decode() == (
            "pairbus: standard output cannot be written: No space left on device;"
            " nothing received; 1 not written and abandoned\n"
        )
    assert bodies(desk, queue, 250) == THREE + REST


def test_ctrl_c_completes_read_messages_and_abandons_the_rest(desk: CommandFixture) -> None:
    """The reader stops reading without closing the pipe, as a pager does."""
    queue = desk.queue()
    desk.send(queue, *NUMBERED)
    with desk.started("receive", queue, "--all", "--complete", "--body") as process:
        assert process.stdout is not None
        output = process.stdout
        read = [output.read(4).strip() for _ in range(3)]
        eventually(lambda: bool(select.select([output], [], [], 0)[0]))
        code, said = interrupt(process)
    assert (code, read) == (130, THREE)
    assert re.fullmatch(r"pairbus: stopped: 3 received and completed; [12] not written and abandoned\n", said)
    assert bodies(desk, queue, 250) == REST


# Interrupted and killed processes.


@STOPS
def test_ctrl_c_and_sigterm_abandon_locked_messages(
    desk: CommandFixture, number: signal.Signals, expected: int
) -> None:
    queue = desk.queue()
    desk.send(queue, "one")
    with desk.started("receive", queue, "--count", 2, "--wait", "60s", "--body") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"one\n"
        code, complaints = interrupt(process, number)
    assert code == expected
    # The command may be stopped before it notices that its line was read.
    unnoticed = "nothing received; 1 not written and abandoned"
    assert re.fullmatch(rf"pairbus: stopped: ({unnoticed}|1 received and abandoned)\n", complaints)
    assert [message.body for message in desk.receive(queue)] == [b"one"]


@pytest.mark.slow
@pytest.mark.parametrize("lines", [1, 300, 2_000])
def test_killed_at_any_point_each_message_is_in_the_file_or_in_the_queue(
    desk: CommandFixture, tmp_path: Path, lines: int
) -> None:
    queue, file = desk.queue(lock_duration=timedelta(seconds=5)), tmp_path / "messages.jsonl"
    desk.send(queue, *(f"{number:05}" + "x" * 500 for number in range(5_000)))
    with desk.started("receive", queue, "--all", "--complete", "--lines", file) as process:
        eventually(lambda: file.exists() and file.read_bytes().count(b"\n") >= lines)
        process.kill()
        process.wait(PATIENCE_S)
    whole = file.read_bytes().rpartition(b"\n")[0].splitlines()
    written = {json.loads(line)["body"].encode() for line in whole}
    left = {message.body for message in desk.receive(queue, 5_000, timedelta(seconds=8))}
    assert len(written | left) == 5_000


@pytest.mark.slow
def test_messages_written_but_not_removed_are_reported(desk: CommandFixture, tmp_path: Path) -> None:
    """The namespace stops while the output waits for its reader."""
    queue, pipe = desk.queue(), tmp_path / "pipe"
    desk.send(queue, "x" * 200_000)  # more than a pipe holds
    os.mkfifo(pipe)
    arguments = ("receive", queue, "--complete", "--lines", pipe)
    with desk.started(*arguments) as process, pipe.open("rb") as reader:
        assert reader.read(1) == b"{"
        desk.namespace.stop()
        try:
            rest = reader.read().count(b"\n")
            _, complaints = process.communicate(timeout=2 * PATIENCE_S)
        finally:
            desk.namespace.start()
    assert (process.returncode, rest) == (1, 1)
    reported = complaints.decode()
    assert f"; none confirmed as completed; 1 more written to {pipe}, possibly still in the queue" in reported


@pytest.mark.slow
def test_slow_reader_loses_nothing(desk: CommandFixture) -> None:
    """A message is still locked when it is removed long after it was printed."""
    lock_s = 15
    queue = desk.queue(lock_duration=timedelta(seconds=lock_s))
    desk.send(queue, *("x" * 60_000 for _ in range(10)))
    with desk.started("receive", queue, "--count", 10, "--complete", "--body") as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"x"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(lock_s + 3)
        rest, complaints = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, complaints, len(rest)) == (0, b"", 10 * 60_001 - 1)
    assert desk.count(queue) == 0


@pytest.mark.slow
def test_terminal_shows_a_bar_and_a_hint_on_abandoned_messages(desk: CommandFixture, tmp_path: Path) -> None:
    queue = desk.queue()
    desk.send(queue, *("x" for _ in range(500)))
    shown = seen("receive", queue, "--all", "--complete", "--wait", "1s", "--lines", tmp_path / "messages", desk=desk)
    assert "500 received" in shown
    desk.send(queue, "x")
    assert seen("receive", queue, desk=desk) == "abandoned; add --complete to remove received messages\r\n"


def seen(*arguments: object, desk: CommandFixture) -> str:
    """Return what a command prints to a terminal on standard error."""
    ours, theirs = pty.openpty()
    parts = []
    try:
        with desk.started(*arguments, stderr=theirs, stdout=subprocess.DEVNULL) as process:
            os.close(theirs)
            with suppress(OSError):  # a terminal reports that its last writer closed it
                while part := os.read(ours, 1 << 16):
                    parts.append(part)
            assert process.wait(PATIENCE_S) == 0
    finally:
        os.close(ours)
    return b"".join(parts).decode()


# Errors.


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--complete", "--delete"), "exclude each other: use one of them"),
        (("--all",), "--all requires a settlement"),
        (("--all", "--abandon"), "--all requires a settlement"),
        (("--all", "--complete", "--count", "2"), "--all and --count"),
        (("--reason", "x"), "require --dead-letter"),
        (("--session", "x", "--next-session"), "--session and --next-session"),
        (("--deferred", "1", "--count", "2"), "--deferred selects single messages"),
        (("--wait", "soon"), "--wait must be a number and a unit"),
        (("--body", "--lines", "x"), "remove --body"),
    ],
)
def test_invalid_arguments_print_one_line_and_exit_with_2(
    desk: CommandFixture, arguments: tuple[str, ...], said: str
) -> None:
    done = desk.run("receive", "orders", *arguments)
    assert (done.code, done.stdout) == (2, "")
    assert said in done.reason


@pytest.mark.parametrize("command", ["receive", "peek"])
@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nowhere", "there is no queue or topic 'nowhere'; run pairbus entities list"),
        ("events/audit", "for a subscription, write events/Subscriptions/audit;"),
        ("events/Subscriptions/none", "there is no subscription 'events/Subscriptions/none'; run pairbus"),
        ("events/Subscriptions/none/$DeadLetterQueue", "there is no subscription 'events/Subscriptions/none'; "),
        ("events", "'events' is a topic: "),
        ("events", " of its subscriptions, events/Subscriptions/NAME"),
    ],
)
def test_missing_entity_exits_with_1_and_names_the_given_path(
    desk: CommandFixture, command: str, path: str, said: str
) -> None:
    done = desk.run(command, path)
    assert (done.code, done.stdout) == (1, "")
    assert said in done.reason


def test_locked_session_exits_with_1(desk: CommandFixture) -> None:
    queue = desk.queue(requires_session=True)
    with MessagingFactory.from_connection_string(desk.namespace.connection_string) as factory:
        factory.accept_message_session(queue, "mine")
        done = desk.run("receive", queue, "--session", "mine", *AT_ONCE)
    assert done.code == 1
    assert "mine" in done.reason
