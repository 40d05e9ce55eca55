"""What goes wrong when a filter or an action meets a message."""

from __future__ import annotations

from pairbus.broker.errors import BrokerError


class EvaluationError(BrokerError):
    """A filter or an action cannot be evaluated for a message; ``position`` counts characters from 0."""

    def __init__(self, reason: str, expression: str, position: int) -> None:
        super().__init__(f"{reason} at position {position} of: {expression}")
        self.reason = reason
        self.expression = expression
        self.position = position
