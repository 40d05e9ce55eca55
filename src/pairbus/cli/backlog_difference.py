"""How a backlog queue that was there before differs from one that would be made today, and whether that matters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from typing import Any, Final

from pairbus.client.management.descriptions import EntityStatus, QueueDescription
from pairbus.pairing.backlog import MOST_DELIVERIES, backlog_description


class Harm(Enum):
    """What a difference does to a pair."""

    NONE = "none"
    RISK = "risk"
    """The pair works, and may lose or change something."""

    DEFECT = "defect"
    """The queue is of no use to the pair."""


_HARMS: Final[dict[str, tuple[Harm, str]]] = {
    "requires_session": (Harm.DEFECT, "it refuses diverted messages, which have no session"),
    "status": (Harm.DEFECT, "it has to take messages and to give them out"),
    "forward_to": (Harm.DEFECT, "its messages go where no syphon looks for them"),
    "requires_duplicate_detection": (
        Harm.RISK,
        "it drops a message that has the id of another one, even if they are for different queues",
    ),
    "default_message_time_to_live": (Harm.RISK, "messages that wait for longer are dead-lettered or dropped"),
    "enable_dead_lettering_on_message_expiration": (Harm.RISK, "messages that expire in it are dropped"),
    "auto_delete_on_idle": (Harm.RISK, "it is deleted when it was not used for so long, until somebody pairs again"),
    "max_delivery_count": (Harm.RISK, "messages are dead-lettered in it after so many tries to bring them home"),
    "enable_partitioning": (Harm.RISK, "the order of sessions cannot be preserved"),
}
_COMPARED: Final = (
    "max_size_in_megabytes",
    "lock_duration",
    "enable_batched_operations",
    "forward_dead_lettered_messages_to",
    *_HARMS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogDifference:
    """A setting of a backlog queue that is not as we would make it."""

    field: str
    found: Any
    ours: Any

    @property
    def harm(self) -> Harm:
        return _HARMS[self.field][0] if self.field in _HARMS else Harm.NONE

    @property
    def consequence(self) -> str:
        """What it leads to; empty if to nothing."""
        return _HARMS[self.field][1] if self.field in _HARMS else ""

    def __str__(self) -> str:
        return f"{self.field} is {value_text(self.found)} instead of {value_text(self.ours)}"


def differences(found: QueueDescription) -> tuple[BacklogDifference, ...]:
    """Compare a queue with the backlog queue that we would make at its path."""
    ours = _filled(backlog_description(found.path), found)
    pairs = ((name, getattr(found, name), getattr(ours, name)) for name in _COMPARED)
    return tuple(BacklogDifference(field=name, found=was, ours=wanted) for name, was, wanted in pairs if was != wanted)


def _filled(ours: QueueDescription, found: QueueDescription) -> QueueDescription:
    """With the defaults of the service, as far as they matter."""
    capped = found.max_delivery_count == MOST_DELIVERIES
    return replace(
        ours,
        max_delivery_count=MOST_DELIVERIES if capped else ours.max_delivery_count,
        requires_session=False,
        requires_duplicate_detection=False,
        enable_partitioning=False,
        status=EntityStatus.ACTIVE,
    )


def value_text(value: object) -> str:
    """A setting as a person reads it."""
    match value:
        case None:
            return "none"
        case bool():
            return "on" if value else "off"
        case timedelta():
            return "never" if value == timedelta.max else str(value)
        case Enum():
            return str(value.value)
        case _:
            return str(value)
