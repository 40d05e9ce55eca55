"""The public names of the store are those that `__init__` lists, and each can be imported."""

from __future__ import annotations

import ast
from pathlib import Path

from pairbus import store


def test_every_public_name_exists() -> None:
    for name in store.__all__:
        assert hasattr(store, name), name


def test_every_imported_name_is_public() -> None:
    tree = ast.parse(Path(store.__file__).read_text(encoding="utf-8"))
    imported = {
        alias.name
        for node in ast.walk(tree)  # some are imported on demand
        if isinstance(node, ast.ImportFrom) and node.module not in {"__future__", "typing", "pairbus.renamed"}
        for alias in node.names
    }
    assert imported == set(store.__all__)
