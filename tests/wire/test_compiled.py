"""The build that is tested is the one that was asked for: `make compiled-tests` runs the same tests on the other."""

from __future__ import annotations

import ast
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from pairbus.build import build

ROOT: Final = Path(__file__).resolve().parents[2]

EXPECTED: Final = "compiled" if os.environ.get("PAIRBUS_EXPECT_COMPILED") == "1" else "plain Python"
"""Set by the Makefile."""


def listed() -> list[str]:
    """Return the modules that setup.py compiles."""
    tree = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    values = [node.value for node in tree.body if isinstance(node, ast.Assign) and "COMPILED" in ast.unparse(node)]
    modules: list[str] = ast.literal_eval(values[0])
    return modules


def test_listed_modules_exist_once_in_order() -> None:
    assert listed() == sorted(set(listed()))
    assert [path for path in listed() if not (ROOT / path).is_file()] == []


def test_requested_build_is_tested() -> None:
    assert build() == EXPECTED


@pytest.mark.parametrize("path", listed())
def test_module_is_compiled_in_the_compiled_build_alone(path: str) -> None:
    found = find_spec(path.removeprefix("src/").removesuffix(".py").replace("/", "."))
    assert found is not None
    assert found.origin is not None
    assert found.origin.endswith(".py") == (EXPECTED == "plain Python")
