"""A message that was received and is sent on: what the sender wrote, without what the service has added."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from pairbus.dialect.annotations import LOCK_TOKEN
from pairbus.dialect.delivered import STAMPED, has_message_id, is_lock_alone, is_stamp_alone
from pairbus.wire import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Header,
    Sections,
    encode,
)

_ADDED: Final = b"x-opt-"
"""How the names begin of all that the service adds."""

_LOCK: Final = frozenset({LOCK_TOKEN})


def forwarded(payload: bytes, fresh_id: Callable[[], str]) -> bytes:
    """The message to send; the very same bytes where nothing was added. Raises ``ProtocolError``.

    One without a message id is given one: the service would give it another one each time that it is sent.
    """
    sections = Sections(payload)
    has_id = has_message_id(sections)
    if has_id and _ADDED not in payload:
        return payload
    parts = [
        _header(sections.raw(HEADER)),
        _delivery_annotations(sections),
        _message_annotations(sections),
        sections.raw(PROPERTIES) if has_id else encode(sections.properties()._replace(message_id=fresh_id())),
        sections.raw(APPLICATION_PROPERTIES),
    ]
    parts += [payload[start:end] for _, start, _, end in sections.body]
    parts.append(sections.raw(FOOTER))
    return b"".join(parts)


@lru_cache(maxsize=256)
def _header(raw: bytes) -> bytes:
    """A header without what the service says in it; most messages have one of a few."""
    sent = Sections(raw).header()._replace(first_acquirer=False, delivery_count=0)
    return b"" if sent == Header() else encode(sent)


def _delivery_annotations(sections: Sections) -> bytes:
    raw = sections.raw(DELIVERY_ANNOTATIONS)
    if not raw or is_lock_alone(raw):
        return b""
    return _without(DELIVERY_ANNOTATIONS, raw, sections.delivery_annotations(), _LOCK)


def _message_annotations(sections: Sections) -> bytes:
    raw = sections.raw(MESSAGE_ANNOTATIONS)
    if not raw or is_stamp_alone(raw):
        return b""
    return _without(MESSAGE_ANNOTATIONS, raw, sections.message_annotations(), STAMPED)


def _without(code: int, raw: bytes, annotations: dict[Any, Any], names: frozenset[str]) -> bytes:
    """A section of annotations without some; as it is, if it has none of them."""
    kept = {name: value for name, value in annotations.items() if name not in names}
    if len(kept) == len(annotations):
        return raw
    return bytes((0x00, 0x53, code)) + encode(kept) if kept else b""
