"""Frames as text, for people who look for the cause of a problem between two peers.

Bodies of messages are never shown, only their sizes: they also carry tokens. Neither are SASL responses, nor values
whose name or content looks like a secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final

from pairbus.wire.composites import LAYOUTS, Layout, from_list, layout_of
from pairbus.wire.decoder import decode_at, decode_list, skip
from pairbus.wire.errors import ProtocolError
from pairbus.wire.frames import AMQP_HEADER, HEADER_SIZE, SASL_FRAME, SASL_HEADER
from pairbus.wire.performatives import SENDER, Open, Transfer
from pairbus.wire.types import Array, Described

_PROTOCOL: Final = b"AMQP"
_HEADERS: Final = {AMQP_HEADER: "amqp", SASL_HEADER: "sasl"}
_MAX_DECODED_BYTES: Final = 8_192
"""The largest performative that is shown: others could take long to decode."""
_MAX_CHARACTERS: Final = 1_000
_MAX_VALUE_CHARACTERS: Final = 120
_MAX_ITEMS: Final = 16
_PLAIN: Final = re.compile(r"[\w.:/@$*+-]+", re.ASCII)
_SECRET_NAME: Final = re.compile(
    r"token|secret|password|credential|signature|authori[sz]ation|(?<![a-z])key", re.IGNORECASE
)
_SECRET_TEXT: Final = re.compile(r"SharedAccess|Bearer |sig=|(?<![\w-])ey[\w-]{8,}\.", re.IGNORECASE)
_REDACTED: Final = "<redacted>"
_SHOWN_BINARY: Final = frozenset({"delivery-tag", "txn-id"})
_HIDDEN_VALUES: Final = frozenset({"info", "message-annotations", "unsettled"})
"""Maps of which only the keys are shown: their values come from messages, or may repeat parts of them."""


class FrameTrace:
    """Formats the frames of one direction of a connection, from bytes in pieces of any size."""

    def __init__(self, max_frame_size: int) -> None:
        self._max_frame_size = max_frame_size
        self._data = bytearray()
        self._is_lost = False
        """True after bytes that are no frame: where the next one starts is unknown."""
        self.container: str | None = None
        """The container id of the open, once there was one."""

    def feed(self, data: bytes | memoryview) -> list[str]:
        """Return a line for each protocol header and frame that is complete now."""
        if self._is_lost:
            return []
        self._data += data
        return [*self._lines()]

    def _lines(self) -> Iterator[str]:
        while len(self._data) >= HEADER_SIZE:
            is_header = self._data.startswith(_PROTOCOL)
            size = HEADER_SIZE if is_header else int.from_bytes(self._data[:4])
            if not HEADER_SIZE <= size <= self._max_frame_size:
                self._is_lost = True
                self._data.clear()
                yield f"invalid size={size}"
                return
            if len(self._data) < size:
                return
            frame = bytes(self._data[:size])
            del self._data[:size]
            yield self._header(frame) if is_header else self._frame(frame)

    @staticmethod
    def _header(header: bytes) -> str:
        return f"header protocol={_HEADERS.get(header) or header[4:].hex()}"

    def _frame(self, frame: bytes) -> str:
        where = "" if frame[5] == SASL_FRAME else f" channel={frame[6] << 8 | frame[7]}"
        start = frame[4] * 4
        if not HEADER_SIZE <= start <= len(frame):
            return f"invalid{where} size={len(frame)}"
        if start == len(frame):
            return f"empty{where}"
        try:
            return self._performative(frame, start, where)
        except (ProtocolError, IndexError, ValueError):  # its text could quote a part of the frame
            return f"invalid{where} size={len(frame)}"

    def _performative(self, frame: bytes, start: int, where: str) -> str:
        descriptor, position = decode_at(frame, start + 1) if frame[start] == 0 else (None, start)
        layout = layout_of(descriptor)
        if layout is None:
            return f"unknown{where} size={len(frame)}"
        name, end = _name(layout), skip(frame, position)
        if end - position > _MAX_DECODED_BYTES:
            return f"{name}{where} size={len(frame)}"
        performative = from_list(layout, decode_list(frame, position))
        if isinstance(performative, Open):
            self.container = performative.container_id
        payload = f" payload_bytes={len(frame) - end}" if isinstance(performative, Transfer) else ""
        text = f"{name}{where}{_fields(layout, performative)}{payload}"
        return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}… size={len(frame)}"


def _name(layout: Layout) -> str:
    return layout.name.removeprefix("amqp:").removesuffix(":list")


def _fields(layout: Layout, value: object) -> str:
    """Return the fields that are set and have no default value, as ``name=value``."""
    texts = []
    for field in layout.fields:
        item = getattr(value, field.attribute)
        if item is not None and (field.mandatory or item != field.default):
            texts.append(f" {field.attribute}={_shown(item, field.name)}")
    return "".join(texts)


def _shown(value: Any, name: str) -> str:
    if name == "role":
        return "sender" if value is SENDER else "receiver"
    layout = LAYOUTS.get(type(value))
    if layout is not None:
        inner = _fields(layout, value).strip()
        return f"{_name(layout)}({inner})" if inner else _name(layout)
    match value:
        case bytes():
            return value.hex() if name in _SHOWN_BINARY and len(value) <= 32 else f"<{len(value)} bytes>"
        case Mapping():
            return _map(value, name)
        case tuple() | list() | Array():
            items = value.items if isinstance(value, Array) else value
            rest = "…" if len(items) > _MAX_ITEMS else ""
            return f"[{','.join(_shown(item, name) for item in items[:_MAX_ITEMS])}{rest}]"
        case Described():
            return f"{_shown(value.descriptor, name)}({_shown(value.value, name)})"
        case Enum():
            return value.name.lower()
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
    return _text(str(value))


def _map(value: Mapping[Any, Any], name: str) -> str:
    items = []
    for key, item in [*value.items()][:_MAX_ITEMS]:
        key_text = str(key)
        if name in _HIDDEN_VALUES:
            items.append(_text(key_text))
        else:
            shown = _REDACTED if _SECRET_NAME.search(key_text) else _shown(item, key_text)
            items.append(f"{_text(key_text)}:{shown}")
    return "{" + ",".join(items) + ("…" if len(value) > _MAX_ITEMS else "") + "}"


def _text(text: str) -> str:
    if _SECRET_TEXT.search(text):
        return _REDACTED
    if len(text) > _MAX_VALUE_CHARACTERS:
        text = text[:_MAX_VALUE_CHARACTERS] + "…"
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=not text.isprintable())
