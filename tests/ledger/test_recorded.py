"""Recorded events are known from all readable files, even if others are damaged."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pairbus.ledger import LIVES, Ledger, LedgerSettings
from pairbus.ledger.files import recorded_ordinals
from tests.ledger.entries import NAMESPACE, START_MS, event_of, events_from, parquet_files


def ledger_of_two_files(directory: Path) -> Path:
    """Return the path of the file with the first hundred events; another file has the next."""
    for first in (0, 100):
        ledger = Ledger.open(directory, NAMESPACE, LedgerSettings(flush_s=0.01), clock=lambda: START_MS)
        ledger.write_events(events_from(first, 100))
        ledger.close()
    (path,) = [
        path for path in parquet_files(directory, LIVES) if 0 in pq.ParquetFile(path).read()["ordinal"].to_pylist()
    ]
    return path


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def fill_footer_with_zeros(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-200] + bytes(192) + content[-8:])


def damage_rows(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:4] + bytes(len(content) // 4) + content[4 + len(content) // 4 :])


def write_other_columns(path: Path) -> None:
    pq.write_table(pa.table({"namespace": [1], "ordinal": [70]}), path)


def remove_meanwhile(path: Path) -> None:
    """Replace the file with a dangling link: it is listed, but cannot be opened."""
    path.unlink()
    path.symlink_to("nowhere")


def make_unreadable_journal(path: Path) -> None:
    path.unlink()
    (path.parents[3] / "open" / path.name).with_suffix(".journal").mkdir()


@pytest.mark.parametrize(
    "damage",
    [cut_off, fill_footer_with_zeros, damage_rows, write_other_columns, remove_meanwhile, make_unreadable_journal],
)
def test_d3_unreadable_file_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: object) -> None:
    path = ledger_of_two_files(tmp_path)
    assert recorded_ordinals(tmp_path, NAMESPACE, event_of(50)) == {*range(50, 200)}
    assert callable(damage)
    damage(path)
    assert recorded_ordinals(tmp_path, NAMESPACE, event_of(50)) == {*range(100, 200)}
    (record,) = caplog.records
    assert (record.levelno, path.stem in record.getMessage()) == (logging.WARNING, True)
