"""Errors that end a command."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Final, NoReturn

import typer

FAILED: Final = 1
USAGE: Final = 2
STOPPED: Final = 130
"""The exit status after Ctrl-C: 128 + SIGINT, as shells report it."""


def fail(reason: str, code: int) -> NoReturn:
    """Print the reason in one line to standard error, and end the command with an exit status."""
    print(f"pairbus: {reason}", file=sys.stderr)
    raise typer.Exit(code)


@contextmanager
def extra_needed(*extras: str, code: int = 1, otherwise: str = "") -> Iterator[None]:
    """End the command if an import fails: print which extra to install, followed by ``otherwise``."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").startswith("pairbus"):
            raise  # a bug of ours, not a missing extra
        print(f"pairbus: {missing(error, *extras or ('server',))}{otherwise}", file=sys.stderr)
        sys.exit(code)


def missing(error: ImportError, *extras: str) -> str:
    """Describe a failed import and the extras that provide it; the commands themselves need 'server'."""
    package = (error.name or "").partition(".")[0]
    if "spark" in extras and find_spec("pyspark") is None:
        package = "pyspark"  # the first failed import may be a dependency of pyspark
    what = f"{package} is not installed" if package else str(error)
    wanted = ",".join(dict.fromkeys(("server", *extras)))
    return f"{what}; install pairbus[{','.join(extras)}]; in the clone: pip install '.[{wanted}]'"
