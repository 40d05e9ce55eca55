"""A term has one meaning: the glossary lists it once, and the name of a public class or alias exists once."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path
from typing import Final

from tests.docs.snippets import ROOT

GLOSSARY = ROOT / "docs" / "glossary.md"
SOURCE = ROOT / "src" / "pairbus"

MIRROR: Final = "blocking"
"""Mirrors the classes of client and pairing without asyncio, under the same names."""

TWINS: Final = {
    frozenset({"broker", "client"}): "what an application sets and what the broker stores, and errors on both sides",
    frozenset({"server", "client"}): "errors on both sides of a connection",
}
"""Pairs of packages that do not import each other and whose users see one of the two only."""


def public_types() -> dict[str, set[str]]:
    """Return the packages that define each public class or type alias."""
    found: dict[str, set[str]] = defaultdict(set)
    for file in SOURCE.rglob("*.py"):
        package = file.relative_to(SOURCE).parts[0]
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            name = type_name(node)
            if name is not None and not name.startswith("_"):
                assert package not in found[name], f"{package} defines {name} twice"
                found[name].add(package)
    return found


def type_name(node: ast.stmt) -> str | None:
    """Return the name of the class or type alias that a statement defines, if it is one."""
    match node:
        case ast.ClassDef(name=name):
            return name
        case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id="TypeAlias")):
            return name
    return None


def test_aliases_count_as_types() -> None:
    assert public_types()["MakeNamespace"] == {"store"}


def test_name_of_a_public_type_exists_once() -> None:
    repeated = {name: packages - {MIRROR} for name, packages in public_types().items()}
    several = {name: packages for name, packages in repeated.items() if len(packages) > 1}
    assert {name: packages for name, packages in several.items() if frozenset(packages) not in TWINS} == {}


def test_every_exemption_is_needed() -> None:
    found = {frozenset(packages - {MIRROR}) for packages in public_types().values()}
    assert TWINS.keys() <= found


def test_glossary_lists_each_term_once() -> None:
    terms = [term for row in rows(GLOSSARY) for term in row.split(", ")]
    assert len(terms) > 60
    assert len(terms) == len(set(terms))


def rows(page: Path) -> list[str]:
    """Return the first cells of all tables."""
    lines = page.read_text(encoding="utf-8").splitlines()
    cells = [line.split("|")[1].strip() for line in lines if line.startswith("|")]
    return [cell for cell in cells if cell != "term" and not cell.startswith("---")]
