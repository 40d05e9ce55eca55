"""What a property of a message may hold, as far as the broker looks at it."""

from __future__ import annotations

from typing import TypeAlias
from uuid import UUID


class Instant(int):
    """A point in time: milliseconds since the Unix epoch."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Instant({int(self)})"


class ZonelessInstant(Instant):
    """A point in time that was given without a time zone: it counts as UTC, and is given back without a zone."""

    __slots__ = ()


class Span(int):
    """A length of time in milliseconds."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Span({int(self)})"


Value: TypeAlias = bool | int | float | str | bytes | UUID | None
"""Integers that are points or lengths of time say so by their class: ``Instant``, ``Span``."""
