"""What is billed: operations, by what they did and what for."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

UNIT_BYTES: Final = 64 * 1024
"""A message is billed once for every 64 KB of it that have begun."""

SUCCEEDED: Final = "ok"
"""The result of an operation that did what it was asked to; others have the error condition of the refusal."""


class Kind(StrEnum):
    """What was done. Which of these cost something is the rate card's business."""

    SEND = "send"
    RECEIVE = "receive"
    """A message given to a receiver."""

    EMPTY_RECEIVE = "empty receive"
    """A receiver that waited, and went away with nothing."""

    PEEK = "peek"
    SETTLE = "settle"
    RENEW_LOCK = "renew lock"
    SCHEDULE = "schedule"
    CANCEL = "cancel"
    PURGE = "purge"
    SESSION_STATE = "session state"
    RULES = "rules"
    """Rules of a subscription, asked for or changed by its receiver."""

    MANAGEMENT = "management"
    """A request to the management API."""

    CONNECTION = "connection"
    """Connections that were open; nothing was done."""


class Stage(StrEnum):
    """What an operation was for, as far as pairing is concerned."""

    DIRECT = "direct"
    BACKLOG = "backlog"
    """A message was diverted: the first of its four charges."""

    SYPHON = "syphon"
    """A diverted message was fetched from its backlog queue, or sent to its destination: the second, the third."""

    RETURNED = "returned"
    """One that had been brought home was received: the fourth."""

    PING = "ping"
    IDLE = "idle"
    """A receive from a backlog queue that found nothing."""

    MANAGEMENT = "management"


class Sort(NamedTuple):
    """What operations have in common that are counted together."""

    kind: Kind
    stage: Stage
    entity: str
    """The path; empty where an operation is about no entity, or about many."""

    result: str
    who: str
    """The name of the key that the peer has shown; empty if it has shown none."""


class Tally:
    """Operations of one sort, counted together.

    Messages are counted in units twice: each on its own, and all of a request together. Rate cards differ in that.
    """

    __slots__ = ("bytes", "messages", "operations", "request_units", "units")

    def __init__(self) -> None:
        self.operations = 0
        self.messages = 0
        self.bytes = 0
        self.units = 0
        self.request_units = 0

    def add(self, messages: int = 0, size_bytes: int = 0, units: int = 1, request_units: int = 1) -> None:
        """Count one operation."""
        self.operations += 1
        self.messages += messages
        self.bytes += size_bytes
        self.units += units
        self.request_units += request_units

    def merge(self, other: Tally) -> None:
        """Count what another one has counted."""
        self.operations += other.operations
        self.messages += other.messages
        self.bytes += other.bytes
        self.units += other.units
        self.request_units += other.request_units


def units_of(size_bytes: int) -> int:
    """How many times something of that size is billed."""
    return max(1, -(-size_bytes // UNIT_BYTES))
