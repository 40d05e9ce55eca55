"""Batches become files with each message in exactly one, wherever the process is killed and whatever is repeated."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random
from threading import Thread
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pairbus.jobs.capture.capture import Capture
from pairbus.jobs.capture.config import (
    LEAST_BYTES,
    CaptureDamagedError,
    CaptureInUseError,
    OtherSourceError,
    WindowLimits,
)
from pairbus.jobs.capture.files import FILE_COLUMNS, CapturedFile, CaptureDirectory
from tests.jobs.capture.kills import Killed, killed_before
from tests.jobs.capture.messages import DAY_MS, captured, files, ids, messages

LIMITS: Final = WindowLimits(length=timedelta(seconds=10))


class Script:
    """A clock and the batches of a stream; the last batch is repeated if its end was not recorded."""

    def __init__(self, root: Path, limits: WindowLimits = LIMITS) -> None:
        root.mkdir(exist_ok=True)
        self.root = root
        self.limits = limits
        self.now_ms = DAY_MS
        self.reported: list[CapturedFile] = []

    @contextmanager
    def run(self, source: str = "") -> Iterator[Capture]:
        directory = CaptureDirectory(self.root)
        try:
            yield Capture(directory, self.limits, self.reported.append, source)
        finally:
            directory.close()

    def take(self, capture: Capture, *batches: pa.RecordBatch) -> None:
        self.now_ms += 4_000
        capture.take(lambda writer: writer.write(iter(batches)), lambda: self.now_ms)

    def end(self, capture: Capture) -> None:
        capture.close_all(self.now_ms)


def expected(numbers: Iterable[int], entity: str = "orders") -> list[str]:
    return sorted(f"{entity}-{number}" for number in numbers)


def test_d5_closed_windows_are_written_to_files(tmp_path: Path) -> None:
    script = Script(tmp_path)
    with script.run() as capture:
        script.take(capture, messages(range(10)))
        script.take(capture, messages(range(10, 15)))
        assert files(tmp_path) == []
        capture.close_due(DAY_MS + 13_999)
        assert files(tmp_path) == []
        capture.close_due(DAY_MS + 14_000)
        assert ids(tmp_path) == expected(range(15))
    (reported,) = script.reported
    assert [reported.path] == files(tmp_path)
    assert (reported.messages, reported.size_bytes) == (15, Path(reported.path).stat().st_size)
    assert (reported.window_start_ms, reported.window_end_ms) == (DAY_MS + 4_000, DAY_MS + 14_000)


def test_d5_file_has_columns_of_messages_and_window(tmp_path: Path) -> None:
    script = Script(tmp_path)
    with script.run() as capture:
        script.take(capture, messages([1], at_ms=7))
        script.end(capture)
    (path,) = files(tmp_path)
    found = pq.read_table(path, partitioning=None)
    assert found.schema.equals(FILE_COLUMNS)
    (row,) = found.to_pylist()
    assert row["window_start"].timestamp() * 1_000 == DAY_MS + 4_000
    assert row["enqueued_time"].timestamp() * 1_000 == DAY_MS + 7
    assert row["application_properties"] == [("n", "1")]
    assert captured(tmp_path).num_rows == 1


def test_no_messages_write_no_files(tmp_path: Path) -> None:
    script = Script(tmp_path)
    with script.run() as capture:
        script.take(capture)
        script.take(capture, messages([]))
        capture.close_due(DAY_MS + 100_000)
        script.end(capture)
    assert files(tmp_path) == []


def test_repeated_batch_writes_identical_files(tmp_path: Path) -> None:
    once, twice = Script(tmp_path / "once"), Script(tmp_path / "twice")
    for script, times in ((once, 1), (twice, 3)):
        with script.run() as capture:
            for _ in range(times):
                script.now_ms = DAY_MS
                script.take(capture, messages(range(100)))
            script.end(capture)
    assert [path.relative_to(tmp_path / "once") for path in files(tmp_path / "once")] == [
        path.relative_to(tmp_path / "twice") for path in files(tmp_path / "twice")
    ]
    assert [path.read_bytes() for path in files(tmp_path / "once")] == [
        path.read_bytes() for path in files(tmp_path / "twice")
    ]


def test_repeated_batch_with_new_messages_captures_these(tmp_path: Path) -> None:
    script = Script(tmp_path)
    with script.run() as capture:
        script.take(capture, messages(range(10)))
    for _ in range(2):
        with script.run() as capture:
            script.take(capture, messages(range(5, 20)))
    with script.run() as capture:
        script.end(capture)
    assert ids(tmp_path) == expected(range(20))


def test_d5_directory_of_another_namespace_is_rejected(tmp_path: Path) -> None:
    """Another namespace uses the same sequence numbers, and its messages must be neither skipped nor removed."""
    script = Script(tmp_path)
    with script.run("contoso:5672") as capture:
        script.take(capture, messages(range(10)))
    with pytest.raises(
        OtherSourceError, match="contoso:5672, which uses the same sequence numbers as fabrikam:5672"
    ) as caught:
        script.run("fabrikam:5672").__enter__()
    assert str(tmp_path) in str(caught.value)
    with script.run("contoso:5672") as capture:
        script.end(capture)
    assert ids(tmp_path) == expected(range(10))


def test_pieces_of_failed_batch_are_deleted(tmp_path: Path) -> None:
    """Otherwise each attempt would fill a full disk further."""
    script = Script(tmp_path)

    def batches() -> Iterator[pa.RecordBatch]:
        yield messages(range(10, 20))
        yield messages([1], "bills")
        raise OSError(errno.ENOSPC, "no space left")

    with script.run() as capture:
        script.take(capture, messages(range(10)))
        kept = set(capture.pieces.iterdir())
        for _ in range(3):
            with pytest.raises(OSError, match="no space left"):
                capture.take(lambda writer: replace(writer, largest_bytes=1).write(batches()), lambda: script.now_ms)
            assert set(capture.pieces.iterdir()) == kept
        script.take(capture, messages(range(10, 20)))
        script.end(capture)
    assert ids(tmp_path) == expected(range(20))


def test_windows_stay_open_across_restart(tmp_path: Path) -> None:
    script = Script(tmp_path)
    for start in (0, 10):
        with script.run() as capture:
            script.take(capture, messages(range(start, start + 10)))
    with script.run() as capture:
        capture.close_due(DAY_MS + 14_000)
    assert len(files(tmp_path)) == 1
    assert ids(tmp_path) == expected(range(20))


def play(script: Script, kill_at: int | None = None) -> bool:
    """Take three batches of two entities, in windows closed by time; return whether it was killed."""
    batches = [range(1, 6), range(6, 11), range(11, 16)]
    done = 0
    was_killed = False
    while done <= len(batches):
        try:
            with (
                killed_before(10**9 if kill_at is None or was_killed else kill_at, script.root),
                script.run() as capture,
            ):
                if was_killed and done:
                    script.take(capture, *_both(batches[done - 1]))  # it is unknown whether it was committed
                while done < len(batches):
                    done += 1
                    script.take(capture, *_both(batches[done - 1]))
                done += 1
                script.end(capture)
        except Killed:
            was_killed = True
            done = min(done, len(batches))
            seen = Counter(ids(script.root))
            assert max(seen.values(), default=1) == 1, "a reader sees a message twice"
    return was_killed


def _both(numbers: range) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    return messages(numbers), messages(numbers, "bills")


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 9])
def test_e1_kill_at_any_file_operation_captures_each_message_once(tmp_path: Path, step: int) -> None:
    point = 0
    while play(Script(tmp_path / f"{point}"), point):
        root = tmp_path / f"{point}"
        assert ids(root) == sorted(expected(range(1, 16)) + expected(range(1, 16), "bills"))
        assert [path.name for path in (root / "_capture" / "pieces").iterdir()] == []
        point += step
    assert point > 40


def test_d5_no_file_is_larger_than_the_window(tmp_path: Path) -> None:
    random = Random(7)  # noqa: S311 (the same each time)
    script = Script(tmp_path, WindowLimits(size_bytes=LEAST_BYTES))
    with script.run() as capture:
        for start in range(0, 4_000, 400):
            batch = [messages([number], body=random.randbytes(1_000)) for number in range(start, start + 400)]
            script.take(capture, *pa.Table.from_batches(batch).combine_chunks().to_batches())
        script.end(capture)
    sizes = [path.stat().st_size for path in files(tmp_path)]
    assert max(sizes) <= LEAST_BYTES
    assert len(sizes) <= 7
    assert ids(tmp_path) == expected(range(4_000))


def test_partitions_are_those_that_hive_and_spark_read(tmp_path: Path) -> None:
    script = Script(tmp_path)
    with script.run() as capture:
        script.take(capture, messages([1]), messages([1], "news/Subscriptions/audit"))
        script.end(capture)
    found = pq.read_table(tmp_path).to_pydict()
    assert sorted(found["source"]) == ["news/Subscriptions/audit", "orders"]
    assert {(str(day), hour) for day, hour in zip(found["day"], found["hour"], strict=True)} == {("2026-11-16", 0)}


def test_second_capture_of_a_directory_is_rejected(tmp_path: Path) -> None:
    script = Script(tmp_path)
    with script.run(), pytest.raises(CaptureInUseError, match="another capture writes into"), script.run():
        pass
    with script.run():
        pass


def test_batch_waits_while_capture_is_at_rest(tmp_path: Path) -> None:
    script = Script(tmp_path)
    with script.run() as capture:
        with capture.at_rest() as book:
            taking = Thread(target=script.take, args=(capture, messages([1])))
            taking.start()
            taking.join(0.1)
            assert taking.is_alive()
            capture.close_due(DAY_MS)
            assert book.windows == ()
        taking.join()
        script.end(capture)
    assert ids(tmp_path) == expected([1])


def test_damaged_state_is_an_error_and_not_replaced(tmp_path: Path) -> None:
    script = Script(tmp_path)
    with script.run() as capture:
        script.take(capture, messages([1]))
    (tmp_path / "_capture" / "book.json").write_text("{")
    with pytest.raises(CaptureDamagedError, match=r"book\.json, which lists the captured messages"), script.run():
        pass
    assert len([*(tmp_path / "_capture" / "pieces").iterdir()]) == 1


def test_missing_or_damaged_piece_is_an_error(tmp_path: Path) -> None:
    script = Script(tmp_path)
    with script.run() as capture:
        script.take(capture, messages([1, 2]))
        (piece,) = capture.pieces.iterdir()
        whole = piece.read_bytes()
        for content in (b"", whole[: len(whole) // 2], None):
            if content is None:
                piece.unlink()
            else:
                piece.write_bytes(content)
            with pytest.raises(CaptureDamagedError, match="has the only copy of 2 messages of 'orders'"):
                script.end(capture)
        piece.write_bytes(whole)
        script.end(capture)
    assert ids(tmp_path) == expected([1, 2])
