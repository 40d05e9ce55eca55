"""Log lines as JSON: the text, and the ``key=value`` facts in it as fields."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from typing import Final

from pairbus.server.log_context import LogValue

_CONVERSION: Final = re.compile(r"""(?:\b(\w+)=["']?)?%(?:%|[-#0 +]*(?:\*|\d+)?(?:\.(?:\*|\d+))?[a-zA-Z])""")
"""A conversion of a format string, with the key before it, if it has one."""

_RESERVED: Final = frozenset({"time", "level", "logger", "message"})


class JsonFormatter(logging.Formatter):
    """Formats records as one JSON object per line.

    Keys are taken from the format string, never from an argument, so a peer cannot forge a field.
    """

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {key: value for key, value in _facts(record) if key not in _RESERVED}
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def _facts(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    """Yield the keys of the format string with their arguments."""
    if not isinstance(record.args, tuple):
        return
    arguments = iter(record.args)
    for found in _CONVERSION.finditer(str(record.msg)):
        if found[0].endswith("%%"):
            continue
        value = next(arguments, None)
        if found[1]:
            yield found[1], _plain(value)


def _plain(value: object) -> object:
    if isinstance(value, LogValue):
        value = value.value
    return value if isinstance(value, bool | int | float | str | None) else str(value)
