"""A message that was received and is sent on."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.dialect.delivered import Stamp, forwarded, stamp
from pairbus.wire import (
    AMQP_VALUE,
    Header,
    Message,
    Properties,
    ProtocolError,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    decode_message,
    encode_message,
)
from tests.wire.values import identity

LOCKED: Final = Stamp(7, 3, 1_700_000_000_000, 2, 0, None, bytes(range(16)), 1_700_000_060_000, "orders", 3)
PEEKED: Final = Stamp(7, 7, 1_700_000_000_000, 0, 0)

texts = st.text(max_size=8)
values = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | texts | st.binary(max_size=8)
own = st.dictionaries(st.just(Symbol("x-opt-partition-key")), texts) | st.dictionaries(
    st.just(Symbol("x-opt-mine")), values
)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """With nothing that only the service says."""
    return Message(
        header=Header(durable=draw(st.booleans()), priority=UByte(draw(st.integers(0, 9)))),
        delivery_annotations=draw(st.none() | st.dictionaries(st.just(Symbol("mine")), values, min_size=1)),
        message_annotations=draw(own) or None,
        properties=Properties(message_id=draw(texts | st.binary(max_size=8)), group_id=draw(st.none() | texts)),
        application_properties=draw(st.none() | st.dictionaries(texts, values, min_size=1)),
        body=tuple(draw(st.lists(st.binary(max_size=20), min_size=1, max_size=3))),
        footer=draw(st.none() | st.dictionaries(st.just(Symbol("end")), values, min_size=1)),
    )


def none_is_needed() -> str:
    raise AssertionError("the message has an id")


@given(messages(), st.sampled_from([LOCKED, PEEKED]))
def test_only_service_additions_are_removed(message: Message, facts: Stamp) -> None:
    sent = forwarded(stamp(encode_message(message), facts), none_is_needed)
    assert identity(decode_message(sent)) == identity(decode_message(encode_message(message)))


@given(messages())
def test_unreceived_message_keeps_its_bytes(message: Message) -> None:
    payload = encode_message(message)
    assert forwarded(payload, none_is_needed) == payload


def test_time_to_live_is_kept() -> None:
    payload = stamp(
        encode_message(Message(properties=Properties("1"), body=(b"x",))), PEEKED._replace(time_to_live_ms=9)
    )
    assert decode_message(forwarded(payload, none_is_needed)).header == Header(ttl=UInt(9))


def test_scheduled_time_is_kept() -> None:
    noted = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(5)}
    message = Message(message_annotations=noted, properties=Properties("1"), body=(b"x",))
    assert decode_message(forwarded(stamp(encode_message(message), LOCKED), none_is_needed)) == message


@pytest.mark.parametrize(
    "properties", [Properties(), Properties(to="somewhere"), Properties(group_id="s", subject="x" * 300)]
)
def test_message_without_id_gets_one(properties: Properties) -> None:
    message = Message(properties=properties, body=("one",), body_kind=AMQP_VALUE)
    given_one = decode_message(forwarded(encode_message(message), lambda: "made"))
    assert given_one.properties == properties._replace(message_id="made")
    assert given_one.body == message.body


@pytest.mark.parametrize("payload", [b"no message", b"\x00\x53\x73\xc0\x05", b"\x00\x53\x73\xc0"])
def test_invalid_message_is_rejected(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        forwarded(payload, lambda: "made")


@given(st.binary(max_size=60))
def test_any_bytes_are_forwarded_or_rejected(payload: bytes) -> None:
    with suppress(ProtocolError):
        forwarded(payload, lambda: "made")
