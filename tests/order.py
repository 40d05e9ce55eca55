"""The order in which tests are run: what takes longest first, else all wait for it in the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import chain
from typing import TypeVar

T = TypeVar("T")


def ordered(items: Sequence[T], long: Callable[[T], Hashable | None], workers: int) -> list[T]:
    """The same items, for workers of whom each is given an equal part of the list to begin with.

    ``long`` says of one that takes long what it shares with others, which then stay together, and of the rest ``None``.
    Half of the workers begin with what takes long: the others have the many short ones, which wait for most of the
    time, and help when these are done.
    """
    short = [item for item in items if long(item) is None]
    shares = _shares(_groups(items, long), max(1, workers // 2))
    found: list[T] = []
    for number, share in enumerate(shares):
        length = (len(items) - len(found)) // (workers - number) - len(share)
        found += share + short[: max(0, length)]
        short = short[max(0, length) :]
    return found + short


def _groups(items: Iterable[T], long: Callable[[T], Hashable | None]) -> list[list[T]]:
    groups: dict[Hashable, list[T]] = defaultdict(list)
    for item in items:
        if (key := long(item)) is not None:
            groups[key].append(item)
    return sorted(groups.values(), key=len, reverse=True)


def _shares(groups: Iterable[list[T]], count: int) -> list[list[T]]:
    """The largest first, each to whoever has least."""
    shares: list[list[list[T]]] = [[] for _ in range(count)]
    for group in groups:
        min(shares, key=lambda share: sum(map(len, share))).append(group)
    return [list(chain.from_iterable(share)) for share in shares]
