"""How backlog queues are called: the name of the namespace that they belong to, and a number."""

from __future__ import annotations

from typing import Final

TRANSFER: Final = "x-servicebus-transfer"
DRILL: Final = "x-pairbus-drill"
"""Begins the path of a drill's queue on the primary, and names the property that marks its message."""


def backlog_path(namespace: str, index: int) -> str:
    """The path of a backlog queue of a primary namespace."""
    return f"{namespace}/{TRANSFER}/{index}"


def is_backlog_path(path: str) -> bool:
    """Whether a queue with this path is a backlog queue of some namespace."""
    name, _, number = path.rpartition("/")
    return number.isdecimal() and name.lower().endswith(f"/{TRANSFER}")


def is_drill_path(path: str) -> bool:
    """Tell whether a queue with this path belongs to a drill."""
    return path.lower().startswith(f"{DRILL}/")
