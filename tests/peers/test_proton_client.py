"""Qpid Proton as the client of our engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from pairbus.wire import (
    ACCEPTED,
    AMQP_SEQUENCE,
    AMQP_VALUE,
    RELEASED,
    Array,
    Authenticated,
    Byte,
    Char,
    Condition,
    Configuration,
    ConnectionClosed,
    ConnectionOpened,
    Decimal32,
    Decimal64,
    Decimal128,
    DeliveryAborted,
    Described,
    DispositionReceived,
    Error,
    Float,
    Header,
    Int,
    LinkAttached,
    LinkDetached,
    LinkDrained,
    Message,
    Properties,
    Rejected,
    SaslServer,
    SessionBegun,
    SessionEnded,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    decode_message,
    encode_message,
)
from pairbus.wire.errors import AuthenticationError, FramingError, IdleTimeoutError
from tests.peers.comparison import with_types
from tests.peers.node_server import MODIFIED, PASSWORD, REJECTED, USER, NodeServer, Stored
from tests.peers.payload import message, pattern
from tests.peers.proton_container import ProtonClient, is_closed, is_open, proton, reactor
from tests.peers.waiting import SLOWNESS, passed
from tests.waiting import eventually

SIZES = (1, 1024, 1024 * 1024)
FRAME_SIZES = (512, 4096, 32768)

UUID_VALUE = UUID("12345678-1234-5678-1234-567812345678")

TYPES: list[tuple[Any, Any]] = [
    (None, None),
    (True, True),
    (False, False),
    (proton.ubyte(0), UByte(0)),
    (proton.ubyte(255), UByte(255)),
    (proton.ushort(65535), UShort(65535)),
    (proton.uint(0), UInt(0)),
    (proton.uint(255), UInt(255)),
    (proton.uint(2**32 - 1), UInt(2**32 - 1)),
    (proton.ulong(0), ULong(0)),
    (proton.ulong(255), ULong(255)),
    (proton.ulong(2**64 - 1), ULong(2**64 - 1)),
    (proton.byte(-128), Byte(-128)),
    (proton.short(-32768), Short(-32768)),
    (proton.int32(-1), Int(-1)),
    (proton.int32(-(2**31)), Int(-(2**31))),
    (-1, -1),
    (2**63 - 1, 2**63 - 1),
    (-(2**63), -(2**63)),
    (proton.float32(0.5), Float(0.5)),
    (1e300, 1e300),
    (proton.decimal32(0x22500001), Decimal32(b"\x22\x50\x00\x01")),
    (proton.decimal64(0x2238000000000001), Decimal64(b"\x22\x38\x00\x00\x00\x00\x00\x01")),
    (proton.decimal128(bytes(range(16))), Decimal128(bytes(range(16)))),
    (proton.char("\N{SNOWMAN}"), Char("\N{SNOWMAN}")),
    (proton.timestamp(1_700_000_000_123), Timestamp(1_700_000_000_123)),
    (proton.timestamp(-1), Timestamp(-1)),
    (UUID_VALUE, UUID_VALUE),
    (b"", b""),
    (b"\0" * 256, b"\0" * 256),
    ("", ""),
    ("Grüße", "Grüße"),
    ("x" * 256, "x" * 256),
    (proton.symbol("amqp:name"), Symbol("amqp:name")),
    (proton.symbol("s" * 256), Symbol("s" * 256)),
]
"""Every primitive type: Proton's value and ours."""

NESTED: list[tuple[Any, Any]] = [
    ([], []),
    ([1, "two", [None, [True]]], [1, "two", [None, [True]]]),
    (list(range(300)), list(range(300))),
    ({}, {}),
    ({"a": {"b": [proton.uint(1), {"c": None}]}}, {"a": {"b": [UInt(1), {"c": None}]}}),
    ({proton.ulong(1): "ulong", proton.symbol("s"): "symbol"}, {ULong(1): "ulong", Symbol("s"): "symbol"}),
    (
        proton.Array(proton.UNDESCRIBED, proton.Data.INT, 1, -2, 2**31 - 1),
        Array((Int(1), Int(-2), Int(2**31 - 1))),
    ),
    (
        proton.Array(proton.UNDESCRIBED, proton.Data.SYMBOL, proton.symbol("a"), proton.symbol("b")),
        Array((Symbol("a"), Symbol("b"))),
    ),
    (
        proton.Array(proton.symbol("test:point"), proton.Data.LONG, 1, 2),
        Array((Described(Symbol("test:point"), 1), Described(Symbol("test:point"), 2))),
    ),
    (proton.Array(proton.UNDESCRIBED, proton.Data.INT), Array((), b"\x71")),
    (proton.Array(proton.UNDESCRIBED, proton.Data.BOOL, True, False), Array((True, False))),
    (proton.Array(proton.UNDESCRIBED, proton.Data.NULL, None, None), Array((None, None))),
    (proton.Array(proton.UNDESCRIBED, proton.Data.UINT, proton.uint(0), proton.uint(1)), Array((UInt(0), UInt(1)))),
    (proton.Array(proton.UNDESCRIBED, proton.Data.LIST, [1], []), Array(([1], []))),
    (proton.Array(proton.UNDESCRIBED, proton.Data.MAP, {}, {"a": 1}), Array(({}, {"a": 1}))),
    (proton.Described(proton.symbol("test:thing"), "x"), Described(Symbol("test:thing"), "x")),
    (proton.Described(proton.ulong(2**40), [1, 2]), Described(ULong(2**40), [1, 2])),
]
"""Types that hold others, and described ones."""


def connect(server: NodeServer, **options: Any) -> ProtonClient:
    return ProtonClient(server.port, allowed_mechs="ANONYMOUS", **options).opened()


@pytest.fixture
def client(server: NodeServer) -> Iterator[ProtonClient]:
    with connect(server) as client:
        yield client


# Connecting.


def test_proton_connects_anonymously_and_both_get_the_container_id(server: NodeServer) -> None:
    with connect(server) as client:
        assert client.connection.remote_container == "node-server"
    assert [event.mechanism for event in server.seen(Authenticated)] == ["ANONYMOUS"]
    assert [event.open.container_id for event in server.seen(ConnectionOpened)] == ["proton"]
    assert server.seen(ConnectionClosed) == [ConnectionClosed(None)]


def test_proton_connects_without_sasl(server: NodeServer) -> None:
    with ProtonClient(server.port, sasl_enabled=False).opened() as client:
        client.close()
    assert not server.seen(Authenticated)
    assert server.seen(ConnectionOpened)


def test_proton_connects_with_the_right_password(server: NodeServer) -> None:
    with ProtonClient(server.port, allowed_mechs="PLAIN", user=USER, password=PASSWORD).opened() as client:
        client.close()
    assert [event.mechanism for event in server.seen(Authenticated)] == ["PLAIN"]


def test_proton_is_turned_away_with_a_wrong_password(server: NodeServer) -> None:
    with ProtonClient(server.port, allowed_mechs="PLAIN", user=USER, password="wrong") as client:  # noqa: S106
        failure = client.until(lambda: client.failure)
    assert failure.name == "amqp:unauthorized-access"
    assert isinstance(server.violations.pop(), AuthenticationError)
    assert not server.seen(ConnectionOpened)


def test_proton_without_sasl_is_turned_away_where_we_insist_on_it() -> None:
    with NodeServer(sasl=SaslServer()) as server:
        with ProtonClient(server.port, sasl_enabled=False) as client:
            assert client.until(lambda: client.failure).name == "amqp:connection:framing-error"
        assert isinstance(server.violations.pop(), FramingError)


def test_proton_prefers_external_where_it_is_offered_and_is_turned_away(server: NodeServer) -> None:
    with ProtonClient(server.port) as client:
        failure = client.until(lambda: client.failure)
    assert "mech=EXTERNAL" in failure.description
    assert isinstance(server.violations.pop(), AuthenticationError)


def test_properties_of_a_connection_reach_the_other_end() -> None:
    configuration = Configuration(container_id="c", properties={"product": "pairbus", "depth": UInt(2)})
    with NodeServer(configuration) as server, connect(server, properties={"product": "proton"}) as client:
        assert client.connection.remote_properties == {"product": "pairbus", "depth": 2}
        (opened,) = server.seen(ConnectionOpened)
        assert opened.open.properties == {"product": "proton"}


# Messages.


@pytest.mark.parametrize("frame_size", FRAME_SIZES)
def test_messages_of_any_size_come_back_byte_for_byte(frame_size: int) -> None:
    configuration = Configuration(container_id="c", max_frame_size=frame_size)
    with NodeServer(configuration) as server, connect(server, max_frame_size=frame_size) as client:
        sender = client.sender("echo")
        messages = [proton.Message(body=pattern(size), inferred=True) for size in SIZES]
        for sent in messages:
            assert client.send(sender, sent).remote_state == proton.Delivery.ACCEPTED
        client.receiver("echo").flow(len(SIZES))
        arrivals = client.receive(len(SIZES))
        assert [bytes(arrival.message.body) for arrival in arrivals] == [pattern(size) for size in SIZES]
        payloads = [sent.encode() for sent in messages]
        assert [arrival.payload for arrival in arrivals] == payloads
        assert [delivery.payload for delivery in server.arrived("echo")] == payloads
        transport = client.connection.transport
        assert transport.frames_output >= SIZES[-1] / frame_size
        assert transport.frames_input >= SIZES[-1] / frame_size


def test_message_larger_than_the_session_windows_gets_through_both_ways() -> None:
    configuration = Configuration(container_id="c", max_frame_size=512, incoming_window=4)
    with NodeServer(configuration) as server, connect(server, max_frame_size=512) as client:
        session = client.session(incoming_capacity=2048)
        client.send(client.sender("echo", session=session), proton.Message(body=pattern(100_000), inferred=True))
        assert server.seen(SessionBegun)[0].begin.incoming_window == 4
        client.receiver("echo", session=session).flow(1)
        client.until(lambda: server.act(lambda connection: connection.engine.sessions[0].queued))
        (arrival,) = client.receive()
        assert arrival.message.body == pattern(100_000)


def test_application_properties_of_every_type_keep_it_both_ways(client: ProtonClient, server: NodeServer) -> None:
    theirs = {f"key-{number}": value for number, (value, _) in enumerate(TYPES)}
    ours = {f"key-{number}": value for number, (_, value) in enumerate(TYPES)}
    client.send(client.sender("echo"), proton.Message(body=b"", inferred=True, properties=theirs))
    message = decode_message(server.arrived("echo")[0].payload)
    assert message.application_properties is not None
    assert_same(list(message.application_properties.items()), list(ours.items()))
    server.put("made", Stored(encode_message(Message(application_properties=ours, body=(b"",)))))
    client.receiver("made").flow(1)
    properties = client.receive()[0].message.properties
    assert list(properties) == list(theirs)
    for key, value in properties.items():
        assert_same_of_protons(value, theirs[key])


def test_bodies_of_every_type_arrive_from_proton(client: ProtonClient, server: NodeServer) -> None:
    sender = client.sender("echo")
    for theirs, ours in TYPES[1:] + NESTED:
        client.send(sender, proton.Message(body=theirs))
        message = decode_message(server.arrived("echo")[-1].payload)
        assert message.body_kind == AMQP_VALUE
        assert_same(message.body[0], ours)


def test_bodies_of_every_type_arrive_at_proton(client: ProtonClient, server: NodeServer) -> None:
    bodies = TYPES + NESTED
    messages = [encode_message(Message(body=(ours,), body_kind=AMQP_VALUE)) for _, ours in bodies]
    server.put("made", *[Stored(payload) for payload in messages])
    client.receiver("made").flow(len(bodies))
    for arrival, (theirs, _) in zip(client.receive(len(bodies)), bodies, strict=True):
        assert_same_of_protons(arrival.message.body, theirs)


def test_message_without_a_body_is_read(client: ProtonClient, server: NodeServer) -> None:
    client.send(client.sender("echo"), proton.Message(body=None))  # which Proton sends without a body
    assert decode_message(server.arrived("echo")[0].payload).body == ()


def assert_same(mine: Any, expected: Any) -> None:
    assert mine == expected
    assert with_types(mine) == with_types(expected)


def assert_same_of_protons(theirs: Any, expected: Any) -> None:
    if isinstance(theirs, memoryview):  # which is how Proton hands out binary values
        theirs = bytes(theirs)
    assert type(theirs) is type(expected)
    assert theirs == expected


def test_every_section_of_a_message_from_proton_is_read(client: ProtonClient, server: NodeServer) -> None:
    client.send(
        client.sender("echo"),
        proton.Message(
            durable=True,
            priority=9,
            ttl=60,
            first_acquirer=True,
            delivery_count=3,
            id=UUID_VALUE,
            user_id=b"ada",
            address="to",
            subject="subject",
            reply_to="reply",
            correlation_id=proton.ulong(2**40),
            content_type=proton.symbol("text/plain"),
            content_encoding=proton.symbol("gzip"),
            expiry_time=1_800_000_000,
            creation_time=1_700_000_000,
            group_id="group",
            group_sequence=7,
            reply_to_group_id="reply-group",
            instructions={"x-opt-hop": 1},
            annotations={"x-opt-key": "value", proton.ulong(5): "number"},
            properties={"p": 1},
            body=b"body",
            inferred=True,
        ),
    )
    assert decode_message(server.arrived("echo")[0].payload) == Message(
        header=Header(durable=True, priority=9, ttl=60_000, first_acquirer=True, delivery_count=3),
        delivery_annotations={Symbol("x-opt-hop"): 1},
        message_annotations={Symbol("x-opt-key"): "value", ULong(5): "number"},
        properties=Properties(
            message_id=UUID_VALUE,
            user_id=b"ada",
            to="to",
            subject="subject",
            reply_to="reply",
            correlation_id=ULong(2**40),
            content_type=Symbol("text/plain"),
            content_encoding=Symbol("gzip"),
            absolute_expiry_time=Timestamp(1_800_000_000_000),
            creation_time=Timestamp(1_700_000_000_000),
            group_id="group",
            group_sequence=UInt(7),
            reply_to_group_id="reply-group",
        ),
        application_properties={"p": 1},
        body=(b"body",),
    )


def test_every_section_of_a_pairbus_message_is_read_by_proton(client: ProtonClient, server: NodeServer) -> None:
    payload = encode_message(
        Message(
            header=Header(durable=True, priority=9, ttl=60_000, first_acquirer=True, delivery_count=3),
            delivery_annotations={"x-opt-hop": 1},
            message_annotations={"x-opt-key": "value", ULong(5): "number"},
            properties=Properties(
                message_id=UUID_VALUE,
                user_id=b"ada",
                to="to",
                subject="subject",
                reply_to="reply",
                correlation_id=ULong(2**40),
                content_type="text/plain",
                content_encoding="gzip",
                absolute_expiry_time=1_800_000_000_000,
                creation_time=1_700_000_000_000,
                group_id="group",
                group_sequence=7,
                reply_to_group_id="reply-group",
            ),
            application_properties={"p": 1},
            body=(b"body",),
            footer={"x-opt-sum": 12},
        )
    )
    server.put("made", Stored(payload))
    client.receiver("made").flow(1)
    message = client.receive()[0].message
    assert (message.durable, message.priority, message.ttl, message.first_acquirer, message.delivery_count) == (
        True,
        9,
        60,
        True,
        3,
    )
    assert (message.id, message.user_id, message.address, message.subject) == (UUID_VALUE, b"ada", "to", "subject")
    assert (message.reply_to, message.correlation_id) == ("reply", proton.ulong(2**40))
    assert (message.content_type, message.content_encoding) == ("text/plain", "gzip")
    assert (message.expiry_time, message.creation_time) == (1_800_000_000, 1_700_000_000)
    assert (message.group_id, message.group_sequence, message.reply_to_group_id) == ("group", 7, "reply-group")
    assert message.instructions == {proton.symbol("x-opt-hop"): 1}
    assert message.annotations == {proton.symbol("x-opt-key"): "value", proton.ulong(5): "number"}
    assert message.properties == {"p": 1}
    assert message.body == b"body"


@pytest.mark.parametrize("id_value", ["text", b"bytes", UUID_VALUE, proton.ulong(0), proton.ulong(2**63)])
def test_message_id_keeps_its_type(client: ProtonClient, server: NodeServer, id_value: Any) -> None:
    client.send(client.sender("echo"), proton.Message(body=b"", inferred=True, id=id_value))
    ours = ULong(id_value) if isinstance(id_value, int) else id_value
    assert_same(decode_message(server.arrived("echo")[0].payload).properties.message_id, ours)


def test_body_of_a_sequence_is_read_by_both(client: ProtonClient, server: NodeServer) -> None:
    client.send(client.sender("echo"), proton.Message(body=[1, "two"], inferred=True))
    message = decode_message(server.arrived("echo")[0].payload)
    assert (message.body_kind, message.body) == (AMQP_SEQUENCE, ([1, "two"],))
    client.receiver("echo").flow(1)
    assert client.receive()[0].message.body == [1, "two"]


def test_many_messages_arrive_in_order_and_are_all_settled(client: ProtonClient, server: NodeServer) -> None:
    sender = client.sender("echo")
    sent = [sender.send(proton.Message(body=number)) for number in range(1000)]
    client.until(lambda: all(delivery.settled for delivery in sent))
    assert {delivery.remote_state for delivery in sent} == {proton.Delivery.ACCEPTED}
    client.receiver("echo").flow(1000)
    arrivals = client.receive(1000)
    assert [arrival.message.body for arrival in arrivals] == list(range(1000))
    for arrival in arrivals:
        arrival.delivery.update(proton.Delivery.ACCEPTED)
        arrival.delivery.settle()
    client.until(lambda: len(server.settled()) == 1000)
    assert {delivery.state for delivery in server.settled()} == {ACCEPTED}
    assert server.act(lambda connection: [session.unsettled for session in connection.engine.sessions.values()]) == [0]


# Settling.


def test_proton_as_sender_sees_that_a_message_is_accepted(client: ProtonClient) -> None:
    assert client.send(client.sender("accepted"), proton.Message()).remote_state == proton.Delivery.ACCEPTED


def test_proton_as_sender_sees_why_a_message_is_rejected(client: ProtonClient) -> None:
    delivery = client.send(client.sender("rejected"), proton.Message())
    assert delivery.remote_state == proton.Delivery.REJECTED
    condition = delivery.remote.condition
    assert (condition.name, condition.description) == ("test:no-good", "not good enough")
    assert condition.info == {proton.symbol("line"): 7}


def test_proton_as_sender_sees_that_a_message_is_released(client: ProtonClient) -> None:
    assert client.send(client.sender("released"), proton.Message()).remote_state == proton.Delivery.RELEASED


def test_proton_as_sender_sees_how_a_message_is_modified(client: ProtonClient) -> None:
    delivery = client.send(client.sender("modified"), proton.Message())
    assert delivery.remote_state == proton.Delivery.MODIFIED
    assert delivery.remote.failed
    assert delivery.remote.undeliverable
    assert delivery.remote.annotations == {proton.symbol("x-opt-reason"): "bruised"}


def accept(delivery: Any) -> object:
    delivery.update(proton.Delivery.ACCEPTED)
    return ACCEPTED


def reject(delivery: Any) -> object:
    delivery.local.condition = proton.Condition("test:no-good", "not good enough", {proton.symbol("line"): 7})
    delivery.update(proton.Delivery.REJECTED)
    return REJECTED


def reject_without_reason(delivery: Any) -> object:
    delivery.update(proton.Delivery.REJECTED)
    return Rejected()


def release(delivery: Any) -> object:
    delivery.update(proton.Delivery.RELEASED)
    return RELEASED


def modify(delivery: Any) -> object:
    delivery.local.failed = True
    delivery.local.undeliverable = True
    delivery.local.annotations = {proton.symbol("x-opt-reason"): "bruised"}
    delivery.update(proton.Delivery.MODIFIED)
    return MODIFIED


@pytest.mark.parametrize("settle", [accept, reject, reject_without_reason, release, modify])
def test_we_see_what_proton_as_receiver_makes_of_a_message(
    client: ProtonClient, server: NodeServer, settle: Any
) -> None:
    server.put("queue", Stored(message()))
    client.receiver("queue").flow(1)
    delivery = client.receive()[0].delivery
    expected = settle(delivery)
    delivery.settle()
    client.until(server.settled)
    (settled,) = server.settled()
    assert settled.state == expected
    assert settled.settled


def test_released_message_is_delivered_again(client: ProtonClient, server: NodeServer) -> None:
    server.put("queue", Stored(message(1)), Stored(message(2)))
    client.receiver("queue").flow(3)
    release(client.receive(2)[0].delivery)
    client.arrivals[0].delivery.settle()
    assert [len(arrival.message.body) for arrival in client.receive(3)] == [1, 2, 1]


def test_receiver_that_settles_second_gets_our_outcome_first(client: ProtonClient, server: NodeServer) -> None:
    server.put("queue", Stored(message()))
    client.receiver("queue", options=SettlesSecond()).flow(1)
    delivery = client.receive()[0].delivery
    accept(delivery)
    client.until(lambda: delivery.settled)
    assert delivery.remote_state == proton.Delivery.ACCEPTED
    (reported,) = server.seen(DispositionReceived)
    assert not reported.settled


def test_sender_settles_before_we_do_where_the_receiver_settles_second(
    client: ProtonClient, server: NodeServer
) -> None:
    delivery = client.sender("accepted", options=SettlesSecond()).send(proton.Message())
    client.until(lambda: delivery.remote_state == proton.Delivery.ACCEPTED)
    assert not delivery.settled
    delivery.settle()
    (reported,) = client.until(lambda: server.seen(DispositionReceived))
    assert reported.settled


class SettlesSecond:
    """An option of Proton's for a link whose receiver settles second."""

    def test(self, _link: Any) -> bool:
        return True

    def apply(self, link: Any) -> None:
        link.rcv_settle_mode = proton.Link.RCV_SECOND


def test_message_that_proton_sends_settled_needs_no_answer(client: ProtonClient, server: NodeServer) -> None:
    client.sender("echo", options=reactor.AtMostOnce()).send(proton.Message(body="once"))
    (delivery,) = client.until(lambda: server.arrived("echo"))
    assert delivery.settled
    assert decode_message(delivery.payload).body == ("once",)


def test_message_that_we_send_settled_needs_no_answer(client: ProtonClient, server: NodeServer) -> None:
    server.put("queue", Stored(message(), settled=True))
    client.receiver("queue").flow(1)
    (arrival,) = client.receive()
    assert arrival.delivery.settled
    assert server.act(lambda connection: connection.engine.sessions[0].unsettled) == 0


def test_message_that_proton_aborts_is_reported_and_the_next_one_arrives(
    server: NodeServer,
) -> None:
    with connect(server) as client:
        sender = client.sender("echo")
        doomed = sender.delivery("doomed")
        sender.stream(pattern(100_000))
        client.until(lambda: sender.session.outgoing_bytes == 0)
        doomed.abort()
        (aborted,) = client.until(lambda: server.seen(DeliveryAborted))
        assert aborted.error is None
        client.send(sender, proton.Message(body="next"))
        assert [decode_message(delivery.payload).body for delivery in server.arrived("echo")] == [("next",)]


# Credit.


def test_proton_gets_no_more_messages_than_it_granted(client: ProtonClient, server: NodeServer) -> None:
    server.put("queue", *[Stored(message()) for _ in range(10)])
    receiver = client.receiver("queue")
    receiver.flow(3)
    client.receive(3)
    client.send(client.sender("accepted"), proton.Message())  # whatever was written before has arrived now
    assert len(client.arrivals) == 3
    receiver.flow(2)
    client.receive(5)
    client.send(client.sender("accepted", name="again"), proton.Message())
    assert len(client.arrivals) == 5
    assert len(server.queues["queue"]) == 5


def test_proton_sends_no_more_messages_than_we_granted() -> None:
    with NodeServer(credit=2) as server, connect(server) as client:
        sender = client.sender("echo")
        assert sender.credit == 2
        sent = [sender.send(proton.Message(body=number)) for number in range(50)]
        client.until(lambda: all(delivery.settled for delivery in sent))
        assert not server.seen(LinkDetached)
        assert [decode_message(delivery.payload).body[0] for delivery in server.arrived("echo")] == list(range(50))


def test_proton_drains_a_link_and_gets_the_credit_back_that_found_no_message(
    client: ProtonClient, server: NodeServer
) -> None:
    server.put("queue", *[Stored(message()) for _ in range(3)])
    receiver = client.receiver("queue")
    receiver.drain(10)
    client.until(lambda: not receiver.draining())
    assert len(client.arrivals) == 3
    assert receiver.drained() == 7
    assert receiver.credit == 0
    receiver.drain_mode = False
    receiver.flow(1)
    server.put("queue", Stored(message()))
    client.receive(4)


def test_proton_drains_an_empty_queue(client: ProtonClient) -> None:
    receiver = client.receiver("queue")
    receiver.drain(5)
    client.until(lambda: not receiver.draining())
    assert receiver.drained() == 5


def test_we_drain_a_sender_of_protons(client: ProtonClient, server: NodeServer) -> None:
    sender = client.sender("echo", name="drained")
    server.act(lambda connection: connection.link("drained").flow(10, drain=True))
    client.until(lambda: sender.drain_mode)
    assert sender.drained() == 10
    (drained,) = client.until(lambda: server.seen(LinkDrained))
    assert drained.link.name == "drained"
    assert drained.link.credit == 0
    server.act(lambda connection: connection.link("drained").flow(1))
    client.until(lambda: sender.credit == 1)
    client.send(sender, proton.Message(body="after"))


# Links and sessions.


@pytest.mark.parametrize("role", ["sender", "receiver"])
def test_attach_to_a_missing_address_is_refused_with_a_reason(client: ProtonClient, role: str) -> None:
    create = client.container.create_sender if role == "sender" else client.container.create_receiver
    link = create(client.connection, "missing")
    client.until(lambda: link.state & proton.Endpoint.REMOTE_CLOSED)
    assert link.remote_condition.name == "amqp:not-found"
    assert link.remote_condition.description == "there is no such node"
    terminus = link.remote_target if role == "sender" else link.remote_source
    assert terminus.type == proton.Terminus.UNSPECIFIED
    link.close()
    client.send(client.sender("accepted"), proton.Message())


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "detached"])
def test_link_is_detached_and_attached_again_under_its_name(
    client: ProtonClient, server: NodeServer, closed: bool
) -> None:
    for body in ("one", "two", "three"):
        sender = client.sender("echo", name="again")
        client.send(sender, proton.Message(body=body))
        client.happened.clear()
        if closed:
            sender.close()
        else:
            sender.detach()
        client.until(lambda: f"on_link_remote_{'close' if closed else 'detach'}" in client.happened)
        sender.free()
    assert [event.closed for event in server.seen(LinkDetached)] == [closed] * 3
    bodies = [decode_message(delivery.payload).body for delivery in server.arrived("echo")]
    assert bodies == [("one",), ("two",), ("three",)]


def test_messages_of_a_detached_receiver_go_to_the_next_one(client: ProtonClient, server: NodeServer) -> None:
    server.put("queue", Stored(message(1)), Stored(message(2)))
    receiver = client.receiver("queue", name="first")
    receiver.flow(2)
    client.receive(2)
    receiver.close()
    client.until(lambda: is_closed(receiver))
    client.receiver("queue", name="second").flow(2)
    assert [len(arrival.message.body) for arrival in client.receive(4)] == [1, 2, 1, 2]


def test_proton_gets_the_reason_of_our_detach(client: ProtonClient, server: NodeServer) -> None:
    sender = client.sender("echo", name="victim")
    error = Error(Condition.DETACH_FORCED, "idle", {"after": 600})
    server.act(lambda connection: connection.link("victim").detach(error=error))
    client.until(lambda: sender.state & proton.Endpoint.REMOTE_CLOSED)
    condition = sender.remote_condition
    assert (condition.name, condition.description) == ("amqp:link:detach-forced", "idle")
    assert condition.info == {proton.symbol("after"): 600}


def test_link_that_we_detach_can_be_attached_again_at_once(client: ProtonClient, server: NodeServer) -> None:
    """Proton writes the new attach before the answer to our detach: for a moment the name has two handles."""
    sender = client.sender("echo", name="victim")
    server.act(lambda connection: connection.link("victim").detach(error=Error(Condition.DETACH_FORCED)))
    client.until(lambda: sender.state & proton.Endpoint.REMOTE_CLOSED)
    sender.close()
    again = client.container.create_sender(client.connection, "echo", name="victim")
    client.until(lambda: again.credit or server.seen(SessionEnded))
    assert not server.seen(SessionEnded)
    client.send(again, proton.Message(body="again"))


def test_link_that_proton_closes_can_be_attached_again_at_once(client: ProtonClient, server: NodeServer) -> None:
    """Proton writes the new attach before the detach: the second attach steals the link (part 2.6.1)."""
    sender = client.sender("echo", name="thief")
    bystander = client.sender("echo", name="bystander")
    sender.close()
    again = client.container.create_sender(client.connection, "echo", name="thief")
    client.until(lambda: again.credit or server.seen(SessionEnded))
    assert not server.seen(SessionEnded)
    client.until(lambda: is_closed(sender))
    client.send(again, proton.Message(body="again"))
    client.send(bystander, proton.Message(body="still here"))


def test_proton_gets_the_maximum_message_size_and_is_detached_beyond_it() -> None:
    configuration = Configuration(container_id="c", max_message_size=1000, max_frame_size=512)
    with NodeServer(configuration) as server, connect(server) as client:
        sender = client.sender("echo")
        assert sender.remote_max_message_size == 1000
        sender.send(proton.Message(body=pattern(2000), inferred=True))
        client.until(lambda: sender.state & proton.Endpoint.REMOTE_CLOSED)
        assert sender.remote_condition.name == "amqp:link:message-size-exceeded"
        (detached,) = server.seen(LinkDetached)
        assert detached.violation is not None


def test_too_large_message_is_rejected_if_the_link_stays_attached() -> None:
    configuration = Configuration(container_id="c", max_message_size=1000, max_frame_size=512, reject_oversized=True)
    with NodeServer(configuration) as server, connect(server) as client:
        sender = client.sender("echo")
        delivery = client.send(sender, proton.Message(body=pattern(2000), inferred=True))
        assert delivery.remote_state == proton.Delivery.REJECTED
        assert delivery.remote.condition.name == "amqp:link:message-size-exceeded"
        client.send(sender, proton.Message(body=pattern(900), inferred=True))
        assert len(server.arrived("echo")) == 1


def test_two_sessions_with_two_links_each_carry_large_messages_at_once() -> None:
    configuration = Configuration(container_id="c", max_frame_size=512, incoming_window=16)
    with NodeServer(configuration) as server, connect(server, max_frame_size=512) as client:
        sessions = [client.session(incoming_capacity=8192) for _ in range(2)]
        addresses = ["a", "b", "c", "d"]
        senders = [client.sender(address, session=sessions[i % 2]) for i, address in enumerate(addresses)]
        sent = [
            sender.send(proton.Message(body=pattern(20_000 + i), inferred=True)) for sender in senders for i in range(3)
        ]
        client.until(lambda: all(delivery.settled for delivery in sent))
        for i, address in enumerate(addresses):
            client.receiver(address, session=sessions[i % 2]).flow(3)
        client.receive(12)
        for address in addresses:
            bodies = [a.message.body for a in client.arrivals if a.link.remote_source.address == address]
            assert bodies == [pattern(20_000 + i) for i in range(3)]


def test_proton_ends_a_session_and_begins_another(client: ProtonClient, server: NodeServer) -> None:
    session = client.session()
    client.sender("echo", session=session)
    session.close()
    client.until(lambda: is_closed(session))
    assert len(server.seen(SessionEnded)) == 1
    client.send(client.sender("accepted", session=client.session()), proton.Message())


def test_proton_gets_the_reason_of_our_session_end(client: ProtonClient, server: NodeServer) -> None:
    session = client.session()
    client.until(lambda: is_open(session))
    server.act(lambda connection: connection.engine.sessions[0].end(error=Error("test:enough", "for today")))
    client.until(lambda: session.state & proton.Endpoint.REMOTE_CLOSED)
    assert (session.remote_condition.name, session.remote_condition.description) == ("test:enough", "for today")
    session.close()
    client.send(client.sender("accepted"), proton.Message())


def test_link_properties_are_exchanged_with_proton(client: ProtonClient, server: NodeServer) -> None:
    receiver = client.receiver(
        "queue", options=[reactor.DurableSubscription(), reactor.Copy(), reactor.Selector("colour = 'red'")]
    )
    (attached,) = server.seen(LinkAttached)
    source: Any = attached.attach.source
    assert (source.address, int(source.durable), source.expiry_policy) == ("queue", 2, "never")
    assert source.distribution_mode == "copy"
    assert source.filter == {
        Symbol("selector"): Described(Symbol("apache.org:selector-filter:string"), "colour = 'red'")
    }
    assert receiver.remote_source.address == "queue"
    assert receiver.remote_source.durability == proton.Terminus.DELIVERIES
    assert receiver.remote_source.expiry_policy == proton.Terminus.EXPIRE_NEVER
    assert receiver.remote_source.distribution_mode == proton.Terminus.DIST_MODE_COPY


# Time, and the end.


def test_our_heartbeats_keep_an_idle_proton_connected(server: NodeServer) -> None:
    with connect(server, heartbeat=0.6 * SLOWNESS) as client:
        (opened,) = server.seen(ConnectionOpened)
        assert opened.open.idle_time_out == 300 * SLOWNESS
        before = client.connection.transport.frames_input
        client.until(passed(1.3 * SLOWNESS))
        assert client.failure is None
        assert is_open(client.connection)
        assert client.connection.transport.frames_input - before >= 5
        client.send(client.sender("accepted"), proton.Message())


def test_proton_gives_up_a_server_without_heartbeats() -> None:
    with NodeServer(silent=True) as server, connect(server, heartbeat=0.2) as client:
        failure = client.until(lambda: client.failure)
        assert failure.name == "amqp:resource-limit-exceeded"
        (closed,) = client.until(lambda: server.seen(ConnectionClosed))
        assert closed.error is not None
        assert closed.error.condition == "amqp:resource-limit-exceeded"


def test_protons_heartbeats_keep_it_connected_to_us_even_when_they_come_a_little_late() -> None:
    """Proton may take all of the time that our open grants it: what we give it up after must be more (part 2.4.5)."""
    with (
        NodeServer(Configuration(container_id="c", idle_time_out_ms=600 * SLOWNESS)) as server,
        connect(server) as client,
    ):

        def step_late() -> None:
            client.step()
            eventually(passed(0.02 * SLOWNESS))

        eventually(passed(1.5 * SLOWNESS), step=step_late)
        assert is_open(client.connection)
        client.send(client.sender("accepted"), proton.Message())


def test_we_give_up_a_proton_that_is_silent() -> None:
    with NodeServer(Configuration(container_id="c", idle_time_out_ms=500)) as server, connect(server) as client:
        (violation,) = eventually(lambda: server.violations)  # Proton does nothing meanwhile
        assert isinstance(violation, IdleTimeoutError)
        server.violations.clear()
        client.until(lambda: client.connection.state & proton.Endpoint.REMOTE_CLOSED)
        assert client.connection.remote_condition.name == "amqp:resource-limit-exceeded"


def test_proton_gets_the_reason_of_our_close(client: ProtonClient, server: NodeServer) -> None:
    error = Error(Condition.CONNECTION_FORCED, "maintenance", {"until": Timestamp(1_700_000_000_000)})
    server.act(lambda connection: connection.engine.close(error=error))
    client.until(lambda: client.connection.state & proton.Endpoint.REMOTE_CLOSED)
    condition = client.connection.remote_condition
    assert (condition.name, condition.description) == ("amqp:connection:forced", "maintenance")
    assert condition.info == {proton.symbol("until"): proton.timestamp(1_700_000_000_000)}
    client.connection.close()
    eventually(lambda: server.seen(ConnectionClosed), step=client.step)


def test_close_of_proton_has_a_reason(client: ProtonClient, server: NodeServer) -> None:
    client.connection.condition = proton.Condition("test:enough", "for today")
    client.close()
    assert server.seen(ConnectionClosed) == [ConnectionClosed(Error("test:enough", "for today"))]


def test_ten_connections_come_and_go(server: NodeServer) -> None:
    for number in range(10):
        with connect(server) as client:
            client.send(client.sender("echo"), proton.Message(body=number))
            client.close()
    assert [decode_message(delivery.payload).body[0] for delivery in server.arrived("echo")] == list(range(10))
    assert server.seen(ConnectionClosed) == [ConnectionClosed(None)] * 10
