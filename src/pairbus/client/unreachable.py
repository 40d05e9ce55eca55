"""What is said of a namespace that nobody gets through to."""

from __future__ import annotations

from pairbus.client.endpoint import Endpoint
from pairbus.client.errors import MessagingCommunicationError


def unreachable(endpoint: Endpoint, error: Exception) -> MessagingCommunicationError:
    """With what to look at: whoever reads it may not know which of the two is wrong."""
    return MessagingCommunicationError(
        f"{endpoint} cannot be reached: {error}; is its namespace running, and is that the Endpoint of its connection"
        " string?"
    )
