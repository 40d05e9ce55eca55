"""The reference page of the ledger is complete."""

from __future__ import annotations

from typing import Final

import pytest

from pairbus.jobs.ledger import tables
from pairbus.ledger import COLUMNS, VERSION, VERSION_KEY, OperationKind, Stage
from tests.docs.snippets import ROOT
from tests.docs.tables import code, rows_of

PAGE: Final = ROOT / "docs" / "reference" / "ledger.md"


@pytest.mark.parametrize("table", COLUMNS)
def test_columns_are_documented_in_order(table: str) -> None:
    rows = rows_of(PAGE, f"column of {table}", "type", "what it is")
    assert [(code(name), kind) for name, kind, _ in rows] == [*COLUMNS[table].items()]


def test_every_kind_and_stage_is_documented() -> None:
    assert [code(kind) for kind, _ in rows_of(PAGE, "kind", "what was done")] == [kind.value for kind in OperationKind]
    assert [code(stage) for stage, _ in rows_of(PAGE, "stage", "what for")] == [stage.value for stage in Stage]


def test_every_error_is_documented() -> None:
    named = {code(error) for error, _ in rows_of(PAGE, "error", "when")}
    assert named | {"LedgerReadError"} == {
        name for name, value in vars(tables).items() if name.endswith("Error") and value.__module__ == tables.__name__
    }


def test_version_is_documented() -> None:
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"under `{VERSION_KEY}`. It is {VERSION};" in text
