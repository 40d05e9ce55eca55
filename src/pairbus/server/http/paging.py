"""Lists, a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


def page_of(find: Callable[[int, int], Sequence[T]], query: Mapping[str, str]) -> Page[T]:
    """The page that ``$skip`` and ``$top`` ask for; raises ``BadRequestError``.

    ``find`` is told how many to skip and how many to give; one more than is asked for tells whether there are more.
    """
    skip = _number(query, "$skip", 0)
    top = min(_number(query, "$top", DEFAULT_TOP), MAX_TOP)
    items = find(skip, top + 1)
    return Page(items[:top], skip, top, top > 0 and len(items) > top)


def among(items: Sequence[T]) -> Callable[[int, int], Sequence[T]]:
    """Finds pages in what is there as a whole."""
    return lambda skip, top: items[skip : skip + top]


def _number(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise BadRequestError(f"{name} is {text[:64]!r}; it has to be a whole number, not below 0")
    return int(text)
