"""What brings messages home from the backlog, as far as a pair knows it: there are several engines that can."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Final, Protocol

from pairbus.client.factory import MessagingFactory
from pairbus.client.validation import check_type
from pairbus.pairing.events import Listener
from pairbus.pairing.homecoming.bound import key_of
from pairbus.pairing.status import SyphonStatus

IN_PROCESS: Final = "in-process"
"""The engine that needs nothing else."""

IDLE_POLLS_PER_PEEK: Final = 4
"""How many receives of the in-process engine come back empty before it peeks at an idle queue, which is billed, too."""


class TimeToLive(Enum):
    """What becomes of the time to live of a message that was in the backlog."""

    FULL = "full"
    """It begins anew when the message comes home."""
    REMAINING = "remaining"
    """The time in the backlog counts: a message that has outlived it is dead-lettered there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyphonSettings:
    """What can be set for a syphon, whichever engine it has."""

    long_poll: timedelta = timedelta(minutes=15)
    """How long one receive waits at an empty backlog queue; each is paid for."""

    time_to_live: TimeToLive = TimeToLive.FULL
    max_messages: int = 200
    """How many messages of each backlog queue are under way at a time."""

    def __post_init__(self) -> None:
        check_type("long_poll", self.long_poll, (timedelta,))
        check_type("time_to_live", self.time_to_live, (TimeToLive,))
        check_type("max_messages", self.max_messages, (int,))
        if not timedelta(seconds=1) <= self.long_poll <= timedelta(days=1):
            raise ValueError(f"long_poll is {self.long_poll}; it must be a second to a day")
        if self.max_messages < 1:
            raise ValueError(f"max_messages is {self.max_messages}; it must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a pair sends nothing to at a moment. It can go to other processes."""

    known: Mapping[str, bool] = field(default_factory=dict)
    """Whether an entity is held, by its key; of those that the pair has to do with."""

    others: bool = False
    """Whether all others are."""

    @property
    def is_all(self) -> bool:
        """Whether everything that the pair has to do with is held."""
        return self.others or (bool(self.known) and all(self.known.values()))

    def holds(self, path: str) -> bool:
        return self.known.get(key_of(path), self.others)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyphonContext:
    """Everything that an engine is given."""

    primary: MessagingFactory
    secondary: MessagingFactory
    backlog_queues: tuple[str, ...]
    settings: SyphonSettings
    is_held: Callable[[str], bool]
    """Whether the pair sends nothing to an entity of the primary at the moment, because it is down or by hand."""

    tell: Listener
    """Takes the events of the syphon."""

    held: Callable[[], Held] = Held
    """What ``is_held`` says of all entities, as a value."""


class Syphon(Protocol):
    """Moves messages from the backlog to their destinations until it is closed.

    It removes a message from the backlog only after the destination has confirmed it; leaves what is down for later
    without holding up the rest; dead-letters in the backlog what can never be delivered; and keeps the order of the
    messages of a session. It may die at any point, and others may work beside it.
    """

    @property
    def status(self) -> SyphonStatus: ...

    async def start(self) -> None:
        """Begin; raises what makes it impossible to begin."""

    def resume(self, path: str) -> None:
        """The pair sends to an entity again that was held: what waits for it need not wait longer."""

    async def close(self) -> None:
        """Stop. What is under way is finished or given back."""


SyphonEngine = Callable[[SyphonContext], Syphon]
