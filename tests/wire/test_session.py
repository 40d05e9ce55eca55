"""Sessions: their beginning and end, their windows, and the deliveries that they number and settle."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.wire import (
    ACCEPTED,
    RECEIVER,
    RELEASED,
    SENDER,
    Attach,
    Begin,
    Configuration,
    CreditGranted,
    Declared,
    Delivery,
    Described,
    DispositionReceived,
    Error,
    Link,
    LinkAttached,
    LocalProtocolError,
    Modified,
    Received,
    Rejected,
    Session,
    SessionBegun,
    SessionEnded,
    TransactionalState,
    UInt,
    ULong,
)
from pairbus.wire.performatives import Disposition, End, Flow, Transfer
from tests.wire.pair import ConnectionPair, Heard, ScriptedPeer, Side, frame, read

REASON: Final = Error("pairbus:why", "because", {"more": 1})
WRAP: Final = 2**32


def both_ends(pair: ConnectionPair) -> tuple[Session, Session]:
    """The client's and the server's end of the session that the client began."""
    session = pair.open()
    return session, next(event.session for event in pair.server_events if isinstance(event, SessionBegun))


def deliveries(events: list[Any]) -> list[bytes]:
    return [event.payload for event in events if isinstance(event, Delivery)]


# Beginning and ending.


@pytest.mark.parametrize("side", Side)
def test_begin_states_our_limits(side: Side) -> None:
    configuration = Configuration(container_id="c", incoming_window=77, handle_max=33)
    peer = ScriptedPeer(side, configuration).open()
    if side is Side.CLIENT:
        session = peer.engine.begin(properties={"a": 1})
    else:
        (event,) = peer.say(frame(Begin(next_outgoing_id=9, incoming_window=1, outgoing_window=1), channel=5))
        assert isinstance(event, SessionBegun)
        session = event.session
        session.begin(properties={"a": 1})
    (heard,) = peer.heard()
    begin = heard.body
    assert begin.remote_channel == (None if side is Side.CLIENT else 5)
    assert (begin.incoming_window, begin.handle_max, begin.next_outgoing_id) == (77, 33, 0)
    assert begin.outgoing_window > 0
    assert begin.properties == {"a": 1}
    assert session.is_mapped == (side is Side.SERVER)


def test_begin_is_sent_once() -> None:
    peer = ScriptedPeer(Side.SERVER).open()
    session = peer.begin()
    session.begin()
    session.begin()
    assert peer.heard() == []


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("error", [None, REASON], ids=["without an error", "with an error"])
def test_end_of_either_side_is_answered_once(side: Side, error: Error | None) -> None:
    pair = ConnectionPair()
    client, server = both_ends(pair)
    pair.attach(client, "link", SENDER)
    ender, other = (client, server) if side is Side.CLIENT else (server, client)
    ender_engine, other_engine = (pair.client, pair.server) if side is Side.CLIENT else (pair.server, pair.client)
    ender.end(error=error)
    ender.end()
    said = ender_engine.data_to_send()
    assert read(said) == [Heard(ender.channel, End(error=error))], "the links go without a word of their own"
    (event,) = other_engine.receive_data(said)
    assert event == SessionEnded(other, error)
    assert not other.is_mapped
    answer = other_engine.data_to_send()
    assert read(answer) == [Heard(other.channel, End())]
    assert ender_engine.receive_data(answer) == [SessionEnded(ender, None)]
    for engine in (ender_engine, other_engine):
        assert engine.sessions == {}
        assert engine.is_open
        assert engine.data_to_send() == b""


def test_simultaneous_ends_are_not_answered() -> None:
    pair = ConnectionPair()
    client, server = both_ends(pair)
    client.end(error=REASON)
    server.end()
    pair.exchange()
    assert pair.client_events[-1] == SessionEnded(client, None)
    assert pair.server_events[-1] == SessionEnded(server, REASON)
    assert pair.client.sessions == pair.server.sessions == {}


def test_session_ended_before_answer_is_answered() -> None:
    pair = ConnectionPair()
    pair.client.open()
    pair.exchange()
    session = pair.client.begin()
    session.end()
    pair.exchange()
    assert [type(event) for event in pair.server_events[-2:]] == [SessionBegun, SessionEnded]
    assert [type(event) for event in pair.client_events[-2:]] == [SessionBegun, SessionEnded]
    assert pair.client.sessions == pair.server.sessions == {}


def test_server_may_refuse_session() -> None:
    peer = ScriptedPeer(Side.SERVER).open()
    (event,) = peer.say(frame(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1), channel=5))
    assert isinstance(event, SessionBegun)
    event.session.end(error=REASON)
    assert [type(heard.body) for heard in peer.heard()] == [Begin, End]
    assert len(peer.say(frame(End(), channel=5))) == 1
    assert peer.heard() == []


def test_sessions_are_independent() -> None:
    pair = ConnectionPair()
    first = pair.open()
    second = pair.client.begin()
    pair.exchange()
    one, _ = pair.attach(first, "same name", SENDER)
    two, _ = pair.attach(second, "same name", SENDER)
    one.send(b"first", tag=b"t")
    two.send(b"second", tag=b"t")
    first.end()
    pair.exchange()
    assert deliveries(pair.server_events) == [b"first", b"second"]
    two.send(b"still here", tag=b"t")
    pair.exchange()
    assert deliveries(pair.server_events)[-1] == b"still here"


# Handles and limits.


def test_handles_start_at_zero_and_are_reused() -> None:
    peer = ScriptedPeer(Side.CLIENT).open()
    session = peer.begin()
    links = [peer.attach(session, f"link {number}", SENDER) for number in range(4)]
    assert [link.handle for link in links] == [0, 1, 2, 3]
    peer.detach(session, links[2])
    peer.detach(session, links[0])
    assert [peer.attach(session, f"new {number}", SENDER).handle for number in range(3)] == [0, 2, 4]


def test_link_limit_of_peer_is_respected() -> None:
    peer = ScriptedPeer(Side.CLIENT).open()
    session = peer.begin(handle_max=1)
    first = peer.attach(session, "first", SENDER)
    peer.attach(session, "second", RECEIVER)
    with pytest.raises(LocalProtocolError, match="2 links"):
        session.attach("third", SENDER)
    assert peer.heard() == []
    peer.detach(session, first)
    assert peer.attach(session, "third", SENDER).handle == 0


@pytest.mark.parametrize("how", ["detach", "end"])
def test_detached_link_makes_room(how: str) -> None:
    peer = ScriptedPeer(Side.SERVER, Configuration(container_id="s", max_links=2)).open()
    for _ in range(5):
        session = peer.begin()
        links = [peer.attach(session, name, RECEIVER) for name in ("one", "two")]
        if how == "detach":
            for link in links:
                peer.detach(session, link)
        peer.end(session)
    assert peer.engine.link_count == 0


def test_max_links_counts_over_all_sessions() -> None:
    peer = ScriptedPeer(Side.SERVER, Configuration(container_id="s", max_links=2)).open()
    first, second = peer.begin(), peer.begin()
    peer.attach(first, "one", RECEIVER)
    peer.attach(second, "two", SENDER)
    attach = Attach(name="three", handle=0, role=SENDER, initial_delivery_count=0)
    (event,) = peer.say(frame(attach, channel=second.remote_channel))
    assert isinstance(event, SessionEnded)
    assert event.violation is not None
    assert event.violation.condition == "amqp:resource-limit-exceeded"
    assert first.is_mapped


def test_settled_delivery_makes_room() -> None:
    peer = ScriptedPeer(Side.SERVER, Configuration(container_id="s", max_unsettled=2)).open()
    session = peer.begin()
    link = peer.attach(session, "in", RECEIVER)
    for _ in range(10):
        (delivery,) = peer.transfer(session, link, b"")
        assert isinstance(delivery, Delivery)
        assert session.unsettled == 1
        link.settle(delivery, ACCEPTED)
    for number in range(10, 20):
        assert isinstance(peer.transfer(session, link, b"", settled=True)[0], Delivery), number
    assert session.unsettled == 0
    for _ in range(2):
        peer.transfer(session, link, b"")
    (event,) = peer.transfer(session, link, b"")
    assert isinstance(event, SessionEnded)


# The peer's window.


def outgoing(window: int, *, frame_size: int = 512) -> tuple[ScriptedPeer, Session, Link]:
    """A sender with much credit and a small window."""
    peer = ScriptedPeer(Side.SERVER).open(max_frame_size=frame_size)
    session = peer.begin(incoming_window=window)
    link = peer.attach(session, "out", SENDER, credit=0)
    peer.flow(session, handle=link.remote_handle, delivery_count=0, link_credit=1000, incoming_window=window)
    peer.heard()
    return peer, session, link


def test_sender_stops_at_window_and_continues() -> None:
    peer, session, link = outgoing(3)
    for number in range(10):
        link.send(b"%d" % number, tag=b"t")
    assert [heard.payload for heard in peer.heard()] == [b"0", b"1", b"2"]
    assert session.queued == 7
    peer.flow(session, next_incoming_id=3, incoming_window=2)
    assert [heard.payload for heard in peer.heard()] == [b"3", b"4"]
    peer.flow(session, next_incoming_id=5, incoming_window=0)
    assert peer.heard() == []
    peer.flow(session, next_incoming_id=5, incoming_window=100)
    sent = peer.heard()
    assert [heard.payload for heard in sent] == [b"5", b"6", b"7", b"8", b"9"]
    assert [heard.body.delivery_id for heard in sent] == [5, 6, 7, 8, 9]
    assert session.queued == 0


def test_session_may_begin_with_zero_window() -> None:
    peer, session, link = outgoing(0)
    link.send(b"later", tag=b"t")
    assert peer.heard() == []
    peer.flow(session, next_incoming_id=0, incoming_window=1)
    assert [heard.payload for heard in peer.heard()] == [b"later"]


def test_window_counts_frames_not_deliveries() -> None:
    peer, session, link = outgoing(3)
    link.send(b"." * 1800, tag=b"t")
    link.send(b"next", tag=b"u")
    first = peer.heard()
    assert len(first) == 3
    assert all(heard.body.more for heard in first)
    peer.flow(session, next_incoming_id=3, incoming_window=2)
    rest = peer.heard()
    assert [heard.body.more for heard in rest] == [False, False]
    assert b"".join(heard.payload for heard in first + rest) == b"." * 1800 + b"next"
    assert [heard.body.delivery_id for heard in rest] == [None, 1]


def test_transfers_in_flight_count_against_window() -> None:
    peer, session, link = outgoing(5)
    for number in range(8):
        link.send(b"%d" % number, tag=b"t")
    assert len(peer.heard()) == 5
    peer.flow(session, next_incoming_id=2, incoming_window=5)
    assert [heard.payload for heard in peer.heard()] == [b"5", b"6"], "three are under way, so there is room for two"


def test_window_counts_from_begin_until_peer_knows_it() -> None:
    peer, session, link = outgoing(2)
    for number in range(4):
        link.send(b"%d" % number, tag=b"t")
    assert len(peer.heard()) == 2
    peer.flow(session, next_incoming_id=None, incoming_window=3)
    assert [heard.payload for heard in peer.heard()] == [b"2"]


def test_window_below_transfers_in_flight_is_zero() -> None:
    peer, session, link = outgoing(5)
    for number in range(6):
        link.send(b"%d" % number, tag=b"t")
    peer.heard()
    peer.flow(session, next_incoming_id=0, incoming_window=3)
    assert peer.heard() == []
    assert session.queued == 1


def test_window_for_unsent_transfers_is_rejected() -> None:
    peer, session, link = outgoing(1)
    link.send(b"one", tag=b"t")
    link.send(b"two", tag=b"t")
    peer.heard()
    peer.flow(session, next_incoming_id=50, incoming_window=1)
    assert [heard.payload for heard in peer.heard()] == [b"two"]


def test_transfers_before_begin_of_peer_wait() -> None:
    peer = ScriptedPeer(Side.CLIENT).open()
    session = peer.engine.begin()
    link = session.attach("out", SENDER)
    link.send(b"early", tag=b"t", beyond_credit=True)
    assert [type(heard.body) for heard in peer.heard()] == [Begin, Attach]
    peer.say(frame(Begin(remote_channel=0, next_outgoing_id=0, incoming_window=1, outgoing_window=1), channel=3))
    assert [heard.payload for heard in peer.heard()] == [b"early"]


def test_delivery_ids_have_no_gap_after_detach_with_queued_deliveries() -> None:
    peer, session, link = outgoing(2)
    other = peer.attach(session, "other", SENDER)
    peer.flow(session, next_incoming_id=0, incoming_window=2)
    for number in range(4):
        link.send(b"link %d" % number, tag=b"t")
        other.send(b"other %d" % number, tag=b"t")
    assert [heard.body.delivery_id for heard in peer.heard()] == [0, 1]
    link.detach()
    peer.heard()
    assert session.queued == 3
    peer.flow(session, next_incoming_id=2, incoming_window=100)
    rest = peer.heard()
    assert [heard.payload for heard in rest] == [b"other 1", b"other 2", b"other 3"]
    assert [heard.body.delivery_id for heard in rest] == [2, 3, 4]


def test_partly_sent_delivery_is_dropped_with_its_link() -> None:
    peer, session, link = outgoing(2)
    other = peer.attach(session, "other", SENDER)
    peer.flow(session, next_incoming_id=0, incoming_window=2)
    link.send(b"." * 2000, tag=b"t")
    other.send(b"whole", tag=b"t")
    assert [heard.body.more for heard in peer.heard()] == [True, True]
    link.detach()
    peer.heard()
    peer.flow(session, next_incoming_id=2, incoming_window=100)
    (heard,) = peer.heard()
    assert (heard.payload, heard.body.delivery_id) == (b"whole", 1)


def test_queued_delivery_is_not_sent_after_credit_is_revoked() -> None:
    peer, session, link = outgoing(1)
    other = peer.attach(session, "other", SENDER)
    peer.flow(session, next_incoming_id=0, incoming_window=1)
    for number in range(3):
        link.send(b"link %d" % number, tag=b"t")
    other.send(b"other", tag=b"t")
    assert [heard.payload for heard in peer.heard()] == [b"link 0"]
    peer.grant(session, link, 0, delivery_count=1, next_incoming_id=1, incoming_window=10)
    assert [heard.payload for heard in peer.heard()] == [b"other"], "part 2.6.7: without credit nothing is sent"
    peer.grant(session, link, 5, delivery_count=1, next_incoming_id=2, incoming_window=10)
    rest = peer.heard()
    assert [(heard.payload, heard.body.delivery_id) for heard in rest] == [(b"link 1", 2), (b"link 2", 3)]


def test_partly_sent_delivery_is_dropped_with_its_link_behind_others() -> None:
    peer, session, held = outgoing(1)
    other = peer.attach(session, "other", SENDER)
    peer.flow(session, next_incoming_id=0, incoming_window=1)
    held.send(b"first", tag=b"t")
    held.send(b"held back", tag=b"t")
    other.send(b"." * 2000, tag=b"t")
    peer.grant(session, held, 0, delivery_count=1, next_incoming_id=1, incoming_window=1)
    assert [heard.body.more for heard in peer.heard()] == [False, True], "the large one has begun"
    peer.grant(session, held, 5, delivery_count=1, next_incoming_id=2, incoming_window=0)
    other.detach()
    peer.heard()
    peer.flow(session, next_incoming_id=2, incoming_window=10)
    assert [heard.payload for heard in peer.heard()] == [b"held back"], "the other link is gone"
    assert session.queued == 0


def test_held_delivery_does_not_start_inside_another() -> None:
    peer, session, link = outgoing(1)
    link.send(b"first", tag=b"t")
    link.send(b"held back", tag=b"t")
    peer.grant(session, link, 0, delivery_count=1, next_incoming_id=1, incoming_window=1)
    link.send(b"." * 2000, tag=b"t", beyond_credit=True)
    peer.grant(session, link, 5, delivery_count=link.delivery_count, next_incoming_id=2, incoming_window=10)
    under_way = False
    for heard in peer.heard():
        assert (heard.body.delivery_id is None) == under_way, "one at a time on a link"
        under_way = heard.body.more
    assert session.queued == 0


def test_messages_beyond_credit_keep_order_of_link() -> None:
    peer, session, link = outgoing(1)
    link.send(b"first", tag=b"t")
    link.send(b"second", tag=b"t")
    peer.grant(session, link, 0, delivery_count=1, next_incoming_id=1, incoming_window=10)
    link.send(b"third", tag=b"t", beyond_credit=True)
    peer.grant(session, link, 5, delivery_count=link.delivery_count, incoming_window=10)
    sent = peer.heard()
    assert [heard.payload for heard in sent] == [b"first", b"second", b"third"]
    assert [heard.body.delivery_id for heard in sent] == [0, 1, 2]


@pytest.mark.parametrize("ask", ["echo", "drain"])
def test_flow_does_not_overtake_counted_deliveries(ask: str) -> None:
    pair = ConnectionPair(server=Configuration(container_id="s", incoming_window=2, max_frame_size=512))
    sender, receiver = pair.attach(pair.open(), "link", SENDER)
    receiver.flow(10)
    pair.exchange()
    for number in range(6):
        sender.send(b"%d" % number, tag=b"t")
    receiver.flow(10, drain=ask == "drain", echo=ask == "echo")
    pair.client_events += pair.client.receive_data(pair.server.data_to_send())
    if ask == "drain":
        sender.drained()
    pair.exchange()
    assert deliveries(pair.server_events) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert receiver.is_attached, "the receiver did not count them twice"
    assert sender.credit == receiver.credit == (0 if ask == "drain" else 4)
    assert sender.delivery_count == receiver.delivery_count


# Our window.


@pytest.mark.parametrize("window", [1, 2, 3, 10, 101])
def test_window_is_updated_before_it_is_exhausted(window: int) -> None:
    peer = ScriptedPeer(Side.SERVER, Configuration(container_id="s", incoming_window=window)).open()
    session = peer.begin()
    link = peer.attach(session, "in", RECEIVER, credit=1000)
    room = window
    for number in range(3 * window + 5):
        assert room > 0, "a peer that keeps to the window can always send the next one"
        assert isinstance(peer.transfer(session, link, b"")[0], Delivery)
        room -= 1
        for flow in peer.bodies(Flow):
            assert flow.next_incoming_id == number + 1
            assert flow.incoming_window == window
            assert flow.handle is None
            room = flow.incoming_window


def test_window_updates_are_rare() -> None:
    peer = ScriptedPeer(Side.SERVER, Configuration(container_id="s", incoming_window=1000)).open()
    session = peer.begin()
    link = peer.attach(session, "in", RECEIVER, credit=5000)
    for _ in range(3000):
        peer.transfer(session, link, b"", settled=True)
    assert 3 <= len(peer.bodies(Flow)) <= 7


@pytest.mark.parametrize("windows", [(1, 1), (1, 3), (2, 2), (7, 1)], ids=str)
def test_any_window_passes_everything(windows: tuple[int, int]) -> None:
    pair = ConnectionPair(
        Configuration(container_id="c", incoming_window=windows[0], max_frame_size=512),
        Configuration(container_id="s", incoming_window=windows[1], max_frame_size=512),
    )
    session = pair.open()
    sender, _ = pair.attach(session, "there", SENDER)
    receiver, back = pair.attach(session, "back", RECEIVER)
    receiver.flow(100)
    pair.exchange()
    messages = [b"%d" % number * number * 40 for number in range(20)]
    for message in messages:
        sender.send(message, tag=b"t")
        back.send(message, tag=b"t")
    pair.exchange()
    assert deliveries(pair.server_events) == messages
    assert deliveries(pair.client_events) == messages


def test_peer_ignoring_window_is_bounded_if_not_strict() -> None:
    peer = ScriptedPeer(Side.SERVER, Configuration(container_id="s", incoming_window=2, strict=False)).open()
    session = peer.begin()
    link = peer.attach(session, "in", RECEIVER, credit=1)
    session._incoming_window = 0
    assert [len(peer.transfer(session, link, b"")) for _ in range(20)] == [1] * 20
    assert session.is_mapped
    assert link.credit == 0
    assert link.delivery_count == 20


@pytest.mark.parametrize("side", Side)
def test_echo_is_answered_without_echo(side: Side) -> None:
    peer = ScriptedPeer(side).open()
    session = peer.begin()
    assert peer.flow(session, echo=True) == []
    (flow,) = peer.bodies(Flow)
    assert (flow.handle, flow.echo) == (None, False)
    peer.flow(session)
    assert peer.heard() == []


# Numbers that start over.


def test_our_transfer_ids_wrap_around() -> None:
    peer, session, link = outgoing(3)
    session._next_outgoing_id = WRAP - 2
    peer.flow(session, next_incoming_id=WRAP - 2, incoming_window=3)
    for number in range(6):
        link.send(b"%d" % number, tag=b"t")
    assert len(peer.heard()) == 3
    assert session._next_outgoing_id == 1
    peer.flow(session, next_incoming_id=WRAP - 1, incoming_window=3)
    assert len(peer.heard()) == 1
    peer.flow(session, next_incoming_id=2, incoming_window=3)
    assert len(peer.heard()) == 2


def test_transfer_ids_of_peer_wrap_around() -> None:
    peer = ScriptedPeer(Side.SERVER, Configuration(container_id="s", incoming_window=4)).open()
    session = peer.begin(next_outgoing_id=WRAP - 2)
    link = peer.attach(session, "in", RECEIVER)
    for _ in range(5):
        peer.transfer(session, link, b"")
    assert [flow.next_incoming_id for flow in peer.bodies(Flow)][-1] in (0, 1, 2, 3)
    assert session._next_incoming_id == 3


def test_delivery_ids_wrap_around() -> None:
    pair = ConnectionPair()
    client, server = both_ends(pair)
    client._next_delivery_id = WRAP - 3
    sender, receiver = pair.attach(client, "link", SENDER)
    sent = [sender.send(b"%d" % number, tag=b"t") for number in range(6)]
    pair.exchange()
    arrived = [event for event in pair.server_events if isinstance(event, Delivery)]
    assert [delivery.delivery_id for delivery in arrived] == [WRAP - 3, WRAP - 2, WRAP - 1, 0, 1, 2]
    for delivery in arrived:
        receiver.settle(delivery, ACCEPTED)
    data = pair.server.data_to_send()
    assert read(data) == [Heard(0, Disposition(RECEIVER, WRAP - 3, 2, True, ACCEPTED))]
    (event,) = pair.client.receive_data(data)
    assert isinstance(event, DispositionReceived)
    assert sorted(event.deliveries, key=sent.index) == sent
    assert client.unsettled == server.unsettled == 0


# Settling.

OUTCOMES: Final = (
    ACCEPTED,
    RELEASED,
    Rejected(),
    Rejected(REASON),
    Modified(),
    Modified(delivery_failed=True, undeliverable_here=True, message_annotations={"x-opt-a": 1}),
    Declared(b"transaction"),
    TransactionalState(txn_id=b"transaction"),
    TransactionalState(txn_id=b"transaction", outcome=ACCEPTED),
    TransactionalState(txn_id=b"transaction", outcome=Rejected(REASON)),
    Received(section_number=3, section_offset=2**40),
    None,
)


def delivered(role: bool) -> tuple[ConnectionPair, Link, Delivery, Link, Delivery]:
    """A delivery that has arrived, at both its ends: the client's and the server's, the client having ``role``."""
    pair = ConnectionPair()
    link, other = pair.attach(pair.open(), "link", role)
    if role == SENDER:
        sent = link.send(b"message", tag=b"t")
        pair.exchange()
        arrived = pair.server_events[-1]
        assert isinstance(arrived, Delivery)
        return pair, link, sent, other, arrived
    link.flow(1)
    pair.exchange()
    sent = other.send(b"message", tag=b"t")
    pair.exchange()
    arrived = pair.client_events[-1]
    assert isinstance(arrived, Delivery)
    return pair, link, arrived, other, sent


@pytest.mark.parametrize("role", [SENDER, RECEIVER], ids=["sender", "receiver"])
@pytest.mark.parametrize("settle", [True, False], ids=["settled", "not settled"])
@pytest.mark.parametrize("state", OUTCOMES, ids=repr)
def test_every_state_is_delivered_unchanged(state: object, settle: bool, role: bool) -> None:
    pair, link, mine, other, theirs = delivered(role)
    pair.server_events.clear()
    if settle:
        link.settle(mine, state)
    else:
        link.update(mine, state)
    pair.exchange()
    (event,) = pair.server_events
    assert isinstance(event, DispositionReceived)
    assert (event.deliveries, event.state, event.settled) == ([theirs], state, settle)
    assert (theirs.state, theirs.settled, mine.settled) == (state, settle, settle)
    assert event.session is other.session
    other.settle(theirs, ACCEPTED)
    assert (pair.server.data_to_send() == b"") == settle, "an end that knows of the settlement sends no more"


@pytest.mark.parametrize("role", [SENDER, RECEIVER], ids=["sender", "receiver"])
def test_delivery_is_settled_once(role: bool) -> None:
    pair, link, mine, _, _ = delivered(role)
    link.settle(mine, ACCEPTED)
    assert len(read(pair.client.data_to_send())) == 1
    link.settle(mine, RELEASED)
    link.update(mine, RELEASED)
    assert pair.client.data_to_send() == b""


def test_receiver_may_let_sender_settle() -> None:
    pair, sender, sent, receiver, arrived = delivered(SENDER)
    receiver.update(arrived, ACCEPTED)
    pair.exchange()
    event = pair.client_events[-1]
    assert isinstance(event, DispositionReceived)
    assert not event.settled
    assert not sent.settled
    sender.settle(sent, sent.state)
    pair.exchange()
    event = pair.server_events[-1]
    assert isinstance(event, DispositionReceived)
    assert (event.deliveries, event.settled, event.state) == ([arrived], True, ACCEPTED)
    assert arrived.settled


def settling(count: int) -> tuple[ScriptedPeer, Session, Link, list[Delivery]]:
    peer = ScriptedPeer(Side.SERVER).open()
    session = peer.begin()
    link = peer.attach(session, "in", RECEIVER, credit=count)
    arrived = [
        event for _ in range(count) for event in peer.transfer(session, link, b"") if isinstance(event, Delivery)
    ]
    return peer, session, link, arrived


def test_consecutive_deliveries_with_same_state_share_frame() -> None:
    peer, session, link, arrived = settling(200)
    peer.heard()
    for delivery in arrived:
        link.settle(delivery, ACCEPTED)
    assert peer.heard() == [Heard(session.channel, Disposition(RECEIVER, 0, 199, True, ACCEPTED))]
    assert session.unsettled == 0


def test_gap_in_run_starts_new_frame() -> None:
    peer, session, link, arrived = settling(12)
    for number in (0, 1, 2, 4, 5, 7, 6, 8, 9, 10):
        link.settle(arrived[number], RELEASED if number in (5, 9) else ACCEPTED)
    said = [(heard.body.first, heard.body.last, heard.body.state) for heard in peer.heard()]
    assert said == [
        (0, 2, ACCEPTED),
        (4, None, ACCEPTED),
        (5, None, RELEASED),
        (7, None, ACCEPTED),
        (6, None, ACCEPTED),
        (8, None, ACCEPTED),
        (9, None, RELEASED),
        (10, None, ACCEPTED),
    ]
    assert session.unsettled == 2


def test_disposition_may_cover_several_links() -> None:
    peer = ScriptedPeer(Side.SERVER).open()
    session = peer.begin()
    links = [peer.attach(session, f"out {number}", SENDER) for number in range(3)]
    sent = [links[number % 3].send(b"", tag=b"t") for number in range(9)]
    (event,) = peer.say(frame(Disposition(RECEIVER, 2, 6, True, ACCEPTED), channel=session.remote_channel))
    assert isinstance(event, DispositionReceived)
    assert event.deliveries == sent[2:7]
    assert [delivery.settled for delivery in sent] == [False] * 2 + [True] * 5 + [False] * 2
    assert session.unsettled == 4


@settings(max_examples=60, deadline=None)
@given(
    start=st.sampled_from([0, 5, WRAP - 3, WRAP - 10]),
    settled=st.sets(st.integers(0, 9)),
    first=st.integers(-3, 12),
    span=st.integers(0, 20) | st.sampled_from([2**31 - 1]),
)
def test_range_covers_only_unsettled_deliveries(start: int, settled: set[int], first: int, span: int) -> None:
    peer = ScriptedPeer(Side.SERVER).open()
    session = peer.begin()
    link = peer.attach(session, "out", SENDER)
    session._next_delivery_id = start
    sent = [link.send(b"", tag=b"t") for _ in range(10)]
    for number in settled:
        link.settle(sent[number])
    disposition = Disposition(RECEIVER, (start + first) % WRAP, (start + first + span) % WRAP, True, ACCEPTED)
    events = peer.say(frame(disposition, channel=session.remote_channel))
    expected = [sent[number] for number in range(10) if first <= number <= first + span and number not in settled]
    found = [delivery for event in events if isinstance(event, DispositionReceived) for delivery in event.deliveries]
    assert found == expected
    assert len(events) == bool(expected)
    assert session.unsettled == 10 - len(settled) - len(expected)


@pytest.mark.parametrize("role", [SENDER, RECEIVER], ids=["from the sender", "from the receiver"])
def test_disposition_of_unknown_delivery_is_ignored(role: bool) -> None:
    peer = ScriptedPeer(Side.SERVER).open()
    session = peer.begin()
    assert peer.say(frame(Disposition(role, 5, 9, True, ACCEPTED), channel=session.remote_channel)) == []
    assert peer.say(frame(Disposition(role, 5), channel=session.remote_channel)) == []
    assert peer.heard() == []


def test_directions_have_separate_delivery_ids() -> None:
    peer = ScriptedPeer(Side.SERVER).open()
    session = peer.begin()
    sender = peer.attach(session, "out", SENDER)
    receiver = peer.attach(session, "in", RECEIVER)
    sent = sender.send(b"", tag=b"t")
    (arrived,) = peer.transfer(session, receiver, b"", delivery_id=0)
    assert isinstance(arrived, Delivery)
    assert sent.delivery_id == arrived.delivery_id == 0
    peer.say(frame(Disposition(RECEIVER, 0, 0, True, ACCEPTED), channel=session.remote_channel))
    assert (sent.settled, arrived.settled) == (True, False)
    peer.say(frame(Disposition(SENDER, 0, 0, True, RELEASED), channel=session.remote_channel))
    assert (sent.state, arrived.state, arrived.settled) == (ACCEPTED, RELEASED, True)


def test_detached_link_drops_its_unsettled_deliveries() -> None:
    peer = ScriptedPeer(Side.SERVER).open()
    session = peer.begin()
    links = [peer.attach(session, "out", SENDER), peer.attach(session, "other", SENDER)]
    sent = [links[number % 2].send(b"", tag=b"t") for number in range(6)]
    assert session.unsettled == 6
    links[0].detach()
    assert session.unsettled == 3
    (event,) = peer.say(frame(Disposition(RECEIVER, 0, 5, True, ACCEPTED), channel=session.remote_channel))
    assert isinstance(event, DispositionReceived)
    assert event.deliveries == [sent[1], sent[3], sent[5]]


@pytest.mark.parametrize("late", [True, False], ids=["the later one", "the earlier one"])
def test_detached_link_drops_only_its_own_deliveries(late: bool) -> None:
    peer = ScriptedPeer(Side.SERVER).open()
    session = peer.begin()
    links = [peer.attach(session, "early", RECEIVER), peer.attach(session, "late", RECEIVER)]
    arrived = [peer.transfer(session, links[number > 4], b"")[0] for number in range(10)]
    links[late].detach()
    peer.heard()
    assert session.unsettled == 5
    for delivery in arrived:
        assert isinstance(delivery, Delivery)
        delivery.link.settle(delivery, ACCEPTED)
    (disposition,) = peer.bodies(Disposition)
    assert (disposition.first, disposition.last) == ((0, 4) if late else (5, 9))


@pytest.mark.parametrize("state", [ACCEPTED, RELEASED], ids=repr)
@pytest.mark.parametrize("rest", [(), (None,), (False,), (True,)], ids=str)
@pytest.mark.parametrize("last", [None, UInt(0), UInt(300)], ids=str)
def test_disposition_may_have_any_empty_range(state: object, rest: tuple[object, ...], last: object) -> None:
    peer = ScriptedPeer(Side.SERVER).open()
    session = peer.begin()
    sent = peer.attach(session, "out", SENDER).send(b"", tag=b"t")
    fields = [True, UInt(0), last, True, state, *rest]
    (event,) = peer.say(frame(Described(ULong(0x15), fields), channel=session.remote_channel))
    assert isinstance(event, DispositionReceived)
    assert (event.deliveries, event.state, event.settled) == ([sent], state, True)


# Deliveries of several frames, side by side.


@pytest.mark.parametrize("sessions", [1, 2])
def test_interleaved_multi_frame_deliveries_are_assembled(sessions: int) -> None:
    peer = ScriptedPeer(Side.SERVER).open()
    first = peer.begin()
    second = peer.begin() if sessions == 2 else first
    one = peer.attach(first, "one", RECEIVER)
    two = peer.attach(second, "two", RECEIVER)
    messages = {one: b"a" * 1000, two: b"b" * 1000}
    events = []
    for number in range(10):
        for link, session in ((one, first), (two, second)):
            fields: dict[str, Any] = {"more": number < 9}
            fields["delivery_id"] = None if number else (1 if link is two and sessions == 1 else 0)
            part = messages[link][number * 100 : number * 100 + 100]
            events += peer.transfer(session, link, part, **fields)
    assert [(event.link, event.payload) for event in events if isinstance(event, Delivery)] == list(messages.items())
    assert len(events) == 2


def test_engines_exchange_large_messages_on_many_links_and_sessions() -> None:
    pair = ConnectionPair(
        Configuration(container_id="c", max_frame_size=512, incoming_window=4),
        Configuration(container_id="s", max_frame_size=512, incoming_window=3),
    )
    sessions = [pair.open(), pair.client.begin()]
    pair.exchange()
    links = [pair.attach(sessions[number % 2], f"link {number}", SENDER)[0] for number in range(6)]
    sent: dict[str, list[bytes]] = {link.name: [] for link in links}
    for number in range(30):
        link = links[number % 6]
        message = b"%d;" % number * (number * 37)
        link.send(message, tag=b"%d" % number)
        sent[link.name].append(message)
    pair.exchange()
    arrived: dict[str, list[bytes]] = {link.name: [] for link in links}
    for event in pair.server_events:
        if isinstance(event, Delivery):
            arrived[event.link.name].append(event.payload)
    assert arrived == sent


def test_flow_reaches_newly_attached_link() -> None:
    peer = ScriptedPeer(Side.SERVER).open()
    session = peer.begin()
    attach = Attach(name="out", handle=5, role=RECEIVER)
    flow = Flow(incoming_window=9, next_outgoing_id=0, outgoing_window=9, handle=5, link_credit=7)
    events = peer.say(frame(attach, channel=session.remote_channel), frame(flow, channel=session.remote_channel))
    assert [type(event) for event in events] == [LinkAttached, CreditGranted]
    granted = events[1]
    assert isinstance(granted, CreditGranted)
    granted.link.attach()
    granted.link.send(b"at once", tag=b"t")
    assert isinstance(peer.heard()[-1].body, Transfer)
