"""A message of the backlog that we have in hand."""

from __future__ import annotations

from pairbus.client.received_message import ReceivedMessage
from pairbus.dialect.transfer import Transfer
from pairbus.pairing.ahead import Line


class Cargo:
    """A locked message, and where it goes."""

    __slots__ = ("is_deferred", "line", "locked_s", "message", "payload", "sequence", "transfer")

    def __init__(
        self, message: ReceivedMessage, payload: bytes, transfer: Transfer, locked_s: float, *, is_deferred: bool
    ) -> None:
        self.message = message
        self.payload = payload
        self.transfer = transfer
        self.sequence = message.sequence_number
        self.line: Line | None = None if transfer.session_id is None else (key_of(transfer.path), transfer.session_id)
        self.locked_s = locked_s
        """When it was locked, or its lock renewed, on the clock of the loop."""

        self.is_deferred = is_deferred
        """Whether it was parked, and is again when it is given back."""


def key_of(path: str) -> str:
    """Entities are the same however their paths are capitalised."""
    return path.strip("/").lower()


def payload_of(message: ReceivedMessage) -> bytes:
    """The bytes of a message as they came."""
    if message.delivery is not None:
        return message.delivery.payload
    return message._sections().payload  # noqa: SLF001 (nobody else wants them)
