"""Segments of a log, whole, torn or damaged, and the quarantine for what cannot be read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from errno import ENOSPC
from pathlib import Path

import pytest

from pairbus.store import BufferOwnerError, NewerFormatError, StoreFailedError, StoreInUseError
from pairbus.store.buffer_directory import FORMAT_FILE, BufferDirectory
from pairbus.store.quarantine import BufferQuarantine, QuarantinedRecord
from pairbus.store.segment_log import HEADER_BYTES, Damage, LogPosition, Segment, SegmentLog, frame_header

ROOT = Path(__file__).parents[2]
MARK = b"pairbus\x01identity"


def content(number: int) -> bytes:
    return MARK + b"content %d" % number


def framed(number: int) -> bytes:
    return frame_header(content(number)) + content(number)


def found(log: SegmentLog) -> list[bytes | Damage]:
    return [each if isinstance(each, Damage) else each[1] for each in log.scan()]


# The stored format


def test_frame_has_the_stored_format() -> None:
    """Side buffers and journals of earlier versions have these bytes: length and CRC-32, both little-endian."""
    assert frame_header(b"abc") + b"abc" == bytes.fromhex("03000000335de166") + b"abc"


def test_segment_has_the_stored_name(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path, MARK, 7)
    log.append([content(1)])
    log.close()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"00000000000000000007.parcels": framed(1)}


# Torn writes


def test_b3_write_cut_off_at_any_byte_is_truncated(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path, MARK)
    log.append([content(1)])
    log.append([content(2)])
    log.close()
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    first = len(framed(1))
    for size in range(first, len(data)):
        path.write_bytes(data[:size])
        log = SegmentLog(tmp_path, MARK)
        assert found(log) == [content(1)]
        assert path.stat().st_size == first, "the rest is truncated"
        log.close()


def test_b3_positions_are_not_used_again_after_truncation(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path, MARK)
    log.append([content(1), content(2)])
    log.close()
    (path,) = tmp_path.iterdir()
    end = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    log = SegmentLog(tmp_path, MARK)
    assert found(log) == [content(1)]
    (stored,) = log.append([content(3)])
    assert stored == LogPosition(end - 1, end - 1)
    assert found(log) == [content(1), content(3)]
    log.close()


def test_b3_failed_append_leaves_nothing_behind(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path, MARK)
    log.append([content(1)])
    segment = log._segments[0]
    descriptor = segment._descriptor
    read_only = os.open(segment.path, os.O_RDONLY)
    segment._descriptor = read_only
    with pytest.raises(OSError, match="descriptor"):
        log.append([content(2)])
    segment._descriptor = descriptor
    log.append([content(3)])
    assert found(log) == [content(1), content(3)]
    os.close(read_only)
    log.close()


# Damage


def test_b3_damage_in_the_middle_affects_only_its_frame(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path, MARK)
    stored = log.append([content(number) for number in range(4)])
    log.close()
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    begin, end = stored[1].position, stored[2].position
    for position in range(begin, end):
        damaged = bytearray(whole)
        damaged[position] ^= 0x55
        path.write_bytes(damaged)
        log = SegmentLog(tmp_path, MARK)
        expected = [content(0), Damage(begin, bytes(damaged[begin:end])), content(2), content(3)]
        assert found(log) == expected
        assert log.read(begin) == expected[1]
        assert log.read(end) == content(2)
        log.close()


def test_b3_damage_at_the_end_of_an_earlier_segment_is_no_torn_write(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path, MARK, segment_bytes=1)
    log.append([content(1)])
    log.append([content(2)])
    log.close()
    first, _ = sorted(tmp_path.iterdir())
    first.write_bytes(first.read_bytes()[:-1] + b"?")
    log = SegmentLog(tmp_path, MARK)
    (damage, second) = found(log)
    assert isinstance(damage, Damage)
    assert second == content(2)
    log.close()


def test_b3_damage_in_the_last_frame_is_no_torn_write(tmp_path: Path) -> None:
    """The frame may have been confirmed: its bytes are kept, and later frames are appended after them."""
    log = SegmentLog(tmp_path, MARK)
    _, stored = log.append([content(1), content(2)])
    log.close()
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for position in range(stored.position, len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x55
        path.write_bytes(damaged)
        log = SegmentLog(tmp_path, MARK)
        expected = [content(1), Damage(stored.position, bytes(damaged[stored.position :]))]
        assert found(log) == expected
        log.append([content(3)])
        assert found(log) == [*expected, content(3)]
        log.close()


def test_b3_frame_forged_inside_a_content_is_not_found(tmp_path: Path) -> None:
    """The next frame after damage is searched for: one inside a message is not taken for it."""
    forged = b"pairbus\x01guessed!" + b"forged"
    outer = MARK + frame_header(forged) + forged
    segment = Segment.create(tmp_path, 0)
    segment.append([outer, content(2)])
    raw = bytearray(segment.path.read_bytes())
    raw[HEADER_BYTES] ^= 1
    segment.path.write_bytes(raw)
    valid = [each for each in segment.scan(MARK) if not isinstance(each, Damage)]
    assert valid == [(segment.end - len(framed(2)), content(2))]
    segment.close()


# Deletion


def test_segments_are_deleted_one_by_one_and_positions_grow(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path, MARK, 7, segment_bytes=1)
    first, second = (log.append([content(number)])[0] for number in (1, 2))
    assert first.base == 7
    log.delete(first.base)
    assert found(log) == [content(2)]
    log.delete(second.base)
    assert log.sizes == {}
    (third,) = log.append([content(3)])
    assert third.position == second.position + len(framed(2))
    log.close()


# BufferQuarantine


def damaged(position: int, raw: str = "??") -> QuarantinedRecord:
    return QuarantinedRecord(position, "damaged", {"damaged": raw})


def batch(position: int, messages: int = 1) -> QuarantinedRecord:
    return QuarantinedRecord(position, "gone", {"entity": "orders"}, messages)


def test_b3_record_is_stored_once(tmp_path: Path) -> None:
    path = tmp_path / "quarantine.jsonl"
    assert BufferQuarantine(path).add([batch(5, 3), damaged(9)]) == 4
    reopened = BufferQuarantine(path)
    assert reopened.end == 10
    assert reopened.add([batch(5, 3), damaged(9), damaged(12)]) == 1
    lines = [*map(json.loads, path.read_text().splitlines())]
    assert lines == [
        {"position": 5, "reason": "gone", "entity": "orders"},
        {"position": 9, "reason": "damaged", "damaged": "??"},
        {"position": 12, "reason": "damaged", "damaged": "??"},
    ]


def test_b3_line_that_was_cut_off_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "quarantine.jsonl"
    BufferQuarantine(path).add([damaged(5), damaged(9)])
    path.write_bytes(path.read_bytes()[:-5])
    reopened = BufferQuarantine(path)
    assert reopened.add([damaged(5), damaged(9)]) == 1
    assert reopened.add([damaged(9)]) == 0
    assert json.loads(path.read_text().splitlines()[-1])["position"] == 9


def test_b3_error_of_the_write_is_not_hidden_by_a_failed_truncation(tmp_path: Path) -> None:
    quarantine = BufferQuarantine(tmp_path / "quarantine.jsonl")
    quarantine.path.symlink_to("/dev/full")  # cannot be truncated, either
    with pytest.raises(OSError, match="space") as raised:
        quarantine.add([damaged(5)])
    assert raised.value.errno == ENOSPC
    quarantine.path.unlink()
    quarantine.path.write_text('{"position": 5, "rea')  # the part of the line that was written
    assert quarantine.add([damaged(5), damaged(9)]) == 2
    assert BufferQuarantine(quarantine.path).add([damaged(5), damaged(9)]) == 0


def test_b3_damaged_place_and_batch_moved_from_it_are_two_records(tmp_path: Path) -> None:
    path = tmp_path / "quarantine.jsonl"
    assert BufferQuarantine(path).add([damaged(5)]) == 1
    assert BufferQuarantine(path).add([batch(5)]) == 1
    assert BufferQuarantine(path).add([batch(5), damaged(5)]) == 0


# The directory of a side buffer


def test_directory_is_locked_and_belongs_to_one_namespace(tmp_path: Path) -> None:
    path = tmp_path / "a" / "side"
    directory = BufferDirectory.open(path, "contoso")
    with pytest.raises(StoreInUseError):
        BufferDirectory.open(path, "contoso")
    directory.close()
    directory.close()
    with pytest.raises(BufferOwnerError, match="contoso"):
        BufferDirectory.open(path, "fabrikam")
    reopened = BufferDirectory.open(path, "contoso")
    assert reopened.identity == directory.identity
    reopened.close()


def test_directory_of_newer_version_is_rejected(tmp_path: Path) -> None:
    (tmp_path / FORMAT_FILE).write_text('{"format": 2, "identity": "00", "namespace": "contoso"}')
    with pytest.raises(NewerFormatError):
        BufferDirectory.open(tmp_path, "contoso")


def test_directory_without_a_valid_owner_is_rejected(tmp_path: Path) -> None:
    (tmp_path / FORMAT_FILE).write_text("[1]")
    with pytest.raises(BufferOwnerError, match="does not name its owner"):
        BufferDirectory.open(tmp_path, "contoso")


def test_directory_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreFailedError):
        BufferDirectory.open(tmp_path / "file" / "side", "contoso")


# Kills


def test_e1_kill_at_any_system_call_loses_no_confirmed_content(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.store.killed_log_child", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    results = [*map(json.loads, done.stdout.splitlines())]
    assert [result["killed"] for result in results].count(False) == 2, "both series end with a writer that finishes"
    assert len(results) > 40
    for result in results:
        confirmed = {int(number) for line in result["reports"] if line != "quarantined" for number in line.split()}
        found = result["found"]
        assert confirmed <= {*found}, result
        assert {*found} - confirmed <= {*range(max(confirmed, default=-1) + 3)}, "nothing but the last append is added"
        assert result["killed"] or confirmed == {*range(13)}, "the writer has failed"
        assert result["damaged"] == 0, "a write that was cut off is no damage"
        assert result["appends"]
        assert result["quarantined_again"] == 0 or "quarantined" not in result["reports"]
