"""Connections between two engines, and between an engine and a peer that a test speaks for."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.wire import (
    ACCEPTED,
    RECEIVER,
    SENDER,
    Attach,
    Begin,
    Configuration,
    Connection,
    ConnectionClosed,
    ConnectionOpened,
    CreditGranted,
    Delivery,
    DeliveryAborted,
    DispositionReceived,
    EncodeError,
    Error,
    Event,
    LinkAttached,
    LinkDetached,
    LinkDrained,
    LocalProtocolError,
    Open,
    ProtocolError,
    Rejected,
    SessionBegun,
    SessionEnded,
    anonymous,
)
from pairbus.wire.errors import FrameTooLargeError
from pairbus.wire.frames import AMQP_HEADER
from pairbus.wire.performatives import Close, Detach, End, Flow, Transfer
from pairbus.wire.sasl import SaslServer
from tests.fuzz.watcher import Watcher
from tests.wire.pair import ConnectionPair, Heard, ScriptedPeer, Side, frame, read

REASON: Final = Error("pairbus:why", "because", {"more": 1})


def test_message_is_transferred_and_settled() -> None:
    pair = ConnectionPair(sasl_client=anonymous(), sasl_server=SaslServer())
    session = pair.open()
    sender, receiver = pair.attach(session, "orders", SENDER)
    delivery = sender.send(b"one espresso", tag=b"1")
    pair.exchange()
    arrived = pair.server_events[-1]
    assert isinstance(arrived, Delivery)
    assert arrived.payload == b"one espresso"
    receiver.settle(arrived, ACCEPTED)
    pair.exchange()
    assert isinstance(pair.client_events[-1], DispositionReceived)
    assert delivery.settled
    assert delivery.state == ACCEPTED
    pair.client.close()
    pair.exchange()
    assert pair.server_events[-1] == ConnectionClosed(None)
    assert pair.client.is_closed
    assert pair.server.is_closed


# Opening.


def test_each_end_gets_configuration_of_other() -> None:
    client = Configuration(container_id="c", hostname="host", max_frame_size=1000, channel_max=7, properties={"a": 1})
    server = Configuration(container_id="s", max_frame_size=2000, channel_max=9, idle_time_out_ms=5)
    pair = ConnectionPair(client, server)
    pair.open()
    assert pair.server.peer == Open(
        container_id="c", hostname="host", max_frame_size=1000, channel_max=7, properties={"a": 1}
    )
    assert pair.client.peer == Open(container_id="s", max_frame_size=2000, channel_max=9, idle_time_out=5)
    assert pair.client_events[0] == ConnectionOpened(pair.client.peer)
    assert pair.server_events[0] == ConnectionOpened(pair.server.peer)


def test_minimal_open_means_standard_defaults() -> None:
    peer = ScriptedPeer(Side.SERVER)
    peer.say(AMQP_HEADER, frame(payload=b"\x00\x53\x10\xc0\x04\x01\xa1\x01x"))
    assert peer.engine.peer == Open(container_id="x", max_frame_size=2**32 - 1, channel_max=2**16 - 1)


def test_client_sends_first() -> None:
    client, server = (Connection(Configuration(container_id=side)) for side in Side)
    assert client.data_to_send() == b""
    client.open()
    said = client.data_to_send()
    assert said[:8] == AMQP_HEADER
    assert [type(heard.body) for heard in read(said[8:])] == [Open]
    assert not client.is_open
    assert server.receive_data(said[:8]) == []
    assert server.data_to_send() == AMQP_HEADER
    assert [type(event) for event in server.receive_data(said[8:])] == [ConnectionOpened]
    assert server.data_to_send() == b"", "the application decides when to answer"
    server.open()
    assert server.is_open
    client.receive_data(AMQP_HEADER + server.data_to_send())
    assert client.is_open


def test_open_is_sent_once() -> None:
    pair = ConnectionPair()
    pair.open()
    pair.client.open()
    pair.server.open()
    assert pair.client.data_to_send() == pair.server.data_to_send() == b""


def test_frames_use_common_maximum_size() -> None:
    for ours, theirs, largest in ((512, 2000, 512), (2000, 512, 512), (1000, 2000, 1000), (70_000, 2**32 - 1, 70_000)):
        peer = ScriptedPeer(Side.CLIENT, Configuration(container_id="c", max_frame_size=ours))
        peer.open(max_frame_size=theirs)
        peer.attach(peer.begin(), "out", SENDER).send(b"." * 100_000, tag=b"t")
        data = peer.engine.data_to_send()
        assert int.from_bytes(data[:4], "big") == largest


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_frame_size": 511},
        {"max_frame_size": 2**32},
        {"channel_max": -1},
        {"channel_max": 2**16},
        {"handle_max": -1},
        {"handle_max": 2**32},
        {"incoming_window": 0},
        {"incoming_window": 2**31},
        {"idle_time_out_ms": 0},
        {"idle_time_out_ms": 2**32},
        {"max_links": -1},
        {"max_unsettled": 0},
        {"max_message_size": 0},
        {"max_incomplete_bytes": 0},
        {"max_frame_size": "large"},
        {"container_id": ""},
        {"container_id": None},
        {"hostname": 5},
    ],
    ids=str,
)
def test_invalid_configuration_is_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Configuration(**{"container_id": "c", **wrong})


def test_configuration_with_oversized_open_is_rejected() -> None:
    Connection(Configuration(container_id="c" * 400))
    with pytest.raises(FrameTooLargeError):
        Connection(Configuration(container_id="c" * 500))
    with pytest.raises(EncodeError):
        Connection(Configuration(container_id="c", properties={"a": object()}))


@pytest.mark.parametrize("sasl", ["ANONYMOUS", anonymous, SaslServer], ids=["text", "function", "class"])
def test_sasl_argument_must_be_server_or_client(sasl: Any) -> None:
    with pytest.raises(TypeError):
        Connection(Configuration(container_id="c"), sasl)


def test_server_with_sasl_cannot_send_first() -> None:
    server = Connection(Configuration(container_id="s"), SaslServer())
    with pytest.raises(LocalProtocolError):
        server.open()
    with pytest.raises(LocalProtocolError):
        server.begin()
    assert server.data_to_send() == b""
    assert server.sessions == {}


def test_server_may_begin_and_attach() -> None:
    pair = ConnectionPair()
    pair.client.open()
    pair.exchange()
    session = pair.server.begin()
    link = session.attach("callbacks", SENDER)
    pair.exchange()
    begun, attached = pair.client_events[-2:]
    assert isinstance(begun, SessionBegun)
    assert isinstance(attached, LinkAttached)
    attached.link.attach()
    attached.link.flow(1)
    pair.exchange()
    link.send(b"ring", tag=b"t")
    pair.exchange()
    delivery = pair.client_events[-1]
    assert isinstance(delivery, Delivery)
    assert delivery.payload == b"ring"


def test_reprs_are_informative() -> None:
    peer = ScriptedPeer(Side.SERVER).open()
    session = peer.begin()
    link = peer.attach(session, "in", RECEIVER)
    (delivery,) = peer.transfer(session, link, b"")
    assert repr(peer.engine) == "<Connection of 'server', local OPENED, remote OPENED>"
    assert repr(session) == "<Session on channel 0, local MAPPED, remote MAPPED>"
    assert repr(link) == "<Link 'in', receiver, local ATTACHED, remote ATTACHED>"
    assert repr(delivery) == "<Delivery 0 on 'in'>"
    (settled,) = peer.transfer(session, link, b"", settled=True)
    assert repr(settled) == "<Delivery 1 on 'in', settled>"


# Closing.


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("error", [None, REASON], ids=["without an error", "with an error"])
def test_close_of_either_end_is_answered_once(side: Side, error: Error | None) -> None:
    pair = ConnectionPair()
    pair.open()
    closer, other = (pair.client, pair.server) if side is Side.CLIENT else (pair.server, pair.client)
    closer.close(error=error)
    assert closer.is_closed
    assert not closer.is_finished
    said = closer.data_to_send()
    assert read(said) == [Heard(0, Close(error=error))]
    assert other.receive_data(said) == [ConnectionClosed(error)]
    assert other.is_closed
    answer = other.data_to_send()
    assert read(answer) == [Heard(0, Close())]
    assert closer.receive_data(answer) == [ConnectionClosed(None)]
    for engine in (closer, other):
        engine.close()
        assert engine.data_to_send() == b""
        assert engine.sessions == {}
        assert engine.is_finished


def test_simultaneous_closes_are_not_answered() -> None:
    pair = ConnectionPair()
    pair.open()
    pair.client.close(error=REASON)
    pair.server.close()
    pair.exchange()
    assert pair.client_events[-1] == ConnectionClosed(None)
    assert pair.server_events[-1] == ConnectionClosed(REASON)
    assert pair.client.data_to_send() == pair.server.data_to_send() == b""


def test_unopened_connection_closes_silently() -> None:
    engine = Connection(Configuration(container_id="c"))
    engine.close()
    assert engine.is_closed
    engine.open()
    assert engine.data_to_send() == b""


@pytest.mark.parametrize("error", [None, REASON], ids=["without an error", "with an error"])
def test_server_opens_to_refuse_connection(error: Error | None) -> None:
    peer = ScriptedPeer(Side.SERVER)
    peer.say(AMQP_HEADER, frame(Open(container_id="peer")))
    peer.engine.close(error=error)
    header, opened, closed = peer.heard()
    assert header == AMQP_HEADER
    assert opened.body.container_id == "server"
    assert closed.body == Close(error=error)


@pytest.mark.parametrize("side", Side)
def test_peer_closing_before_answer_gets_open_and_close(side: Side) -> None:
    peer = ScriptedPeer(side)
    if side is Side.CLIENT:
        peer.engine.open()
    events = peer.say(AMQP_HEADER, frame(Open(container_id="peer")), frame(Close()))
    assert [type(event) for event in events] == [ConnectionOpened, ConnectionClosed]
    peer.engine.open()
    assert [type(heard.body) for heard in peer.heard()[1:]] == [Open, Close]


def dead_after(kill: Callable[[ScriptedPeer, Any], object]) -> tuple[ScriptedPeer, Any, Any, Any, Any]:
    """Make an engine with a session, two links and a delivery, and then end all that."""
    peer = ScriptedPeer(Side.SERVER).open()
    session = peer.begin()
    sender = peer.attach(session, "out", SENDER)
    receiver = peer.attach(session, "in", RECEIVER)
    (delivery,) = peer.transfer(session, receiver, b"")
    sent = sender.send(b"", tag=b"t")
    peer.heard()
    kill(peer, session)
    peer.heard()
    return peer, session, sender, receiver, (delivery, sent)


KILLS: Final[dict[str, Callable[[ScriptedPeer, Any], object]]] = {
    "the peer closed the connection": lambda peer, _: peer.close(),
    "the peer ended the session": lambda peer, session: peer.end(session),
    "the peer detached the links": lambda peer, session: [
        peer.detach(session, link) for link in list(session.links.values())
    ],
    "we closed the connection": lambda peer, _: peer.engine.close(),
    "we ended the session": lambda _, session: session.end(),
    "we detached the links": lambda _, session: [link.detach() for link in list(session.links.values())],
}


@pytest.mark.parametrize("how", KILLS)
def test_closed_objects_accept_calls_but_not_send(how: str) -> None:
    peer, session, sender, receiver, (delivery, sent) = dead_after(KILLS[how])
    with pytest.raises(LocalProtocolError, match="not sent"):
        sender.send(b"lost", tag=b"t")
    receiver.flow(10, drain=True, echo=True)
    receiver.settle(delivery, ACCEPTED)
    receiver.update(delivery, ACCEPTED)
    sender.drained()
    sender.settle(sent)
    for link in (sender, receiver):
        link.attach()
        link.refuse(REASON)
        link.detach(error=REASON)
        assert not link.is_attached
    assert peer.heard() == [], "there is no reader"
    if "links" not in how:
        session.begin()
        session.end(error=REASON)
        assert not session.is_mapped
        with pytest.raises(LocalProtocolError):
            session.attach("more", SENDER)
    if "connection" in how:
        peer.engine.open()
        peer.engine.close(error=REASON)
        with pytest.raises(LocalProtocolError):
            peer.engine.begin()
    assert peer.heard() == []
    assert session.unsettled == 0


def test_bytes_after_close_are_ignored() -> None:
    peer = ScriptedPeer(Side.SERVER).open()
    peer.close()
    assert peer.say(b"\xff" * 100) == []
    assert peer.say(frame(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1))) == []


# Channels.


def test_channels_start_at_zero_and_are_reused() -> None:
    peer = ScriptedPeer(Side.CLIENT).open()
    sessions = [peer.begin() for _ in range(4)]
    assert [session.channel for session in sessions] == [0, 1, 2, 3]
    peer.end(sessions[1])
    peer.end(sessions[2])
    assert [peer.begin().channel for _ in range(3)] == [1, 2, 4]
    assert sorted(peer.engine.sessions) == [0, 1, 2, 3, 4]


def test_channel_is_free_after_both_ends() -> None:
    peer = ScriptedPeer(Side.CLIENT).open()
    session = peer.begin()
    session.end()
    assert peer.engine.begin().channel == 1
    peer.end(session)
    assert peer.engine.begin().channel == 0


def test_session_limit_of_peer_is_respected() -> None:
    peer = ScriptedPeer(Side.CLIENT).open(channel_max=1)
    first = peer.begin()
    peer.begin()
    with pytest.raises(LocalProtocolError, match="2 sessions"):
        peer.engine.begin()
    assert peer.heard() == []
    peer.end(first)
    peer.heard()
    assert peer.engine.begin().channel == 0


def test_peer_may_use_every_channel() -> None:
    peer = ScriptedPeer(Side.SERVER, Configuration(container_id="s", channel_max=2)).open()
    for channel in (2, 0, 1):
        (event,) = peer.say(frame(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1), channel=channel))
        assert isinstance(event, SessionBegun)
        assert event.session.remote_channel == channel
        event.session.begin()
        (heard,) = peer.heard()
        assert heard.body.remote_channel == channel
        assert heard.channel == event.session.channel


@pytest.mark.parametrize("properties", [{"a": object()}, {"a": "." * 1000}], ids=["not AMQP", "too large"])
def test_failed_begin_leaves_nothing_behind(properties: dict[str, Any]) -> None:
    peer = ScriptedPeer(Side.CLIENT).open(max_frame_size=512)
    with pytest.raises(LocalProtocolError):
        peer.engine.begin(properties=properties)
    assert peer.heard() == []
    assert peer.engine.sessions == {}
    assert peer.engine.begin().channel == 0


# Pipelining.

BEGIN: Final = Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9)
HASTE: Final = (
    frame(Open(container_id="hasty")),
    frame(BEGIN, channel=5),
    frame(Attach(name="in", handle=7, role=SENDER, initial_delivery_count=0), channel=5),
    frame(Attach(name="out", handle=8, role=RECEIVER), channel=5),
    frame(Flow(incoming_window=9, next_outgoing_id=0, outgoing_window=9, echo=True), channel=5),
    frame(Detach(handle=7, closed=True), channel=5),
    frame(Transfer(8, 0, b"t"), channel=5),  # not the peer's to send
    frame(Detach(handle=8), channel=5),
    frame(Detach(handle=8), channel=5),  # not attached any more
    frame(End(), channel=5),
    frame(Close()),
)


@pytest.mark.parametrize("count", range(1, len(HASTE) + 1))
@pytest.mark.parametrize("answer_first", [True, False])
def test_pipelined_client_is_answered_in_order(count: int, answer_first: bool) -> None:
    pair = ConnectionPair()
    said = AMQP_HEADER + b"".join(HASTE[:count])
    pieces = [said[:8], *HASTE[:count]] if answer_first else [said]
    watcher = Watcher()
    for piece in pieces:
        for event in pair.server.receive_data(piece):
            pair.answer_friendly(event)
        watcher.watch(pair.server.data_to_send(), pair.server)
    pair.server.close()
    watcher.watch(pair.server.data_to_send(), pair.server)
    assert watcher.opened
    assert watcher.closed
    assert pair.server.is_closed


def test_immediate_disconnect_is_answered_completely() -> None:
    peer = ScriptedPeer(Side.SERVER)
    events = peer.say(AMQP_HEADER, HASTE[0], HASTE[1], HASTE[2], HASTE[5], HASTE[9])
    assert [type(event) for event in events] == [
        ConnectionOpened,
        SessionBegun,
        LinkAttached,
        LinkDetached,
        SessionEnded,
    ]
    peer.engine.open()
    for event in events:
        if isinstance(event, SessionBegun):
            event.session.begin()
        if isinstance(event, LinkAttached):
            event.link.attach()
    answers = [type(heard.body) for heard in peer.heard()[1:]]
    assert answers == [Open, Begin, Attach, Detach, End]
    assert peer.engine.sessions == {}


# However the bytes are cut.


def conversation() -> bytes:
    """Return the bytes of a client in a conversation with every kind of frame."""
    client = ConnectionPair(server=Configuration(container_id="s", max_frame_size=512, strict=False))
    said = bytearray()
    events: list[Event] = []

    def exchange() -> None:
        nonlocal events
        data = client.client.data_to_send()
        said.extend(data)
        for event in client.server.receive_data(data):
            client.answer_friendly(event)
            events.append(event)
        client.client.receive_data(client.server.data_to_send())

    client.client.open()
    session = client.client.begin(properties={"a": 1})
    exchange()
    sender = session.attach("out", SENDER)
    receiver = session.attach("in", RECEIVER)
    receiver.flow(5, echo=True)
    exchange()
    for number in range(8):
        delivery = sender.send(b"%d" % number * 300 * number, tag=b"%d" % number, settled=number == 3)
        exchange()
        if number % 2:
            sender.settle(delivery, Rejected(REASON))
    receiver.flow(3, drain=True)
    exchange()
    answer = next(event for event in events if isinstance(event, LinkAttached) and event.link.role == SENDER)
    answer.link.send(b"x" * 1000, tag=b"x")
    exchange()
    other = client.client.begin()
    other.attach("out", SENDER)
    exchange()
    receiver.detach(closed=False, error=REASON)
    exchange()
    other.end(error=REASON)
    exchange()
    client.client.close(error=REASON)
    exchange()
    return bytes(said)


CONVERSATION: Final = conversation()


def summary(event: object) -> tuple[object, ...]:
    """Return the content of an event, without the objects that differ between engines."""
    match event:
        case Delivery():
            return (event.link.name, event.delivery_id, event.delivery_tag, event.payload)
        case SessionBegun():
            return (event.session.remote_channel, event.begin)
        case SessionEnded():
            return (event.session.remote_channel, event.error)
        case LinkAttached():
            return (event.link.name, event.attach)
        case LinkDetached():
            return (event.link.name, event.closed, event.error, type(event.violation))
        case CreditGranted():
            return (event.link.name, event.credit, event.drain)
        case LinkDrained():
            return (event.link.name,)
        case DeliveryAborted():
            return (event.delivery.delivery_id, type(event.error))
        case DispositionReceived():
            return ([delivery.delivery_id for delivery in event.deliveries], event.state, event.settled)
    return (event,)


def heard_in(pieces: list[bytes]) -> list[tuple[object, ...]]:
    """Return the events and the answer of a server for the pieces."""
    pair = ConnectionPair(server=Configuration(container_id="s", max_frame_size=512, strict=False))
    heard: list[tuple[object, ...]] = []
    for piece in pieces:
        for event in pair.server.receive_data(piece):
            heard.append((type(event), *summary(event)))
            pair.answer_friendly(event)
        pair.server.data_to_send()
    return heard


def test_conversation_byte_by_byte_is_the_same() -> None:
    at_once = heard_in([CONVERSATION])
    assert {kind for kind, *_ in at_once} >= {
        ConnectionOpened,
        SessionBegun,
        LinkAttached,
        Delivery,
        DispositionReceived,
        CreditGranted,
        LinkDetached,
        SessionEnded,
        ConnectionClosed,
    }, "the conversation holds nearly everything"
    assert heard_in([bytes([octet]) for octet in CONVERSATION]) == at_once


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, len(CONVERSATION)), max_size=40))
def test_conversation_in_any_chunking_is_the_same(cuts: list[int]) -> None:
    pieces = [CONVERSATION[start:end] for start, end in pairwise([0, *sorted(cuts), len(CONVERSATION)])]
    assert heard_in(pieces) == heard_in([CONVERSATION])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, len(CONVERSATION)), st.binary(min_size=1, max_size=20))
def test_events_before_any_fault_are_returned(cut: int, garbage: bytes) -> None:
    expected = heard_in([CONVERSATION[:cut]])
    pair = ConnectionPair(server=Configuration(container_id="s", max_frame_size=512, strict=False))
    try:
        events: list[Any] = list(pair.server.receive_data(CONVERSATION[:cut] + garbage))
    except ProtocolError as error:
        events = error.events
    heard = [(type(event), *summary(event)) for event in events]
    assert heard[: len(expected)] == expected
