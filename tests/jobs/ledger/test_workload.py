"""Spark configuration by the size of ledgers."""

from __future__ import annotations

from pathlib import Path

import pytest

from pairbus.jobs.ledger.tables import FEW_ROWS, HANDFUL, session_config

MANY = {"spark.sql.shuffle.partitions": "64"}


def written(directory: Path, size_bytes: int) -> Path:
    file = directory / "lives" / "date=2026-03-01" / "hour=12" / "one.parquet"
    file.parent.mkdir(parents=True)
    with file.open("wb") as content:
        content.truncate(size_bytes)
    return directory


def test_small_ledger_gets_light_configuration(tmp_path: Path) -> None:
    few = [written(tmp_path / "contoso", 16_000_000), written(tmp_path / "fabrikam", 16_000_000)]
    assert session_config(few, MANY) == FEW_ROWS


def test_tiny_ledger_gets_minimal_configuration(tmp_path: Path) -> None:
    handful = [written(tmp_path / "contoso", 200_000), written(tmp_path / "fabrikam", 50_000)]
    assert session_config(handful, MANY) == HANDFUL


def test_sizes_of_ledgers_are_added(tmp_path: Path) -> None:
    large = [written(tmp_path / "contoso", 17_000_000), written(tmp_path / "fabrikam", 17_000_000)]
    assert session_config(large, MANY) == MANY


def test_size_of_remote_ledger_is_unknown(tmp_path: Path) -> None:
    assert session_config([written(tmp_path, 1), "s3a://bucket/ledger"], MANY) == MANY


def test_file_deleted_during_listing_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The namespace is being served meanwhile."""
    ledger = written(tmp_path, 1)
    is_file = Path.is_file

    def is_gone_then(self: Path) -> bool:
        found = is_file(self)
        if found:
            self.unlink()
        return found

    monkeypatch.setattr(Path, "is_file", is_gone_then)
    assert session_config([ledger], MANY) == HANDFUL
