"""The number of repetitions of randomized tests: all in CI, fewer on a laptop."""

from __future__ import annotations

import os
from typing import Final

THOROUGH: Final = os.environ.get("CI") == "true"
_PART: Final = 4


def times(count: int) -> int:
    """So many in CI, and a quarter of that elsewhere."""
    return count if THOROUGH else max(1, count // _PART)
