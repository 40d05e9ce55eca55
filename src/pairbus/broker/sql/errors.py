"""What goes wrong when a filter or an action meets a message."""

from __future__ import annotations

from pairbus.broker.errors import BrokerError


class EvaluationError(BrokerError):
    """A rule cannot make sense of a message.

    ``position`` counts the characters of the ``expression`` from 0; there is neither when the message is at fault.
    """

    def __init__(self, reason: str, expression: str | None = None, position: int | None = None) -> None:
        super().__init__(reason if expression is None else f"{reason} at position {position} of: {expression}")
        self.reason = reason
        self.expression = expression
        self.position = position
