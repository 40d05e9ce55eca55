"""`pairbus peek` shows messages and changes nothing."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pairbus.blocking import BrokeredMessage
from pairbus.broker import Right
from tests.cli.everyday import CommandFixture
from tests.cli.test_cli import PATIENCE_S
from tests.cli.test_pair import with_key


def test_peek_shows_ten_messages_and_changes_nothing(desk: CommandFixture) -> None:
    queue = desk.queue()
    desk.send(queue, *map(str, range(12)))
    assert desk.spoken("peek", queue, "--body") == "".join(f"{number}\n" for number in range(10))
    assert [message.delivery_count for message in desk.receive(queue, 12)] == [0] * 12


def test_peek_starts_from_a_sequence_number(desk: CommandFixture) -> None:
    queue = desk.queue()
    desk.send(queue, *map(str, range(12)))
    assert desk.spoken("peek", queue, "--body", "--count", 2, "--from-sequence", 11) == "10\n11\n"


def test_peek_all_writes_a_file(desk: CommandFixture, tmp_path: Path) -> None:
    queue, file = desk.queue(), tmp_path / "messages.jsonl"
    desk.send(queue, *map(str, range(1_000)))
    assert desk.spoken("peek", queue, "--all", "--lines", file) == f"1,000 messages of '{queue}' written to {file}\n"
    assert [json.loads(line)["body"] for line in file.read_text("utf-8").splitlines()] == [*map(str, range(1_000))]
    assert desk.count(queue) == 1_000
    reported = desk.spoken("peek", queue, "--lines", file, "--json")
    assert json.loads(reported) == {"entity": queue, "peeked": 10}


def test_peek_shows_scheduled_messages(desk: CommandFixture) -> None:
    queue = desk.queue()
    desk.send(queue, BrokeredMessage("later", scheduled_enqueue_time=datetime.now(UTC) + timedelta(hours=1)))
    assert "  scheduled\nlater\n" in desk.spoken("peek", queue)


def test_peek_shows_dead_letters(desk: CommandFixture) -> None:
    queue = desk.queue()
    desk.send(queue, "one", "two")
    desk.spoken("receive", queue, "--dead-letter", "--reason", "cold")
    assert desk.spoken("peek", queue, "--dead-letters", "--body") == "one\n"
    assert desk.spoken("peek", f"{queue}/$deadletterqueue", "--dead-letters", "--body") == "one\n"
    assert desk.spoken("peek", queue, "--body") == "two\n"


def test_peek_of_an_empty_queue_prints_nothing_and_exits_with_0(desk: CommandFixture) -> None:
    assert desk.spoken("peek", desk.queue()) == ""


def test_control_characters_are_escaped(desk: CommandFixture) -> None:
    """Bodies and properties are untrusted: control sequences are printed as text."""
    queue = desk.queue()
    desk.send(queue, BrokeredMessage("\x1b[2J\x07one\ttwo\nthree", label="\x1b]0;x\x07\n"))
    reported = desk.spoken("peek", queue)
    assert reported.endswith("\\x1b[2J\\x07one\ttwo\nthree\n\n")
    assert "label \\x1b]0;x\\x07\\n\n" in reported
    assert desk.spoken("peek", queue, "--body") == "\x1b[2J\x07one\ttwo\nthree\n"


def test_binary_body_is_not_printed(desk: CommandFixture) -> None:
    queue = desk.queue()
    desk.spoken("send", queue, stdin=b"\xff\xfe")
    assert "(2 bytes, not text;" in desk.spoken("peek", queue)
    assert json.loads(desk.spoken("peek", queue, "--json"))["body_base64"] == "//4="


def test_closed_output_exits_with_141_silently(desk: CommandFixture) -> None:
    queue = desk.queue()
    desk.send(queue, *("x" * 1_000 for _ in range(1_000)))
    with desk.started("peek", queue, "--all", "--body", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr is not None
        assert (process.wait(PATIENCE_S), process.stderr.read()) == (141, b"")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("q", "--all", "--count", "1"), "--all and --count"),
        (("q", "--body", "--lines", "x"), "remove --body"),
        (("q/$management",), "is not an entity path"),
        ((), "has no EntityPath"),
    ],
)
def test_invalid_arguments_print_one_line_and_exit_with_2(
    desk: CommandFixture, arguments: tuple[str, ...], said: str
) -> None:
    done = desk.run("peek", *arguments)
    assert (done.code, done.stdout) == (2, "")
    assert said in done.reason


def test_peek_of_a_topic_names_its_subscriptions(desk: CommandFixture) -> None:
    done = desk.run("peek", "events")
    assert (done.code, done.stdout) == (1, "")
    assert "'events' is a topic: peek at one of its subscriptions, events/Subscriptions/NAME" in done.reason
    assert desk.spoken("peek", "events/Subscriptions/audit") == ""
    text = with_key(desk.namespace, Right.LISTEN)
    assert desk.spoken("peek", desk.queue(), "--connection", text) == ""
