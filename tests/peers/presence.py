"""The peers that the tests need: without one its tests are skipped, except in CI, where they fail."""

from __future__ import annotations

import importlib
import os
import shutil
from pathlib import Path
from typing import Any, NoReturn

import pytest

_RHEA = Path(__file__).parent / "node_modules" / "rhea" / "package.json"


def import_peer(module: str, peer: str) -> Any:
    """Import a module of a peer that is written in Python."""
    try:
        return importlib.import_module(module)
    except ImportError:
        absent(peer)


def find_node() -> str:
    """Find the program that runs rhea."""
    node = shutil.which("node")
    if node is None:
        absent("rhea (node)")
    if not _RHEA.exists():
        absent("rhea")
    return node


def absent(peer: str) -> NoReturn:
    """Skip the module or the test that asks, or fail it where every peer has to be there."""
    reason = f"{peer} is not installed"
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason, allow_module_level=True)
