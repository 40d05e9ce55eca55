"""A message of the backlog that we have in hand."""

from __future__ import annotations

from pairbus.client.received_message import ReceivedMessage
from pairbus.pairing.homecoming.bound import bound_for, line_of


class Cargo:
    """A locked message, and where it goes."""

    __slots__ = ("is_deferred", "line", "locked_s", "message", "payload", "sequence", "transfer")

    def __init__(self, message: ReceivedMessage, locked_s: float, *, is_deferred: bool) -> None:
        """Raises ``TransferError`` or ``InvalidMessageError`` for one that can go nowhere."""
        self.message = message
        self.payload = message.payload
        self.transfer = bound_for(message.payload)
        self.sequence = message.sequence_number
        self.line = line_of(self.transfer)
        self.locked_s = locked_s
        """When it was locked, or its lock renewed, on the clock of the loop."""

        self.is_deferred = is_deferred
        """Whether it was parked, and is again when it is given back."""
