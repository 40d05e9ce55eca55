"""How Spark's processes find the connection string that a command was given."""

from __future__ import annotations

from pathlib import Path

from pairbus.cli.spark_place import read_reference
from pairbus.spark.connection_reference import ConnectionReference, Place

TEXT = "Endpoint=sb://localhost;SharedAccessKeyName=k;SharedAccessKey=s"


def named(file: Path, content: str) -> ConnectionReference:
    file.write_text(content, encoding="utf-8")
    return read_reference("--source", "PAIRBUS_SOURCE", f"@{file}")[0]


def test_a_file_that_is_a_connection_string_is_read_where_it_is_used(tmp_path: Path) -> None:
    file = tmp_path / "contoso.txt"
    assert named(file, f"{TEXT}\n") == ConnectionReference(place=Place.FILE, text=str(file))


def test_of_a_file_with_more_in_it_the_line_is_handed_on(tmp_path: Path) -> None:
    found = named(tmp_path / "contoso.txt", f"namespace: contoso\n{TEXT}\n")
    assert found == ConnectionReference(place=Place.OPTION, text=TEXT)
    assert found.resolve() == TEXT
