"""The guarantee for the messages that a syphon delivers to a destination."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Final

from pairbus.client.errors import EntityNotFoundError, MessagingError, UnauthorizedError
from pairbus.client.management.descriptions import QueueDescription, TopicDescription
from pairbus.client.management.namespace_manager import NamespaceManager


class DeliveryGuarantee(Enum):
    """The number of times that a destination stores a message from the backlog."""

    EXACTLY_ONCE = "exactly once"
    """The destination detects duplicates, which covers an outage that is shorter than the window of the detection."""

    AT_LEAST_ONCE = "at least once"
    """A message may arrive twice, with the same id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationGuarantee:
    """The guarantee of one destination, with its condition."""

    guarantee: DeliveryGuarantee
    window: timedelta | None = None
    """The window of duplicate detection, which the outage must not exceed; ``None`` without duplicate detection."""

    reason: str | None = None
    """The reason why the settings of the destination are not known; ``None`` if they are."""

    def __str__(self) -> str:
        text = self.guarantee.value
        if self.window is not None:
            return f"{text} while an outage is shorter than {self.window}"
        return text if self.reason is None else f"{text} ({self.reason})"

    @property
    def facts(self) -> dict[str, str | float | None]:
        """The fields as JSON values."""
        return {
            "guarantee": self.guarantee.value,
            "window_seconds": None if self.window is None else self.window.total_seconds(),
            "reason": self.reason,
        }


NOT_LOOKED_UP: Final = DestinationGuarantee(
    guarantee=DeliveryGuarantee.AT_LEAST_ONCE, reason="not known, it has not been looked up yet"
)
"""The guarantee of a destination until its settings are known."""

_NO_MANAGE: Final = "not known, the key lacks Manage"


def guarantee_of(description: QueueDescription | TopicDescription) -> DestinationGuarantee:
    """Return the guarantee of a queue or topic with these settings."""
    if not description.requires_duplicate_detection:
        return DestinationGuarantee(guarantee=DeliveryGuarantee.AT_LEAST_ONCE)
    window = description.duplicate_detection_history_time_window
    return DestinationGuarantee(guarantee=DeliveryGuarantee.EXACTLY_ONCE, window=window)


def guarantee_without_settings(error: MessagingError) -> DestinationGuarantee:
    """Return the guarantee of a destination whose settings cannot be read because of an error."""
    reason = _NO_MANAGE if isinstance(error, UnauthorizedError) else f"not known: {' '.join(str(error).split())}"
    return DestinationGuarantee(guarantee=DeliveryGuarantee.AT_LEAST_ONCE, reason=reason)


async def read_settings(manager: NamespaceManager, path: str) -> QueueDescription | TopicDescription:
    """Return the settings of the queue or topic at a path. Raise ``MessagingError``."""
    try:
        return await manager.get_queue(path)
    except EntityNotFoundError:
        return await manager.get_topic(path)
