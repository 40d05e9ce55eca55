"""The tables of the documentation, as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

ROW = re.compile(r"^\|(.*)\|$")


def tables_of(page: Path) -> list[tuple[tuple[str, ...], list[tuple[str, ...]]]]:
    """Every table of a page: its head, and its rows."""
    found: list[tuple[tuple[str, ...], list[tuple[str, ...]]]] = []
    inside = False
    for line in page.read_text(encoding="utf-8").splitlines():
        row = ROW.match(line)
        if row is None:
            inside = False
            continue
        cells = tuple(cell.strip() for cell in row.group(1).split("|"))
        if not inside:
            found.append((cells, []))
            inside = True
        elif set(cells) != {"---"}:
            found[-1][1].append(cells)
    return found


def rows_of(page: Path, *head: str) -> list[tuple[str, ...]]:
    """The rows of all tables of a page that have this head."""
    rows = [row for found, rows in tables_of(page) if found == head for row in rows]
    assert rows, f"{page.name} has no table with the head {head}"
    return rows


def code(cell: str) -> str:
    """Return the content of a cell that is code only."""
    assert cell.startswith("`"), cell
    assert cell.endswith("`"), cell
    return cell[1:-1]


def codes(cell: str) -> list[str]:
    """All the code in a cell."""
    return re.findall(r"`([^`]+)`", cell)
