"""Faults between a client and a namespace, as values whose repr is Python that creates them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import Enum
from random import Random
from typing import Final, Self

_MOST_BYTES: Final = 20_000
_LONGEST_S: Final = 90.0


class _Word(Enum):
    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


class Way(_Word):
    """The direction of the bytes that a fault counts and affects."""

    UP = "up"
    """From the client to the namespace."""
    DOWN = "down"
    BOTH = "both"
    """Acts on both ways; counts what goes up."""


class Kind(_Word):
    """The kind of fault."""

    CUT = "cut"
    """Both ends are told that the connection was reset."""
    CLOSE = "close"
    """Both ends see the other one close."""
    HALF_CLOSE = "half close"
    """One direction ends; the other continues."""
    TRUNCATE = "truncate"
    """The frame that is under way, or the next one, arrives only by half; then both ends see the other one close."""
    STALL = "stall"
    """No more bytes arrive, without an error."""
    DELAY = "delay"
    """Everything arrives ``pause_s`` late."""
    DRIP = "drip"
    """There arrive ``size_bytes`` at a time, and no more for ``pause_s``."""
    REFUSE = "refuse"
    """The connection is reset before anything is read of it."""
    CORRUPT = "corrupt"
    """The next byte arrives as another one, which no network does and a broken peer may."""


LASTING: Final = frozenset({Kind.STALL, Kind.DELAY, Kind.DRIP})
"""Faults that may end without affecting the connection."""

HONEST: Final = tuple(kind for kind in Kind if kind is not Kind.CORRUPT)
"""Faults of a network: the bytes that arrive are those that were sent."""


class _Value:
    """Prints what differs from the default."""

    __slots__ = ()

    def __repr__(self) -> str:
        reported = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)  # type: ignore[arg-type]
            if getattr(self, field.name) != field.default
        ]
        return f"{type(self).__name__}({', '.join(reported)})"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Fault(_Value):
    """One thing that goes wrong with one connection: after so many bytes, or so many seconds; else at once."""

    kind: Kind
    connection: int = 0
    """The number of the connection, in order."""
    way: Way = Way.UP
    after_bytes: int | None = None
    after_s: float | None = None
    """Since the connection came."""
    lasts_s: float | None = None
    """For what can be over; ``None`` for as long as the connection."""
    pause_s: float = 0.0
    size_bytes: int = 1

    def __post_init__(self) -> None:
        if self.after_bytes is not None and self.after_s is not None:
            raise ValueError("a fault comes after so many bytes or after so many seconds")
        if self.lasts_s is not None and self.kind not in LASTING:
            raise ValueError(f"{self.kind!r} does not pass")
        if self.kind is Kind.DRIP and (self.size_bytes < 1 or self.pause_s <= 0):
            raise ValueError("what drips comes in pieces of a byte at least, with a pause between them")

    @property
    def counted(self) -> Way:
        """The way whose bytes are counted."""
        return Way.DOWN if self.way is Way.DOWN else Way.UP


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Outage(_Value):
    """A time without connectivity, counted from the start of the schedule."""

    after_s: float
    lasts_s: float
    is_silent: bool = False
    """Connections are neither cut nor refused: nothing arrives until it is over."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Schedule(_Value):
    """All that goes wrong. Connections that no fault names are sound."""

    faults: tuple[Fault, ...] = ()
    outages: tuple[Outage, ...] = ()

    @classmethod
    def seeded(cls, random: Random, *, connections: int = 4, kinds: Sequence[Kind] = HONEST) -> Self:
        """A few faults on the first connections, and sometimes an outage; all of it is over at some time."""
        faults = tuple(
            _seeded_fault(random, connection, kinds)
            for connection in range(random.randint(1, connections))
            for _ in range(random.choice((1, 1, 2)))
        )
        outages = [
            Outage(after_s=_seconds(random), lasts_s=_seconds(random), is_silent=random.random() < 0.5)
            for _ in range(random.choice((0, 0, 1)))
        ]
        return cls(faults=faults, outages=tuple(outages))

    def of(self, connection: int) -> list[Fault]:
        return [fault for fault in self.faults if fault.connection == connection]

    @property
    def quiet_s(self) -> float:
        """From when on new connections get through, unless a fault names them."""
        return max((outage.after_s + outage.lasts_s for outage in self.outages), default=0.0)


SOUND: Final = Schedule()


def _seeded_fault(random: Random, connection: int, kinds: Sequence[Kind]) -> Fault:
    kind = random.choice(kinds)
    by_bytes = kind is not Kind.REFUSE and random.random() < 0.7
    by_time = kind is not Kind.REFUSE and not by_bytes
    return Fault(
        kind=kind,
        connection=connection,
        way=random.choice(tuple(Way)),
        after_bytes=int(_MOST_BYTES ** random.random()) - 1 if by_bytes else None,
        after_s=_seconds(random) if by_time else None,
        lasts_s=_seconds(random) if kind in LASTING and random.random() < 0.6 else None,
        pause_s=round(random.uniform(0.001, 3.0), 3) if kind in {Kind.DELAY, Kind.DRIP} else 0.0,
        size_bytes=random.choice((1, 3, 7, 64, 512)) if kind is Kind.DRIP else 1,
    )


def _seconds(random: Random) -> float:
    """Short ones more often than long ones."""
    return round(float(_LONGEST_S ** random.random()) - 1.0, 3)
