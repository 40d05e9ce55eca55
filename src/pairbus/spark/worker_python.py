"""The Python that Spark's workers run: it must be able to import pairbus."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import Final, Protocol

from pairbus.spark.session import is_local

_DEFAULT: Final = "python3"
"""What Spark takes from the PATH if PYSPARK_PYTHON is not set when its session is created."""

_PROBE: Final = "import importlib.util, sys; sys.exit(importlib.util.find_spec('pairbus') is None)"
_ANSWER_S: Final = 30.0


class WorkerPythonError(RuntimeError):
    """Spark's workers run a Python that cannot import pairbus."""


class Context(Protocol):
    """What a ``SparkContext`` knows of its workers."""

    master: str | None
    pythonExec: str  # noqa: N815 (Spark's name)
    _python_includes: list[str] | None


def prepare_workers(context: Context) -> None:
    """Have local workers run this Python, unless the session was given one. Raises ``WorkerPythonError``.

    A script that is run as ``venv/bin/python script.py`` has the packages of its environment, but the ``python3`` of
    the PATH is another one. Workers of a cluster keep theirs, which is checked as far as this machine can.
    """
    if context.pythonExec == _DEFAULT and is_local(context.master or ""):
        context.pythonExec = sys.executable
        return
    executable = shutil.which(context.pythonExec)
    if executable in (None, sys.executable) or context._python_includes or _has_pairbus(str(executable)):  # noqa: SLF001
        return
    raise WorkerPythonError(
        f"Spark runs its workers with {executable}, which cannot import pairbus: set the environment variable"
        f" PYSPARK_PYTHON to a Python that has it, such as {sys.executable}, before the session is created"
    )


def _has_pairbus(executable: str) -> bool:
    try:
        return subprocess.run([executable, "-c", _PROBE], timeout=_ANSWER_S, check=False).returncode == 0  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return True  # nothing is known of it
