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
_ORDINAL_BITS: Final = 22
"""Ordinals begin with the time of the start: those of a later process are larger."""

_NOBODY: Final = Record(0, 0, 0, 0, 0, "", None, None, None, None, 0)


class Lives:
    """Is told by the broker, and keeps what it is told until the commit takes it."""

    def __init__(self, path_of: Callable[[Address], str], start_ms: int) -> None:
        self.now_ms: Callable[[], int] = lambda: start_ms
        """The time that the broker has, and no newer one: it is asked for each event."""

        self._path_of = path_of
        self._ordinal = start_ms << _ORDINAL_BITS
        self._waiting: list[Life] = []
        self._paths: dict[Address, tuple[str, bool]] = {}

    def note(self, moment: Moment, address: Address, record: Record, body: bytes | None = None, /) -> None:
        path, is_backlog = self._paths.get(address) or self._learn(address)
        if moment is Moment.ACCEPTED or moment is Moment.REPEATED:
            stage = Stage.BACKLOG if is_backlog else Stage.SYPHON if record.returned else Stage.DIRECT
        else:
            stage = Stage.SYPHON if is_backlog else Stage.RETURNED if record.returned else Stage.DIRECT
        self._ordinal += 1
        self._waiting.append(
            Life(
                self.now_ms(),
                self._ordinal,
                _EVENTS[moment],
                stage,
                path,
                record.sequence,
                record.original_sequence,
                record.message_id,
                record.session_id,
                _destination(body) if is_backlog and body is not None else None,
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

    def _learn(self, address: Address) -> tuple[str, bool]:
        path = self._path_of(address)
        self._paths[address] = known = path, is_backlog_path(path)
        return known


def _destination(body: bytes) -> str | None:
    """Where a diverted message is bound for; ``None`` where it is none."""
    try:
        return read_transfer(body).path.lower()
    except TransferError:
        return None
