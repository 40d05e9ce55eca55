"""The interface of a syphon, which several engines implement, and what a pair passes to it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Final, Protocol

from pairbus.client.errors import EntityNotFoundError
from pairbus.client.factory import MessagingFactory
from pairbus.client.validation import check_type
from pairbus.pairing.events import Listener
from pairbus.pairing.status import SyphonStatus

IN_PROCESS: Final = "in-process"
"""The engine that runs in the process of the application, and needs nothing else."""

IDLE_POLLS_PER_PEEK: Final = 4
"""Number of empty receives after which the in-process engine peeks at an idle queue; both are billed."""


def destination_key(path: str) -> str:
    """Return the key of an entity: paths are case-insensitive."""
    return path.strip("/").lower()


class TimeToLive(Enum):
    """The rule for the time to live of a message from the backlog."""

    FULL = "full"
    """It starts again when the message is delivered."""
    REMAINING = "remaining"
    """The time in the backlog counts: a message that expires there is dead-lettered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyphonSettings:
    """The settings of a syphon that all engines have."""

    long_poll: timedelta = timedelta(minutes=15)
    """The time that one receive waits for messages of an empty backlog queue; each receive is billed."""

    time_to_live: TimeToLive = TimeToLive.FULL
    max_messages: int = 1_000
    """Maximum number of messages of each backlog queue that are locked at a time; fewer if they are large."""

    def __post_init__(self) -> None:
        check_type("long_poll", self.long_poll, (timedelta,))
        check_type("time_to_live", self.time_to_live, (TimeToLive,))
        check_type("max_messages", self.max_messages, (int,))
        if not timedelta(seconds=1) <= self.long_poll <= timedelta(days=1):
            raise ValueError(f"long_poll must be 1 second to 1 day, got {self.long_poll}")
        if self.max_messages < 1:
            raise ValueError(f"max_messages must be >= 1, got {self.max_messages}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The entities that a pair does not send to at the moment, as a value that can be sent to other processes."""

    known: Mapping[str, bool] = field(default_factory=dict)
    """For each entity known to the pair, by its key: true if it is held."""

    others: bool = False
    """True if all other entities are held."""

    @property
    def is_all(self) -> bool:
        """True if every entity known to the pair is held."""
        return self.others or (bool(self.known) and all(self.known.values()))

    def holds(self, path: str) -> bool:
        return self.known.get(destination_key(path), self.others)


def _ignore(path: str, error: EntityNotFoundError) -> None:
    """Do nothing: without a pair a missing backlog queue is not created again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyphonContext:
    """The parameters that a pair passes to a syphon engine."""

    primary: MessagingFactory
    secondary: MessagingFactory
    backlog_queues: tuple[str, ...]
    settings: SyphonSettings
    is_held: Callable[[str], bool]
    """Returns whether the pair does not send to an entity of the primary, because it is down or by a manual switch."""

    publish: Listener
    """Called with each event of the syphon."""

    held: Callable[[], Held] = Held
    """Returns what ``is_held`` returns for all entities, as a value."""

    missing: Callable[[str, EntityNotFoundError], None] = _ignore
    """Called with the path of a backlog queue that does not exist any more, and the error: a pair creates it again."""

    @property
    def tell(self) -> Listener:
        """Former name of ``publish``, deprecated."""
        warnings.warn("SyphonContext.tell is now called publish", DeprecationWarning, stacklevel=2)
        return self.publish


class Syphon(Protocol):
    """Moves messages from the backlog to their destinations until it is closed.

    It removes a message from the backlog only after the destination has confirmed it, retries destinations that are
    down without delaying the others, dead-letters messages that can never be delivered in the backlog, and keeps the
    order of the messages of a session. Its process may be killed at any time, and several syphons may run at once. It
    waits for a backlog queue that was deleted while it reads the others, and continues when the queue exists again.
    """

    @property
    def status(self) -> SyphonStatus: ...

    async def start(self) -> None:
        """Start; raise what makes that impossible."""

    def resume(self, path: str) -> None:
        """Deliver the messages of an entity that was held, and that the pair sends to again."""

    async def close(self) -> None:
        """Stop, after the messages being delivered are settled or given back."""


SyphonEngine = Callable[[SyphonContext], Syphon]
