"""What happens to messages, as the ledger has it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from pairbus.broker import Address, Moment, Record
from pairbus.dialect.backlog_path import is_backlog_path
from pairbus.dialect.transfer import TransferError, read_transfer
from pairbus.ledger.life import Event, Life
from pairbus.ledger.operation import Stage
from pairbus.ledger.status import LedgerStatus

_EVENTS: Final = {moment: Event[moment.name] for moment in Moment}
_ARRIVALS: Final = frozenset({Moment.ACCEPTED, Moment.REPEATED, Moment.FOUND})
_ORDINAL_BITS: Final = 22
"""Ordinals begin with the time of the start: those of a later process are larger."""

_UNKNOWN: Final = 1 << _ORDINAL_BITS
"""So many events at most have changed nothing in the store since the last that has."""

LARGEST_ORDINAL: Final = (1 << 63) - 1
"""The ledger has 64 bits for a number, and one of them is its sign."""

_LAST_TO_FOLLOW: Final = LARGEST_ORDINAL - (1 << 40)
"""Behind a larger one there is no room for the events of a process."""

_LATEST_MS: Final = (1 << 41) - (1 << 36)
"""A clock is believed up to here, in 2037: soon after it, ordinals would be too large. Later starts go on counting."""

_MANY: Final = 10_000
_MOST_WAITING: Final = 100_000
_WAIT_S: Final = 5.0
_POLL_S: Final = 0.01
_NOBODY: Final = Record(0, 0, 0, 0, 0, "", None, None, None, None, 0)


def start_of(ordinal: int) -> int:
    """When the process was started that has counted so far, in milliseconds; no later than the event."""
    return ordinal >> _ORDINAL_BITS


class Lives:
    """Is told by the broker, and keeps what it is told until the commit takes it."""

    def __init__(
        self, path_of: Callable[[Address], str], start_ms: int, spill: Callable[[list[Life]], object] | None = None
    ) -> None:
        """``spill`` takes what is too much to keep while the namespace is read, until ``settle_in``."""
        self.now_ms: Callable[[], int] = lambda: start_ms
        """The time that the broker has, and no newer one: it is asked for each event."""

        self._path_of = path_of
        self._ordinal = min(start_ms, _LATEST_MS) << _ORDINAL_BITS
        self._waiting: list[Life] = []
        self._paths: dict[Address, tuple[str, bool]] = {}
        self._spill = spill

    def begin(self, after: int = 0) -> None:
        """The namespace is read from the store: at the start, or because a commit has failed.

        What no commit has taken yet has not happened then. ``after`` is the last ordinal that the store has confirmed,
        and is recorded with the start. It may be of an earlier process, whose clock was ahead; one that is too large to
        be in the ledger counts as none.
        """
        self._waiting.clear()
        if after <= _LAST_TO_FOLLOW:
            self._ordinal = max(self._ordinal, after + _UNKNOWN)
        else:
            after = 0
        self._append(Event.STARTED, Stage.DIRECT, "", _NOBODY._replace(sequence=after))

    def end(self) -> None:
        """Record that the namespace is closed: nothing happens after this."""
        self._append(Event.STOPPED, Stage.DIRECT, "", _NOBODY)

    def settle_in(self) -> None:
        """The namespace is read: from now on, commits take what has happened."""
        if self._spill is not None:
            self._spill(self.take())
            self._spill = None

    def wants_body(self, address: Address, /) -> bool:
        return self._known(address)[1]

    def note(self, moment: Moment, address: Address, record: Record, body: bytes | None = None, /) -> None:
        path, is_backlog = self._known(address)
        if moment in _ARRIVALS:
            stage = Stage.BACKLOG if is_backlog else Stage.SYPHON if record.returned else Stage.DIRECT
        else:
            stage = Stage.SYPHON if is_backlog else Stage.RETURNED if record.returned else Stage.DIRECT
        destination = None
        if is_backlog and body is not None:
            destination, session_id = _bound_for(body)
            record = record._replace(session_id=session_id)
        self._append(_EVENTS[moment], stage, path, record, destination)
        if self._spill is not None and len(self._waiting) >= _MANY:
            self._spill(self.take())

    def _append(self, event: Event, stage: Stage, path: str, record: Record, destination: str | None = None) -> None:
        self._ordinal += 1
        self._waiting.append(
            Life(
                self.now_ms(),
                self._ordinal,
                event,
                stage,
                path,
                record.sequence,
                record.original_sequence,
                record.message_id,
                record.session_id,
                destination,
                record.size,
            )
        )

    def note_gone(self, address: Address, /) -> None:
        self.note(Moment.REMOVED, address, _NOBODY)
        self._paths.pop(address, None)

    def take(self) -> list[Life]:
        """What has happened since this was called last."""
        taken, self._waiting = self._waiting, []
        return taken

    def _known(self, address: Address) -> tuple[str, bool]:
        """The path, and whether it is that of a backlog queue."""
        known = self._paths.get(address)
        if known is None:
            path = self._path_of(address)
            self._paths[address] = known = path, is_backlog_path(path)
        return known


class Book(Protocol):
    """Where it goes: a ledger."""

    @property
    def status(self) -> LedgerStatus: ...

    def write_lives(self, lives: Sequence[Life]) -> int: ...


class Spill:
    """Takes what is found at the start to the ledger. There may be more of it than that keeps in memory.

    Nobody is served yet, so there is a little time to wait for the ledger's disk: a few seconds in all, and as long as
    the start takes by itself. For a disk that takes nothing there is none; what does not fit then is missed.
    """

    def __init__(
        self,
        book: Book,
        most_waiting: int = _MOST_WAITING,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._book = book
        self._most_waiting = most_waiting
        self._clock = clock
        self._sleep = sleep
        self._begun_s = clock()
        self._waited_s = 0.0

    def __call__(self, lives: Sequence[Life]) -> None:
        self._book.write_lives(lives)
        now_s = self._clock()
        worked_s = now_s - self._begun_s - self._waited_s
        end_s = now_s + _WAIT_S + worked_s - self._waited_s
        while self._is_behind() and self._clock() < end_s:
            self._sleep(_POLL_S)
        self._waited_s += self._clock() - now_s

    def _is_behind(self) -> bool:
        status = self._book.status
        return status.error is None and status.lives_waiting > self._most_waiting


def _bound_for(body: bytes) -> tuple[str | None, str | None]:
    """Where a diverted message goes, and its session there: in the backlog it has none. Nothing where it is none."""
    try:
        transfer = read_transfer(body)
    except TransferError:
        return None, None
    return transfer.path.lower(), transfer.session_id
