"""Log lines as JSON have the facts of the line as fields."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from pairbus.cli.log_format import JsonFormatter
from pairbus.cli.serve import LINES_A_SECOND, LogLimit
from pairbus.server.log_context import LogValue


def record(text: str, *arguments: object, exc_info: Any = None) -> logging.LogRecord:
    return logging.LogRecord("pairbus.server", logging.INFO, "f.py", 1, text, arguments, exc_info)


def formatted(logged: logging.LogRecord) -> dict[str, Any]:
    entry = json.loads(JsonFormatter().format(logged))
    assert entry.pop("time")
    assert (entry.pop("level"), entry.pop("logger")) == ("info", "pairbus.server")
    return entry  # type: ignore[no-any-return]


def test_facts_are_fields_with_their_types() -> None:
    line = record('link refused peer=%s count=%d share=%.1f reason="%s" bytes=%r', "1.2.3.4:5", 3, 0.5, "a b", b"x")
    assert formatted(line) == {
        "message": 'link refused peer=1.2.3.4:5 count=3 share=0.5 reason="a b" bytes="b\'x\'"',
        "peer": "1.2.3.4:5",
        "count": 3,
        "share": 0.5,
        "reason": "a b",
        "bytes": "b'x'",
    }


def test_value_is_not_quoted_in_its_field() -> None:
    entry = formatted(record("connection closed container=%s", LogValue("two words")))
    assert (entry["message"], entry["container"]) == ('connection closed container="two words"', "two words")


def test_peer_cannot_forge_a_field() -> None:
    entry = formatted(record("login failed key=%s", "a peer=forged level=%s"))
    assert entry.keys() == {"message", "key"}


def test_arguments_without_a_key_and_percent_signs_are_passed_over() -> None:
    entry = formatted(record("claims revoked, %d of %d, 100%% done rest=%s", 1, 2, "three"))
    assert entry == {"message": "claims revoked, 1 of 2, 100% done rest=three", "rest": "three"}


def test_reserved_names_are_not_overwritten() -> None:
    line = record("odd message=%s level=%s", "forged", "none")
    assert json.loads(JsonFormatter().format(line))["message"] == "odd message=forged level=none"


def test_traceback_is_the_error() -> None:
    try:
        int("broken")
    except ValueError:
        entry = formatted(record("request failed peer=%s", "p", exc_info=sys.exc_info()))
    assert "ValueError: " in entry["error"]
    assert entry["peer"] == "p"


def test_count_of_suppressed_lines_is_a_field() -> None:
    now_s = 1.0
    limit = LogLimit(lambda: now_s)
    lines = [record("handshake failed peer=%s", "100%") for _ in range(LINES_A_SECOND + 3)]
    assert sum(map(limit.filter, lines)) == LINES_A_SECOND
    now_s = 2.0
    last = record("handshake failed peer=%s", "100%")
    assert limit.filter(last)
    assert formatted(last) == {"message": "handshake failed peer=100% suppressed=3", "peer": "100%", "suppressed": 3}


def test_lines_of_an_unlimited_logger_all_pass() -> None:
    limit = LogLimit(lambda: 1.0, unlimited=("pairbus.server",))
    assert all(limit.filter(record("frame received")) for _ in range(10 * LINES_A_SECOND))
