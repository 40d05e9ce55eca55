"""The threat model has every limit: those that are counted, and those that are settings."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Final

from pairbus.server import Settings
from pairbus.server.connection_limits import LIMIT_NAMES
from tests.docs.snippets import ROOT
from tests.docs.tables import tables_of

PAGE: Final = ROOT / "docs" / "explanation" / "threat-model.md"
OF_STORAGE: Final = {"max_store_gb"}
OF_METRICS: Final = {"max_entity_metrics"}

DOCUMENTED: Final = {
    name
    for head, rows in tables_of(PAGE)
    if head == ("what", "limit", "setting, or name in the metric")
    for row in rows
    for name in re.findall(r"`([a-z_]+)`", row[2])
}


def test_each_counted_limit_is_in_the_tables_of_the_threat_model() -> None:
    assert set(LIMIT_NAMES) <= DOCUMENTED


def test_each_maximum_among_the_settings_is_in_the_tables_of_the_threat_model() -> None:
    maxima = {each.name for each in fields(Settings) if each.name.startswith("max_")}
    assert maxima - OF_STORAGE - OF_METRICS <= DOCUMENTED
