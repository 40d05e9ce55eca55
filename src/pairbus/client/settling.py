"""What a receiver says of a message, in the words of links and in those of management nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pairbus.client.message import amqp_values
from pairbus.client.received_message import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON
from pairbus.dialect.conditions import ServiceBusCondition
from pairbus.wire import ACCEPTED, Error, Modified, Rejected, Symbol

Changes = Mapping[str, Any]
"""Application properties to set."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a message."""

    state: object
    """The outcome of its delivery."""

    status: str
    """The same for a management node."""

    details: Mapping[str, Any] = field(default_factory=dict)


COMPLETE = Verdict(ACCEPTED, "completed")


def abandon(changes: Changes | None) -> Verdict:
    return Verdict(
        Modified(delivery_failed=True, undeliverable_here=False, message_annotations=_annotations(changes)),
        "abandoned",
        _properties(changes),
    )


def defer(changes: Changes | None) -> Verdict:
    return Verdict(
        Modified(delivery_failed=True, undeliverable_here=True, message_annotations=_annotations(changes)),
        "defered",  # so the service spells it
        _properties(changes),
    )


def dead_letter(reason: str | None, description: str | None, changes: Changes | None) -> Verdict:
    info: dict[Any, Any] = amqp_values(changes or {})
    details: dict[str, Any] = _properties(changes)
    if reason is not None:
        info[DEAD_LETTER_REASON] = details["deadletter-reason"] = reason
    if description is not None:
        info[DEAD_LETTER_DESCRIPTION] = details["deadletter-description"] = description
    error = Error(ServiceBusCondition.DEAD_LETTER, None, {Symbol(name): value for name, value in info.items()} or None)
    return Verdict(Rejected(error), "suspended", details)


def _annotations(changes: Changes | None) -> dict[Any, Any] | None:
    return {Symbol(name): value for name, value in amqp_values(changes).items()} if changes else None


def _properties(changes: Changes | None) -> dict[str, Any]:
    return {"properties-to-modify": amqp_values(changes)} if changes else {}
