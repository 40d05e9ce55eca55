"""Messages as applications write them, and as they are read again."""

from __future__ import annotations

import json
import time
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.client.errors import InvalidMessageError, MessagingError
from pairbus.client.message import BodyKind, BrokeredMessage, encode_brokered
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.validation import from_ms, to_ms
from pairbus.wire import Byte, Char, Float, Int, Sections, Short, Symbol, Timestamp, UByte, UInt, ULong, UShort
from tests.thoroughness import times

MS: Final = timedelta(milliseconds=1)
LATER: Final = datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)

texts: Final = st.text(st.characters(codec="utf-8"), max_size=100)
names: Final = st.text(st.characters(codec="utf-8"), min_size=1, max_size=100)
symbols: Final = st.text(st.characters(codec="ascii"), max_size=100)
ids: Final = names | st.uuids() | st.integers(0, 2**64 - 1) | st.binary(min_size=1, max_size=100)
moments: Final = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))  # noqa: DTZ001 (bounds)
longs: Final = st.integers(-(2**63), 2**63 - 1)
simple: Final = (
    st.none() | st.booleans() | longs | st.floats(allow_nan=False) | texts | st.binary(max_size=100) | st.uuids()
)
values: Final = st.recursive(
    simple, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=10
)
jsons: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner | texts, max_size=4) | st.dictionaries(texts, inner | texts, max_size=4),
    max_leaves=10,
).filter(lambda value: value is not None)

properties_of_messages: Final = st.fixed_dictionaries(
    {},
    optional={
        "message_id": ids,
        "session_id": names,
        "via_partition_key": names,
        "label": texts,
        "content_type": symbols,
        "correlation_id": ids,
        "to": texts,
        "reply_to": texts,
        "reply_to_session_id": texts,
        "time_to_live": st.timedeltas(MS, timedelta(days=40_000)),
        "scheduled_enqueue_time": moments,
        "application_properties": st.dictionaries(texts, simple | moments, max_size=6),
    },
)


def returned(message: BrokeredMessage) -> ReceivedMessage:
    """The same message after a journey."""
    return ReceivedMessage(encode_brokered(message))


def whole_ms(moment: datetime) -> datetime:
    """AMQP counts in milliseconds."""
    return moment.replace(microsecond=moment.microsecond // 1_000 * 1_000)


# Round trips


@given(properties_of_messages, st.binary(max_size=300))
def test_every_property_round_trips(properties: dict[str, Any], body: bytes) -> None:
    found = returned(BrokeredMessage(body, **properties))
    assert found.body == body
    for name, value in properties.items():
        read = getattr(found, name)
        if name == "time_to_live":
            assert read == value // MS * MS
        elif name == "scheduled_enqueue_time":
            assert read == whole_ms(value)
        elif name == "application_properties":
            assert read == {key: whole_ms(one) if isinstance(one, datetime) else one for key, one in value.items()}
        else:
            assert read == value
    for name in {"session_id", "label", "content_type", "correlation_id", "to", "reply_to", "time_to_live"} - {
        *properties
    }:
        assert getattr(found, name) is None


@given(properties_of_messages, st.binary(max_size=300) | texts)
def test_usual_form_equals_general_one(properties: dict[str, Any], body: bytes | str) -> None:
    message = BrokeredMessage(body, **{**properties, "time_to_live": None})  # it is encoded with the current time
    assert encode_brokered(message) == encode_brokered(message, trace_context={})


@given(names)
def test_partition_key_round_trips_with_and_without_session(key: str) -> None:
    assert returned(BrokeredMessage(partition_key=key)).partition_key == key
    both = returned(BrokeredMessage(partition_key=key, session_id=key))
    assert (both.partition_key, both.session_id) == (key, key)


@given(st.binary(max_size=1_000))
def test_bytes_body_round_trips(body: bytes) -> None:
    for given_body in (body, bytearray(body), memoryview(body)):
        found = returned(BrokeredMessage(given_body))
        assert (found.body, found.body_kind, found.content_type) == (body, BodyKind.DATA, None)


@given(texts)
def test_text_is_sent_as_utf_8(body: str) -> None:
    message = BrokeredMessage(body)
    found = returned(message)
    assert found.body == body.encode()
    assert found.text() == message.text() == body


@given(jsons)
def test_json_value_is_sent_as_json(body: Any) -> None:
    message = BrokeredMessage(body)
    found = returned(message)
    assert found.content_type == "application/json"
    assert found.json() == message.json() == body
    assert json.loads(found.body) == body


def test_custom_content_type_is_kept() -> None:
    assert returned(BrokeredMessage({"a": 1}, content_type="application/vnd.order+json")).content_type == (
        "application/vnd.order+json"
    )


@given(values)
def test_amqp_values_round_trip(body: Any) -> None:
    found = returned(BrokeredMessage(body, body_kind=BodyKind.VALUE))
    assert (found.body, found.body_kind) == (body, BodyKind.VALUE)


@given(st.lists(values, max_size=5))
def test_amqp_sequences_round_trip(body: list[Any]) -> None:
    found = returned(BrokeredMessage(body, body_kind=BodyKind.SEQUENCE))
    assert (found.body, found.body_kind) == (body, BodyKind.SEQUENCE)


@pytest.mark.parametrize(
    "value",
    [
        Byte(-128),
        Char("é"),
        Float(0.5),
        Int(-5),
        Short(-300),
        Symbol("symbol"),
        UByte(255),
        UInt(2**32 - 1),
        ULong(2**64 - 1),
        UShort(65_535),
        UUID(int=7),
    ],
    ids=lambda value: type(value).__name__,
)
def test_application_properties_keep_their_amqp_types(value: object) -> None:
    read = returned(BrokeredMessage(application_properties={"a": value})).application_properties["a"]
    assert read == value
    assert type(read) is type(value)


def test_timestamp_and_datetime_are_equivalent() -> None:
    found = returned(BrokeredMessage(application_properties={"a": Timestamp(to_ms(LATER)), "b": LATER}))
    assert found.application_properties == {"a": LATER, "b": LATER}


def test_time_zone_does_not_change_instant() -> None:
    eastern = LATER.astimezone(timezone(timedelta(hours=-5)))
    found = returned(BrokeredMessage(scheduled_enqueue_time=eastern, application_properties={"at": eastern}))
    assert found.scheduled_enqueue_time == found.application_properties["at"] == LATER
    assert found.scheduled_enqueue_time.tzinfo is UTC


def test_received_message_can_be_sent_again() -> None:
    message = BrokeredMessage(
        {"a": 1},
        message_id=7,
        session_id="s",
        partition_key="s",
        via_partition_key="via",
        label="l",
        correlation_id=UUID(int=5),
        to="t",
        reply_to="r",
        reply_to_session_id="rs",
        time_to_live=timedelta(days=1),
        scheduled_enqueue_time=LATER,
        application_properties={"at": LATER, "n": 1},
    )
    once = returned(message)
    twice = returned(once)
    for name in {*BrokeredMessage.__slots__} - {"amqp"}:
        assert getattr(twice, name) == getattr(once, name), name


# What is not set


def test_each_message_gets_unique_id() -> None:
    first, second = BrokeredMessage(), BrokeredMessage()
    assert first.message_id != second.message_id
    assert returned(first).message_id == first.message_id


def test_empty_message_is_small_and_has_an_empty_body() -> None:
    payload = encode_brokered(BrokeredMessage(message_id="1"))
    assert ReceivedMessage(payload).body == b""
    assert len(payload) < 40


def test_messages_do_not_share_properties() -> None:
    given_properties = {"a": 1}
    message = BrokeredMessage(application_properties=given_properties)
    message.application_properties["b"] = 2
    assert given_properties == {"a": 1}
    assert BrokeredMessage().application_properties is not BrokeredMessage().application_properties


def test_repr_shows_id_but_not_body() -> None:
    assert repr(BrokeredMessage("secret", message_id="m-1")) == "<BrokeredMessage 'm-1'>"


# Times


@pytest.mark.parametrize("time_to_live", [None, timedelta.max])
def test_a4_message_never_expires_by_default(time_to_live: timedelta | None) -> None:
    assert returned(BrokeredMessage(time_to_live=time_to_live)).time_to_live is None


@pytest.mark.parametrize("days", [49, 50, 365, 36_500])
def test_a4_time_to_live_of_any_length_round_trips(days: int) -> None:
    assert returned(BrokeredMessage(time_to_live=timedelta(days=days))).time_to_live == timedelta(days=days)


def test_a4_long_time_to_live_sets_absolute_expiry() -> None:
    before_ms = int(time.time() * 1_000)
    sections = Sections(encode_brokered(BrokeredMessage(time_to_live=timedelta(days=100))))
    properties = sections.properties()
    assert sections.header().ttl == 0xFFFFFFFF
    assert properties.creation_time is not None
    assert properties.absolute_expiry_time == properties.creation_time + 100 * 86_400_000
    assert properties.creation_time >= before_ms


def test_a4_time_to_live_is_clamped_to_year_9999() -> None:
    found = Sections(encode_brokered(BrokeredMessage(time_to_live=timedelta.max - timedelta(days=1)))).properties()
    assert found.absolute_expiry_time == to_ms(datetime.max.replace(tzinfo=UTC))


def test_given_time_overrides_time_of_message() -> None:
    message = BrokeredMessage(scheduled_enqueue_time=LATER)
    assert ReceivedMessage(encode_brokered(message, LATER + MS)).scheduled_enqueue_time == LATER + MS
    assert message.scheduled_enqueue_time == LATER


@given(moments)
def test_datetimes_round_trip_in_milliseconds(moment: datetime) -> None:
    assert from_ms(to_ms(moment)) == whole_ms(moment)


@pytest.mark.parametrize("time_ms", [2**62, 253_402_300_800_000])
def test_times_after_calendar_are_clamped_to_latest(time_ms: int) -> None:
    assert from_ms(time_ms) == datetime.max.replace(tzinfo=UTC)


def test_times_before_calendar_are_clamped_to_earliest() -> None:
    assert from_ms(-(2**62)) == datetime.min.replace(tzinfo=UTC)


# What cannot be sent


def nested(depth: int) -> list[Any]:
    outer: list[Any] = []
    for _ in range(depth):
        outer = [outer]
    return outer


NAIVE: Final = datetime(2030, 1, 1)  # noqa: DTZ001 (that is the point)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (BrokeredMessage(message_id="i" * 129), "message_id has 129 characters; at most 128"),
        (BrokeredMessage(message_id=b"i" * 129), "message_id has 129"),
        (BrokeredMessage(session_id="s" * 129), "session_id has 129 characters; at most 128"),
        (BrokeredMessage(partition_key="p" * 129), "partition_key has 129 characters"),
        (BrokeredMessage(session_id="a", partition_key="b"), "session_id and partition_key must be equal"),
        (BrokeredMessage(message_id=True), "True"),
        (BrokeredMessage(message_id=1.5), "1.5"),  # type: ignore[arg-type]
        (BrokeredMessage(message_id=-1), "message-id"),
        (BrokeredMessage(message_id=2**64), "message-id"),
        (BrokeredMessage(correlation_id=2**64), "correlation-id"),
        (BrokeredMessage(session_id=5), "5"),  # type: ignore[arg-type]
        (BrokeredMessage(label=5), "5"),  # type: ignore[arg-type]
        (BrokeredMessage(label="\ud800"), "cannot be"),
        (BrokeredMessage(content_type="é"), "content-type"),
        (BrokeredMessage("\ud800"), "surrogates not allowed"),
        (BrokeredMessage(object()), "not JSON serializable"),
        (BrokeredMessage({1, 2}), "not JSON serializable"),
        (BrokeredMessage(float("nan")), "JSON"),
        (BrokeredMessage(nested(100_000)), "cannot be sent"),
        (BrokeredMessage(nested(100_000), body_kind=BodyKind.VALUE), "cannot be sent"),
        (BrokeredMessage(object(), body_kind=BodyKind.VALUE), "object is not an AMQP type"),
        (BrokeredMessage(2**64, body_kind=BodyKind.VALUE), "cannot be sent"),
        (BrokeredMessage("abc", body_kind=BodyKind.SEQUENCE), "sequence"),
        (BrokeredMessage(5, body_kind=BodyKind.SEQUENCE), "sequence"),
        (BrokeredMessage(b"", body_kind="value"), "body_kind"),  # type: ignore[arg-type]
        (BrokeredMessage(time_to_live=timedelta()), "time_to_live must be at least one millisecond, got 0:00:00"),
        (BrokeredMessage(time_to_live=-MS), "time_to_live must be"),
        (BrokeredMessage(time_to_live=5), "time_to_live"),  # type: ignore[arg-type]
        (BrokeredMessage(scheduled_enqueue_time=NAIVE), "has no time zone"),
        (BrokeredMessage(scheduled_enqueue_time="soon"), "must be a datetime, got 'soon'"),  # type: ignore[arg-type]
        (BrokeredMessage(scheduled_enqueue_time=date(2030, 1, 1)), "must be a datetime"),  # type: ignore[arg-type]
        (BrokeredMessage(application_properties={"at": NAIVE}), "has no time zone"),
        (BrokeredMessage(application_properties={1: 2}), "the name of an application property"),  # type: ignore[dict-item]
        (BrokeredMessage(application_properties={"a": object()}), "object is not an AMQP type"),
        (BrokeredMessage(application_properties={"a": timedelta(1)}), "timedelta is not an AMQP type"),
        (BrokeredMessage(application_properties={"a": 2**70}), "cannot be sent"),
        (BrokeredMessage(application_properties={"a": [1]}), "'a'"),
        (BrokeredMessage(application_properties={"a": {"b": 1}}), "'a'"),
    ],
    ids=lambda value: None if isinstance(value, BrokeredMessage) else value[:40],
)
def test_e3_invalid_message_is_rejected_with_reason(message: BrokeredMessage, text: str) -> None:
    with pytest.raises(InvalidMessageError) as caught:
        encode_brokered(message)
    assert text in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, MessagingError)
    assert not caught.value.is_transient


odd: Final = values | st.dates() | st.timedeltas() | st.datetimes() | moments | st.sampled_from([object(), Symbol("s")])


@settings(max_examples=times(1_000))
@given(
    st.sampled_from([*BrokeredMessage.__slots__]),
    odd | st.dictionaries(texts | longs | st.booleans() | st.none(), odd, max_size=3),
    st.sampled_from(BodyKind),
)
def test_e3_any_encoded_message_can_be_decoded(name: str, value: Any, kind: BodyKind) -> None:
    message = BrokeredMessage([1], body_kind=kind)
    setattr(message, name, value)
    try:
        payload = encode_brokered(message)
    except InvalidMessageError:
        return
    for each in (*BrokeredMessage.__slots__, "sequence_number", "delivery_count"):
        getattr(ReceivedMessage(payload), each)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (BrokeredMessage(label=5), "label must be a str, got 5"),  # type: ignore[arg-type]
        (BrokeredMessage(session_id=1), "session_id must be a str, got 1"),  # type: ignore[arg-type]
        (BrokeredMessage(to=b"x"), "to must be a str, got b'x'"),  # type: ignore[arg-type]
        (BrokeredMessage(partition_key=7), "partition_key must be a str, got 7"),  # type: ignore[arg-type]
        (BrokeredMessage(via_partition_key=7), "via_partition_key must be a str, got 7"),  # type: ignore[arg-type]
        (BrokeredMessage(application_properties={"a": 1, "price": Decimal("1.1")}), "the application property 'price'"),
        (BrokeredMessage(application_properties={"a": 1, "at": NAIVE}), "the application property 'at'"),
        (
            BrokeredMessage(application_properties={"a": 1, "big": 2**63}),
            "the application property 'big': 9223372036854775808 does not fit long (-9223372036854775808 to 922",
        ),
        (
            BrokeredMessage(application_properties={"a": 1, "unit": UInt(-1)}),
            "the application property 'unit': -1 does not fit uint (0 to 4294967295)",
        ),
        (
            BrokeredMessage(application_properties={"huge": 10**9999}),
            "a number of 33216 bits does not fit long",
        ),
    ],
    ids=lambda value: None if isinstance(value, BrokeredMessage) else value,
)
def test_e4_error_names_attribute_of_application(message: BrokeredMessage, text: str) -> None:
    with pytest.raises(InvalidMessageError) as caught:
        encode_brokered(message)
    assert text in str(caught.value)


def test_e3_invalid_properties_are_rejected() -> None:
    message = BrokeredMessage()
    message.application_properties = [1]  # type: ignore[assignment]
    with pytest.raises(InvalidMessageError):
        encode_brokered(message)


@pytest.mark.parametrize("message", ["text", b"bytes", None, {"a": 1}])
def test_e3_non_message_is_rejected(message: Any) -> None:
    with pytest.raises(InvalidMessageError, match="a message must be a BrokeredMessage"):
        encode_brokered(message)


@pytest.mark.parametrize("length", [1, 128])
def test_ids_may_have_128_characters(length: int) -> None:
    message = BrokeredMessage(message_id="é" * length, session_id="é" * length)
    found = returned(message)
    assert (found.message_id, found.session_id) == (message.message_id, message.session_id)


# Bodies that are not what one takes them for


@pytest.mark.parametrize("body", [5, 10**13, 1.5, None, [1, 2], {"a": 1}, True], ids=repr)
def test_non_text_body_raises_on_text(body: Any) -> None:
    with pytest.raises(ValueError, match="text"):
        BrokeredMessage(body, body_kind=BodyKind.VALUE).text()


def test_undecodable_bytes_raise_on_text() -> None:
    with pytest.raises(ValueError, match="utf-8"):
        BrokeredMessage(b"\xff").text()


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", "nonsense"])
def test_non_json_body_raises_on_json(body: bytes | str) -> None:
    with pytest.raises(ValueError, match=r"Expecting|utf-8|codec"):
        BrokeredMessage(body).json()


def test_json_is_parsed_from_bytes_and_text() -> None:
    for body in (b'{"a":1}', bytearray(b'{"a":1}'), '{"a":1}', {"a": 1}):
        assert BrokeredMessage(body).json() == {"a": 1}
