"""Lifecycle events of messages, as the ledger stores them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from pairbus.broker import Address, MessageEvent, Record
from pairbus.dialect.paths import is_backlog_path
from pairbus.dialect.transfer import TransferError, read_transfer
from pairbus.ledger.events import ALIVE_EVERY_MS, LedgerEvent, LifecycleEvent, Stage
from pairbus.ledger.settings import LedgerStatus

_EVENTS: Final = {
    moment: LedgerEvent.DEAD_LETTERED if moment is MessageEvent.EXPIRED_TO_DEAD_LETTERS else LedgerEvent[moment.name]
    for moment in MessageEvent
}
_ARRIVALS: Final = frozenset({MessageEvent.ACCEPTED, MessageEvent.REPEATED, MessageEvent.FOUND})
_ORDINAL_BITS: Final = 22
"""Ordinals start with the time at which the process was started, so that those of later processes are larger."""

_UNKNOWN: Final = 1 << _ORDINAL_BITS
"""Maximum number of events without a change in the store between two that have one."""

LARGEST_ORDINAL: Final = (1 << 63) - 1
"""The largest number that fits into a signed 64-bit column of the ledger."""

_LAST_TO_FOLLOW: Final = LARGEST_ORDINAL - (1 << 40)
"""A larger ordinal leaves no room for the events of a process after it."""

_LATEST_MS: Final = (1 << 41) - (1 << 36)
"""Latest time, in 2037, that ordinals are based on: later ones would be too large. Later starts continue counting."""

_SPILL_EVENTS: Final = 10_000
_MAX_WAITING: Final = 100_000
_WAIT_S: Final = 5.0
_POLL_S: Final = 0.01
_NO_RECORD: Final = Record(0, 0, 0, 0, 0, "", None, None, None, None, 0)


def start_of(ordinal: int) -> int:
    """Return when the process that assigned an ordinal was started, in milliseconds; not later than the event."""
    return ordinal >> _ORDINAL_BITS


class EventRecorder:
    """Receives the events of the broker, and keeps them until the next commit takes them."""

    def __init__(
        self,
        path_of: Callable[[Address], str],
        start_ms: int,
        spill: Callable[[list[LifecycleEvent]], object] | None = None,
    ) -> None:
        """``spill`` is called with events that are too many to keep while the namespace is loaded."""
        self.now_ms: Callable[[], int] = lambda: start_ms
        """Returns the time that the broker was given last; called for each event, so it must be cheap."""

        self._path_of = path_of
        self._ordinal = min(start_ms, _LATEST_MS) << _ORDINAL_BITS
        self._taken_ms = start_ms
        """Time of the last event that was taken."""

        self._waiting: list[LifecycleEvent] = []
        self._paths: dict[Address, tuple[str, bool]] = {}
        self._spill = spill

    def begin(self, after: int = 0) -> None:
        """Record that the namespace is loaded from the store: at the start, or because a commit has failed.

        Events that no commit has taken are discarded, since they are undone. ``after`` is the last ordinal that the
        store has confirmed, and is recorded with the start. It may be that of an earlier process whose clock was ahead;
        one that is too large for the ledger counts as none.
        """
        self._waiting.clear()
        if after <= _LAST_TO_FOLLOW:
            self._ordinal = max(self._ordinal, after + _UNKNOWN)
        else:
            after = 0
        self._append(LedgerEvent.STARTED, Stage.DIRECT, "", _NO_RECORD._replace(sequence=after))

    def end(self) -> None:
        """Record that the namespace is closed; this is its last event."""
        self._append(LedgerEvent.STOPPED, Stage.DIRECT, "", _NO_RECORD)

    def note_alive(self, now_ms: int) -> None:
        """Record that the namespace is running, if it has recorded nothing for a while."""
        if not self._waiting and now_ms - self._taken_ms >= ALIVE_EVERY_MS:
            self._append(LedgerEvent.ALIVE, Stage.DIRECT, "", _NO_RECORD)

    def settle_in(self) -> None:
        """Note that the namespace is loaded: from now on, commits take the events."""
        if self._spill is not None:
            self._spill(self.take())
            self._spill = None

    def wants_found(self) -> bool:
        return True

    def wants_body(self, address: Address, /) -> bool:
        return self._path_info(address)[1]

    def note(self, moment: MessageEvent, address: Address, record: Record, body: bytes | None = None, /) -> None:
        path, is_backlog = self._path_info(address)
        if moment in _ARRIVALS:
            stage = Stage.BACKLOG if is_backlog else Stage.SYPHON if record.returned else Stage.DIRECT
        else:
            stage = Stage.SYPHON if is_backlog else Stage.RETURNED if record.returned else Stage.DIRECT
        destination = None
        if is_backlog and body is not None:
            destination, session_id = _destination_of(body)
            record = record._replace(session_id=session_id)
        self._append(_EVENTS[moment], stage, path, record, destination)
        if self._spill is not None and len(self._waiting) >= _SPILL_EVENTS:
            self._spill(self.take())

    def _append(
        self, event: LedgerEvent, stage: Stage, path: str, record: Record, destination: str | None = None
    ) -> None:
        self._ordinal += 1
        self._waiting.append(
            LifecycleEvent(
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
        self.note(MessageEvent.REMOVED, address, _NO_RECORD)
        self._paths.pop(address, None)

    def take(self) -> list[LifecycleEvent]:
        """Return the events since the last call."""
        taken, self._waiting = self._waiting, []
        if taken:
            self._taken_ms = taken[-1].at_ms
        return taken

    def _path_info(self, address: Address) -> tuple[str, bool]:
        """Return the path, and whether it is that of a backlog queue."""
        known = self._paths.get(address)
        if known is None:
            path = self._path_of(address)
            self._paths[address] = known = path, is_backlog_path(path)
        return known


class EventLedger(Protocol):
    """The part of a ledger that records events."""

    @property
    def status(self) -> LedgerStatus: ...

    def write_events(self, events: Sequence[LifecycleEvent]) -> int: ...


class Spill:
    """Hands the events of a start over to the ledger. They may be more than the ledger keeps in memory.

    No client is connected yet, so there is a little time to wait for the ledger's disk: a few seconds in all, and as
    long as the start takes by itself. It does not wait for a disk that fails; events that do not fit then are missed.
    """

    def __init__(
        self,
        ledger: EventLedger,
        max_waiting: int = _MAX_WAITING,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._ledger = ledger
        self._max_waiting = max_waiting
        self._clock = clock
        self._sleep = sleep
        self._started_s = clock()
        self._waited_s = 0.0

    def __call__(self, events: Sequence[LifecycleEvent]) -> None:
        self._ledger.write_events(events)
        now_s = self._clock()
        worked_s = now_s - self._started_s - self._waited_s
        end_s = now_s + _WAIT_S + worked_s - self._waited_s
        while self._is_behind() and self._clock() < end_s:
            self._sleep(_POLL_S)
        self._waited_s += self._clock() - now_s

    def _is_behind(self) -> bool:
        status = self._ledger.status
        return status.error is None and status.events_waiting > self._max_waiting


def _destination_of(body: bytes) -> tuple[str | None, str | None]:
    """Return the destination of a diverted message, and its session there; ``None`` for both of another message."""
    try:
        transfer = read_transfer(body)
    except TransferError:
        return None, None
    return transfer.path.lower(), transfer.session_id
