"""Pieces written by a task: of one entity each, small enough, and without known messages."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq

from pairbus.jobs.capture.files import MESSAGE_COLUMNS, PieceWriter
from pairbus.jobs.capture.window import Catch
from pairbus.spark.offset import Portion
from pairbus.spark.sequences import SequenceRanges
from tests.jobs.capture.messages import DAY_MS, messages


def writer(directory: Path, largest_bytes: int = 1_000_000, **known: Portion) -> PieceWriter:
    return PieceWriter(directory=str(directory), largest_bytes=largest_bytes, known=known)


def written(directory: Path, catch: Catch) -> pa.Table:
    assert catch.piece is not None
    return pq.read_table(directory / catch.piece.name)


def test_task_writes_one_piece(tmp_path: Path) -> None:
    batches = iter([messages(range(1, 4)), messages(range(4, 6), at_ms=5)])
    (catch,) = writer(tmp_path).write(batches)
    assert written(tmp_path, catch).equals(
        pa.Table.from_batches([messages(range(1, 4)), messages(range(4, 6), at_ms=5)])
    )
    assert catch.portion == Portion(numbers=SequenceRanges([(1, 5)]), until_ms=DAY_MS + 5)
    assert catch.piece is not None
    assert (catch.piece.messages, catch.piece.first) == (5, 1)
    assert catch.piece.size_bytes == (tmp_path / catch.piece.name).stat().st_size


def test_description_of_a_piece_survives_spark(tmp_path: Path) -> None:
    known = Portion(numbers=SequenceRanges([(1, 2)]), until_ms=DAY_MS)
    reported = [*writer(tmp_path, orders=known)(iter([messages(range(1, 6))]))]
    catches = [Catch.from_row(row) for batch in reported for row in batch.to_pylist()]
    assert [(catch.piece is None, str(catch.portion.numbers)) for catch in catches] == [(True, "1..2"), (False, "3..5")]


def test_each_entity_has_separate_pieces(tmp_path: Path) -> None:
    both = pa.Table.from_batches([messages([1, 2]), messages([1], "bills")]).combine_chunks().to_batches()
    found = {catch.entity: written(tmp_path, catch).num_rows for catch in writer(tmp_path).write(iter(both))}
    assert found == {"orders": 2, "bills": 1}


def test_piece_size_is_limited(tmp_path: Path) -> None:
    random = Random(5)  # noqa: S311 (the same each time)
    batches = [messages([number], body=random.randbytes(random.randrange(40_000))) for number in range(100)]
    table = pa.Table.from_batches(batches)
    catches = [*writer(tmp_path, 100_000).write(iter(table.combine_chunks().to_batches()))]
    assert len(catches) > 10
    footer_bytes = 20_000
    assert all(catch.piece is not None and catch.piece.size_bytes <= 100_000 + footer_bytes for catch in catches)
    numbers = chain.from_iterable(written(tmp_path, one).column("sequence_number").to_pylist() for one in catches)
    assert [*numbers] == [*range(100)]


def test_oversized_message_is_a_separate_piece(tmp_path: Path) -> None:
    table = pa.Table.from_batches([messages([1]), messages([2], body=b"x" * 5_000), messages([3])])
    catches = [*writer(tmp_path, 2_000).write(iter(table.combine_chunks().to_batches()))]
    assert [str(catch.portion.numbers) for catch in catches] == ["1", "2", "3"]


def test_known_messages_are_not_written_again(tmp_path: Path) -> None:
    known = Portion(numbers=SequenceRanges([(2, 3)]), until_ms=DAY_MS)
    old, new = writer(tmp_path, orders=known).write(iter([messages(range(1, 6), "Orders")]))
    assert (old.piece, str(old.portion.numbers)) == (None, "2..3")
    assert written(tmp_path, new).column("sequence_number").to_pylist() == [1, 4, 5]


def test_messages_of_recreated_queue_are_written(tmp_path: Path) -> None:
    known = Portion(numbers=SequenceRanges([(1, 3)]), until_ms=DAY_MS)
    (catch,) = writer(tmp_path, orders=known).write(iter([messages([1, 2], at_ms=1)]))
    assert written(tmp_path, catch).num_rows == 2


def test_empty_task_writes_no_piece(tmp_path: Path) -> None:
    assert [*writer(tmp_path).write(iter([messages([])]))] == []
    assert [*tmp_path.iterdir()] == []


def test_columns_do_not_depend_on_session_time_zone(tmp_path: Path) -> None:
    batch = messages([1])
    index = batch.schema.get_field_index("enqueued_time")
    elsewhere = batch.column(index).cast(pa.timestamp("us", tz="Europe/Athens"))
    (catch,) = writer(tmp_path).write(iter([batch.set_column(index, "enqueued_time", elsewhere)]))
    assert written(tmp_path, catch).schema.equals(MESSAGE_COLUMNS)
