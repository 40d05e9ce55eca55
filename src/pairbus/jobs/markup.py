"""Text for pages of HTML."""

from __future__ import annotations

import re
from html import escape
from typing import Final

_BREAKS: Final = re.compile(r"([/._-])(?=\w)")


def markup(text: str) -> str:
    """Escape a text, and let a line end after the characters that divide a name, but not inside of a word."""
    return _BREAKS.sub(r"\1<wbr>", escape(text))
