"""What happens to messages, as the ledger has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pairbus.broker import Address, Moment, Record
from pairbus.dialect.backlog_path import is_backlog_path
from pairbus.dialect.transfer import TransferError, read_transfer
from pairbus.ledger.life import Event, Life
from pairbus.ledger.operation import Stage

_EVENTS: Final = {moment: Event[moment.name] for moment in Moment}
_ARRIVALS: Final = frozenset({Moment.ACCEPTED, Moment.REPEATED, Moment.FOUND})
_ORDINAL_BITS: Final = 22
"""Ordinals begin with the time of the start: those of a later process are larger."""

_UNKNOWN: Final = 1 << _ORDINAL_BITS
"""So many events at most have changed nothing in the store since the last that has."""

_MANY: Final = 10_000
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
        self._ordinal = start_ms << _ORDINAL_BITS
        self._waiting: list[Life] = []
        self._paths: dict[Address, tuple[str, bool]] = {}
        self._spill = spill

    def begin(self, after: int = 0) -> None:
        """The namespace is read from the store: at the start, or because a commit has failed.

        What no commit has taken yet has not happened then. ``after`` is an ordinal of an earlier process, whose clock
        may have been ahead.
        """
        self._waiting.clear()
        self._ordinal = max(self._ordinal, after + _UNKNOWN)
        self._append(Event.STARTED, Stage.DIRECT, "", _NOBODY)

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


def _bound_for(body: bytes) -> tuple[str | None, str | None]:
    """Where a diverted message goes, and its session there: in the backlog it has none. Nothing where it is none."""
    try:
        transfer = read_transfer(body)
    except TransferError:
        return None, None
    return transfer.path.lower(), transfer.session_id
