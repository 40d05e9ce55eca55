"""What the commands need besides the client, which may not be installed: extras of the package."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def extra_needed(*extras: str, code: int = 1, otherwise: str = "") -> Iterator[None]:
    """Say what to install if something cannot be imported, or what to do ``otherwise``, and end."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").startswith("pairbus"):
            raise  # that would be our own mistake
        print(f"pairbus: {missing(error, *extras or ('server',))}{otherwise}", file=sys.stderr)
        sys.exit(code)


def missing(error: ImportError, *extras: str) -> str:
    """What cannot be imported, and which extras have it; the commands themselves need 'server'."""
    what = f"{error.name.partition('.')[0]} is not installed" if error.name else str(error)
    named = " and ".join(map(repr, extras))
    wanted = ",".join(dict.fromkeys(("server", *extras)))
    noun = "extra" if len(extras) == 1 else "extras"
    return f"{what}; install pairbus with its {noun} {named}; in the clone: pip install '.[{wanted}]'"
