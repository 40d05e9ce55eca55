"""Where a message of the backlog is bound for."""

from __future__ import annotations

from typing import TypeAlias

from pairbus.dialect.entity_path import takes_messages
from pairbus.dialect.transfer import Transfer, TransferError, read_transfer

Line: TypeAlias = tuple[str, str]
"""A destination and a session: what has to stay in order."""


class InvalidDestinationError(TransferError):
    """Where a message goes can be no queue and no topic."""


def bound_for(payload: bytes) -> Transfer:
    """Read where a message goes; raises ``TransferError`` if that is nowhere."""
    transfer = read_transfer(payload)
    if not takes_messages(transfer.path.strip("/")):
        raise InvalidDestinationError("that is no path of a queue or topic", transfer.path)
    return transfer


def line_of(transfer: Transfer) -> Line | None:
    """What a message has to stay in order with."""
    return None if transfer.session_id is None else (key_of(transfer.path), transfer.session_id)


def key_of(path: str) -> str:
    """Entities are the same however their paths are capitalised."""
    return path.strip("/").lower()
