"""Former names of public modules and attributes: they work, with a warning, and the changelog lists them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from pairbus.broker import Namespace
from pairbus.renamed import moved
from pairbus.server import NamespaceServer, Settings
from pairbus.store import MemoryStore
from pairbus.store.write_batch import WriteBatch

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"
ROW = re.compile(r"^ +\| (`pairbus[`\w., ]*`) \| `(\w+)` \| `([\w.]+)` \|$", re.MULTILINE)


def renamed_names() -> Iterator[tuple[str, str, str]]:
    """Yield the module, the old name, and the new name of each row of the changelog."""
    for modules, old, new in ROW.findall(CHANGELOG.read_text()):
        for module in re.findall(r"[\w.]+", modules):
            yield module, old, new


def test_changelog_lists_the_renamed_names() -> None:
    assert ("pairbus", "Verdict", "FailureVerdict") in renamed_names()


@pytest.mark.parametrize(("module", "old", "new"), list(renamed_names()))
def test_old_name_works_with_a_warning_that_names_the_new_one(module: str, old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"^{module}.{old} is now (called )?{new}$"):
        found = getattr(import_module(module), old)
    place, _, name = new.rpartition(".")
    assert found is getattr(import_module(place or module), name)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("pairbus.jobs.capture.order", "CaptureOrder"),
        ("pairbus.spark.connection_reference", "ConnectionReference"),
        ("pairbus.jobs.lines", "LineTeller"),
        ("pairbus.jobs.cost.statement", "By"),
        ("pairbus.jobs.cost.allowances", "beyond_allowances"),
        ("pairbus.jobs.reconcile.session", "SESSION"),
        ("pairbus.broker.sql", "SqlFilter"),
        ("pairbus.ledger.errors", "LedgerSettingsError"),
        ("pairbus.jobs.capture.errors", "CaptureError"),
        ("pairbus.server.http.body", "BodyTooLargeError"),
        ("pairbus.server.side_buffer.batch", "BatchFormatError"),
    ],
)
def test_import_that_an_earlier_page_documented_works(module: str, name: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"^{module}.{name} is now"):
        exec(f"from {module} import {name}", {})


def test_former_argument_of_the_broker_works_with_a_warning() -> None:
    class Sink:
        """Takes no events: the namespace stays empty."""

    sink: Any = Sink()
    settings: Any = {"view": bytes, "fresh_id": uuid4, "fresh_token": uuid4}
    with pytest.warns(DeprecationWarning, match="chronicle of Namespace is now called event_sink"):
        namespace = Namespace(WriteBatch(MemoryStore(), []), chronicle=sink, **settings)
    assert namespace._context.event_sink is sink


def test_former_argument_of_the_server_works_with_a_warning(tmp_path: Path) -> None:
    extension: Any = object()
    with pytest.warns(DeprecationWarning, match="annexes of NamespaceServer is now called extensions"):
        server = NamespaceServer(Settings(data=tmp_path), annexes=[extension])
    assert server._extensions == (extension,)


def test_moved_attribute_with_a_new_name_is_found() -> None:
    find = moved("pairbus.old", {"Old": "pathlib:Path"})
    with pytest.warns(DeprecationWarning, match=r"^pairbus\.old\.Old is now pathlib\.Path$"):
        assert find("Old") is Path


def test_unknown_name_of_an_old_module_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = import_module("pairbus.pairing.pump").Nothing
