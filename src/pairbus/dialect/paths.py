"""Paths of entities, of their sub-queues, and of backlog queues."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

TRANSFER: Final = "x-servicebus-transfer"
DRILL: Final = "x-pairbus-drill"
"""The prefix of the path of a drill's queue on the primary, and the name of the property that marks its message."""


def backlog_path(namespace: str, index: int) -> str:
    """Return the path of a backlog queue of a primary namespace."""
    return f"{namespace}/{TRANSFER}/{index}"


def is_backlog_path(path: str) -> bool:
    """Return True if a queue with this path is a backlog queue of a namespace."""
    name, _, number = path.rpartition("/")
    return number.isdecimal() and name.lower().endswith(f"/{TRANSFER}")


def is_drill_path(path: str) -> bool:
    """Return True if a queue with this path belongs to a drill."""
    return path.lower().startswith(f"{DRILL}/")


CBS: Final = "$cbs"
MANAGEMENT: Final = "$management"
_SUBSCRIPTIONS: Final = "subscriptions"
_IN_NO_NAME: Final = re.compile(r"[@?#*\\\x00-\x1f\x7f\ud800-\udfff]")


class SubQueue(Enum):
    """The sub-queues of a queue or subscription, with the suffix of their path."""

    DEAD_LETTER = "$DeadLetterQueue"
    TRANSFER_DEAD_LETTER = "$Transfer/$DeadLetterQueue"


_SUFFIXES: Final = (  # the longer one first: it ends with the shorter one
    (("$transfer", "$deadletterqueue"), SubQueue.TRANSFER_DEAD_LETTER),
    (("$deadletterqueue",), SubQueue.DEAD_LETTER),
)


@dataclass(frozen=True, slots=True)
class EntityPath:
    """A parsed address. Names are kept as written; they are case-insensitive."""

    entity: str
    subscription: str | None = None
    sub_queue: SubQueue | None = None
    management: bool = False

    def __str__(self) -> str:
        path = self.entity if self.subscription is None else f"{self.entity}/Subscriptions/{self.subscription}"
        if self.sub_queue is not None:
            path = f"{path}/{self.sub_queue.value}"
        return f"{path}/{MANAGEMENT}" if self.management else path


def parse_entity_path(address: str) -> EntityPath | None:
    """Parse an address, with or without scheme and host; return ``None`` if it cannot name an entity."""
    return split_entity_path(path_within(address))


def path_within(address: str) -> str:
    """Return the path of an address within the namespace, as written; ``""`` for the namespace itself."""
    _, separator, rest = address.partition("://")
    path = rest.partition("/")[2] if separator else address
    return path.strip("/")


def split_entity_path(path: str) -> EntityPath | None:
    """Parse a path that is already relative to the namespace: a name may look like an address itself."""
    segments = path.strip("/").split("/")
    management = segments[-1].lower() == MANAGEMENT
    if management:
        segments.pop()
    sub_queue = None
    for suffix, kind in _SUFFIXES:
        if tuple(segment.lower() for segment in segments[-len(suffix) :]) == suffix:
            sub_queue = kind
            del segments[-len(suffix) :]
            break
    subscription = None
    if len(segments) > 2 and segments[-2].lower() == _SUBSCRIPTIONS:
        subscription = segments[-1]
        del segments[-2:]
    if not all(segments) or not segments:
        return None
    return EntityPath("/".join(segments), subscription, sub_queue, management)


def takes_messages(path: str) -> bool:
    """Return True if a path can be that of a queue or topic: nothing else can be sent to."""
    found = split_entity_path(path)
    return (
        found is not None
        and found.subscription is None
        and found.sub_queue is None
        and not found.management
        and path == path.strip("/")
        and _IN_NO_NAME.search(path) is None
        and not any(segment.startswith("$") for segment in found.entity.split("/"))
    )
