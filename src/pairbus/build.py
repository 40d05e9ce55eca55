"""Tells the two builds apart that the same sources give: compiled, and plain Python."""

from __future__ import annotations

from typing import Final

import pairbus.callbacks  # "from pairbus" would look for the name in the client first

COMPILED: Final = "compiled"
PLAIN: Final = "plain Python"


def build() -> str:
    """Return the build that runs in this process."""
    return PLAIN if pairbus.callbacks.__file__.endswith(".py") else COMPILED
