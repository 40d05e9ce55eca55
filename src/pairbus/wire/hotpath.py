"""Optimized encoding and decoding of the performatives that every message needs.

``transfer`` and ``disposition`` make up almost all traffic. They are read here field by field; unusual ones are passed
to the tables of ``composites``, which return the same result (a test compares the two). On a quiet connection each
message also needs a ``flow``, which is written here.
"""

from __future__ import annotations

from typing import Final, cast

from pairbus.wire import encoder
from pairbus.wire.composites import LAYOUTS, from_list, is_delivery_state
from pairbus.wire.decoder import decode_list, skip
from pairbus.wire.errors import DecodeError, EncodeError
from pairbus.wire.performatives import Disposition, Transfer
from pairbus.wire.settlement import ACCEPTED

_TRANSFER: Final = LAYOUTS[Transfer]
_DISPOSITION: Final = LAYOUTS[Disposition]

_ACCEPTED_BYTES: Final = b"\x00\x53\x24\x45"
_ABSENT: Final = -2


UNUSUAL: Final = -1


def read_whole_transfer(frame: bytes, position: int) -> tuple[int, int, bytes, int, bool, int]:
    """Read a transfer that carries a complete delivery and has only the mandatory fields.

    ``position`` is the position of the transfer's list. Returns its handle, delivery-id, delivery-tag, message-format
    and settled, and the position of the payload. Any other transfer, valid or not, has the handle ``UNUSUAL``.
    """
    try:
        if frame[position] != 0xC0:
            return _NOT_WHOLE
        end = position + 2 + frame[position + 1]
        count = frame[position + 2]
        handle, position = _read_uint(frame, position + 3)
        delivery_id, position = _read_uint(frame, position)
        if handle < 0 or delivery_id < 0 or frame[position] != 0xA0:
            return _NOT_WHOLE
        tag_end = position + 2 + frame[position + 1]
        tag = frame[position + 2 : tag_end]
        message_format, position = _read_uint(frame, tag_end)
        if message_format < 0 or not 5 <= count <= 11:
            return _NOT_WHOLE
        settled = frame[position] == 0x41
        if not settled and frame[position] != 0x42:
            return _NOT_WHOLE
        position += 1
        for index in range(5, count):  # the other fields have to be null, or false if boolean
            if frame[position] != 0x40 and (frame[position] != 0x42 or 6 <= index <= 7):
                return _NOT_WHOLE
            position += 1
    except IndexError:
        return _NOT_WHOLE
    if position != end or end > len(frame):
        return _NOT_WHOLE
    return handle, delivery_id, tag, message_format, settled, end


_NOT_WHOLE: Final = (UNUSUAL, 0, b"", 0, False, 0)


def read_transfer(frame: bytes, position: int) -> tuple[Transfer, int]:
    """Read any transfer; return it and the position of its payload."""
    transfer = cast(Transfer, from_list(_TRANSFER, decode_list(frame, position)))
    return transfer, skip(frame, position)


def read_disposition(frame: bytes, position: int) -> Disposition:
    """Read the disposition whose list is at ``position``."""
    try:
        disposition = _read_usual_disposition(frame, position)
    except IndexError:
        disposition = None
    return _read_unusual_disposition(frame, position) if disposition is None else disposition


def _read_unusual_disposition(frame: bytes, position: int) -> Disposition:
    disposition = cast(Disposition, from_list(_DISPOSITION, decode_list(frame, position)))
    if skip(frame, position) != len(frame):
        raise DecodeError("bytes follow amqp:disposition:list in its frame")
    return disposition


def _read_usual_disposition(frame: bytes, position: int) -> Disposition | None:
    if frame[position] != 0xC0 or frame[position + 2] < 5:
        return None
    end = position + 2 + frame[position + 1]
    count = frame[position + 2]
    role = frame[position + 3]
    first, position = _read_uint(frame, position + 4)
    last, position = _read_uint(frame, position)
    settled = frame[position]
    state = frame[position + 1 : position + 5]
    position += 5
    if count == 6 and (frame[position] == 0x40 or frame[position] == 0x42):
        position += 1
    elif count != 5:
        return None
    if not 0x41 <= role <= 0x42 or not 0x41 <= settled <= 0x42 or state != _ACCEPTED_BYTES:
        return None
    if first < 0 or last == UNUSUAL or position != end or end != len(frame):
        return None
    return Disposition(role == 0x41, first, None if last == _ABSENT else last, settled == 0x41, ACCEPTED, False)


def _read_uint(frame: bytes, position: int) -> tuple[int, int]:
    code = frame[position]
    if code == 0x52:
        return frame[position + 1], position + 2
    if code == 0x43:
        return 0, position + 1
    if code == 0x70:
        high = frame[position + 1] << 24 | frame[position + 2] << 16
        return high | frame[position + 3] << 8 | frame[position + 4], position + 5
    return (_ABSENT if code == 0x40 else UNUSUAL), position + 1


def write_transfer(
    handle: int, delivery_id: int, tag: bytes, message_format: int, settled: bool, more: bool, state: object
) -> bytes:
    """Encode the transfer performative of the first, often the only, frame of a delivery."""
    fields = (
        encoder.encode_uint(handle)
        + encoder.encode_uint(delivery_id)
        + encoder.encode_binary(tag)
        + encoder.encode_uint(message_format)
        + (b"\x41" if settled else b"\x42")
        + (b"\x41" if more else b"\x42")
    )
    if state is not None:
        return b"\x00\x53\x14" + encoder.enclose_fields(8, fields + b"\x40" + encoder.encode(state))
    return b"\x00\x53\x14" + encoder.enclose_fields(6, fields)


def write_continuation(handle: int, more: bool) -> bytes:
    """Encode the transfer performative of a further frame of a delivery."""
    fields = encoder.encode_uint(handle) + b"\x40\x40\x40\x40" + (b"\x41" if more else b"\x42")
    return b"\x00\x53\x14" + encoder.enclose_fields(6, fields)


def write_flow(
    next_incoming_id: int | None,
    incoming_window: int,
    next_outgoing_id: int,
    outgoing_window: int,
    link_state: tuple[int, int | None, int, int | None, bool] | None,
    echo: bool,
) -> bytes:
    """Encode the flow performative; ``link_state`` is handle, delivery-count, link-credit, available and drain."""
    fields = (
        _uint_or_null(next_incoming_id)
        + encoder.encode_uint(incoming_window)
        + encoder.encode_uint(next_outgoing_id)
        + encoder.encode_uint(outgoing_window)
    )
    if link_state is None:
        fields += b"\x40\x40\x40\x40\x40"
    else:
        handle, delivery_count, credit, available, drain = link_state
        fields += (
            encoder.encode_uint(handle)
            + _uint_or_null(delivery_count)
            + encoder.encode_uint(credit)
            + _uint_or_null(available)
            + (b"\x41" if drain else b"\x42")
        )
    return b"\x00\x53\x13" + encoder.enclose_fields(10, fields + (b"\x41" if echo else b"\x42"))


def _uint_or_null(value: int | None) -> bytes:
    return b"\x40" if value is None else encoder.encode_uint(value)


def encode_state(state: object) -> bytes:
    """Encode a delivery state for ``write_disposition``."""
    if state is ACCEPTED:
        return _ACCEPTED_BYTES
    if not is_delivery_state(state):
        raise EncodeError(f"{state!r:.200} is not a delivery state such as ACCEPTED or Rejected(…)")
    return encoder.encode(state)


def write_disposition(role: bool, first: int, last: int, settled: bool, state: bytes) -> bytes:
    """Encode the disposition performative for a range of deliveries."""
    fields = (
        (b"\x41" if role else b"\x42")
        + encoder.encode_uint(first)
        + (b"\x40" if last == first else encoder.encode_uint(last))
        + (b"\x41" if settled else b"\x42")
        + state
    )
    return b"\x00\x53\x15" + encoder.enclose_fields(5, fields)
