"""Tells the two builds apart that the same sources give: compiled, and plain Python."""

from __future__ import annotations

import pairbus.callbacks  # "from pairbus" would look for the name in the client first


def build() -> str:
    """Return ``compiled`` or ``plain Python``: what runs in this process."""
    return "plain Python" if pairbus.callbacks.__file__.endswith(".py") else "compiled"
