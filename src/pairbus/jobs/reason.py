"""Why a query of Spark's has failed, in one line: what Spark says of it goes on for pages."""

from __future__ import annotations

import re
from typing import Final

_OURS: Final = re.compile(r"^\s*(?:[\w.]*: )?pairbus\.[\w.]*Error: (.+)$", re.MULTILINE)
"""How an error of ours ends a traceback of Python's."""

_LONGEST: Final = 500


def reason_of(error: BaseException) -> str:
    """The last error of ours that is told of; else the first line of what is said."""
    try:
        text = str(error).strip()
    except Exception:  # noqa: BLE001 (some ask Java for it, which may be gone)
        return type(error).__name__
    ours = _OURS.findall(text)
    said = ours[-1] if ours else text.partition("\n")[0]
    return " ".join(said.split())[:_LONGEST] or type(error).__name__
