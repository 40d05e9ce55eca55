"""How often the tests try what they try many times: all of it where it is decided, part of it where somebody waits."""

from __future__ import annotations

import os
from typing import Final

THOROUGH: Final = os.environ.get("CI") == "true"
_PART: Final = 4


def times(count: int) -> int:
    """So many in CI, and a quarter of that elsewhere."""
    return count if THOROUGH else max(1, count // _PART)
