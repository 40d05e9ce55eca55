"""What Spark has failed with at a ledger, in one line."""

from __future__ import annotations

import re
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from pairbus.jobs.reason import reason_of

FAILURES: Final = (PySparkException, Py4JError)
"""What comes of a job that fails: the second where a task did, as at a file that is damaged inside."""

_CONDITION: Final = re.compile(r"\[[A-Z][A-Z0-9_.]+\] [^\n]+")
"""How Spark begins what is meant for people, after a page for others."""


def failure_line(error: Exception) -> str:
    try:
        found = _CONDITION.search(str(error))
    except Exception:  # noqa: BLE001 (Java is asked for it, and may be gone)
        found = None
    return reason_of(error) if found is None else found[0].strip()
