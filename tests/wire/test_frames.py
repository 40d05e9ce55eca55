"""Frames found in a stream however it is cut, and frames written, dispositions together."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.wire import ACCEPTED, RECEIVER, RELEASED, SENDER, Error, Modified, Rejected, encode
from pairbus.wire.errors import EncodeError, FrameTooLargeError, FramingError
from pairbus.wire.frames import (
    AMQP_HEADER,
    HEADER_SIZE,
    SASL_FRAME,
    SASL_HEADER,
    FrameBuffer,
    FrameWriter,
    body_of,
)
from pairbus.wire.performatives import Disposition, SaslResponse
from tests.wire.pair import Heard, frame, read

LARGEST: Final = 512


def frames_in(buffer: FrameBuffer) -> list[bytes]:
    found = []
    while (one := buffer.take_frame()) is not None:
        found.append(one)
    return found


@settings(deadline=None)
@given(bodies=st.lists(st.binary(max_size=LARGEST - HEADER_SIZE), max_size=8), data=st.data())
def test_frames_are_found_in_any_chunking(bodies: list[bytes], data: st.DataObject) -> None:
    whole = [frame(payload=body) for body in bodies]
    stream = AMQP_HEADER + b"".join(whole)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    buffer = FrameBuffer(LARGEST)
    header = None
    found: list[bytes] = []
    for start, end in pairwise([0, *cuts, len(stream)]):
        buffer.feed(stream[start:end])
        if header is None:
            header = buffer.take_header()
        if header is not None:
            found += frames_in(buffer)
    assert header == AMQP_HEADER
    assert found == whole


def test_stream_sent_byte_by_byte_yields_same_frames() -> None:
    whole = [frame(payload=b"." * size) for size in (0, 1, 100, LARGEST - HEADER_SIZE, 0)]
    buffer = FrameBuffer(LARGEST)
    found = []
    for octet in b"".join(whole):
        buffer.feed(bytes([octet]))
        found += frames_in(buffer)
    assert found == whole


def test_empty_input_yields_no_frame() -> None:
    buffer = FrameBuffer(LARGEST)
    assert buffer.take_header() is None
    assert buffer.take_frame() is None
    buffer.feed(b"")
    assert buffer.take_frame() is None
    buffer.feed(frame()[:5])
    assert buffer.take_frame() is None
    buffer.feed(b"")
    assert buffer.take_frame() is None
    buffer.feed(frame()[5:])
    assert buffer.take_frame() == frame()


@pytest.mark.parametrize(("size", "fits"), [(0, False), (7, False), (8, True), (512, True), (513, False)])
def test_frame_size_is_checked_against_header_and_limit(size: int, fits: bool) -> None:
    buffer = FrameBuffer(LARGEST)
    buffer.feed(struct.pack(">IBBH", size, 2, 0, 0) + b"." * max(0, size - HEADER_SIZE))
    if fits:
        taken = buffer.take_frame()
        assert taken is not None
        assert len(taken) == size
    else:
        with pytest.raises(FramingError):
            buffer.take_frame()


def test_oversized_frame_is_detected_in_pieces() -> None:
    buffer = FrameBuffer(LARGEST)
    for octet in struct.pack(">IBBH", LARGEST + 1, 2, 0, 0)[:-1]:
        buffer.feed(bytes([octet]))
        assert buffer.take_frame() is None
    buffer.feed(b"\0")
    with pytest.raises(FramingError):
        buffer.take_frame()


@pytest.mark.parametrize(("doff", "position"), [(2, 8), (3, 12), (5, 20)])
def test_body_may_follow_extended_header(doff: int, position: int) -> None:
    assert body_of(frame(payload=b"." * 12, doff=doff)) == position


@pytest.mark.parametrize("doff", [0, 1, 6, 255])
def test_invalid_data_offset_is_rejected(doff: int) -> None:
    with pytest.raises(FramingError):
        body_of(frame(payload=b"." * 12, doff=doff))


# Writing.


def written(writer: FrameWriter) -> list[Any]:
    return read(writer.take())


def test_frames_are_returned_once_in_order() -> None:
    writer = FrameWriter()
    writer.write_header(AMQP_HEADER)
    writer.write(0, b"")
    writer.write(1, b"\x00\x53\x17\x45")
    writer.write(0xFFFF, b"\x00\x53\x14\xc0\x03\x01\x52\x05", b"payload")
    data = writer.take()
    assert data[:8] == AMQP_HEADER
    assert [(one.channel, one.payload) for one in read(data[8:])] == [(0, b""), (1, b""), (0xFFFF, b"payload")]
    assert writer.take() == b""


def test_frame_beyond_limit_of_peer_is_rejected_without_trace() -> None:
    writer = FrameWriter()
    writer.write(0, b"." * (LARGEST - HEADER_SIZE))
    before = len(writer.take())
    assert before == LARGEST
    with pytest.raises(FrameTooLargeError):
        writer.write(0, b"." * (LARGEST - HEADER_SIZE + 1))
    with pytest.raises(FrameTooLargeError):
        writer.write(0, b"." * 250, b"." * 255)
    assert writer.take() == b""


def test_written_flag_is_kept_until_read() -> None:
    writer = FrameWriter()
    seen = [writer.written]
    writer.write(0, b"")
    seen.append(writer.written)
    writer.written = False
    writer.take()
    seen.append(writer.written)
    assert seen == [False, True, False]


def test_amqp_frames_wait_for_sasl_frames() -> None:
    writer = FrameWriter()
    writer.write_header(SASL_HEADER)
    writer.hold()
    writer.write(0, b"", b"")
    assert writer.take() == SASL_HEADER
    writer.write_sasl(encode(SaslResponse(response=b"1")))
    writer.write(7, b"")
    assert [one.kind for one in read(writer.take())] == [SASL_FRAME]
    writer.write_sasl(encode(SaslResponse(response=b"2")))
    writer.release()
    data = writer.take()
    header = data.index(AMQP_HEADER)
    assert [one.kind for one in read(data[:header])] == [SASL_FRAME]
    assert [one.channel for one in read(data[header + 8 :])] == [0, 7]


# Dispositions, together.


def test_adjacent_deliveries_with_same_state_share_disposition() -> None:
    writer = FrameWriter()
    for delivery_id in range(5, 105):
        writer.dispose(0, RECEIVER, delivery_id, True, ACCEPTED)
    assert written(writer) == [Heard(0, Disposition(RECEIVER, 5, 104, True, ACCEPTED))]
    assert writer.take() == b""


def test_single_delivery_has_no_range() -> None:
    writer = FrameWriter()
    writer.dispose(0, RECEIVER, 5, True, ACCEPTED)
    assert written(writer) == [Heard(0, Disposition(RECEIVER, 5, None, True, ACCEPTED))]


def test_adjacent_deliveries_wrap_around_delivery_id() -> None:
    writer = FrameWriter()
    for delivery_id in (2**32 - 2, 2**32 - 1, 0, 1):
        writer.dispose(0, RECEIVER, delivery_id, True, RELEASED)
    assert written(writer) == [Heard(0, Disposition(RECEIVER, 2**32 - 2, 1, True, RELEASED))]


@pytest.mark.parametrize(
    "second",
    [
        pytest.param((1, RECEIVER, 1, True, ACCEPTED), id="another channel"),
        pytest.param((0, SENDER, 1, True, ACCEPTED), id="another role"),
        pytest.param((0, RECEIVER, 2, True, ACCEPTED), id="a gap"),
        pytest.param((0, RECEIVER, 0, True, ACCEPTED), id="the same delivery again"),
        pytest.param((0, RECEIVER, 2**32 - 1, True, ACCEPTED), id="the delivery before"),
        pytest.param((0, RECEIVER, 1, False, ACCEPTED), id="not settled"),
        pytest.param((0, RECEIVER, 1, True, RELEASED), id="another state"),
        pytest.param((0, RECEIVER, 1, True, None), id="no state"),
    ],
)
def test_different_dispositions_are_sent_separately(second: tuple[int, bool, int, bool, object]) -> None:
    writer = FrameWriter()
    writer.dispose(0, RECEIVER, 0, True, ACCEPTED)
    writer.dispose(*second)
    channel, role, delivery_id, settled, state = second
    assert written(writer) == [
        Heard(0, Disposition(RECEIVER, 0, None, True, ACCEPTED)),
        Heard(channel, Disposition(role, delivery_id, None, settled, state)),
    ]


def test_equal_states_are_combined() -> None:
    writer = FrameWriter()
    writer.dispose(0, RECEIVER, 0, True, Modified(delivery_failed=True))
    writer.dispose(0, RECEIVER, 1, True, Modified(delivery_failed=True))
    assert written(writer) == [Heard(0, Disposition(RECEIVER, 0, 1, True, Modified(delivery_failed=True)))]


def test_pending_disposition_precedes_next_frame() -> None:
    writer = FrameWriter()
    writer.dispose(0, RECEIVER, 0, True, ACCEPTED)
    writer.write(0, b"\x00\x53\x17\x45")
    writer.dispose(0, RECEIVER, 1, True, ACCEPTED)
    assert [type(one.body).__name__ for one in written(writer)] == ["Disposition", "End", "Disposition"]


@settings(deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 1), st.booleans(), st.integers(0, 5), st.booleans(), st.sampled_from([0, 1, 2])),
        max_size=40,
    )
)
def test_combined_dispositions_equal_separate_ones(
    steps: list[tuple[int, bool, int, bool, int]],
) -> None:
    states = (ACCEPTED, RELEASED, Rejected(Error("a:b", "c")))
    writer = FrameWriter()
    said = []
    for channel, role, delivery_id, settled, state in steps:
        writer.dispose(channel, role, delivery_id, settled, states[state])
        said.append((channel, role, delivery_id, settled, states[state]))
    heard = []
    for one in written(writer):
        last = one.body.first if one.body.last is None else one.body.last
        heard += [
            (one.channel, one.body.role, delivery_id, one.body.settled, one.body.state)
            for delivery_id in range(one.body.first, last + 1)
        ]
    assert heard == said


def test_largest_state_is_written_and_larger_one_rejected() -> None:
    writer = FrameWriter()
    fits = Rejected(Error("a:b", "." * 445))
    writer.dispose(2**16 - 1, RECEIVER, 2**32 - 2, True, fits)
    writer.dispose(2**16 - 1, RECEIVER, 2**32 - 1, True, fits)
    assert len(writer.take()) == LARGEST
    with pytest.raises(FrameTooLargeError):
        writer.dispose(0, RECEIVER, 5, True, Rejected(Error("a:b", "." * 446)))
    with pytest.raises(EncodeError):
        writer.dispose(0, RECEIVER, 5, True, object())
    assert writer.take() == b"", "what was refused leaves no trace"
