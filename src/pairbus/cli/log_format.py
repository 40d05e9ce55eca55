"""Log lines as text, and as JSON whose fields are the ``key=value`` facts of the line."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from pairbus.server.log_context import Facts, LogValue, is_known, quoted

_CONVERSION: Final = re.compile(r"%(?:%|[-#0 +]*\d*(?:\.\d+)?[a-zA-Z])")
_FACT: Final = re.compile(r"""(?<!\S)(\w+)=("[^"]*"|\S+)""")
"""A fact of a format string: a key, and a conversion or a constant."""

_RESERVED: Final = frozenset({"time", "level", "logger", "message"})
_OURS: Final = "pairbus"


class TextFormatter(logging.Formatter):
    """Formats records as text: the time, the level, the logger, the event, and its facts as ``key=value``."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the name of the base class)
        record.message = _LineParser(record).line
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """Formats records as one JSON object per line.

    Keys are taken from the format string and from ``Facts``, never from a value, so a peer cannot forge a field.
    """

    def format(self, record: logging.LogRecord) -> str:
        parsed = _LineParser(record)
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": parsed.line,
        }
        entry |= {key: _plain(value) for key, value in parsed.facts.items() if key not in _RESERVED}
        if record.exc_info:
            entry["traceback" if "error" in entry else "error"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


class _LineParser:
    """Splits a record into its facts. Facts that are ``None`` or empty are left out, also of the text."""

    def __init__(self, record: logging.LogRecord) -> None:
        self.facts: dict[str, object] = {}
        if record.name.partition(".")[0] != _OURS or not isinstance(record.args, tuple):
            self.line = record.getMessage()  # a library's line may contain anything
            return
        text = str(record.msg) if record.args else str(record.msg).replace("%", "%%")
        self._arguments: Iterator[object] = iter(record.args)
        self.line = "".join(self._pieces(text)).rstrip(" ")

    def _pieces(self, text: str) -> Iterator[str]:
        """Yield the line: the texts around the facts of the format string, and the facts."""
        end = 0
        for found in _FACT.finditer(text):
            yield self._event(text[end : found.start()].removesuffix(" "))
            yield self._fact(found[1], found[2].strip('"'))
            end = found.end()
        yield self._event(text[end:])

    def _event(self, text: str) -> str:
        values = self._take(text)
        for value in values:
            if isinstance(value, Facts):
                self.facts |= value.values
        return text % values

    def _fact(self, key: str, text: str) -> str:
        values = self._take(text)
        is_whole = len(values) == 1 and _CONVERSION.fullmatch(text) is not None
        value = values[0] if is_whole else text % values
        if not is_known(value.value if isinstance(value, LogValue) else value):
            return ""
        self.facts[key] = value
        return f" {key}={value if isinstance(value, LogValue) else quoted(text % values)}"

    def _take(self, text: str) -> tuple[object, ...]:
        """Return the arguments of the conversions in a part of the format string."""
        count = sum(found[0] != "%%" for found in _CONVERSION.finditer(text))
        return tuple(next(self._arguments) for _ in range(count))


def _plain(value: object) -> object:
    if isinstance(value, LogValue):
        value = value.value
    return value if isinstance(value, bool | int | float | str | None) else str(value)
