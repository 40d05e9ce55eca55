"""`pairbus peek`: it shows, and leaves everything as it is."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pairbus.blocking import BrokeredMessage
from pairbus.broker import Right
from tests.cli.everyday import Desk
from tests.cli.test_cli import PATIENCE_S
from tests.cli.test_pair import with_key


def test_the_next_ten_are_shown_and_left_as_they_are(desk: Desk) -> None:
    queue = desk.queue()
    desk.send(queue, *map(str, range(12)))
    assert desk.spoken("peek", queue, "--body") == "".join(f"{number}\n" for number in range(10))
    assert [message.delivery_count for message in desk.receive(queue, 12)] == [0] * 12


def test_so_many_from_a_number_on(desk: Desk) -> None:
    queue = desk.queue()
    desk.send(queue, *map(str, range(12)))
    assert desk.spoken("peek", queue, "--body", "--count", 2, "--from-sequence", 11) == "10\n11\n"


def test_all_of_them_go_into_a_file(desk: Desk, tmp_path: Path) -> None:
    queue, file = desk.queue(), tmp_path / "messages.jsonl"
    desk.send(queue, *map(str, range(1_000)))
    assert desk.spoken("peek", queue, "--all", "--lines", file) == f"1,000 of '{queue}' written to {file}\n"
    assert [json.loads(line)["body"] for line in file.read_text("utf-8").splitlines()] == [*map(str, range(1_000))]
    assert desk.count(queue) == 1_000
    told = desk.spoken("peek", queue, "--lines", file, "--json")
    assert json.loads(told) == {"entity": queue, "peeked": 10}


def test_what_is_scheduled_is_shown_too(desk: Desk) -> None:
    queue = desk.queue()
    desk.send(queue, BrokeredMessage("later", scheduled_enqueue_time=datetime.now(UTC) + timedelta(hours=1)))
    assert "  scheduled\nlater\n" in desk.spoken("peek", queue)


def test_dead_letters(desk: Desk) -> None:
    queue = desk.queue()
    desk.send(queue, "one", "two")
    desk.spoken("receive", queue, "--dead-letter", "--reason", "cold")
    assert desk.spoken("peek", queue, "--dead-letters", "--body") == "one\n"
    assert desk.spoken("peek", f"{queue}/$deadletterqueue", "--dead-letters", "--body") == "one\n"
    assert desk.spoken("peek", queue, "--body") == "two\n"


def test_an_empty_queue_is_nothing_and_code_0(desk: Desk) -> None:
    assert desk.spoken("peek", desk.queue()) == ""


def test_a_terminal_is_not_told_what_to_do(desk: Desk) -> None:
    """Bodies and properties come from anywhere: what would move the cursor, or worse, is shown as text."""
    queue = desk.queue()
    desk.send(queue, BrokeredMessage("\x1b[2J\x07one\ttwo\nthree", label="\x1b]0;x\x07\n"))
    told = desk.spoken("peek", queue)
    assert told.endswith("\\x1b[2J\\x07one\ttwo\nthree\n\n")
    assert "label \\x1b]0;x\\x07\\n\n" in told
    assert desk.spoken("peek", queue, "--body") == "\x1b[2J\x07one\ttwo\nthree\n"


def test_what_is_no_text_is_not_shown(desk: Desk) -> None:
    queue = desk.queue()
    desk.spoken("send", queue, stdin=b"\xff\xfe")
    assert "(2 bytes that are no text;" in desk.spoken("peek", queue)
    assert json.loads(desk.spoken("peek", queue, "--json"))["body_base64"] == "//4="


def test_a_closed_output_is_status_141_and_no_message(desk: Desk) -> None:
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
        (("q", "--body", "--lines", "x"), "leave out --body"),
        (("q/$management",), "is no entity"),
        ((), "has no EntityPath"),
    ],
)
def test_what_cannot_be_is_one_line_and_code_2(desk: Desk, arguments: tuple[str, ...], said: str) -> None:
    done = desk.run("peek", *arguments)
    assert (done.code, done.stdout) == (2, "")
    assert said in done.reason


def test_a_topic_has_no_messages_and_that_is_said(desk: Desk) -> None:
    done = desk.run("peek", "events")
    assert (done.code, done.stdout) == (1, "")
    assert "'events' is a topic: peek at one of its subscriptions, events/Subscriptions/NAME" in done.reason
    assert desk.spoken("peek", "events/Subscriptions/audit") == ""
    text = with_key(desk.namespace, Right.LISTEN)
    assert desk.spoken("peek", desk.queue(), "--connection", text) == ""
