"""Messages as they were received: read when they are asked, and not before."""

from __future__ import annotations

import copy
import pickle
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.client.errors import InvalidMessageError
from pairbus.client.message import BodyKind, BrokeredMessage, encode_brokered
from pairbus.client.received_message import MessageState, ReceivedMessage
from pairbus.client.validation import to_ms
from pairbus.wire import (
    AMQP_SEQUENCE,
    RECEIVER,
    Configuration,
    Connection,
    Delivery,
    Header,
    Message,
    Properties,
    Source,
    Symbol,
    Timestamp,
    UInt,
    encode_message,
)

AT: Final = datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
READ: Final = tuple(
    name
    for name in (*BrokeredMessage.__slots__, *ReceivedMessage.__slots__)
    if name not in {"_payload", "delivery", "is_settled"}
)


def delivered(tag: bytes, payload: bytes = b"") -> Delivery:
    link = Connection(Configuration(container_id="client")).begin().attach("link", RECEIVER, source=Source())
    return Delivery(link, 0, tag, 0, False, payload)


def annotated(**annotations: Any) -> ReceivedMessage:
    """``x_opt_sequence_number=1`` stands for the annotation that is so called, with dashes."""
    found = {Symbol(name.replace("_", "-")): value for name, value in annotations.items()}
    return ReceivedMessage(encode_message(Message(message_annotations=found)))


def test_broker_annotations_are_read() -> None:
    message = annotated(
        x_opt_sequence_number=5,
        x_opt_enqueue_sequence_number=3,
        x_opt_enqueued_time=Timestamp(to_ms(AT)),
        x_opt_locked_until=Timestamp(to_ms(AT) + 1),
        x_opt_message_state=1,
        x_opt_partition_key="p",
        x_opt_via_partition_key="v",
        x_opt_partition_id=2,
        x_opt_scheduled_enqueue_time=Timestamp(to_ms(AT)),
        x_opt_deadletter_source="orders",
    )
    assert message.sequence_number == 5
    assert message.enqueued_sequence_number == 3
    assert message.enqueued_time == AT
    assert message.locked_until == AT + timedelta(milliseconds=1)
    assert message.state is MessageState.DEFERRED
    assert (message.partition_key, message.via_partition_key, message.partition_id) == ("p", "v", 2)
    assert message.scheduled_enqueue_time == AT
    assert message.dead_letter_source == "orders"


def test_message_without_annotations_can_be_read() -> None:
    message = ReceivedMessage(encode_message(Message(body=(b"body",))))
    assert message.body == b"body"
    assert message.message_id == ""
    assert (message.sequence_number, message.enqueued_sequence_number, message.delivery_count) == (0, 0, 0)
    assert message.enqueued_time == datetime(1970, 1, 1, tzinfo=UTC)
    assert (message.locked_until, message.lock_token, message.expires_at) == (None, None, None)
    assert message.state is MessageState.ACTIVE
    assert message.application_properties == {}
    assert (message.dead_letter_reason, message.dead_letter_error_description) == (None, None)


def test_a3_delivery_tag_is_lock_token() -> None:
    token = uuid4()
    assert ReceivedMessage(b"", delivered(token.bytes_le)).lock_token == token


@pytest.mark.parametrize("tag", [b"", b"\0", b"7" * 15, b"7" * 17, b"7" * 32])
def test_tag_of_other_length_is_not_a_lock_token(tag: bytes) -> None:
    assert ReceivedMessage(b"", delivered(tag)).lock_token is None


def test_a3_explicit_lock_token_overrides_tag() -> None:
    token = uuid4()
    assert ReceivedMessage(b"", delivered(bytes(16)), token).lock_token == token
    assert ReceivedMessage(b"", lock_token=token).lock_token == token


def test_a4_expiry_counts_from_enqueued_time() -> None:
    payload = encode_message(
        Message(
            header=Header(ttl=UInt(60_000)),
            message_annotations={Symbol("x-opt-enqueued-time"): Timestamp(to_ms(AT))},
        )
    )
    assert ReceivedMessage(payload).expires_at == AT + timedelta(minutes=1)


def test_a4_expiry_beyond_calendar_is_never() -> None:
    message = annotated(x_opt_enqueued_time=Timestamp(to_ms(datetime(9999, 12, 31, tzinfo=UTC))))
    message.time_to_live = timedelta(days=30)
    assert message.expires_at is None


def test_a3_dead_letter_reason_is_read() -> None:
    message = ReceivedMessage(
        encode_brokered(
            BrokeredMessage(application_properties={"DeadLetterReason": "r", "DeadLetterErrorDescription": "d"})
        )
    )
    assert (message.dead_letter_reason, message.dead_letter_error_description) == ("r", "d")


def test_delivery_count_is_read() -> None:
    assert ReceivedMessage(encode_message(Message(header=Header(delivery_count=UInt(4))))).delivery_count == 4


# The bytes, and what is found without reading the rest of them


def test_d1_payload_is_kept_as_received() -> None:
    payload = encode_brokered(BrokeredMessage(b"body", label="old"))
    for message in (ReceivedMessage(payload, delivered(bytes(16), payload)), ReceivedMessage(payload)):
        assert message.payload == payload
        assert message.label == "old"
        message.label = "new"
        assert message.payload == payload
        for twin in duplicates(message):
            assert twin.payload == payload


def test_d1_payload_of_unreadable_message_is_kept() -> None:
    message = ReceivedMessage(b"garbage")
    with pytest.raises(InvalidMessageError):
        _ = message.body
    assert message.payload == b"garbage"


def test_d1_sequence_number_and_time_of_unreadable_message_are_read() -> None:
    noted = {Symbol("x-opt-sequence-number"): 5, Symbol("x-opt-enqueued-time"): Timestamp(to_ms(AT))}
    message = ReceivedMessage(encode_message(Message(message_annotations=noted, body=(b"cut",)))[:-1])
    assert (message.sequence_number, message.enqueued_time) == (5, AT)
    with pytest.raises(InvalidMessageError):
        _ = message.state


def test_d1_decoded_time_does_not_replace_assigned_one() -> None:
    message = annotated(x_opt_sequence_number=5, x_opt_enqueued_time=Timestamp(0))
    message.enqueued_time = AT
    assert (message.sequence_number, message.enqueued_time) == (5, AT)


# Bodies


def test_body_in_several_sections_is_joined() -> None:
    assert ReceivedMessage(encode_message(Message(body=(b"a", b"b", b"")))).body == b"ab"
    sequences = ReceivedMessage(encode_message(Message(body=([1], [], [2, 3]), body_kind=AMQP_SEQUENCE)))
    assert (sequences.body, sequences.body_kind) == ([1, 2, 3], BodyKind.SEQUENCE)


def test_message_without_body_has_empty_body() -> None:
    message = ReceivedMessage(encode_message(Message(properties=Properties(message_id="1"))))
    assert (message.body, message.body_kind) == (b"", BodyKind.DATA)


# Reading late


@given(st.lists(st.sampled_from(READ), unique=True), st.randoms(use_true_random=False))
def test_assigned_attribute_is_never_overwritten(names: list[str], random: Any) -> None:
    payload = encode_brokered(
        BrokeredMessage(
            b"body", label="label", session_id="s", time_to_live=timedelta(1), application_properties={"a": 1}
        )
    )
    message = ReceivedMessage(payload, delivered(bytes(16)))
    marks = {name: object() for name in names}
    order = [*READ]
    random.shuffle(order)
    for name in order:
        if name in marks:
            setattr(message, name, marks[name])
        else:
            getattr(message, name)
    for name, mark in marks.items():
        assert getattr(message, name) is mark


def test_attribute_is_decoded_once() -> None:
    message = ReceivedMessage(encode_brokered(BrokeredMessage(application_properties={"a": 1})))
    message.application_properties["b"] = 2
    assert message.application_properties == {"a": 1, "b": 2}
    assert message.body is message.body


def test_change_of_received_message_is_sent() -> None:
    message = ReceivedMessage(encode_brokered(BrokeredMessage(b"body", label="old", to="t")))
    message.label = "new"
    message.body = b"other"
    again = ReceivedMessage(encode_brokered(message))
    assert (again.label, again.to, again.body) == ("new", "t", b"other")


def test_message_can_be_copied() -> None:
    message = ReceivedMessage(encode_brokered(BrokeredMessage(b"body", label="l")))
    assert message.label == "l"
    twin = copy.copy(message)
    twin.label = "other"
    assert (message.label, twin.body) == ("l", b"body")


def test_copy_has_everything_but_id_and_dead_letter_properties() -> None:
    properties = {"tries": 3, "DeadLetterReason": "r", "DeadLetterErrorDescription": "d"}
    kept: dict[str, Any] = {
        "session_id": "s",
        "partition_key": "s",
        "via_partition_key": "v",
        "label": "l",
        "content_type": "text/plain",
        "correlation_id": "c",
        "to": "t",
        "reply_to": "r",
        "reply_to_session_id": "rs",
        "time_to_live": timedelta(hours=1),
    }
    message = ReceivedMessage(
        encode_brokered(BrokeredMessage(b"body", message_id="old", application_properties=properties, **kept))
    )
    twin = message.copy()
    assert type(twin) is BrokeredMessage
    assert twin.message_id not in {"old", "", message.copy().message_id}
    assert twin.application_properties == {"tries": 3}
    assert message.dead_letter_reason == "r"
    again = ReceivedMessage(encode_brokered(twin))
    assert {name: getattr(again, name) for name in kept} == kept
    assert (again.body, again.body_kind) == (b"body", BodyKind.DATA)
    assert message.copy("mine").message_id == "mine"


def test_copy_does_not_share_properties() -> None:
    message = ReceivedMessage(encode_brokered(BrokeredMessage(application_properties={"tries": 1})))
    message.copy().application_properties["tries"] = 2
    assert message.application_properties == {"tries": 1}


def duplicates(message: ReceivedMessage) -> list[ReceivedMessage]:
    """The same message, made in all the ways that Python has."""
    pickled = pickle.loads(pickle.dumps(message))  # noqa: S301 (our own)
    return [pickled, copy.copy(message), copy.deepcopy(message)]


def test_received_message_can_be_pickled_and_copied_without_link() -> None:
    token = uuid4()
    payload = encode_brokered(BrokeredMessage(b"body", label="l", application_properties={"a": 1}))
    for twin in duplicates(ReceivedMessage(payload, delivered(token.bytes_le, payload))):
        assert (twin.body, twin.label, twin.application_properties) == (b"body", "l", {"a": 1})
        assert twin.lock_token == token


def test_assigned_attributes_are_copied() -> None:
    message = ReceivedMessage(encode_brokered(BrokeredMessage(b"body", label="old", to="t")))
    message.label = "new"
    message.application_properties["tries"] = 2
    for twin in duplicates(message):
        assert (twin.label, twin.to, twin.body) == ("new", "t", b"body")
        assert twin.application_properties == {"tries": 2}


def test_e3_unreadable_message_can_be_pickled_and_copied() -> None:
    for twin in duplicates(ReceivedMessage(b"garbage", delivered(bytes(16), b"garbage"))):
        with pytest.raises(InvalidMessageError):
            _ = twin.body


def test_unknown_attribute_raises_attribute_error() -> None:
    message = ReceivedMessage(encode_brokered(BrokeredMessage()))
    assert not hasattr(message, "colour")
    with pytest.raises(AttributeError, match="colour"):
        message.colour = "red"  # type: ignore[attr-defined]


# Bytes that are no message


@pytest.mark.parametrize("payload", [b"", b"garbage", b"\x00\x53\x75", b"\x00\x53\x70\xc0\xff\xff", bytes(9)])
def test_e3_invalid_bytes_raise_when_read(payload: bytes) -> None:
    message = ReceivedMessage(payload)
    if not payload:  # a message of no sections
        assert message.body == b""
        return
    with pytest.raises(InvalidMessageError, match="the message cannot be read"):
        _ = message.body
    assert "ReceivedMessage" in repr(message)


@given(st.binary(max_size=60))
def test_e3_no_bytes_raise_another_error(payload: bytes) -> None:
    for name in READ:
        message = ReceivedMessage(payload, delivered(bytes(16)))
        with suppress(InvalidMessageError):
            getattr(message, name)


@pytest.mark.parametrize("value", [[1], {"a": 1}, "text", b"\xff", None, 1.5, UUID(int=1), True], ids=repr)
@pytest.mark.parametrize(
    "annotation",
    ["sequence_number", "enqueue_sequence_number", "enqueued_time", "locked_until", "message_state", "partition_id"],
)
def test_e3_annotations_of_unexpected_types_are_tolerated(annotation: str, value: object) -> None:
    for name in READ:
        message = annotated(**{f"x_opt_{annotation}": value})
        try:
            getattr(message, name)
        except InvalidMessageError as error:
            assert "cannot be read" in str(error)  # noqa: PT017 (either is fine)
        assert message.body == b""


def test_unknown_state_does_not_hide_the_rest() -> None:
    assert annotated(x_opt_sequence_number=5, x_opt_message_state=77).sequence_number == 5
