"""A log in a bounded number of files: nothing is torn, nothing is there twice, and the oldest file is deleted."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest

from pairbus.store.rotating_log import RotatingLog


def log_in(directory: Path, max_bytes: int = 20, max_files: int = 3) -> RotatingLog:
    return RotatingLog(directory / "audit" / "audit.jsonl", max_bytes, max_files)


def contents(log: RotatingLog) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(log.path.parent.iterdir())}


def test_full_file_is_renamed_and_the_oldest_is_deleted(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    for number in range(8):
        log.append([f"line {number}".encode()])  # 7 bytes: two fit
    log.close()
    assert contents(log) == {
        "audit.1.jsonl": b"line 4\nline 5\n",
        "audit.2.jsonl": b"line 2\nline 3\n",
        "audit.jsonl": b"line 6\nline 7\n",
    }


def test_fewer_files_than_before_are_kept_after_a_rotation(tmp_path: Path) -> None:
    log = log_in(tmp_path, max_files=5)
    for number in range(10):
        log.append([f"line {number}".encode()])
    fewer = log_in(tmp_path, max_files=2)
    fewer.append([b"line 10"])
    assert sorted(contents(fewer)) == ["audit.1.jsonl", "audit.jsonl"]


def test_single_file_starts_again(tmp_path: Path) -> None:
    log = log_in(tmp_path, max_files=1)
    for number in range(3):
        log.append([f"line {number}".encode()])
    assert contents(log) == {"audit.jsonl": b"line 2\n"}


def test_line_that_is_longer_than_a_file_is_written(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    log.append([b"x" * 100])
    log.append([b"y"])
    assert contents(log) == {"audit.1.jsonl": b"x" * 100 + b"\n", "audit.jsonl": b"y\n"}


def test_torn_line_of_a_killed_process_does_not_touch_the_next(tmp_path: Path) -> None:
    log = log_in(tmp_path, max_bytes=100)
    log.append([b"whole"])
    log.close()
    with log.path.open("ab") as file:
        file.write(b"to")
    log.append([b"next"])
    assert log.path.read_bytes() == b"whole\nto\nnext\n"


def test_lines_that_did_not_all_fit_are_there_once_after_another_attempt(tmp_path: Path) -> None:
    log = log_in(tmp_path, max_bytes=1000)
    log.append([b"first"])
    lines = [b"second", b"third"]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (15, before[1]))
        with pytest.raises(OSError, match="too large"):
            log.append(lines)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert log.path.read_bytes() == b"first\n"
    log.append(lines)
    assert log.path.read_bytes() == b"first\nsecond\nthird\n"


def test_last_line_with_a_part_is_found_in_the_two_newest_files(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    assert log.last(b"line") is None
    for number in range(4):
        log.append([f"line {number}".encode()])
    assert (log.last(b"line"), log.last(b"1"), log.last(b"9")) == (b"line 3", b"line 1", None)


def test_only_the_owner_can_read_the_files(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        log = log_in(tmp_path)
        log.append([b"line"])
    finally:
        os.umask(before)
    assert (log.path.stat().st_mode & 0o777, log.path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
