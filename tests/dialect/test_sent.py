"""A message as a sender hands it in (A2, E3)."""

from __future__ import annotations

from uuid import UUID

import pytest

from pairbus.dialect.sent import join_batch, read_sent, split_batch
from pairbus.wire import (
    Header,
    Message,
    Properties,
    ProtocolError,
    Symbol,
    Timestamp,
    ULong,
    decode_message,
    encode,
    encode_message,
)


def fresh_id() -> str:
    return "made-up"


def test_sender_fields_are_read() -> None:
    payload = encode_message(
        Message(
            header=Header(ttl=60_000),
            message_annotations={
                "x-opt-partition-key": "key",
                "x-opt-scheduled-enqueue-time": Timestamp(1_800_000_000_000),
            },
            properties=Properties(message_id="m1", group_id="s1"),
            body=(b"espresso",),
        )
    )
    sent = read_sent(payload, fresh_id)
    assert sent.payload == payload
    assert sent.message_id == "m1"
    assert sent.session_id == "s1"
    assert sent.partition_key == "key"
    assert sent.time_to_live_ms == 60_000
    assert sent.scheduled_ms == 1_800_000_000_000
    assert sent.header_bytes == len(payload) - len(b"\x00\x53\x75\xa0\x08espresso")
    assert not sent.is_ping


def test_message_without_id_gets_one_and_keeps_its_bytes() -> None:
    payload = encode_message(Message(properties=Properties(subject="label"), body=(b"espresso",)))
    sent = read_sent(payload, fresh_id)
    assert sent.message_id == "made-up"
    assert sent.payload == payload
    assert sent.header_bytes == len(payload) - len(b"\x00\x53\x75\xa0\x08espresso")


@pytest.mark.parametrize("key", ["tisch-sieben-ü", "tisch-sieben-ü".encode()], ids=["string", "binary"])
def test_partition_key_may_be_a_string_or_binary(key: str | bytes) -> None:
    """The SDK for Python sends a key that it received as binary."""
    keys = {Symbol("x-opt-partition-key"): key, Symbol("x-opt-via-partition-key"): key}
    sent = read_sent(encode_message(Message(message_annotations=keys, body=(b"",))), fresh_id)
    assert sent.partition_key == "tisch-sieben-ü"


@pytest.mark.parametrize(
    ("identity", "text"),
    [
        ("m", "m"),
        (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (ULong(12), "12"),
        (b"\x01\xff", "01ff"),
    ],
    ids=["text", "uuid", "number", "binary"],
)
def test_id_of_any_type_is_kept_and_has_text_form(identity: object, text: str) -> None:
    payload = encode_message(Message(properties=Properties(message_id=identity), body=(b"",)))
    sent = read_sent(payload, fresh_id)
    assert sent.message_id == text
    assert decode_message(sent.payload).properties.message_id == identity


def test_ping_is_recognized_by_content_type() -> None:
    ping = Symbol("application/vnd.ms-servicebus-ping")
    payload = encode_message(Message(properties=Properties(content_type=ping), body=(b"",)))
    assert read_sent(payload, fresh_id).is_ping


def test_delivery_annotations_may_be_last() -> None:
    first = encode_message(Message(properties=Properties(message_id="m"), body=(b"x",)))
    payload = first + b"\x00\x53\x71" + encode({Symbol("a"): 1})
    assert read_sent(payload, fresh_id).payload == payload


@pytest.mark.parametrize(
    "payload",
    [
        b"nonsense",
        b"\x00\x53\x75\xa0",
        b"\x00\x53\x74\x45" + b"\x00\x53\x75\xa0\x00",
        b"\x00\x53\x74" + encode({1: 2}) + b"\x00\x53\x75\xa0\x00",
        b"\x00\x53\x72" + encode({Symbol("x-opt-partition-key"): 5}) + b"\x00\x53\x75\xa0\x00",
        b"\x00\x53\x72" + encode({Symbol("x-opt-partition-key"): b"\xff"}) + b"\x00\x53\x75\xa0\x00",
        b"\x00\x53\x72" + encode({Symbol("x-opt-via-partition-key"): b"\xff"}) + b"\x00\x53\x75\xa0\x00",
        b"\x00\x53\x72" + encode({Symbol("x-opt-scheduled-enqueue-time"): "soon"}) + b"\x00\x53\x75\xa0\x00",
        b"\x00\x53\x75\xa1\x01x",
        b"\x00\x53\x77\xc0\x05\x02",
        b"\x00\x53\x78\x45",
    ],
    ids=[
        "text",
        "cut off",
        "properties are a list",
        "a property named 1",
        "a partition key of 5",
        "a partition key that is not UTF-8",
        "a via partition key that is not UTF-8",
        "a time of soon",
        "data of text",
        "a value cut off",
        "a footer of a list",
    ],
)
def test_undecodable_message_is_rejected(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_sent(payload, fresh_id)


def test_batch_returns_its_messages() -> None:
    messages = [encode_message(Message(properties=Properties(message_id=str(n)), body=(b"x",))) for n in range(3)]
    assert split_batch(join_batch(messages)) == messages


def test_envelope_of_batch_is_ignored() -> None:
    inner = encode_message(Message(properties=Properties(message_id="inner"), body=(b"x",)))
    envelope = encode_message(Message(properties=Properties(message_id="outer"), body=(inner,)))
    assert split_batch(envelope) == [inner]


@pytest.mark.parametrize("payload", [b"", b"\x00\x53\x77\x40", b"\x00\x53\x75\x40"], ids=["empty", "value", "null"])
def test_empty_batch_is_rejected(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        split_batch(payload)
