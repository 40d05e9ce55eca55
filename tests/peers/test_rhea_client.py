"""rhea, the JavaScript implementation, as the client of our engine."""

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
    Modified,
    Properties,
    Rejected,
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
from pairbus.wire.errors import AuthenticationError, IdleTimeoutError
from tests.peers.node_server import PASSWORD, USER, NodeServer, Stored
from tests.peers.payload import message, pattern
from tests.peers.rhea_container import RheaClient, buffer, data, typed
from tests.peers.waiting import SLOWNESS, passed
from tests.waiting import eventually

SIZES = (1, 1024, 1024 * 1024)
FRAME_SIZES = (1024, 4096, 65536)
"""With smaller frames a message of 1 MB takes more of them than rhea has room for."""

UUID_VALUE = UUID("12345678-1234-5678-1234-567812345678")


def connect(server: NodeServer, **options: Any) -> RheaClient:
    return RheaClient(server.port, username="anonymous", **options)


@pytest.fixture
def client(server: NodeServer) -> Iterator[RheaClient]:
    with connect(server) as client:
        client.wait_for("connection_open")
        yield client


def sender(client: RheaClient, link: str, target: str, session: str | None = None, **options: Any) -> None:
    client.do("sender", link=link, session=session, options={"target": target, **options})
    client.wait_for("sendable", link=link)


def receiver(client: RheaClient, link: str, source: str, session: str | None = None, **options: Any) -> None:
    client.do("receiver", link=link, session=session, options={"source": source, "autoaccept": False, **options})
    client.wait_for("receiver_open", link=link)


def send(client: RheaClient, link: str, message: dict[str, Any]) -> dict[str, Any]:
    """Send a message, and wait for us to settle it."""
    before = len(client.all("settled", link=link))
    client.do("send", link=link, message=message)
    return client.wait_for("settled", before + 1, link=link)


def messages(server: NodeServer, address: str) -> list[Message]:
    return [decode_message(delivery.payload) for delivery in server.arrived(address)]


# Connecting.


def test_rhea_connects_anonymously_and_both_get_the_container_id(server: NodeServer) -> None:
    with connect(server) as client:
        assert client.wait_for("connection_open")["container_id"] == "node-server"
        client.do("close")
        client.wait_for("connection_close")
    assert server.seen(Authenticated) == [Authenticated("ANONYMOUS", b"\0anonymous")]
    assert [event.open.container_id for event in server.seen(ConnectionOpened)] == ["rhea"]
    assert server.seen(ConnectionClosed) == [ConnectionClosed(None)]


def test_rhea_connects_without_sasl(server: NodeServer) -> None:
    with RheaClient(server.port) as client:
        client.wait_for("connection_open")
    assert not server.seen(Authenticated)


def test_rhea_connects_with_the_right_password(server: NodeServer) -> None:
    with RheaClient(server.port, username=USER, password=PASSWORD) as client:
        client.wait_for("connection_open")
    assert [event.mechanism for event in server.seen(Authenticated)] == ["PLAIN"]


def test_rhea_is_turned_away_with_a_wrong_password(server: NodeServer) -> None:
    with RheaClient(server.port, username=USER, password="wrong") as client:  # noqa: S106
        reported = client.wait_for("connection_error")
        assert reported["error"] == {
            "condition": "amqp:unauthorized-access",
            "description": "Failed to authenticate: 1",
        }
        client.until(lambda: server.violations)
    assert isinstance(server.violations.pop(), AuthenticationError)
    assert not server.seen(ConnectionOpened)


def test_properties_of_a_connection_reach_the_other_end() -> None:
    configuration = Configuration(container_id="c", properties={"product": "pairbus", "depth": UInt(2)})
    with NodeServer(configuration) as server, connect(server, properties={"product": "rhea"}) as client:
        assert client.wait_for("connection_open")["properties"] == {"product": "pairbus", "depth": 2}
        (opened,) = server.seen(ConnectionOpened)
        assert opened.open.properties == {"product": "rhea"}


# Messages.


@pytest.mark.parametrize("frame_size", FRAME_SIZES)
def test_messages_of_any_size_come_back_byte_for_byte(frame_size: int) -> None:
    configuration = Configuration(container_id="c", max_frame_size=frame_size)
    with NodeServer(configuration) as server, connect(server, max_frame_size=frame_size) as client:
        sender(client, "out", "echo")
        for size in SIZES:
            assert send(client, "out", {"body": data(pattern(size))})["outcome"] == "accepted"
        assert [arrived.body for arrived in messages(server, "echo")] == [(pattern(size),) for size in SIZES]
        receiver(client, "in", "echo")
        client.do("flow", link="in", credit=len(SIZES))
        client.wait_for("message", len(SIZES))
        bodies = [reported["message"]["body"] for reported in client.all("message")]
        assert bodies == [{"$": "data", "v": buffer(pattern(size))} for size in SIZES]


def test_payload_of_another_format_arrives_untouched_both_ways(client: RheaClient, server: NodeServer) -> None:
    sender(client, "out", "echo")
    client.do("send", link="out", message=buffer(pattern(100_000)), format=0x80013700)
    client.wait_for("settled")
    (delivery,) = server.arrived("echo")
    assert (delivery.message_format, delivery.payload) == (0x80013700, pattern(100_000))
    receiver(client, "in", "echo")
    client.do("flow", link="in", credit=1)
    reported = client.wait_for("message")
    assert (reported["format"], reported["message"]) == (0x80013700, buffer(pattern(100_000)))


def test_message_larger_than_our_window_gets_through() -> None:
    configuration = Configuration(container_id="c", max_frame_size=512, incoming_window=4)
    with NodeServer(configuration) as server, connect(server) as client:
        sender(client, "out", "echo")
        send(client, "out", {"body": data(pattern(100_000))})
        assert messages(server, "echo")[0].body == (pattern(100_000),)


def test_messages_of_more_frames_than_rheas_window_get_through() -> None:
    configuration = Configuration(container_id="c", max_frame_size=512)
    with NodeServer(configuration) as server, connect(server, session_buffer_size=8) as client:
        server.put("queue", *[Stored(message(3 * 512)) for _ in range(20)])
        receiver(client, "in", "queue", autoaccept=True)
        assert server.seen(SessionBegun)[0].begin.incoming_window == 8
        client.do("flow", link="in", credit=20)
        client.wait_for("message", 20)
        assert {reported["message"]["body"]["v"]["v"] for reported in client.all("message")} == {
            buffer(pattern(3 * 512))["v"]
        }


def test_message_larger_than_rheas_window_gets_through_when_we_ask_how_large_it_is() -> None:
    """In the middle of a message rhea does not open its window by itself, but it does when a flow comes in."""
    configuration = Configuration(container_id="c", max_frame_size=512)
    with NodeServer(configuration) as server, connect(server, session_buffer_size=8) as client:
        server.put("queue", Stored(message(20_000)))
        receiver(client, "in", "queue")
        client.do("flow", link="in", credit=1)

        def ask() -> None:
            server.act(lambda connection: connection.engine.sessions[0].send_flow(None, echo=True))
            client.step()

        eventually(lambda: client.all("message"), step=ask)
        assert client.all("message")[0]["message"]["body"]["v"] == buffer(pattern(20_000))


SENT: list[tuple[Any, Any]] = [
    (None, None),
    (True, True),
    (False, False),
    (typed("ubyte", 255), UByte(255)),
    (typed("ushort", 65535), UShort(65535)),
    (typed("uint", 0), UInt(0)),
    (typed("uint", 255), UInt(255)),
    (typed("uint", 2**32 - 1), UInt(2**32 - 1)),
    (typed("ulong", 0), ULong(0)),
    (typed("ulong", 255), ULong(255)),
    (typed("ulong", 2**53 - 1), ULong(2**53 - 1)),
    (typed("ulong", buffer(b"\xff" * 8)), ULong(2**64 - 1)),
    (typed("byte", -128), Byte(-128)),
    (typed("short", -32768), Short(-32768)),
    (typed("int", -1), Int(-1)),
    (typed("int", -(2**31)), Int(-(2**31))),
    (typed("long", -1), -1),
    (typed("long", -(2**53) + 1), -(2**53) + 1),
    (typed("long", buffer(b"\x80" + b"\0" * 7)), -(2**63)),
    (typed("float", 0.5), Float(0.5)),
    (typed("double", 1e300), 1e300),
    (typed("char", 0x2603), Char("\N{SNOWMAN}")),
    (typed("timestamp", 1_700_000_000_123), Timestamp(1_700_000_000_123)),
    (typed("uuid", buffer(UUID_VALUE.bytes)), UUID_VALUE),
    (buffer(b""), b""),
    (buffer(b"\0" * 256), b"\0" * 256),
    ("", ""),
    ("Grüße", "Grüße"),
    ("x" * 256, "x" * 256),
    (typed("symbol", "amqp:name"), Symbol("amqp:name")),
    (typed("symbol", "s" * 256), Symbol("s" * 256)),
    (7, UInt(7)),  # rhea's own choice for a number: unsigned where it can be
    (-7, Int(-7)),
    (0.25, 0.25),
    (2**40, ULong(2**40)),
]
"""Every type: what rhea is asked to send, and what we read."""

NESTED_SENT: list[tuple[Any, Any]] = [
    ([], []),
    ([1, ["two", [None]]], [UInt(1), ["two", [None]]]),
    ({"a": {"b": [typed("int", 1), {"c": None}]}}, {"a": {"b": [Int(1), {"c": None}]}}),
    (
        {"$": "array", "code": 0x71, "v": [1, -2, 2**31 - 1]},
        Array((Int(1), Int(-2), Int(2**31 - 1))),
    ),
    ({"$": "array", "code": 0xA3, "v": ["a", "b"]}, Array((Symbol("a"), Symbol("b")))),
    (
        [{"$": "described", "descriptor": "test:thing", "v": "x"}],
        [Described(Symbol("test:thing"), "x")],
    ),
]
"""Types that hold others, and described ones."""

REPORTED: list[tuple[Any, Any]] = [
    (None, None),
    (True, True),
    (False, False),
    (UByte(255), 255),
    (UShort(65535), 65535),
    (UInt(0), 0),
    (UInt(255), 255),
    (UInt(2**32 - 1), 2**32 - 1),
    (ULong(0), 0),
    (ULong(255), 255),
    (ULong(2**53 - 1), 2**53 - 1),
    (ULong(2**64 - 1), buffer(b"\xff" * 8)),
    (Byte(-128), -128),
    (Short(-32768), -32768),
    (Int(-1), -1),
    (Int(-(2**31)), -(2**31)),
    (-1, -1),
    (-(2**53) + 1, -(2**53) + 1),
    (-(2**63), buffer(b"\x80" + b"\0" * 7)),
    (Float(0.5), 0.5),
    (1e300, 1e300),
    (Char("\N{SNOWMAN}"), 0x2603),
    (Timestamp(1_700_000_000_123), typed("date", 1_700_000_000_123)),
    (UUID_VALUE, buffer(UUID_VALUE.bytes)),
    (b"", buffer(b"")),
    (b"\0" * 256, buffer(b"\0" * 256)),
    ("", ""),
    ("Grüße", "Grüße"),
    ("x" * 256, "x" * 256),
    (Symbol("amqp:name"), "amqp:name"),
    (Symbol("s" * 256), "s" * 256),
]
"""Every type: what we send, and what rhea tells."""


def test_application_properties_of_every_type_arrive_from_rhea(client: RheaClient, server: NodeServer) -> None:
    properties = {f"key-{number}": value for number, (value, _) in enumerate(SENT)}
    sender(client, "out", "echo")
    send(client, "out", {"application_properties": properties, "body": data(b"")})
    arrived = messages(server, "echo")[0].application_properties
    assert arrived is not None
    for number, (_, expected) in enumerate(SENT):
        assert (type(arrived[f"key-{number}"]), arrived[f"key-{number}"]) == (type(expected), expected)


def test_application_properties_of_every_type_arrive_at_rhea(client: RheaClient, server: NodeServer) -> None:
    properties = {f"key-{number}": value for number, (value, _) in enumerate(REPORTED)}
    server.put("made", Stored(encode_message(Message(application_properties=properties, body=(b"",)))))
    receiver(client, "in", "made")
    client.do("flow", link="in", credit=1)
    reported = client.wait_for("message")["message"]["application_properties"]
    assert reported == {f"key-{number}": value for number, (_, value) in enumerate(REPORTED)}


def test_bodies_of_every_type_arrive_from_rhea(client: RheaClient, server: NodeServer) -> None:
    sender(client, "out", "echo")
    for theirs, ours in SENT + NESTED_SENT:
        send(client, "out", {"body": theirs})
        message = messages(server, "echo")[-1]
        assert message.body_kind == AMQP_VALUE
        assert (type(message.body[0]), message.body[0]) == (type(ours), ours)


def test_bodies_that_hold_others_arrive_at_rhea(client: RheaClient, server: NodeServer) -> None:
    receiver(client, "in", "made")
    bodies: list[tuple[Any, Any]] = [
        ([], []),
        ([1, ["two", [None]]], [1, ["two", [None]]]),
        ({"a": {"b": [1, {"c": None}]}}, {"a": {"b": [1, {"c": None}]}}),
        (Array((Int(1), Int(-2))), [1, -2]),
        (Array((Symbol("a"), Symbol("b"))), ["a", "b"]),
        (list(range(300)), list(range(300))),
    ]
    for number, (ours, theirs) in enumerate(bodies):
        client.do("flow", link="in", credit=1)
        server.put("made", Stored(encode_message(Message(body=(ours,), body_kind=AMQP_VALUE))))
        assert client.wait_for("message", number + 1)["message"]["body"] == theirs


def test_every_section_of_a_message_from_rhea_is_read(client: RheaClient, server: NodeServer) -> None:
    sender(client, "out", "echo")
    send(
        client,
        "out",
        {
            "durable": True,
            "priority": 9,
            "ttl": 60_000,
            "first_acquirer": True,
            "delivery_count": 3,
            "delivery_annotations": {"x-opt-hop": typed("long", 1)},
            "message_annotations": {"x-opt-key": "value"},
            "message_id": buffer(UUID_VALUE.bytes),
            "user_id": buffer(b"ada"),
            "to": "to",
            "subject": "subject",
            "reply_to": "reply",
            "correlation_id": 2**40,
            "content_type": "text/plain",
            "content_encoding": "gzip",
            "absolute_expiry_time": 1_800_000_000_000,
            "creation_time": 1_700_000_000_000,
            "group_id": "group",
            "group_sequence": 7,
            "reply_to_group_id": "reply-group",
            "application_properties": {"p": typed("long", 1)},
            "body": data(b"body"),
        },
    )
    assert messages(server, "echo") == [
        Message(
            header=Header(durable=True, priority=9, ttl=60_000, first_acquirer=True, delivery_count=3),
            delivery_annotations={Symbol("x-opt-hop"): 1},
            message_annotations={Symbol("x-opt-key"): "value"},
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
        )
    ]


def test_every_section_of_a_pairbus_message_is_read_by_rhea(client: RheaClient, server: NodeServer) -> None:
    payload = encode_message(
        Message(
            header=Header(durable=True, priority=9, ttl=60_000, first_acquirer=True, delivery_count=3),
            delivery_annotations={"x-opt-hop": 1},
            message_annotations={"x-opt-key": "value"},
            properties=Properties(
                message_id="id",
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
    receiver(client, "in", "made")
    client.do("flow", link="in", credit=1)
    assert client.wait_for("message")["message"] == {
        "durable": True,
        "priority": 9,
        "ttl": 60_000,
        "first_acquirer": True,
        "delivery_count": 3,
        "delivery_annotations": {"x-opt-hop": 1},
        "message_annotations": {"x-opt-key": "value"},
        "message_id": "id",
        "user_id": buffer(b"ada"),
        "to": "to",
        "subject": "subject",
        "reply_to": "reply",
        "correlation_id": 2**40,
        "content_type": "text/plain",
        "content_encoding": "gzip",
        "absolute_expiry_time": typed("date", 1_800_000_000_000),
        "creation_time": typed("date", 1_700_000_000_000),
        "group_id": "group",
        "group_sequence": 7,
        "reply_to_group_id": "reply-group",
        "application_properties": {"p": 1},
        "body": {"$": "data", "v": buffer(b"body")},
        "footer": {"x-opt-sum": 12},
    }


def test_body_of_a_sequence_is_read_by_both(client: RheaClient, server: NodeServer) -> None:
    sender(client, "out", "echo")
    send(client, "out", {"body": {"$": "sequence", "v": [1, "two"]}})
    (message,) = messages(server, "echo")
    assert (message.body_kind, message.body) == (AMQP_SEQUENCE, ([1, "two"],))
    receiver(client, "in", "echo")
    client.do("flow", link="in", credit=1)
    assert client.wait_for("message")["message"]["body"] == {"$": "sequence", "v": [1, "two"]}


def test_many_messages_arrive_in_order_and_are_all_settled(client: RheaClient, server: NodeServer) -> None:
    sender(client, "out", "echo")
    for number in range(500):
        client.do("send", link="out", message={"body": number + 1})
    client.wait_for("settled", 500)
    assert len(client.all("accepted")) == 500
    receiver(client, "in", "echo", autoaccept=True)
    client.do("flow", link="in", credit=500)
    client.wait_for("message", 500)
    assert [reported["message"]["body"] for reported in client.all("message")] == list(range(1, 501))
    client.until(lambda: len(server.settled()) == 500)
    assert {delivery.state for delivery in server.settled()} == {ACCEPTED}


# Settling.


def test_rhea_as_sender_sees_that_a_message_is_accepted(client: RheaClient) -> None:
    sender(client, "out", "accepted")
    send(client, "out", {"body": "x"})
    assert client.all("accepted")


def test_rhea_as_sender_sees_why_a_message_is_rejected(client: RheaClient) -> None:
    sender(client, "out", "rejected")
    send(client, "out", {"body": "x"})
    (reported,) = client.all("rejected")
    assert reported["error"] == {"condition": "test:no-good", "description": "not good enough", "info": {"line": 7}}


def test_rhea_as_sender_sees_that_a_message_is_released(client: RheaClient) -> None:
    sender(client, "out", "released")
    send(client, "out", {"body": "x"})
    assert client.all("released")


def test_rhea_as_sender_sees_how_a_message_is_modified(client: RheaClient) -> None:
    sender(client, "out", "modified")
    send(client, "out", {"body": "x"})
    (reported,) = client.all("modified")
    assert (reported["delivery_failed"], reported["undeliverable_here"]) == (True, True)
    assert reported["message_annotations"] == {"x-opt-reason": "bruised"}


@pytest.mark.parametrize(
    ("how", "details", "state"),
    [
        ("accept", None, ACCEPTED),
        (
            "reject",
            {"condition": "test:no-good", "description": "not good enough", "info": {"line": 7}},
            Rejected(Error("test:no-good", "not good enough", {"line": 7})),
        ),
        ("reject", None, Rejected()),
        ("release", None, RELEASED),
        (
            "modified",
            {
                "delivery_failed": True,
                "undeliverable_here": False,
                "message_annotations": {"x-opt-reason": "bruised"},
            },
            Modified(
                delivery_failed=True,
                undeliverable_here=False,
                message_annotations={Symbol("x-opt-reason"): "bruised"},
            ),
        ),
    ],
    ids=["accepted", "rejected", "rejected-without-reason", "released", "modified"],
)
def test_we_see_what_rhea_as_receiver_makes_of_a_message(
    client: RheaClient, server: NodeServer, how: str, details: Any, state: object
) -> None:
    server.put("queue", Stored(message()))
    receiver(client, "in", "queue")
    client.do("flow", link="in", credit=1)
    reported = client.wait_for("message")
    client.do("settle", link="in", id=reported["id"], how=how, details=details)
    (settled,) = client.until(server.settled)
    assert settled.state == state
    assert settled.settled


def test_released_message_is_delivered_again(client: RheaClient, server: NodeServer) -> None:
    server.put("queue", Stored(message(1)), Stored(message(2)))
    receiver(client, "in", "queue")
    client.do("flow", link="in", credit=3)
    client.wait_for("message", 2)
    client.do("settle", link="in", id=client.all("message")[0]["id"], how="release")
    client.wait_for("message", 3)
    bodies = [reported["message"]["body"]["v"] for reported in client.all("message")]
    assert bodies == [buffer(pattern(1)), buffer(pattern(2)), buffer(pattern(1))]


def test_receiver_that_settles_second_gets_our_outcome_first(client: RheaClient, server: NodeServer) -> None:
    server.put("queue", Stored(message()))
    receiver(client, "in", "queue", rcv_settle_mode=1)
    client.do("flow", link="in", credit=1)
    reported = client.wait_for("message")
    client.do("settle", link="in", id=reported["id"], how="accept")
    assert client.wait_for("settled", link="in")["outcome"] == "accepted"
    assert [event.settled for event in server.seen(DispositionReceived)] == [False]


def test_sender_settles_before_we_do_where_the_receiver_settles_second(client: RheaClient, server: NodeServer) -> None:
    sender(client, "out", "accepted", rcv_settle_mode=1)
    client.do("send", link="out", message={"body": "x"})
    reported = client.wait_for("accepted")
    assert not client.all("settled")
    client.do("settle_sent", link="out", id=reported["id"])
    (heard,) = client.until(lambda: server.seen(DispositionReceived))
    assert heard.settled


def test_message_that_rhea_sends_settled_needs_no_answer(client: RheaClient, server: NodeServer) -> None:
    sender(client, "out", "echo", snd_settle_mode=1)
    client.do("send", link="out", message={"body": "once"})
    (delivery,) = client.until(lambda: server.arrived("echo"))
    assert delivery.settled
    assert decode_message(delivery.payload).body == ("once",)


def test_message_that_we_send_settled_needs_no_answer(client: RheaClient, server: NodeServer) -> None:
    server.put("queue", Stored(message(), settled=True))
    receiver(client, "in", "queue")
    client.do("flow", link="in", credit=1)
    assert client.wait_for("message")["settled"]
    assert server.act(lambda connection: connection.engine.sessions[0].unsettled) == 0


# Credit.


def test_rhea_gets_no_more_messages_than_it_granted(client: RheaClient, server: NodeServer) -> None:
    server.put("queue", *[Stored(message()) for _ in range(10)])
    receiver(client, "in", "queue")
    sender(client, "out", "accepted")
    for granted, total in ((3, 3), (2, 5)):
        client.do("flow", link="in", credit=granted)
        client.wait_for("message", total)
        send(client, "out", {"body": "x"})  # whatever was written before has arrived now
        assert len(client.all("message")) == total
    assert len(server.queues["queue"]) == 5


def test_rhea_sends_no_more_messages_than_we_granted() -> None:
    with NodeServer(credit=2) as server, connect(server) as client:
        sender(client, "out", "echo")
        for number in range(50):
            client.do("send", link="out", message={"body": number + 1})
        client.wait_for("settled", 50)
        assert not server.seen(LinkDetached)
        assert [message.body[0] for message in messages(server, "echo")] == list(range(1, 51))


def test_rhea_drains_a_link_and_gets_the_credit_back_that_found_no_message(
    client: RheaClient, server: NodeServer
) -> None:
    server.put("queue", *[Stored(message()) for _ in range(3)])
    receiver(client, "in", "queue")
    client.do("flow", link="in", credit=10)
    client.do("drain", link="in")
    assert client.wait_for("receiver_drained")["credit"] == 0
    assert len(client.all("message")) == 3


def test_rhea_drains_an_empty_queue(client: RheaClient) -> None:
    receiver(client, "in", "queue")
    client.do("flow", link="in", credit=5)
    client.do("drain", link="in")
    assert client.wait_for("receiver_drained")["credit"] == 0


def test_we_drain_a_sender_of_rheas(client: RheaClient, server: NodeServer) -> None:
    sender(client, "out", "echo")
    server.act(lambda connection: connection.link("out").flow(10, drain=True))
    client.wait_for("sender_draining")
    client.do("drained", link="out")
    (drained,) = client.until(lambda: server.seen(LinkDrained))
    assert (drained.link.name, drained.link.credit) == ("out", 0)
    server.act(lambda connection: connection.link("out").flow(1))
    client.wait_for("sendable", 3, link="out")
    send(client, "out", {"body": "after"})


@pytest.mark.parametrize("role", ["sender", "receiver"])
def test_flow_that_asks_for_an_echo_gets_one(client: RheaClient, role: str) -> None:
    if role == "sender":
        sender(client, "link", "echo")
    else:
        receiver(client, "link", "echo")
    before = len(client.all(f"{role}_flow"))
    client.do("echo", link="link")
    client.wait_for(f"{role}_flow", before + 1)


# Links and sessions.


def test_sender_to_a_missing_address_is_refused_with_a_reason(client: RheaClient) -> None:
    client.do("sender", link="out", options={"target": "missing"})
    reported = client.wait_for("sender_error")
    assert reported["error"] == {"condition": "amqp:not-found", "description": "there is no such node", "info": None}
    assert client.all("sender_open")[0]["target"] is None
    sender(client, "other", "accepted")
    send(client, "other", {"body": "x"})


def test_receiver_from_a_missing_address_is_refused_with_a_reason(client: RheaClient) -> None:
    client.do("receiver", link="in", options={"source": "missing"})
    reported = client.wait_for("receiver_error")
    assert reported["error"] == {"condition": "amqp:not-found", "description": "there is no such node", "info": None}
    assert client.all("receiver_open")[0]["source"] is None


@pytest.mark.parametrize("how", ["close_link", "detach"])
def test_link_is_detached_and_attached_again_under_its_name(client: RheaClient, server: NodeServer, how: str) -> None:
    for number in (1, 2, 3):
        client.do("sender", link="again", options={"target": "echo"})
        client.wait_for("sender_open", number, link="again")
        send(client, "again", {"body": number})
        client.do(how, link="again")
        client.wait_for("sender_close", number, link="again")
    assert [event.closed for event in server.seen(LinkDetached)] == [how == "close_link"] * 3
    assert [message.body[0] for message in messages(server, "echo")] == [1, 2, 3]


def test_messages_of_a_detached_receiver_go_to_the_next_one(client: RheaClient, server: NodeServer) -> None:
    server.put("queue", Stored(message(1)), Stored(message(2)))
    for name in ("first", "second"):
        receiver(client, name, "queue")
        client.do("flow", link=name, credit=2)
        client.wait_for("message", 2, link=name)
        bodies = [reported["message"]["body"]["v"] for reported in client.all("message", link=name)]
        assert bodies == [buffer(pattern(1)), buffer(pattern(2))]
        client.do("close_link", link=name)
        client.wait_for("receiver_close", link=name)


def test_rhea_gets_the_reason_of_our_detach(client: RheaClient, server: NodeServer) -> None:
    sender(client, "victim", "echo")
    error = Error(Condition.DETACH_FORCED, "idle", {"after": 600})
    server.act(lambda connection: connection.link("victim").detach(error=error))
    reported = client.wait_for("sender_error")
    assert reported["error"] == {"condition": "amqp:link:detach-forced", "description": "idle", "info": {"after": 600}}
    client.until(lambda: server.act(lambda connection: not connection.engine.sessions[0].links))
    sender(client, "other", "accepted")
    send(client, "other", {"body": "x"})


def test_rhea_gets_the_maximum_message_size_and_is_detached_beyond_it() -> None:
    configuration = Configuration(container_id="c", max_message_size=1000, max_frame_size=512)
    with NodeServer(configuration) as server, connect(server) as client:
        sender(client, "out", "echo")
        assert client.all("sender_open")[0]["max_message_size"] == 1000
        client.do("send", link="out", message={"body": data(pattern(2000))})
        assert client.wait_for("sender_error")["error"]["condition"] == "amqp:link:message-size-exceeded"
        (detached,) = server.seen(LinkDetached)
        assert detached.violation is not None


def test_two_sessions_with_two_links_each_carry_large_messages_at_once() -> None:
    configuration = Configuration(container_id="c", max_frame_size=512, incoming_window=16)
    with NodeServer(configuration) as server, connect(server, max_frame_size=512) as client:
        addresses = {"a": "one", "b": "two", "c": "one", "d": "two"}
        for session in ("one", "two"):
            client.do("begin", session=session)
        for address, session in addresses.items():
            sender(client, f"to-{address}", address, session=session)
        for size in (20_000, 20_001, 20_002):
            for address in addresses:
                client.do("send", link=f"to-{address}", message={"body": data(pattern(size))})
        client.wait_for("settled", 12)
        for address, session in addresses.items():
            receiver(client, f"from-{address}", address, session=session)
            client.do("flow", link=f"from-{address}", credit=3)
        client.wait_for("message", 12)
        for address in addresses:
            bodies = [reported["message"]["body"]["v"] for reported in client.all("message", link=f"from-{address}")]
            assert bodies == [buffer(pattern(size)) for size in (20_000, 20_001, 20_002)]
        assert len(server.seen(SessionBegun)) == 2


def test_rhea_ends_a_session_and_begins_another(client: RheaClient, server: NodeServer) -> None:
    for session in ("one", "two"):
        client.do("begin", session=session)
        sender(client, f"in-{session}", "accepted", session=session)
        send(client, f"in-{session}", {"body": "x"})
        client.do("end", session=session)
        client.wait_for("session_close", session=session)
    assert len(server.seen(SessionEnded)) == 2


def test_rhea_gets_the_reason_of_our_session_end(client: RheaClient, server: NodeServer) -> None:
    client.do("begin", session="one")
    client.wait_for("session_open")
    server.act(lambda connection: connection.engine.sessions[0].end(error=Error("test:enough", "for today")))
    reported = client.wait_for("session_error")
    assert reported["error"] == {"condition": "test:enough", "description": "for today", "info": None}
    client.until(lambda: server.act(lambda connection: not connection.engine.sessions))


def test_link_properties_of_rhea_are_received(client: RheaClient, server: NodeServer) -> None:
    client.do(
        "receiver",
        link="in",
        options={
            "source": {
                "address": "queue",
                "durable": 2,
                "expiry_policy": "never",
                "distribution_mode": "copy",
                "filter": {
                    "selector": {
                        "$": "described",
                        "descriptor": "apache.org:selector-filter:string",
                        "v": "colour = 'red'",
                    }
                },
                "capabilities": ["queue", "shared"],
            },
            "properties": {"purpose": "test"},
        },
    )
    assert client.wait_for("receiver_open")["source"] == {"address": "queue"}
    (attached,) = server.seen(LinkAttached)
    source: Any = attached.attach.source
    assert (source.address, int(source.durable), source.expiry_policy) == ("queue", 2, "never")
    assert (source.distribution_mode, source.capabilities) == ("copy", ("queue", "shared"))
    assert source.filter == {
        Symbol("selector"): Described(Symbol("apache.org:selector-filter:string"), "colour = 'red'")
    }
    assert attached.attach.properties == {"purpose": "test"}


# Time, and the end.


def test_our_heartbeats_keep_an_idle_rhea_connected(server: NodeServer) -> None:
    with connect(server, idle_time_out=300 * SLOWNESS) as client:
        client.wait_for("connection_open")
        (opened,) = server.seen(ConnectionOpened)
        assert opened.open.idle_time_out == 300 * SLOWNESS
        client.until(passed(1.3 * SLOWNESS))
        assert not client.all("disconnected")
        assert not server.seen(ConnectionClosed)
        sender(client, "out", "accepted")
        send(client, "out", {"body": "x"})


def test_rhea_gives_up_a_server_without_heartbeats() -> None:
    with NodeServer(silent=True) as server, connect(server, idle_time_out=100) as client:
        (closed,) = client.until(lambda: server.seen(ConnectionClosed))
        assert closed.error == Error("amqp:resource-limit-exceeded", "max idle time exceeded")


def test_rheas_heartbeats_keep_it_connected_to_us() -> None:
    with (
        NodeServer(Configuration(container_id="c", idle_time_out_ms=800 * SLOWNESS)) as server,
        connect(server) as client,
    ):
        client.wait_for("connection_open")
        client.until(passed(1.3 * SLOWNESS))
        sender(client, "out", "accepted")
        send(client, "out", {"body": "x"})


def test_we_give_up_a_rhea_that_is_silent() -> None:
    with NodeServer(Configuration(container_id="c", idle_time_out_ms=500)) as server, connect(server) as client:
        client.wait_for("connection_open")
        client.freeze()
        (violation,) = eventually(lambda: server.violations)
        client.thaw()
        assert isinstance(violation, IdleTimeoutError)
        server.violations.clear()
        assert client.wait_for("connection_error")["error"]["condition"] == "amqp:resource-limit-exceeded"


def test_rhea_gets_the_reason_of_our_close(client: RheaClient, server: NodeServer) -> None:
    server.act(lambda connection: connection.engine.close(error=Error(Condition.CONNECTION_FORCED, "maintenance")))
    reported = client.wait_for("connection_error")
    assert reported["error"] == {"condition": "amqp:connection:forced", "description": "maintenance"}
    assert client.until(lambda: server.seen(ConnectionClosed)) == [ConnectionClosed(None)]


def test_close_of_rhea_has_a_reason(client: RheaClient, server: NodeServer) -> None:
    client.do("close", error={"condition": "test:enough", "description": "for today"})
    client.wait_for("connection_close")
    assert server.seen(ConnectionClosed) == [ConnectionClosed(Error("test:enough", "for today"))]
