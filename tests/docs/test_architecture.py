"""The architecture page names packages and functions that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.docs.snippets import ROOT
from tests.docs.tables import code, rows_of

PAGE = ROOT / "docs" / "explanation" / "architecture.md"
SOURCE = ROOT / "src" / "pairbus"
MAX_STEPS = 15


def paths() -> dict[str, list[tuple[str, str]]]:
    """Return the steps of each path: the file and the function."""
    text = PAGE.read_text(encoding="utf-8").partition("## The path of a message")[2]
    found: dict[str, list[tuple[str, str]]] = {}
    for section in text.split("\n### ")[1:]:
        title, _, rest = section.partition("\n")
        found[title] = re.findall(r"^\| \d+ \| `([^`]+)` \| `([^`]+)` \|", rest, re.MULTILINE)
    return found


@cache
def names_in(file: Path) -> frozenset[str]:
    """Return the functions and classes of a module, and ``Class.method``."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    for kind in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        names |= {kind.name} | {
            f"{kind.name}.{node.name}" for node in kind.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
    return frozenset(names)


def test_page_has_the_four_paths() -> None:
    assert [*paths()] == ["Send", "Receive and complete", "Divert and syphon", "Bill"]


@pytest.mark.parametrize("title", paths())
def test_path_has_few_steps_and_each_names_a_function_that_exists(title: str) -> None:
    steps = paths()[title]
    assert 0 < len(steps) <= MAX_STEPS
    missing = [(file, name) for file, name in steps if name not in names_in(SOURCE / file)]
    assert not missing


def test_every_answer_names_a_function_that_exists() -> None:
    answers = [(code(file), code(name)) for _, file, name in rows_of(PAGE, "question", "file", "function or class")]
    assert answers
    missing = [(file, name) for file, name in answers if name not in names_in(SOURCE / file)]
    assert not missing


def test_table_has_every_package() -> None:
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert {code(row[0]) for row in rows_of(PAGE, "package", "purpose")} == packages


def test_page_names_every_module_beside_the_packages() -> None:
    text = PAGE.read_text(encoding="utf-8")
    named = re.search(r"^Modules beside the packages: (.*?)^$", text, re.MULTILINE | re.DOTALL)
    assert named is not None
    modules = {path.stem for path in SOURCE.glob("*.py") if not path.stem.startswith("__")}
    assert {*re.findall(r"`(\w+)`", named[1])} == modules
