"""The threat model has every limit, those that are counted and those that are settings, with its value and metric."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Final

import pytest

from pairbus.server import Settings
from pairbus.server.connection_limits import LIMIT_NAMES
from tests.docs.snippets import ROOT
from tests.docs.tables import tables_of

PAGE: Final = ROOT / "docs" / "explanation" / "threat-model.md"
OF_STORAGE: Final = {"max_store_gb"}
OF_METRICS: Final = {"max_entity_metrics"}

METRICS: Final = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")

ROWS: Final = [
    row for head, rows in tables_of(PAGE) if head == ("what", "limit", "setting, or name in the metric") for row in rows
]
DOCUMENTED: Final = {name for row in ROWS for name in re.findall(r"`([a-z_]+)`", row[2])}


def test_each_counted_limit_is_in_the_tables_of_the_threat_model() -> None:
    assert set(LIMIT_NAMES) <= DOCUMENTED


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_each_limit_has_a_value_and_a_metric(row: tuple[str, ...]) -> None:
    _, value, names = row
    assert value
    metrics = re.findall(r"`(pairbus_[a-z_]+)", names)
    assert all(f"`{metric}`" in METRICS for metric in metrics)
    assert metrics or any(f"`{limit}`" in names for limit in LIMIT_NAMES)


def test_each_maximum_among_the_settings_is_in_the_tables_of_the_threat_model() -> None:
    maxima = {each.name for each in fields(Settings) if each.name.startswith("max_")}
    assert maxima - OF_STORAGE - OF_METRICS <= DOCUMENTED
