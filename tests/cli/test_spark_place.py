"""References by which Spark processes find the connection string of a command."""

from __future__ import annotations

from pathlib import Path

from pairbus.cli.spark_place import read_reference
from pairbus.spark.connections import ConnectionReference, ReferenceKind

TEXT = "Endpoint=sb://localhost;SharedAccessKeyName=k;SharedAccessKey=s"


def named(file: Path, content: str) -> ConnectionReference:
    file.write_text(content, encoding="utf-8")
    return read_reference("--source", "PAIRBUS_SOURCE", f"@{file}")[0]


def test_file_with_only_a_connection_string_is_passed_by_reference(tmp_path: Path) -> None:
    file = tmp_path / "contoso.txt"
    assert named(file, f"{TEXT}\n") == ConnectionReference(place=ReferenceKind.FILE, text=str(file))


def test_connection_string_of_a_longer_file_is_passed_as_text(tmp_path: Path) -> None:
    found = named(tmp_path / "contoso.txt", f"namespace: contoso\n{TEXT}\n")
    assert found == ConnectionReference(place=ReferenceKind.OPTION, text=TEXT)
    assert found.resolve() == TEXT
