"""The Python snippets of the documentation, as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])


def snippets_of(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def run_snippets(page: Path) -> dict[str, Any]:
    """Run a page's snippets one after the other, as a reader would, and return what they leave behind."""
    names: dict[str, Any] = {"__name__": "snippet"}
    for snippet in snippets_of(page):
        exec(compile(snippet, str(page), "exec"), names)
    return names
