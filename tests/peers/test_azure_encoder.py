"""The encoder and decoder of the Azure SDK for Python against ours: what one writes the other reads."""

from __future__ import annotations

import datetime as dt
import decimal
import struct
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.wire import (
    ACCEPTED,
    AMQP_SEQUENCE,
    AMQP_VALUE,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    RELEASED,
    Array,
    Attach,
    Begin,
    Byte,
    Char,
    Condition,
    Configuration,
    Connection,
    ConnectionClosed,
    ConnectionOpened,
    CreditGranted,
    Decimal32,
    Decimal64,
    Decimal128,
    Delivery,
    Described,
    DispositionReceived,
    Error,
    Event,
    Float,
    Header,
    Int,
    LinkAttached,
    LinkDetached,
    Message,
    Modified,
    Open,
    Properties,
    Received,
    ReceiverSettleMode,
    Rejected,
    SaslCode,
    SaslServer,
    Sections,
    SenderSettleMode,
    SessionBegun,
    SessionEnded,
    Short,
    Source,
    Symbol,
    Target,
    TerminusDurability,
    TerminusExpiryPolicy,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    decode,
    decode_message,
    encode,
    encode_message,
)
from pairbus.wire.composites import from_described
from pairbus.wire.decoder import decode_at
from pairbus.wire.errors import DecodeError
from pairbus.wire.frames import AMQP_HEADER, SASL_HEADER, FrameBuffer, FrameWriter, body_of
from pairbus.wire.hotpath import read_disposition, read_transfer
from pairbus.wire.performatives import (
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    Transfer,
)
from tests.peers.comparison import with_types
from tests.peers.presence import import_peer

AZURE = "the Azure SDK for Python (azure-servicebus)"

_decode: Any = import_peer("azure.servicebus._pyamqp._decode", AZURE)
_encode: Any = import_peer("azure.servicebus._pyamqp._encode", AZURE)
amqp: Any = import_peer("azure.servicebus.amqp", AZURE)
constants: Any = import_peer("azure.servicebus._pyamqp.constants", AZURE)
endpoints: Any = import_peer("azure.servicebus._pyamqp.endpoints", AZURE)
error: Any = import_peer("azure.servicebus._pyamqp.error", AZURE)
message: Any = import_peer("azure.servicebus._pyamqp.message", AZURE)
outcomes: Any = import_peer("azure.servicebus._pyamqp.outcomes", AZURE)
performatives: Any = import_peer("azure.servicebus._pyamqp.performatives", AZURE)
servicebus: Any = import_peer("azure.servicebus", AZURE)
transport: Any = import_peer("azure.servicebus._transport._pyamqp_transport", AZURE)
types: Any = import_peer("azure.servicebus._pyamqp.types", AZURE)

AMQPTypes = types.AMQPTypes
TYPE = types.TYPE
VALUE = types.VALUE

UUID_VALUE = UUID("12345678-1234-5678-1234-567812345678")

BATCH_FORMAT = 0x80013700


def typed(kind: str, value: Any) -> dict[str, Any]:
    """Name the AMQP type of a value, in the SDK's way."""
    return {TYPE: kind, VALUE: value}


def azure_encode(value: Any) -> bytes:
    output = bytearray()
    _encode.encode_value(output, value)
    return bytes(output)


def azure_decode(data: bytes) -> Any:
    buffer = memoryview(data)
    rest, value = _decode._DECODE_BY_CONSTRUCTOR[buffer[0]](buffer[1:])
    assert not rest
    return value


# Values.

VALUES: list[tuple[Any, Any, Any]] = [
    (typed(AMQPTypes.null, None), None, None),
    (typed(AMQPTypes.boolean, True), True, True),
    (typed(AMQPTypes.boolean, False), False, False),
    *[(typed(AMQPTypes.ubyte, n), UByte(n), n) for n in (0, 255)],
    *[(typed(AMQPTypes.ushort, n), UShort(n), n) for n in (0, 65535)],
    *[(typed(AMQPTypes.uint, n), UInt(n), n) for n in (0, 1, 255, 256, 2**32 - 1)],
    *[(typed(AMQPTypes.ulong, n), ULong(n), n) for n in (0, 1, 255, 256, 2**64 - 1)],
    *[(typed(AMQPTypes.byte, n), Byte(n), n) for n in (-128, 127)],
    *[(typed(AMQPTypes.short, n), Short(n), n) for n in (-32768, 32767)],
    *[(typed(AMQPTypes.int, n), Int(n), n) for n in (-(2**31), -129, -128, 0, 127, 128, 2**31 - 1)],
    *[(typed(AMQPTypes.long, n), n, n) for n in (-(2**63), -129, -128, 0, 127, 128, 2**63 - 1)],
    (typed(AMQPTypes.float, -0.5), Float(-0.5), -0.5),
    (typed(AMQPTypes.double, 1e300), 1e300, 1e300),
    (typed(AMQPTypes.timestamp, 1_700_000_000_123), Timestamp(1_700_000_000_123), 1_700_000_000_123),
    (typed(AMQPTypes.timestamp, -1), Timestamp(-1), -1),
    (typed(AMQPTypes.uuid, UUID_VALUE), UUID_VALUE, UUID_VALUE),
    *[(typed(AMQPTypes.binary, b"\xff" * n), b"\xff" * n, b"\xff" * n) for n in (0, 255, 256)],
    *[(typed(AMQPTypes.string, "ü" * n), "ü" * n, "ü".encode() * n) for n in (0, 127, 128)],
    *[(typed(AMQPTypes.symbol, "s" * n), Symbol("s" * n), b"s" * n) for n in (0, 255, 256)],
    (typed(AMQPTypes.list, []), [], []),
    (typed(AMQPTypes.list, [1, "two", [None]]), [Int(1), "two", [None]], [1, b"two", [None]]),
    (typed(AMQPTypes.list, [0] * 300), [Int(0)] * 300, [0] * 300),
    (typed(AMQPTypes.map, {}), {}, {}),
    (
        typed(AMQPTypes.map, [("a", {"b": [typed(AMQPTypes.ulong, 7)]}), (typed(AMQPTypes.symbol, "c"), None)]),
        {"a": {"b": [ULong(7)]}, Symbol("c"): None},
        {b"a": {b"b": [7]}, b"c": None},
    ),
    (
        typed(AMQPTypes.map, {f"key-{n}": n for n in range(200)}),
        {f"key-{n}": Int(n) for n in range(200)},
        {b"key-%d" % n: n for n in range(200)},
    ),
    (
        typed(AMQPTypes.array, [typed(AMQPTypes.long, n) for n in (0, 1, 2**40)]),
        Array((0, 1, 2**40)),
        [0, 1, 2**40],
    ),
    (
        typed(AMQPTypes.array, [typed(AMQPTypes.uuid, UUID_VALUE)] * 20),
        Array((UUID_VALUE,) * 20),
        [UUID_VALUE] * 20,
    ),
    (
        typed(AMQPTypes.array, [typed(AMQPTypes.symbol, name) for name in ("a", "b" * 300)]),
        Array((Symbol("a"), Symbol("b" * 300))),
        [b"a", b"b" * 300],
    ),
    (typed(AMQPTypes.array, ["text", ""]), Array(("text", "")), [b"text", b""]),
    (typed(AMQPTypes.array, [b"bytes", b""]), Array((b"bytes", b"")), [b"bytes", b""]),
    (
        typed(AMQPTypes.described, (typed(AMQPTypes.symbol, "test:name"), "value")),
        Described(Symbol("test:name"), "value"),
        b"value",
    ),
    (
        typed(AMQPTypes.described, (typed(AMQPTypes.ulong, 2**40), [1])),
        Described(ULong(2**40), [Int(1)]),
        [1],
    ),
]
"""Every type that the SDK writes: its value, ours, and what the SDK reads."""


@pytest.mark.parametrize(("theirs", "ours", "_"), VALUES, ids=lambda value: f"{value!r:.40}")
def test_value_that_the_sdk_writes_is_read_with_its_type(theirs: Any, ours: Any, _: Any) -> None:
    assert with_types(decode(azure_encode(theirs))) == with_types(ours)


@pytest.mark.parametrize(("_", "ours", "read"), VALUES, ids=lambda value: f"{value!r:.40}")
def test_value_that_we_write_is_read_by_the_sdk(_: Any, ours: Any, read: Any) -> None:
    assert azure_decode(encode(ours)) == read


CHOSEN: list[tuple[Any, Any]] = [
    (None, None),
    (True, True),
    (7, Int(7)),
    (2**31 - 1, Int(2**31 - 1)),
    (0.1, 0.1),
    ("text", "text"),
    (b"bytes", b"bytes"),
    (bytearray(b"bytes"), b"bytes"),
    (UUID_VALUE, UUID_VALUE),
    (
        dt.datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=dt.UTC),
        Timestamp(1_700_000_000_123),
    ),
    (["one", 2], ["one", Int(2)]),
    ({"key": b"value"}, {"key": b"value"}),
    (("descriptor", "value"), Described("descriptor", "value")),
    (decimal.Decimal("-12.34"), Decimal128(struct.pack(">QQ", 1 << 63 | (6176 - 2) << 49, 1234))),
]
"""The types that the SDK chooses where none is named."""


@pytest.mark.parametrize(("theirs", "ours"), CHOSEN, ids=lambda value: f"{value!r:.40}")
def test_sdk_chooses_a_type_for_a_python_value(theirs: Any, ours: Any) -> None:
    assert with_types(decode(azure_encode(theirs))) == with_types(ours)


def test_sdk_writes_an_int_of_python_as_an_amqp_int_and_nothing_larger() -> None:
    assert azure_encode(2**31 - 1)[0] == 0x71
    with pytest.raises(ValueError, match="invalid"):
        azure_encode(2**31)


def test_sdk_reads_strings_and_symbols_as_bytes() -> None:
    assert azure_decode(encode("text")) == azure_decode(encode(Symbol("text"))) == b"text"


@pytest.mark.parametrize(
    "value", [Char("x"), Decimal32(bytes(4)), Decimal64(bytes(8))], ids=["char", "decimal32", "decimal64"]
)
def test_sdk_cannot_read_some_types(value: object) -> None:
    with pytest.raises(TypeError):
        azure_decode(encode(value))


def test_sdk_cannot_read_a_decimal128_not_even_its_own() -> None:
    theirs = azure_encode(decimal.Decimal(42))
    assert encode(decode(theirs)) == theirs
    with pytest.raises(ValueError, match="decimal128"):
        azure_decode(theirs)


def test_empty_array_that_the_sdk_writes_is_read_though_it_lacks_its_constructor() -> None:
    written = azure_encode(typed(AMQPTypes.array, []))
    assert written == b"\xe0\x01\x00"
    assert decode(written) == Array(())


def test_sdk_reads_the_constructor_of_an_empty_array_as_the_next_value() -> None:
    """Nothing that we send to the SDK may therefore hold an empty array."""
    rest, value = _decode._decode_array_small(memoryview(encode(Array(())))[1:])
    assert (bytes(rest), value) == (b"\x40", [])


@pytest.mark.parametrize(
    "items",
    [
        [typed(AMQPTypes.uint, 5), typed(AMQPTypes.uint, 0)],
        [typed(AMQPTypes.boolean, True), typed(AMQPTypes.boolean, False)],
    ],
    ids=["uint", "boolean"],
)
def test_arrays_that_the_sdk_writes_wrong_are_refused_rather_than_misread(items: list[Any]) -> None:
    with pytest.raises(DecodeError):
        decode(azure_encode(typed(AMQPTypes.array, items)))


# Values, any of them.

_AZURE_TYPES: dict[type, str] = {
    type(None): AMQPTypes.null,
    bool: AMQPTypes.boolean,
    UByte: AMQPTypes.ubyte,
    UShort: AMQPTypes.ushort,
    UInt: AMQPTypes.uint,
    ULong: AMQPTypes.ulong,
    Byte: AMQPTypes.byte,
    Short: AMQPTypes.short,
    Int: AMQPTypes.int,
    int: AMQPTypes.long,
    Float: AMQPTypes.float,
    float: AMQPTypes.double,
    Timestamp: AMQPTypes.timestamp,
    UUID: AMQPTypes.uuid,
    bytes: AMQPTypes.binary,
    str: AMQPTypes.string,
    Symbol: AMQPTypes.symbol,
}


def to_azure(value: Any) -> Any:
    """Make the SDK's value of ours."""
    match value:
        case list():
            return typed(AMQPTypes.list, [to_azure(item) for item in value])
        case dict():
            return typed(AMQPTypes.map, [(to_azure(key), to_azure(item)) for key, item in value.items()])
    return typed(_AZURE_TYPES[type(value)], value)


def as_azure_reads(value: Any) -> Any:
    """Make of our value what the SDK's decoder makes of it."""
    match value:
        case str():
            return value.encode()
        case list():
            return [as_azure_reads(item) for item in value]
        case dict():
            return {as_azure_reads(key): as_azure_reads(item) for key, item in value.items()}
    return value


def integers(kind: Callable[[int], Any], low: int, high: int) -> st.SearchStrategy[Any]:
    return st.integers(low, high).map(kind)


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
simple_values = st.one_of(
    st.none(),
    st.booleans(),
    integers(UByte, 0, 2**8 - 1),
    integers(UShort, 0, 2**16 - 1),
    integers(UInt, 0, 2**32 - 1),
    integers(ULong, 0, 2**64 - 1),
    integers(Byte, -(2**7), 2**7 - 1),
    integers(Short, -(2**15), 2**15 - 1),
    integers(Int, -(2**31), 2**31 - 1),
    integers(int, -(2**63), 2**63 - 1),
    st.floats(width=32, allow_nan=False).map(Float),
    st.floats(allow_nan=False),
    integers(Timestamp, -(2**63), 2**63 - 1),
    st.uuids(),
    st.binary(max_size=300),
    text,
    st.text(st.characters(max_codepoint=127), max_size=300).map(Symbol),
)
values = st.recursive(
    simple_values,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(text, inner, max_size=5),
    max_leaves=20,
)


@given(values)
def test_any_value_that_the_sdk_writes_is_read(value: Any) -> None:
    assert with_types(decode(azure_encode(to_azure(value)))) == with_types(value)


@given(values)
def test_any_value_that_we_write_is_read_by_the_sdk(value: Any) -> None:
    assert azure_decode(encode(value)) == as_azure_reads(value)


# Frames.

AZURE_ERROR = error.AMQPError(condition="amqp:not-found", description="no such queue", info={"tracking": "1"})
OUR_ERROR = Error(Condition.NOT_FOUND, "no such queue", {Symbol("tracking"): "1"})

AZURE_OUTCOMES: list[tuple[Any, Any]] = [
    (outcomes.Received(section_number=3, section_offset=2**40), Received(section_number=3, section_offset=2**40)),
    (outcomes.Accepted(), ACCEPTED),
    (outcomes.Rejected(error=AZURE_ERROR), Rejected(OUR_ERROR)),
    (outcomes.Rejected(error=None), Rejected()),
    (outcomes.Released(), RELEASED),
    (
        outcomes.Modified(delivery_failed=True, undeliverable_here=False, message_annotations={"x-opt-a": 1}),
        Modified(delivery_failed=True, undeliverable_here=False, message_annotations={Symbol("x-opt-a"): Int(1)}),
    ),
    (outcomes.Modified(None, None, None), Modified()),
]

FRAMES: list[tuple[Any, Any]] = [
    (
        performatives.OpenFrame(
            container_id="SBSender-1",
            hostname="localhost",
            max_frame_size=1048576,
            channel_max=100,
            idle_timeout=240_000,
            outgoing_locales=["en-GB"],
            incoming_locales=["de-DE", "fr-FR"],
            offered_capabilities=["offered"],
            desired_capabilities=["desired", "wanted"],
            properties={"product": "azsdk", "depth": 2},
        ),
        Open(
            container_id="SBSender-1",
            hostname="localhost",
            max_frame_size=1048576,
            channel_max=100,
            idle_time_out=240_000,
            outgoing_locales=("en-GB",),
            incoming_locales=("de-DE", "fr-FR"),
            offered_capabilities=("offered",),
            desired_capabilities=("desired", "wanted"),
            properties={Symbol("product"): "azsdk", Symbol("depth"): Int(2)},
        ),
    ),
    (performatives.OpenFrame("c", *[None] * 9), Open(container_id="c")),
    (
        performatives.BeginFrame(
            remote_channel=1,
            next_outgoing_id=0,
            incoming_window=65536,
            outgoing_window=65535,
            handle_max=255,
            offered_capabilities=["offered"],
            desired_capabilities=["desired"],
            properties={"p": True},
        ),
        Begin(
            remote_channel=1,
            next_outgoing_id=0,
            incoming_window=65536,
            outgoing_window=65535,
            handle_max=255,
            offered_capabilities=("offered",),
            desired_capabilities=("desired",),
            properties={Symbol("p"): True},
        ),
    ),
    (
        performatives.AttachFrame(
            name="link",
            handle=3,
            role=False,
            send_settle_mode=0,
            rcv_settle_mode=1,
            source=endpoints.Source(
                address="sender-link",
                durable=2,
                expiry_policy="never",
                timeout=60,
                dynamic=True,
                distribution_mode="copy",
                filters={"com.microsoft:session-filter": "session-1", "selector": ("test:filter", "colour = 'red'")},
                outcomes=["amqp:accepted:list", "amqp:rejected:list"],
                capabilities=["queue"],
            ),
            target=endpoints.Target(
                address="amqps://localhost/queue",
                durable=1,
                expiry_policy="link-detach",
                timeout=30,
                dynamic=True,
                capabilities=["queue"],
            ),
            unsettled={b"tag": None},
            incomplete_unsettled=True,
            initial_delivery_count=0,
            max_message_size=1048576,
            offered_capabilities=["offered"],
            desired_capabilities=["desired"],
            properties={"com.microsoft:receiver-name": "me", "com.microsoft:timeout": typed(AMQPTypes.uint, 65_000)},
        ),
        Attach(
            name="link",
            handle=3,
            role=False,
            snd_settle_mode=SenderSettleMode.UNSETTLED,
            rcv_settle_mode=ReceiverSettleMode.SECOND,
            source=Source(
                address="sender-link",
                durable=TerminusDurability.UNSETTLED_STATE,
                expiry_policy=TerminusExpiryPolicy.NEVER,
                timeout=60,
                dynamic=True,
                distribution_mode="copy",
                filter={
                    Symbol("com.microsoft:session-filter"): "session-1",
                    Symbol("selector"): Described(Symbol("test:filter"), "colour = 'red'"),
                },
                outcomes=("amqp:accepted:list", "amqp:rejected:list"),
                capabilities=("queue",),
            ),
            target=Target(
                address="amqps://localhost/queue",
                durable=TerminusDurability.CONFIGURATION,
                expiry_policy=TerminusExpiryPolicy.LINK_DETACH,
                timeout=30,
                dynamic=True,
                capabilities=("queue",),
            ),
            unsettled={b"tag": None},
            incomplete_unsettled=True,
            initial_delivery_count=0,
            max_message_size=1048576,
            offered_capabilities=("offered",),
            desired_capabilities=("desired",),
            properties={
                Symbol("com.microsoft:receiver-name"): "me",
                Symbol("com.microsoft:timeout"): UInt(65_000),
            },
        ),
    ),
    (
        performatives.AttachFrame("refused", 0, True, *[None] * 11),
        Attach(name="refused", handle=0, role=True),
    ),
    (
        performatives.FlowFrame(
            next_incoming_id=4,
            incoming_window=100,
            next_outgoing_id=5,
            outgoing_window=200,
            handle=0,
            delivery_count=6,
            link_credit=10_000,
            available=7,
            drain=True,
            echo=True,
            properties={"p": 1},
        ),
        Flow(
            next_incoming_id=4,
            incoming_window=100,
            next_outgoing_id=5,
            outgoing_window=200,
            handle=0,
            delivery_count=6,
            link_credit=10_000,
            available=7,
            drain=True,
            echo=True,
            properties={Symbol("p"): Int(1)},
        ),
    ),
    (
        performatives.FlowFrame(
            incoming_window=1, next_outgoing_id=0, outgoing_window=2**32 - 1, next_incoming_id=None
        ),
        Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=2**32 - 1),
    ),
    *[
        (
            performatives.DispositionFrame(role=True, first=0, last=300, settled=True, state=theirs, batchable=True),
            Disposition(role=True, first=0, last=300, settled=True, state=ours, batchable=True),
        )
        for theirs, ours in AZURE_OUTCOMES
    ],
    (performatives.DispositionFrame(False, 2**32 - 1, None, None, None, None), Disposition(False, 2**32 - 1)),
    (
        performatives.DetachFrame(handle=1, closed=True, error=AZURE_ERROR),
        Detach(handle=1, closed=True, error=OUR_ERROR),
    ),
    (performatives.DetachFrame(handle=1, closed=None, error=None), Detach(handle=1)),
    (performatives.EndFrame(error=AZURE_ERROR), End(error=OUR_ERROR)),
    (performatives.EndFrame(error=None), End()),
    (performatives.CloseFrame(error=AZURE_ERROR), Close(error=OUR_ERROR)),
    (performatives.CloseFrame(error=None), Close()),
    (
        performatives.SASLMechanism(sasl_server_mechanisms=["MSSBCBS", "PLAIN", "ANONYMOUS"]),
        SaslMechanisms(sasl_server_mechanisms=("MSSBCBS", "PLAIN", "ANONYMOUS")),
    ),
    (
        performatives.SASLInit(mechanism="PLAIN", initial_response=b"\0u\0p", hostname="localhost"),
        SaslInit(mechanism="PLAIN", initial_response=b"\0u\0p", hostname="localhost"),
    ),
    (performatives.SASLChallenge(challenge=b"?"), SaslChallenge(challenge=b"?")),
    (performatives.SASLResponse(response=b"!"), SaslResponse(response=b"!")),
    (
        performatives.SASLOutcome(code=1, additional_data=b"more"),
        SaslOutcome(code=SaslCode.AUTH, additional_data=b"more"),
    ),
]
"""Every performative but transfer: the SDK's and ours."""

TRANSFERS: list[tuple[Any, Any]] = [
    (
        performatives.TransferFrame(
            handle=2,
            delivery_id=300,
            delivery_tag=b"\0\0\0\1",
            message_format=BATCH_FORMAT,
            settled=False,
            more=True,
            rcv_settle_mode=1,
            state=outcomes.Accepted(),
            resume=True,
            aborted=True,
            batchable=True,
            payload=b"payload",
        ),
        Transfer(2, 300, b"\0\0\0\1", BATCH_FORMAT, False, True, ReceiverSettleMode.SECOND, ACCEPTED, True, True, True),
    ),
    (
        performatives.TransferFrame(
            handle=0, delivery_id=0, delivery_tag=b"t", message_format=0, settled=True, more=False, payload=b"payload"
        ),
        Transfer(0, 0, b"t", 0, True),
    ),
    (performatives.TransferFrame(handle=0, more=True, payload=b"payload"), Transfer(0, more=True)),
]


def azure_frame(frame: Any, channel: int = 0) -> bytes:
    """Make the bytes that the SDK's transport sends for a frame."""
    sasl = type(frame).__name__.startswith("SASL")
    header, body = _encode.encode_frame(frame, frame_type=b"\x01" if sasl else b"\x00")
    assert body is not None
    return bytes(header + struct.pack(">H", channel) + body)


def as_ours(frame: bytes) -> object:
    """Find the one frame in some bytes, and decode its performative."""
    buffer = FrameBuffer(len(frame))
    buffer.feed(frame)
    assert buffer.take_frame() == frame
    return from_described(decode_at(frame, body_of(frame))[0])


def as_theirs(body: bytes) -> tuple[int, list[Any]]:
    """Let the SDK decode a performative; fields of what is nested in it may be cut off where they are null."""
    code, fields = _decode.decode_frame(memoryview(body))
    return code, [without_trailing_nulls(field) for field in fields]


def without_trailing_nulls(value: Any) -> Any:
    match value:
        case memoryview():
            return bytes(value)
        case list():
            items = [without_trailing_nulls(item) for item in value]
            while items and items[-1] is None:
                items.pop()
            return items
        case dict():
            return {key: without_trailing_nulls(item) for key, item in value.items()}
    return value


def name_of(value: Any) -> str:
    return type(value).__name__


@pytest.mark.parametrize(("theirs", "ours"), FRAMES, ids=name_of)
def test_frame_that_the_sdk_writes_is_read(theirs: Any, ours: Any) -> None:
    assert as_ours(azure_frame(theirs, channel=7)) == ours


@pytest.mark.parametrize(("theirs", "ours"), FRAMES, ids=name_of)
def test_frame_that_we_write_is_read_by_the_sdk_like_its_own(theirs: Any, ours: Any) -> None:
    assert as_theirs(encode(ours)) == as_theirs(azure_frame(theirs)[8:])


@pytest.mark.parametrize(("theirs", "ours"), TRANSFERS)
def test_transfer_that_the_sdk_writes_is_read(theirs: Any, ours: Transfer) -> None:
    frame = azure_frame(theirs)
    transfer, start = read_transfer(frame, 8 + 3)
    assert transfer == ours
    assert frame[start:] == b"payload"
    assert as_ours(frame) == ours


@pytest.mark.parametrize(("theirs", "ours"), TRANSFERS)
def test_transfer_that_we_write_is_read_by_the_sdk_like_its_own(theirs: Any, ours: Transfer) -> None:
    assert as_theirs(encode(ours) + b"payload") == as_theirs(azure_frame(theirs)[8:])


@pytest.mark.parametrize(("theirs", "ours"), AZURE_OUTCOMES, ids=name_of)
def test_disposition_is_read_the_same_on_the_hot_path(theirs: Any, ours: Any) -> None:
    frame = azure_frame(performatives.DispositionFrame(True, 5, 6, True, theirs, None))
    assert read_disposition(frame, 8 + 3) == Disposition(True, 5, 6, True, ours)


@pytest.mark.parametrize(
    ("ours", "read"),
    [
        (ACCEPTED, {"accepted": []}),
        (RELEASED, {"released": []}),
        (Rejected(), {"rejected": []}),
        (Rejected(Error("test:no")), {"rejected": [[b"test:no", None, None]]}),
        (Rejected(Error("test:no", "text", {"a": 1})), {"rejected": [[b"test:no", b"text", {b"a": 1}]]}),
        (Modified(delivery_failed=True), {"modified": [True]}),
        (Received(section_number=1, section_offset=2), {"received": [1, 2]}),
    ],
    ids=["accepted", "released", "rejected", "rejected-short", "rejected-full", "modified", "received"],
)
def test_sdk_reads_an_outcome_by_its_name_and_an_error_with_all_three_fields(ours: object, read: Any) -> None:
    _, fields = _decode.decode_frame(memoryview(encode(Disposition(True, 0, None, True, ours))))
    assert fields[4] == read


@pytest.mark.parametrize("performative", [Close(error=Error("test:no")), End(error=Error("test:no"))], ids=name_of)
def test_sdk_reads_an_error_of_one_field_with_all_three(performative: object) -> None:
    assert _decode.decode_frame(memoryview(encode(performative)))[1][0] == [b"test:no", None, None]


def test_headers_and_the_empty_frame_are_the_same() -> None:
    assert constants.HEADER_FRAME == AMQP_HEADER
    writer = FrameWriter()
    writer.write(0, b"")
    assert writer.take() == constants.EMPTY_FRAME
    assert _decode.decode_empty_frame(memoryview(constants.EMPTY_FRAME)) == (1, b"EMPTY")
    assert _decode.decode_empty_frame(memoryview(AMQP_HEADER)) == (0, AMQP_HEADER)


def test_every_performative_of_the_sdk_is_compared() -> None:
    compared = {type(theirs) for theirs, _ in FRAMES + TRANSFERS}
    known = {kind for kind in vars(performatives).values() if hasattr(kind, "_code") and hasattr(kind, "_definition")}
    assert compared == known


# A conversation.


def conversation() -> Iterator[bytes]:
    """Write what the SDK writes to send a message in two frames, and to receive and settle one."""
    yield SASL_HEADER
    yield azure_frame(performatives.SASLInit(mechanism="ANONYMOUS", initial_response=b"", hostname="localhost"))
    yield AMQP_HEADER
    yield azure_frame(performatives.OpenFrame("SBSender-1", "localhost", 1048576, 65535, *[None] * 5, {"p": "v"}))
    yield azure_frame(performatives.BeginFrame(None, 0, 65536, 65536, 4294967295, None, None, None), 1)
    for name, role in (("sender", False), ("receiver", True)):
        yield azure_frame(
            performatives.AttachFrame(
                name, int(role), role, 0, 1, endpoints.Source("source"), endpoints.Target("target"), *[None] * 7
            ),
            1,
        )
    transfer = performatives.TransferFrame(0, 0, b"\0\0\0\1", 0, False, True, payload=b"half of ")
    yield azure_frame(transfer, 1)
    yield azure_frame(transfer._replace(more=False, payload=b"a message"), 1)
    yield azure_frame(performatives.FlowFrame(0, 65536, 1, 65536, 1, 0, 10), 1)
    yield constants.EMPTY_FRAME
    yield azure_frame(performatives.DispositionFrame(True, 0, None, False, outcomes.Accepted(), None), 1)
    yield azure_frame(performatives.DetachFrame(0, True, None), 1)
    yield azure_frame(performatives.EndFrame(None), 1)
    yield azure_frame(performatives.CloseFrame(None))


def answer(server: Connection, event: Event) -> None:
    match event:
        case ConnectionOpened():
            server.open()
        case SessionBegun(session=session):
            session.begin()
        case LinkAttached(link=link, attach=attach):
            link.attach(source=attach.source, target=attach.target)
        case Delivery():
            event.link.settle(event, ACCEPTED)
        case CreditGranted(link=link):
            link.send(b"message", tag=b"tag")
        case DispositionReceived(deliveries=[delivery]):
            delivery.link.settle(delivery, ACCEPTED)


@pytest.mark.parametrize(
    "pieces",
    [list(conversation()), [bytes((octet,)) for octet in b"".join(conversation())]],
    ids=["frame-by-frame", "byte-by-byte"],
)
def test_both_sides_of_a_conversation_with_the_sdk_are_decoded(pieces: list[bytes]) -> None:
    server = Connection(Configuration(container_id="server", strict=False), SaslServer())
    events: list[Event] = []
    answers = bytearray()
    for piece in pieces:
        for event in server.receive_data(piece):
            answer(server, event)
            events.append(event)
        answers += server.data_to_send()
    assert [type(event) for event in events[1:]] == [
        ConnectionOpened,
        SessionBegun,
        LinkAttached,
        LinkAttached,
        Delivery,
        CreditGranted,
        DispositionReceived,
        LinkDetached,
        SessionEnded,
        ConnectionClosed,
    ]
    assert [event.payload for event in events if isinstance(event, Delivery)] == [b"half of a message"]
    assert list(read_by_the_sdk(bytes(answers))) == [
        "AMQP3",
        "SASLMechanism",
        "SASLOutcome",
        "AMQP0",
        "OpenFrame",
        "BeginFrame",
        "AttachFrame",
        "AttachFrame",
        "DispositionFrame",
        "TransferFrame",
        "DispositionFrame",
        "DetachFrame",
        "EndFrame",
        "CloseFrame",
    ]


def read_by_the_sdk(data: bytes) -> Iterator[str]:
    """Name what the SDK finds in our answers, frame by frame."""
    names = {
        kind._code: name for name, kind in vars(performatives).items() if name.endswith("Frame") or name[:4] == "SASL"
    }
    position = 0
    while position < len(data):
        if data[position : position + 4] == b"AMQP":
            yield f"AMQP{data[position + 4]}"
            position += 8
            continue
        size = int.from_bytes(data[position : position + 4])
        code, _ = _decode.decode_frame(memoryview(data[position + 8 : position + size]))
        yield names[code]
        position += size


# Messages.

AZURE_MESSAGE = message.Message(
    header=message.Header(durable=True, priority=9, ttl=60_000, first_acquirer=True, delivery_count=3),
    delivery_annotations={"x-opt-lock-token": UUID_VALUE},
    message_annotations={
        "x-opt-partition-key": "key",
        "x-opt-sequence-number": typed(AMQPTypes.long, 2**40),
        "x-opt-enqueued-time": typed(AMQPTypes.timestamp, 1_700_000_000_123),
    },
    properties=message.Properties(
        message_id="id",
        user_id=b"ada",
        to="to",
        subject="subject",
        reply_to="reply",
        correlation_id=UUID_VALUE,
        content_type="text/plain",
        content_encoding="gzip",
        absolute_expiry_time=1_800_000_000_000,
        creation_time=1_700_000_000_000,
        group_id="session",
        group_sequence=7,
        reply_to_group_id="reply-session",
    ),
    application_properties={"text": "x", "int": 1, "long": typed(AMQPTypes.long, 2), "none": None, "uuid": UUID_VALUE},
    data=[b"one", b"two" * 100],
    footer={"x-opt-sum": 12},
)

OUR_MESSAGE = Message(
    header=Header(durable=True, priority=9, ttl=60_000, first_acquirer=True, delivery_count=3),
    delivery_annotations={Symbol("x-opt-lock-token"): UUID_VALUE},
    message_annotations={
        Symbol("x-opt-partition-key"): "key",
        Symbol("x-opt-sequence-number"): 2**40,
        Symbol("x-opt-enqueued-time"): Timestamp(1_700_000_000_123),
    },
    properties=Properties(
        message_id="id",
        user_id=b"ada",
        to="to",
        subject="subject",
        reply_to="reply",
        correlation_id=UUID_VALUE,
        content_type="text/plain",
        content_encoding="gzip",
        absolute_expiry_time=1_800_000_000_000,
        creation_time=1_700_000_000_000,
        group_id="session",
        group_sequence=7,
        reply_to_group_id="reply-session",
    ),
    application_properties={"text": "x", "int": Int(1), "long": 2, "none": None, "uuid": UUID_VALUE},
    body=(b"one", b"two" * 100),
    footer={Symbol("x-opt-sum"): Int(12)},
)


def azure_payload(content: Any) -> bytes:
    output = bytearray()
    _encode.encode_payload(output, content)
    return bytes(output)


def test_message_with_every_section_from_the_sdk_is_read() -> None:
    read = decode_message(azure_payload(AZURE_MESSAGE))
    assert read == OUR_MESSAGE
    for name in ("message_annotations", "application_properties", "footer"):
        assert with_types(getattr(read, name)) == with_types(getattr(OUR_MESSAGE, name))


def test_sdk_writes_delivery_annotations_last() -> None:
    sections = Sections(azure_payload(AZURE_MESSAGE))
    assert sections.spans[DELIVERY_ANNOTATIONS][0] == sections.spans[FOOTER][2]
    assert sections.spans[DELIVERY_ANNOTATIONS][2] == len(sections.payload)


def test_message_with_every_section_from_us_is_read_by_the_sdk_like_its_own() -> None:
    ours = _decode.decode_payload(memoryview(encode_message(OUR_MESSAGE)))
    theirs = _decode.decode_payload(memoryview(azure_payload(AZURE_MESSAGE)))
    assert ours == theirs
    assert ours.properties is not None
    assert ours.properties.message_id == b"id"
    assert ours.data == [b"one", b"two" * 100]


@pytest.mark.parametrize("message_id", ["text", b"bytes", UUID_VALUE, ULong(7)], ids=name_of)
def test_type_of_a_message_id_survives_both_ways(message_id: Any) -> None:
    theirs = message.Message(properties=message.Properties(message_id=message_id), data=[b""])
    read = decode_message(azure_payload(theirs)).properties.message_id
    assert with_types(read) == with_types(message_id)
    payload = encode_message(Message(properties=Properties(message_id=message_id), body=(b"",)))
    properties = _decode.decode_payload(memoryview(payload)).properties
    assert properties is not None
    assert properties.message_id == as_azure_reads(message_id)


@pytest.mark.parametrize(
    ("theirs", "kind", "body"),
    [
        (message.Message(data=[b""]), DATA, (b"",)),
        (message.Message(sequence=[[1, "two"], []]), AMQP_SEQUENCE, ([1, "two"], [])),
        (message.Message(value={"key": [1.5, None]}), AMQP_VALUE, ({"key": [1.5, None]},)),
        (message.Message(value="text"), AMQP_VALUE, ("text",)),
    ],
    ids=["data", "sequence", "value-map", "value-text"],
)
def test_body_of_any_kind_is_read_both_ways(theirs: Any, kind: int, body: tuple[Any, ...]) -> None:
    read = decode_message(azure_payload(theirs))
    assert (read.body_kind, read.body) == (kind, body)
    back = _decode.decode_payload(memoryview(encode_message(read)))
    assert back == _decode.decode_payload(memoryview(azure_payload(theirs)))


@pytest.mark.parametrize("value", [0, "", False, None, [], {}], ids=repr)
def test_body_that_is_false_to_python_is_left_out_by_the_sdk(value: Any) -> None:
    payload = azure_payload(message.Message(properties=message.Properties(message_id="id"), value=value))
    assert decode_message(payload).body == ()


# Messages of Service Bus, encoded as its sender encodes them.


def outgoing(sent: Any) -> Any:
    return transport.PyamqpTransport.to_outgoing_amqp_message(sent)


def test_service_bus_message_is_read() -> None:
    sent = servicebus.ServiceBusMessage(
        "Grüße",
        message_id="id",
        session_id="session",
        partition_key="session",
        subject="subject",
        to="to",
        reply_to="reply",
        reply_to_session_id="reply-session",
        correlation_id="correlation",
        content_type="text/plain",
        time_to_live=dt.timedelta(seconds=60),
        scheduled_enqueue_time_utc=dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC),
        application_properties={"int": 1, "text": "x", "float": 0.5, "bool": True, "uuid": UUID_VALUE, "bytes": b"b"},
    )
    encoded = outgoing(sent.raw_amqp_message)
    assert encoded._code == 0
    read = decode_message(azure_payload(encoded))
    assert read.header.ttl == 60_000
    assert read.message_annotations == {
        Symbol("x-opt-partition-key"): "session",
        Symbol("x-opt-scheduled-enqueue-time"): Timestamp(1_700_000_000_000),
    }
    properties = read.properties
    assert (properties.message_id, properties.group_id, properties.subject) == ("id", "session", "subject")
    assert (properties.to, properties.reply_to, properties.reply_to_group_id) == ("to", "reply", "reply-session")
    assert (properties.correlation_id, properties.content_type) == ("correlation", "text/plain")
    assert properties.absolute_expiry_time == (properties.creation_time or 0) + 60_000
    assert with_types(read.application_properties) == with_types(
        {"int": Int(1), "text": "x", "float": 0.5, "bool": True, "uuid": UUID_VALUE, "bytes": "b"}
    )
    assert (read.body_kind, read.body) == (DATA, ("Grüße".encode(),))


def test_annotated_message_is_read() -> None:
    sent = amqp.AmqpAnnotatedMessage(
        value_body={"key": [1, None]},
        header=amqp.AmqpMessageHeader(durable=True, priority=5),
        properties=amqp.AmqpMessageProperties(message_id=UUID_VALUE, user_id=b"ada", group_sequence=3),
        application_properties={"p": 1},
        annotations={"x-opt-a": 1},
        delivery_annotations={"x-opt-d": 2},
        footer={"x-opt-f": 3},
    )
    assert decode_message(azure_payload(outgoing(sent))) == Message(
        header=Header(durable=True, priority=5),
        properties=Properties(message_id=UUID_VALUE, user_id=b"ada", group_sequence=3),
        application_properties={"p": 1},
        message_annotations={Symbol("x-opt-a"): 1},
        delivery_annotations={Symbol("x-opt-d"): 2},
        footer={Symbol("x-opt-f"): 3},
        body=({"key": [1, None]},),
        body_kind=AMQP_VALUE,
    )


def test_batch_is_read_and_so_are_the_messages_in_it() -> None:
    batch = servicebus.ServiceBusMessageBatch(max_size_in_bytes=10_000)
    for number in range(3):
        batch.add_message(
            servicebus.ServiceBusMessage(
                b"%d" % number * 200, message_id=f"id-{number}", session_id="s", application_properties={"n": number}
            )
        )
    envelope: Any = batch._message
    sent: Any = message.BatchMessage(*envelope)
    assert sent._code == BATCH_FORMAT
    read = decode_message(azure_payload(sent))
    assert read.properties == Properties(message_id="id-0", group_id="s")
    assert (read.body_kind, len(read.body)) == (DATA, 3)
    for number, payload in enumerate(read.body):
        inner = decode_message(payload)
        assert inner.properties.message_id == f"id-{number}"
        assert with_types(inner.application_properties) == with_types({"n": Int(number)})
        assert inner.body == (b"%d" % number * 200,)
