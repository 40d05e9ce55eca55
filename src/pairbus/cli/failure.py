"""How a command ends that cannot do what it was asked for."""

from __future__ import annotations

import sys
from typing import NoReturn

import typer


def fail(reason: str, code: int) -> NoReturn:
    """End with one line that says why."""
    print(f"pairbus: {reason}", file=sys.stderr)
    raise typer.Exit(code)
