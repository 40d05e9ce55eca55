"""Docs, docstrings, errors, log lines and help texts avoid words that hide who does what."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.docs.snippets import ROOT

BANNED: Final = re.compile(
    r"\b(?:somebody|someone|nobody|everybody|anybody|whoever|cargo|hangs? up|strikes? off|borne|untold"
    r"|(?:is|are|was|were|be|been) told|tells? (?:it|them|everyone) so|what it says"
    r"|(?:bring|bringing|brings|brought|come|comes|came|coming) home|at home|hold(?:s)? good|came to nothing)\b",
    re.IGNORECASE,
)
"""Metaphors, and words that stand for an agent which the sentence should name."""

OPENING: Final = re.compile(r"\s*(?:What|Whether|Who|Whose|Why|When|How|Where|Which|Those) ")
"""Docstrings open with a verb or a noun."""

PAGES: Final = [ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
TOOLS: Final = [
    module
    for folder in ("tests", "benchmarks", "tools")
    for module in (ROOT / folder).rglob("*.py")
    if "node_modules" not in module.parts
]
MODULES: Final = [*(ROOT / "src").rglob("*.py"), ROOT / "docs" / "generate.py"]


def findings(text: str) -> Iterator[tuple[int, str]]:
    """Yield the banned words of a text with the number of their line. A line break counts as a space."""
    for found in BANNED.finditer(text.replace("\n", " ")):
        yield text.count("\n", 0, found.start()) + 1, found.group()


def texts(module: Path) -> Iterator[tuple[int, str]]:
    """Yield the strings of a module, docstrings included, with their lines."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def docstrings(module: Path) -> Iterator[tuple[int, str]]:
    """Yield the docstrings of a module, also those below fields and constants, with their lines."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


@pytest.mark.parametrize("text", ["Nobody\nknows", "the sender is told", "a batch is brought home"])
def test_banned_word_is_found(text: str) -> None:
    assert [line for line, _ in findings(text)] == [1]


@pytest.mark.parametrize("text", ["the home directory", "handshake failed", "return the sender"])
def test_plain_words_are_accepted(text: str) -> None:
    assert not [*findings(text)]


def test_pages_use_plain_words() -> None:
    found = [
        f"{page.relative_to(ROOT)}:{line}: {word}"
        for page in PAGES
        for line, word in findings(page.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_texts_of_the_source_use_plain_words() -> None:
    found = [
        f"{module.relative_to(ROOT)}:{first + line - 1}: {word}"
        for module in MODULES
        for first, text in texts(module)
        for line, word in findings(text)
    ]
    assert found == []


def test_docstrings_open_with_a_verb_or_noun() -> None:
    found = [
        f"{module.relative_to(ROOT)}:{line}: {text.strip().splitlines()[0]}"
        for module in (*MODULES, *TOOLS)
        for line, text in docstrings(module)
        if OPENING.match(text)
    ]
    assert found == []
