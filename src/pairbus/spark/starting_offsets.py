"""Where a stream that only looks begins, entity by entity."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Self, TypeAlias

from pairbus.client.validation import shown
from pairbus.spark.errors import SparkOptionError

_MOST: Final = 2**63 - 1
_FORM: Final = 'earliest, latest, or JSON such as {"orders": 17, "news/subscriptions/audit": "latest"}'


class Position(Enum):
    """A place in an entity that has a name instead of a number."""

    EARLIEST = "earliest"
    LATEST = "latest"


Start: TypeAlias = int | Position
"""The sequence number of the first message to read, or a position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingOffsets:
    """What the option ``startingOffsets`` says. Names of entities compare without regard to case."""

    otherwise: Position = Position.EARLIEST
    """For all entities that are not named."""

    named: tuple[tuple[str, Start], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ``SparkOptionError``."""
        given = text.strip()
        position = _POSITIONS.get(given.lower())
        if position is not None:
            return cls(otherwise=position)
        return cls(named=tuple((name, _start(name, start)) for name, start in _object(given)))

    @property
    def are_earliest(self) -> bool:
        """Whether everything is read from its beginning."""
        return self._all == {Position.EARLIEST}

    @property
    def have_latest(self) -> bool:
        """Whether of some entity only what is to come is read."""
        return Position.LATEST in self._all

    @property
    def _all(self) -> set[Start]:
        return {self.otherwise, *(start for _, start in self.named)}

    def of(self, entity: str) -> Start:
        return next((start for name, start in self.named if name.lower() == entity.lower()), self.otherwise)

    def check(self, entities: Iterable[str]) -> None:
        """Whether only entities that are read are named. Raises ``SparkOptionError``."""
        read = {entity.lower() for entity in entities}
        for name, _ in self.named:
            if name.lower() not in read:
                raise SparkOptionError(
                    f"startingOffsets names {shown(name)}, which is none of the entities that are read"
                )


_POSITIONS: Final = {position.value: position for position in Position}


def _object(text: str) -> list[tuple[str, Any]]:
    try:
        found = json.loads(text, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        raise SparkOptionError(f"startingOffsets is {shown(text)}; it is {_FORM}") from None
    if not isinstance(found, _Pairs):
        raise SparkOptionError(f"startingOffsets is {shown(text)}; it is {_FORM}")
    _check_once(name for name, _ in found)
    return found


def _check_once(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise SparkOptionError(f"startingOffsets names {shown(name)} twice")
        seen.add(name.lower())


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with what is in it twice."""


def _start(name: str, start: object) -> Start:
    if isinstance(start, str) and start.lower() in _POSITIONS:
        return _POSITIONS[start.lower()]
    if isinstance(start, int) and not isinstance(start, bool) and 0 <= start <= _MOST:
        return start
    raise SparkOptionError(
        f"startingOffsets says {shown(start)} for {shown(name)}; it is a sequence number from 0, earliest or latest"
    )
