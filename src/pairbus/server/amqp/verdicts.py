"""Outcomes on the wire as the broker's verdicts."""

from __future__ import annotations

from typing import Any, Final

from pairbus.broker import COMPLETE, Disposition, Verdict
from pairbus.broker.reasons import DESCRIPTION_PROPERTY, REASON_PROPERTY
from pairbus.server.errors import BadRequestError
from pairbus.server.messages import values_from_wire
from pairbus.wire import Accepted, Modified, Rejected, Released

_RELEASE: Final = Verdict(disposition=Disposition.RELEASE)


def verdict_of(state: object) -> Verdict:
    """What a receiver means; raises ``BadRequestError`` for what is no outcome."""
    match state:
        case Accepted():
            return COMPLETE
        case Released():
            return _RELEASE
        case Modified():
            disposition = Disposition.DEFER if state.undeliverable_here else Disposition.ABANDON
            return Verdict(disposition=disposition, properties=values_from_wire(state.message_annotations or {}))
        case Rejected():
            return _dead_letter(state)
    raise BadRequestError(f"{type(state).__name__} does not say what becomes of the message")


def _dead_letter(state: Rejected) -> Verdict:
    """Whatever the condition: what a receiver rejects lies among the dead letters, with the reason it gave."""
    info: dict[Any, Any] = dict((state.error.info or {}) if state.error is not None else {})
    reason = info.pop(REASON_PROPERTY, None)
    description = info.pop(DESCRIPTION_PROPERTY, None)
    if description is None and state.error is not None:
        description = state.error.description
    return Verdict(
        disposition=Disposition.DEAD_LETTER,
        properties=values_from_wire(info),
        reason=_text(reason),
        description=_text(description),
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def echo_of(state: object) -> object:
    """What tells a receiver that its word was heard: the same outcome, without what it carries."""
    match state:
        case Rejected():
            return Rejected()
        case Modified():
            return Modified(delivery_failed=state.delivery_failed, undeliverable_here=state.undeliverable_here)
    return state
