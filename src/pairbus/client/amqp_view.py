"""What AMQP has in a message and Service Bus makes nothing of: it is carried, and can be read and set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

NORMAL: Final = 4
"""The priority of a message that names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AmqpView:
    """The rest of a message's header, properties and annotations."""

    durable: bool = True
    priority: int = NORMAL
    user_id: bytes | None = None
    content_encoding: str | None = None
    creation_time: datetime | None = None
    absolute_expiry_time: datetime | None = None
    group_sequence: int | None = None
    annotations: Mapping[str, Any] = field(default_factory=dict)
    """Message annotations other than those that are attributes of the message."""

    delivery_annotations: Mapping[str, Any] = field(default_factory=dict)
    footer: Mapping[str, Any] = field(default_factory=dict)
