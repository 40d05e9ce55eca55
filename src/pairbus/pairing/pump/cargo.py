"""A message of the backlog that we have in hand."""

from __future__ import annotations

from pairbus.client.received_message import ReceivedMessage
from pairbus.dialect.entity_path import split_entity_path
from pairbus.dialect.transfer import Transfer, TransferError, read_transfer
from pairbus.pairing.pump.ahead import Line


class Cargo:
    """A locked message, and where it goes."""

    __slots__ = ("is_deferred", "line", "locked_s", "message", "payload", "sequence", "transfer")

    def __init__(self, message: ReceivedMessage, locked_s: float, *, is_deferred: bool) -> None:
        """Raises ``TransferError`` or ``InvalidMessageError`` for one that can go nowhere."""
        self.message = message
        self.payload = payload_of(message)
        self.transfer = transfer_of(message)
        self.sequence = message.sequence_number
        self.line = line_of(self.transfer)
        self.locked_s = locked_s
        """When it was locked, or its lock renewed, on the clock of the loop."""

        self.is_deferred = is_deferred
        """Whether it was parked, and is again when it is given back."""


class InvalidDestinationError(TransferError):
    """Where a message goes can be no queue and no topic."""


def transfer_of(message: ReceivedMessage) -> Transfer:
    """Read where a message goes; raises ``TransferError`` if that is nowhere."""
    transfer = read_transfer(payload_of(message))
    found = split_entity_path(transfer.path)
    if (
        found is None
        or found.subscription is not None
        or found.sub_queue is not None
        or found.management
        or any(segment.startswith("$") for segment in found.entity.split("/"))
    ):
        raise InvalidDestinationError("that is no path of a queue or topic", transfer.path)
    return transfer


def line_of(transfer: Transfer) -> Line | None:
    """What a message has to stay in order with."""
    return None if transfer.session_id is None else (key_of(transfer.path), transfer.session_id)


def key_of(path: str) -> str:
    """Entities are the same however their paths are capitalised."""
    return path.strip("/").lower()


def payload_of(message: ReceivedMessage) -> bytes:
    """The bytes of a message as they came."""
    if message.delivery is not None:
        return message.delivery.payload
    return message._sections().payload  # noqa: SLF001 (nobody else wants them)
