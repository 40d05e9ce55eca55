"""The public names of the package."""

from __future__ import annotations

import ast
from pathlib import Path

from pairbus.broker import sql

ALLOWED = {"pairbus.broker.errors", "pairbus.broker.descriptions"}
PURE = {
    "pairbus.renamed",
    "collections.abc",
    "dataclasses",
    "enum",
    "functools",
    "itertools",
    "math",
    "operator",
    "re",
    "types",
    "typing",
    "uuid",
}


def test_public_names() -> None:
    assert set(sql.__all__) == {
        "MISSING",
        "PropertyChanges",
        "EvaluationError",
        "Missing",
        "SqlAction",
        "CompiledSqlFilter",
        "Subject",
        "fold_name",
        "parse_action",
        "parse_filter",
    }
    assert all(hasattr(sql, name) for name in sql.__all__)


def test_package_imports_no_clock_no_io_and_no_randomness() -> None:
    """Allow only the package itself, the broker's values and errors, and pure modules of the standard library."""
    for path in Path(sql.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                inside = name.startswith("pairbus.broker.sql")
                assert inside or name in ALLOWED | PURE | {"__future__"}, f"{path.name} imports {name}"
