"""Inputs to start fuzzing from: every performative, conversations made of them, messages and values."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final
from uuid import UUID

from pairbus.wire import (
    ACCEPTED,
    AMQP_SEQUENCE,
    AMQP_VALUE,
    RECEIVER,
    RELEASED,
    SENDER,
    Array,
    Attach,
    Begin,
    Char,
    Coordinator,
    Decimal32,
    Decimal64,
    Decimal128,
    Declare,
    Declared,
    Described,
    Discharge,
    Error,
    Float,
    Header,
    Int,
    Map,
    Message,
    Modified,
    Open,
    Properties,
    Received,
    Rejected,
    SaslCode,
    Short,
    Source,
    Symbol,
    Target,
    Timestamp,
    TransactionalState,
    UByte,
    UInt,
    ULong,
    UShort,
    encode,
    encode_message,
)
from pairbus.wire.frames import AMQP_HEADER, SASL_FRAME, SASL_HEADER
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
from pairbus.wire.types import Byte
from tests.fuzz.targets import TARGETS, fuzz_client, fuzz_decode, fuzz_message, fuzz_open_strict, fuzz_server, fuzz_skip
from tests.wire.pair import frame

VALUES: Final[tuple[bytes, ...]] = tuple(
    encode(value)
    for value in (
        None,
        True,
        *(UByte(7), UShort(7), UInt(0), UInt(7), UInt(700), ULong(0), ULong(7), ULong(2**60)),
        *(Byte(-1), Short(-1), Int(-1), Int(700), -1, 2**60, Float(1.5), 2.5, Timestamp(5), Char("é")),
        *(Decimal32(b"1234"), Decimal64(b"12345678"), Decimal128(b"1234567812345678"), UUID(int=5)),
        *("text", "t" * 300, b"bytes", b"b" * 300, Symbol("symbol"), Symbol("s" * 300)),
        *([], [1, "two", [b"three"]], list(range(300)), {"a": 1, Symbol("b"): [2]}, {}),
        *(Array((UInt(1), UInt(2))), Array((Symbol("a"),)), Array(()), Array((Described(ULong(1), 2),))),
        *(Described(ULong(0x24), []), Described(Symbol("amqp:accepted:list"), [])),
        Map(((UInt(1), "a"), (1, "b"), ([1], "c"))),
        *(Declare(), Discharge(txn_id=b"t", fail=True)),
    )
)

MESSAGES: Final[tuple[bytes, ...]] = (
    encode_message(Message(body=(b"a body",))),
    encode_message(
        Message(
            header=Header(durable=True, priority=9, ttl=5000, first_acquirer=True, delivery_count=2),
            delivery_annotations={"x-opt-delivery": 1},
            message_annotations={"x-opt-message": Timestamp(5)},
            properties=Properties(
                message_id="id", correlation_id=UUID(int=1), content_type="text/plain", group_sequence=7
            ),
            application_properties={"a": 1, "b": "two"},
            body=(b"one", b"two"),
            footer={"checksum": 5},
        )
    ),
    encode_message(Message(body=([1, "two"], [3]), body_kind=AMQP_SEQUENCE)),
    encode_message(Message(body=({"operation": "put-token"},), body_kind=AMQP_VALUE)),
)

_FLOW: Final[dict[str, Any]] = {
    "next_incoming_id": 0,
    "incoming_window": 10,
    "next_outgoing_id": 0,
    "outgoing_window": 10,
}

FRAMES: Final[tuple[bytes, ...]] = (
    frame(),
    frame(Open(container_id="peer")),
    frame(Open(container_id="peer", hostname="h", max_frame_size=512, channel_max=1, idle_time_out=10)),
    frame(Begin(next_outgoing_id=0, incoming_window=10, outgoing_window=10)),
    frame(Begin(next_outgoing_id=0, incoming_window=2, outgoing_window=10, handle_max=1), channel=1),
    frame(Begin(remote_channel=0, next_outgoing_id=0, incoming_window=10, outgoing_window=10)),
    frame(Begin(remote_channel=0, next_outgoing_id=2**32 - 1, incoming_window=10, outgoing_window=10), channel=2),
    frame(Attach(name="in", handle=0, role=SENDER, initial_delivery_count=0, source=Source(), target=Target())),
    frame(Attach(name="out", handle=1, role=RECEIVER, source=Source(address="q", default_outcome=RELEASED))),
    frame(Attach(name="c", handle=2, role=SENDER, initial_delivery_count=5, target=Coordinator()), channel=0),
    frame(Attach(name="in", handle=3, role=RECEIVER, max_message_size=10, properties={"a": 1}), channel=1),
    frame(Flow(**_FLOW, echo=True)),
    frame(Flow(**{**_FLOW, "next_incoming_id": None}, handle=1, delivery_count=0, link_credit=3)),
    frame(Flow(**_FLOW, handle=1, delivery_count=2, link_credit=10, drain=True, echo=True)),
    frame(Flow(**_FLOW, handle=0, delivery_count=3, available=7, drain=True)),
    frame(Transfer(0, 0, b"a", 0, False), payload=MESSAGES[0]),
    frame(Transfer(0, 1, b"b", 0, True), payload=MESSAGES[1]),
    frame(Transfer(0, 2, b"c", 0, None, True), payload=b"first"),
    frame(Transfer(0, more=True), payload=b"more" * 50),
    frame(Transfer(0, settled=True), payload=b"last"),
    frame(Transfer(0, aborted=True)),
    frame(Transfer(0, 3, b"d", 0, False, False, None, TransactionalState(txn_id=b"t", outcome=ACCEPTED), True)),
    frame(Transfer(1, 0, b"a")),
    frame(Disposition(RECEIVER, 0, 1, True, ACCEPTED)),
    frame(Disposition(RECEIVER, 0, None, False, Received(section_number=1, section_offset=2))),
    frame(Disposition(RECEIVER, 0, 2**31, True, Rejected(Error("a:b", "c", {"d": 1})))),
    frame(Disposition(SENDER, 0, 5, True, Modified(delivery_failed=True, message_annotations={"a": 1}))),
    frame(Disposition(RECEIVER, 1, 1, True, Declared(b"t"))),
    frame(Detach(handle=0, closed=True)),
    frame(Detach(handle=1, error=Error("a:b", "c"))),
    frame(End()),
    frame(End(error=Error("a:b", "c")), channel=1),
    frame(Close()),
    frame(Close(error=Error("a:b", "c"))),
)

SASL_FRAMES: Final[tuple[bytes, ...]] = tuple(
    frame(performative, kind=SASL_FRAME)
    for performative in (
        SaslMechanisms(sasl_server_mechanisms=("ANONYMOUS", "STEPS")),
        SaslInit(mechanism="ANONYMOUS"),
        SaslInit(mechanism="PLAIN", initial_response=b"\0user\0password", hostname="h"),
        SaslInit(mechanism="STEPS", initial_response=b""),
        SaslChallenge(challenge=b"next"),
        SaslResponse(response=b"step"),
        SaslOutcome(code=SaslCode.OK),
        SaslOutcome(code=SaslCode.SYS_TEMP, additional_data=b"later"),
    )
)

_OPEN, _BEGIN, _ANSWER = FRAMES[1], FRAMES[3], FRAMES[5]
_CONVERSATION: Final = FRAMES[7:]

STREAMS: Final[tuple[bytes, ...]] = (
    AMQP_HEADER + _OPEN + _BEGIN + b"".join(_CONVERSATION),
    SASL_HEADER + SASL_FRAMES[1] + AMQP_HEADER + _OPEN + _BEGIN + b"".join(_CONVERSATION[:2]),
    SASL_HEADER + SASL_FRAMES[2] + AMQP_HEADER + _OPEN,
    SASL_HEADER + SASL_FRAMES[3] + SASL_FRAMES[5] + AMQP_HEADER + _OPEN,
    SASL_HEADER + SASL_FRAMES[0] + SASL_FRAMES[4] + SASL_FRAMES[6] + AMQP_HEADER + _OPEN + _ANSWER + _CONVERSATION[0],
)


def corpus() -> list[bytes]:
    """Make the inputs to start from."""

    def choose(target: object, *rest: bytes) -> bytes:
        return bytes([TARGETS.index(target)]) + b"".join(rest)

    inputs = [choose(target, value) for value in VALUES for target in (fuzz_decode, fuzz_skip)]
    inputs += [choose(fuzz_message, message) for message in MESSAGES]
    inputs += [choose(target, b"\0", stream) for stream in STREAMS for target in (fuzz_server, fuzz_client)]
    for engine in range(TARGETS.index(fuzz_open_strict), TARGETS.index(fuzz_client)):
        inputs += [bytes([engine, 0]) + one for one in FRAMES]
        inputs += [bytes([engine, 0]) + one + other for one, other in pairwise(FRAMES)]
    return inputs
