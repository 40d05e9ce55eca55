"""What the commands need besides the client, which may not be installed: extras of the package."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec


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
    """Return what cannot be imported, and which extras have it; the commands themselves need 'server'."""
    package = (error.name or "").partition(".")[0]
    if "spark" in extras and find_spec("pyspark") is None:
        package = "pyspark"  # what was imported first may be one of those that come with it
    what = f"{package} is not installed" if package else str(error)
    wanted = ",".join(dict.fromkeys(("server", *extras)))
    return f"{what}; install pairbus[{','.join(extras)}]; in the clone: pip install '.[{wanted}]'"
