"""The page of the features that work with each client: ``python -m tests.compatibility.page`` writes it.

It is made from what the tests declare. A test that fails is for CI to find; the page says what CI holds true.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

from tests.compatibility.adapters import ADAPTERS
from tests.compatibility.client import Adapter, Transport
from tests.compatibility.feature import Feature, feature_of

HERE: Final = Path(__file__).parent
PAGE: Final = HERE.parents[1] / "docs" / "reference" / "compatibility.md"

HEAD: Final = """# Compatibility

Generated from `tests/compatibility` by `python -m tests.compatibility.page`.

This page shows which features work with which client. Each row is a test that runs against a real server with each
official client, unchanged, and with ours. A dash means that a client has no interface for the feature. The tests run
over TCP, unless TLS and WebSocket are named.
"""

CHAPTERS: Final = (
    "test_bodies",
    "test_properties",
    "test_sending",
    "test_receiving",
    "test_settlement",
    "test_time",
    "test_sessions",
    "test_topics",
    "test_forwarding",
    "test_administration",
    "test_access",
    "test_refusals",
    "test_interruptions",
    "test_exchange",
)

NOT_OFFERED: Final = "\N{EN DASH}"

_NAMES: Final = {Transport.TCP: "TCP", Transport.TLS: "TLS", Transport.WEBSOCKET: "WebSocket"}


def page() -> str:
    """The whole page."""
    return HEAD + "".join(_chapter(importlib.import_module(f"tests.compatibility.{name}")) for name in CHAPTERS)


def _chapter(module: ModuleType) -> str:
    columns = [adapter.title for adapter in ADAPTERS]
    lines = [
        "",
        f"## {inspect.getdoc(module)}",
        "",
        f"| | {' | '.join(columns)} |",
        f"|---|{'---|' * len(columns)}",
        *(_row(feature) for feature in features_of(module)),
        "",
    ]
    return "\n".join(lines)


def _row(feature: Feature) -> str:
    return f"| {feature.title} | {' | '.join(_cell(feature, adapter) for adapter in ADAPTERS)} |"


def _cell(feature: Feature, adapter: Adapter) -> str:
    if not feature.runs_with(adapter):
        return NOT_OFFERED
    transports = feature.transports_of(adapter)
    return "yes" if transports == [Transport.TCP] else ", ".join(_NAMES[transport] for transport in transports)


def features_of(module: ModuleType) -> Iterator[Feature]:
    """Return the features that the tests of a module show, in order."""
    for name, found in vars(module).items():
        if name.startswith("test_"):
            feature = feature_of(getattr(found, "pytestmark", ()))
            assert feature is not None, f"{name} names no feature"
            yield feature


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
