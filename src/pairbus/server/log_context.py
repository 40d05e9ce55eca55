"""Log lines that say which connection, link, entity and key they are about."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import MutableMapping
from typing import Any, Final

_FIRST_FACT: Final = re.compile(r" \w+=")
_CONVERSION: Final = re.compile(r"%(?!%)")
_PLAIN: Final = re.compile(r"[\w.:/@$*+,;()\[\]{}<>|~^!?&#%-]+", re.ASCII)
_MAX_CHARACTERS: Final = 200


def quoted(text: str) -> str:
    """Return a value as a line shows it: bare, or in double quotes if it could be taken for something else."""
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=not text.isprintable())


def is_known(value: object) -> bool:
    """Return whether a value is a fact: ``None`` and empty texts are not."""
    return value is not None and value != ""


class LogValue:
    """A value of a peer's choosing: quoted in a text line if it could be taken for something else, and shortened."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __str__(self) -> str:
        text = str(self.value)
        if len(text) > _MAX_CHARACTERS:
            text = text[:_MAX_CHARACTERS] + "…"
        return quoted(text)


class Facts:
    """The facts of a line as one argument of it: ``key=value`` for each that is known."""

    __slots__ = ("values",)

    def __init__(self, **values: object) -> None:
        self.values = {key: value for key, value in values.items() if is_known(value)}

    def __str__(self) -> str:
        return "".join(
            f" {key}={value if isinstance(value, LogValue) else quoted(str(value))}"
            for key, value in self.values.items()
        )


class ContextLog(logging.LoggerAdapter[logging.Logger]):
    """A logger that adds facts as ``key=value`` to its lines, after the event; unknown ones (empty) are left out.

    The facts are arguments of the line, so that lines of one kind still have one format string.
    """

    def __init__(self, logger: logging.Logger, **facts: object) -> None:
        super().__init__(logger, {key: value for key, value in facts.items() if is_known(value)})

    def having(self, **facts: object) -> ContextLog:
        """Return a logger with more facts."""
        return ContextLog(self.logger, **{**(self.extra or {}), **facts})

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if not self.isEnabledFor(level):
            return
        text, facts = str(msg), self.extra or {}
        found = _FIRST_FACT.search(text)
        end = len(text) if found is None else found.start()
        event, rest = text[:end], text[end:]
        before = len(_CONVERSION.findall(event.replace("%%", "")))
        added = "".join(f" {key}=%s" for key in facts)
        values = (*args[:before], *map(LogValue, facts.values()), *args[before:])
        kwargs.setdefault("stacklevel", 2)  # the caller's line, and not this one
        self.logger.log(level, event + added + rest, *values, **kwargs)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Return the line unchanged: the base class would replace the caller's ``extra``."""
        return msg, kwargs


def peer_of(peername: object) -> str:
    """Return the address and port of a peer, as a socket or a transport has them; empty if they are unknown."""
    if not isinstance(peername, tuple | list) or len(peername) < 2:
        return ""
    host, port = peername[0], peername[1]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
