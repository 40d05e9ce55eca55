"""The number and the time that a message was enqueued with, found without reading the rest of it (D1)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.dialect.delivered import Stamp, stamp
from pairbus.dialect.sent import Enqueued, read_enqueued
from pairbus.wire import (
    Header,
    Int,
    Map,
    Message,
    Properties,
    ProtocolError,
    Sections,
    Symbol,
    Timestamp,
    UInt,
    ULong,
    decode_message,
    encode,
    encode_message,
)
from tests.dialect.test_transfer import LOCKED, STAMPS, loosened, messages
from tests.wire.values import examples

NOW_MS = 1_800_000_000_000
NUMBER = Symbol("x-opt-sequence-number")
TIME = Symbol("x-opt-enqueued-time")
BODY = b"\x00\x53\x75\xa0\x01x"


def annotated(annotations: object) -> bytes:
    return b"\x00\x53\x72" + encode(annotations) + BODY


def by_the_decoder(payload: bytes) -> Enqueued:
    """Return the fields by decoding all annotations."""
    found = Sections(payload).message_annotations()
    return Enqueued(_whole(found.get(NUMBER)), _whole(found.get(TIME)))


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None


def test_stamped_fields_are_found() -> None:
    payload = encode_message(Message(properties=Properties(message_id="m"), body=(b"x",)))
    assert read_enqueued(stamp(payload, LOCKED)) == Enqueued(LOCKED.sequence, LOCKED.enqueued_ms)
    assert read_enqueued(payload) == Enqueued(None, None)


@pytest.mark.parametrize("key", [str, Symbol], ids=["string", "symbol"])
@pytest.mark.parametrize("number", [5, -1, 2**63 - 1, Int(5), UInt(5), ULong(2**64 - 1), Timestamp(5)], ids=repr)
def test_integer_of_any_type_and_name_encoding_is_found(number: int, key: type) -> None:
    enqueued = read_enqueued(annotated({key(NUMBER): number, key(TIME): number}))
    assert enqueued == Enqueued(number, number)
    assert {type(enqueued.sequence_number), type(enqueued.time_ms)} == {int}


@pytest.mark.parametrize("value", [None, True, 1.5, "5", b"5", [5], {"a": 5}], ids=repr)
def test_non_integer_is_none(value: object) -> None:
    assert read_enqueued(annotated({NUMBER: value, TIME: NOW_MS})) == Enqueued(None, NOW_MS)
    assert read_enqueued(annotated({TIME: value, NUMBER: 5})) == Enqueued(5, None)


def test_other_names_and_values_are_ignored() -> None:
    hidden = encode({NUMBER: 7, TIME: 8})
    for value in (hidden, [NUMBER, 7], {NUMBER: 7}):
        assert read_enqueued(annotated({Symbol("own"): value})) == Enqueued(None, None)
        assert read_enqueued(annotated({Symbol("own"): value, NUMBER: 5, TIME: 6})) == Enqueued(5, 6)
    assert read_enqueued(annotated({Symbol("x-opt-sequence-number-2"): 7})) == Enqueued(None, None)
    assert read_enqueued(BODY + b"\x00\x53\x74" + encode({str(NUMBER): 7})) == Enqueued(None, None)


def test_keys_of_any_type_are_skipped() -> None:
    odd = Map((([1], 1), (UInt(1), 1), (1, 2), (NUMBER, 5), (Symbol("a"), 2), (TIME, 6)))
    assert read_enqueued(annotated(odd)) == Enqueued(5, 6)


def test_e3_fields_of_unreadable_message_are_found() -> None:
    delivered = stamp(encode_message(Message(header=Header(ttl=5), body=(b"x",))), LOCKED)
    for broken in (delivered[:-1], delivered + b"garbage", delivered + b"\x00\x53\x78\x45"):
        with pytest.raises(ProtocolError):
            decode_message(broken)
        assert read_enqueued(broken) == Enqueued(LOCKED.sequence, LOCKED.enqueued_ms)


def test_e3_fields_before_fault_are_returned() -> None:
    cut = annotated({NUMBER: 5, TIME: NOW_MS})
    name = cut.index(TIME.encode())
    assert read_enqueued(cut[:name] + b"\xff" + cut[name + 1 :]) == Enqueued(5, None)


@examples(100)
@given(messages(), STAMPS)
def test_result_equals_full_decoder(message: Message, facts: Stamp) -> None:
    payload = encode_message(message)
    for one in (payload, loosened(payload), stamp(payload, facts), loosened(stamp(payload, facts))):
        assert read_enqueued(one) == by_the_decoder(one)
    assert read_enqueued(stamp(payload, facts)) == Enqueued(facts.sequence, facts.enqueued_ms)


KEYS: Any = st.sampled_from([NUMBER, TIME, str(NUMBER), str(TIME), Symbol("a"), "b", UInt(1)])


@given(st.dictionaries(KEYS, st.integers(-(2**63), 2**63 - 1) | st.text(max_size=3) | st.none()))
def test_order_of_annotations_does_not_matter(annotations: dict[Any, Any]) -> None:
    payload = annotated(annotations)
    assert read_enqueued(payload) == by_the_decoder(payload)


@given(st.binary(max_size=80))
def test_e3_random_bytes_do_not_raise(payload: bytes) -> None:
    read_enqueued(payload)
    read_enqueued(b"\x00\x53\x72\xc1" + payload)


@given(st.integers(0, 300), st.integers(1, 255))
def test_e3_changed_byte_does_not_raise(index: int, change: int) -> None:
    payload = bytearray(stamp(encode_message(Message(header=Header(ttl=5), body=(b"x",))), LOCKED))
    payload[index % len(payload)] ^= change
    enqueued = read_enqueued(bytes(payload))
    assert all(value is None or type(value) is int for value in enqueued)
