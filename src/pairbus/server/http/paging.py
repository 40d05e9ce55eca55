"""Lists, a page at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from pairbus.server.errors import BadRequestError

DEFAULT_TOP: Final = 100
MAX_TOP: Final = 1_000
"""More than this is answered with so many, and a link to the rest."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some of many."""

    items: Sequence[T]
    skip: int
    top: int
    has_more: bool


def page_of(items: Sequence[T], query: Mapping[str, str]) -> Page[T]:
    """The page that ``$skip`` and ``$top`` ask for; raises ``BadRequestError``."""
    skip = _number(query, "$skip", 0)
    top = min(_number(query, "$top", DEFAULT_TOP), MAX_TOP)
    return Page(items[skip : skip + top], skip, top, top > 0 and skip + top < len(items))


def _number(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise BadRequestError(f"{name} is {text[:64]!r}; it has to be a whole number, not below 0")
    return int(text)
