"""The system properties of a message: which there are, what they hold and which ones an action may set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pairbus.broker.values import Instant, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemProperty:
    """What the language knows of a system property."""

    name: str
    holds: type
    writable: bool


def _row(name: str, holds: type, *, writable: bool = False) -> SystemProperty:
    return SystemProperty(name=name, holds=holds, writable=writable)


_PROPERTIES: Final = (
    # What the sender of a message may set, an action may set, too.
    _row("MessageId", str, writable=True),
    _row("CorrelationId", str, writable=True),
    _row("ContentType", str, writable=True),
    _row("Label", str, writable=True),
    _row("To", str, writable=True),
    _row("ReplyTo", str, writable=True),
    _row("ReplyToSessionId", str, writable=True),
    _row("SessionId", str, writable=True),
    _row("PartitionKey", str, writable=True),
    _row("ViaPartitionKey", str, writable=True),
    _row("TimeToLive", Span, writable=True),
    _row("ScheduledEnqueueTimeUtc", Instant, writable=True),
    _row("ForcePersistence", bool, writable=True),
    # The rest is the broker's.
    _row("EnqueuedTimeUtc", Instant),
    _row("SequenceNumber", int),
    _row("EnqueuedSequenceNumber", int),
    _row("DeliveryCount", int),
    _row("ExpiresAtUtc", Instant),
    _row("Size", int),
    _row("State", str),
    _row("DeadLetterSource", str),
    _row("LockToken", str),
    _row("LockedUntilUtc", Instant),
)
_ALIASES: Final = {"subject": "label"}
_BY_NAME: Final = {row.name.lower(): row for row in _PROPERTIES}


def system_property(name: str) -> SystemProperty | None:
    """The system property of that name in whatever case, or ``None``."""
    # Some letters outside ASCII have a lower case inside it: the Kelvin sign is no k.
    lower = name.lower() if name.isascii() else name
    return _BY_NAME.get(_ALIASES.get(lower, lower))
