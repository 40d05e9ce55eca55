"""Links: attaching and detaching, credit, messages of any size, and what becomes of each."""

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
    Configuration,
    Coordinator,
    CreditGranted,
    Delivery,
    DeliveryAborted,
    Described,
    DispositionReceived,
    EncodeError,
    Error,
    Link,
    LinkAttached,
    LinkDetached,
    LinkDrained,
    LocalProtocolError,
    Received,
    ReceiverSettleMode,
    Rejected,
    SenderSettleMode,
    Session,
    Source,
    Target,
    TransactionalState,
    UInt,
    ULong,
)
from pairbus.wire.errors import (
    FrameTooLargeError,
    InvalidFieldError,
    MessageSizeError,
    MessageTooLargeError,
    TransferLimitError,
)
from pairbus.wire.performatives import Detach, Disposition, Flow, Transfer
from pairbus.wire.states import LinkState
from tests.wire.pair import ConnectionPair, Heard, ScriptedPeer, Side, frame, read

REASON: Final = Error("pairbus:why", "because", {"more": 1})
WRAP: Final = 2**32
BOTH_ROLES: Final = pytest.mark.parametrize("role", [SENDER, RECEIVER], ids=["sender", "receiver"])


def scripted(side: Side = Side.SERVER, **configuration: Any) -> tuple[ScriptedPeer, Session]:
    peer = ScriptedPeer(side, Configuration(container_id="engine", **configuration)).open(max_frame_size=512)
    return peer, peer.begin()


def joined(role: bool = SENDER, *, credit: int = 1000, **server: Any) -> tuple[ConnectionPair, Link, Link]:
    """Two engines with a link; the client's end, which has ``role``, and the server's."""
    pair = ConnectionPair(
        Configuration(container_id="c", max_frame_size=512),
        Configuration(container_id="s", max_frame_size=512, **server),
    )
    pair.credit = credit
    link, other = pair.attach(pair.open(), "link", role)
    return pair, link, other


def payloads(events: list[Any]) -> list[bytes]:
    return [event.payload for event in events if isinstance(event, Delivery)]


# Attaching.


@BOTH_ROLES
def test_attach_transfers_all_fields(role: bool) -> None:
    pair = ConnectionPair()
    session = pair.open()
    link = session.attach(
        "link",
        role,
        source=Source(address="from", capabilities=("queue",)),
        target=Target(address="to"),
        snd_settle_mode=SenderSettleMode.UNSETTLED,
        rcv_settle_mode=ReceiverSettleMode.SECOND,
        max_message_size=1234,
        properties={"a": 1},
    )
    pair.exchange()
    event = pair.server_events[-1]
    assert isinstance(event, LinkAttached)
    assert event.attach == Attach(
        name="link",
        handle=0,
        role=role,
        snd_settle_mode=SenderSettleMode.UNSETTLED,
        rcv_settle_mode=ReceiverSettleMode.SECOND,
        source=Source(address="from", capabilities=("queue",)),
        target=Target(address="to"),
        initial_delivery_count=0 if role == SENDER else None,
        max_message_size=1234,
        properties={"a": 1},
    )
    assert event.link.role != role
    answer = next(event for event in pair.client_events if isinstance(event, LinkAttached))
    assert answer.link is link
    assert answer.attach.source == Source(address="from", capabilities=("queue",))
    assert link.is_attached
    assert event.link.is_attached


def test_answer_may_have_capabilities_and_another_target() -> None:
    peer, session = scripted()
    (event,) = peer.say(
        frame(
            Attach(name="tx", handle=9, role=SENDER, initial_delivery_count=0, target=Coordinator()),
            channel=session.remote_channel,
        )
    )
    assert isinstance(event, LinkAttached)
    event.link.attach(
        target=Coordinator(capabilities=("amqp:local-transactions",)),
        offered_capabilities=("a", "b"),
        desired_capabilities=("c",),
    )
    (attach,) = peer.bodies(Attach)
    assert attach.target == Coordinator(capabilities=("amqp:local-transactions",))
    assert (attach.offered_capabilities, attach.desired_capabilities) == (("a", "b"), ("c",))


@pytest.mark.parametrize("snd", SenderSettleMode)
@pytest.mark.parametrize("rcv", ReceiverSettleMode)
def test_settle_modes_default_to_peers(snd: SenderSettleMode, rcv: ReceiverSettleMode) -> None:
    peer, session = scripted()
    attach = Attach(name="a", handle=1, role=SENDER, snd_settle_mode=snd, rcv_settle_mode=rcv, initial_delivery_count=0)
    (event,) = peer.say(frame(attach, channel=session.remote_channel))
    assert isinstance(event, LinkAttached)
    event.link.attach()
    (answer,) = peer.bodies(Attach)
    assert (answer.snd_settle_mode, answer.rcv_settle_mode) == (snd, rcv)
    (event,) = peer.say(
        frame(Attach(name="b", handle=2, role=RECEIVER, snd_settle_mode=snd), channel=session.remote_channel)
    )
    assert isinstance(event, LinkAttached)
    event.link.attach(snd_settle_mode=SenderSettleMode.SETTLED, rcv_settle_mode=ReceiverSettleMode.FIRST)
    (answer,) = peer.bodies(Attach)
    assert (answer.snd_settle_mode, answer.rcv_settle_mode) == (SenderSettleMode.SETTLED, ReceiverSettleMode.FIRST)


def test_link_is_attached_once_and_reserves_its_name() -> None:
    peer, session = scripted()
    link = peer.attach(session, "name", SENDER)
    with pytest.raises(LocalProtocolError, match="already"):
        link.attach()
    with pytest.raises(LocalProtocolError, match="already"):
        session.attach("name", SENDER)
    assert peer.heard() == []
    session.attach("name", RECEIVER)
    assert len(peer.bodies(Attach)) == 1, "the other direction is another link"


@pytest.mark.parametrize("role", ["sender", 0, None])
def test_role_must_be_sender_or_receiver(role: Any) -> None:
    peer, session = scripted()
    with pytest.raises(TypeError):
        session.attach("name", role)
    assert peer.heard() == []
    assert session.links == {}


def test_simultaneous_attaches_form_one_link() -> None:
    pair = ConnectionPair()
    session = pair.open()
    mine = session.attach("meeting", SENDER)
    theirs = next(iter(pair.server.sessions.values())).attach("meeting", RECEIVER)
    pair.exchange()
    assert mine.is_attached
    assert theirs.is_attached
    theirs.flow(1)
    pair.exchange()
    mine.send(b"hello", tag=b"t")
    pair.exchange()
    assert payloads(pair.server_events) == [b"hello"]


@pytest.mark.parametrize(
    "wrong", [{"properties": {"a": object()}}, {"source": Source(address="." * 1000)}], ids=["a value", "a length"]
)
def test_failed_attach_leaves_nothing_behind(wrong: dict[str, Any]) -> None:
    peer, session = scripted(max_links=3)
    with pytest.raises(LocalProtocolError):
        session.attach("name", SENDER, **wrong)
    assert peer.heard() == []
    assert session.links == {}
    assert peer.engine.link_count == 0
    assert session.attach("name", SENDER).handle == 0


@BOTH_ROLES
@pytest.mark.parametrize(
    ("name", "fits"), [("n" * 448, True), ("é" * 224, True), ("n" * 449, False)], ids=["448", "224 é", "449"]
)
def test_name_length_is_limited_by_answer(role: bool, name: str, fits: bool) -> None:
    peer, session = scripted(max_frame_size=4096, max_message_size=2**63 - 1, handle_max=WRAP - 1)
    attach = Attach(name=name, handle=WRAP - 1, role=not role, initial_delivery_count=0 if role == RECEIVER else None)
    data = frame(attach, channel=session.remote_channel)
    if not fits:
        with pytest.raises(InvalidFieldError):
            peer.say(data)
        return
    (event,) = peer.say(data)
    assert isinstance(event, LinkAttached)
    event.link.refuse(REASON)
    assert [type(heard.body) for heard in peer.heard()] == [Attach, Detach]


# Detaching.


@BOTH_ROLES
@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("error", [None, REASON], ids=["without an error", "with an error"])
def test_detach_of_either_end_is_answered_once(role: bool, side: Side, closed: bool, error: Error | None) -> None:
    pair, client, server = joined(role)
    detacher, other = (client, server) if side is Side.CLIENT else (server, client)
    engine, other_engine = (pair.client, pair.server) if side is Side.CLIENT else (pair.server, pair.client)
    detacher.detach(closed=closed, error=error)
    detacher.detach()
    said = engine.data_to_send()
    assert read(said) == [Heard(0, Detach(handle=detacher.handle, closed=closed, error=error))]
    assert other_engine.receive_data(said) == [LinkDetached(other, closed, error)]
    assert not other.is_attached
    answer = other_engine.data_to_send()
    assert read(answer) == [Heard(0, Detach(handle=other.handle, closed=closed))]
    assert engine.receive_data(answer) == [LinkDetached(detacher, closed, None)]
    for session in (*pair.client.sessions.values(), *pair.server.sessions.values()):
        assert session.links == {}
        assert session.is_mapped
    assert engine.data_to_send() == other_engine.data_to_send() == b""


def test_simultaneous_detaches_are_not_answered() -> None:
    pair, client, server = joined()
    client.detach(error=REASON)
    server.detach()
    pair.exchange()
    assert pair.client_events[-1] == LinkDetached(client, True, None)
    assert pair.server_events[-1] == LinkDetached(server, True, REASON)


@BOTH_ROLES
def test_link_detached_before_answer_is_answered(role: bool) -> None:
    pair = ConnectionPair()
    session = pair.open()
    link = session.attach("brief", role)
    link.detach()
    pair.exchange()
    assert [type(event) for event in pair.server_events[-2:]] == [LinkAttached, LinkDetached]
    assert pair.client_events[-1] == LinkDetached(link, True, None), "there was one link all along"
    assert not any(isinstance(event, LinkAttached) for event in pair.client_events), "which we did not want any more"
    assert session.links == {}
    assert all(other.links == {} for other in pair.server.sessions.values())


@BOTH_ROLES
@pytest.mark.parametrize("closed", [True, False])
def test_link_may_be_reattached_after_detach(role: bool, closed: bool) -> None:
    pair, link, _ = joined(role)
    session = next(iter(pair.client.sessions.values()))
    for _ in range(3):
        link.detach(closed=closed)
        pair.exchange()
        again, other = pair.attach(session, "link", role)
        assert again is not link
        assert again.handle == 0
        assert again.delivery_count == other.delivery_count == 0
        sender, receiver = (again, other) if role == SENDER else (other, again)
        receiver.flow(1)
        pair.exchange()
        sender.send(b"again", tag=b"t")
        pair.exchange()
        link = again
    assert payloads(pair.client_events + pair.server_events) == [b"again"] * 3


@pytest.mark.parametrize("side", Side)
def test_peer_may_reattach_before_our_answer(side: Side) -> None:
    peer, session = scripted(side)
    link = peer.attach(session, "link", RECEIVER)
    again = Attach(name="link", handle=link.remote_handle, role=SENDER, initial_delivery_count=0)
    detach = frame(Detach(handle=link.remote_handle), channel=session.remote_channel)
    events = peer.say(detach, frame(again, channel=session.remote_channel))
    assert [type(event) for event in events] == [LinkDetached, LinkAttached]
    attached = events[1]
    assert isinstance(attached, LinkAttached)
    assert attached.link is not link
    attached.link.attach()
    assert [type(heard.body) for heard in peer.heard()] == [Detach, Attach]


@BOTH_ROLES
@pytest.mark.parametrize("side", Side)
def test_reattached_name_steals_link(role: bool, side: Side) -> None:
    peer, session = scripted(side)
    old = peer.attach(session, "name", role)
    bystander = peer.attach(session, "name", not role)
    attach = Attach(name="name", handle=9, role=not role, initial_delivery_count=0 if role == RECEIVER else None)
    detached, attached = peer.say(frame(attach, channel=session.remote_channel))
    assert isinstance(detached, LinkDetached)
    assert (detached.link, detached.closed, detached.violation) == (old, True, None)
    assert detached.error is not None
    assert detached.error.condition == "amqp:link:stolen"
    assert isinstance(attached, LinkAttached)
    assert attached.link not in (old, bystander)
    attached.link.attach()
    said = peer.heard()
    assert [type(heard.body) for heard in said] == [Detach, Attach]
    assert said[0].body.error == detached.error
    assert peer.detach(session, old) == [], "already reported to the application"
    assert peer.heard() == []
    assert attached.link.is_attached
    assert bystander.is_attached
    assert set(session.links.values()) == {attached.link, bystander}


@BOTH_ROLES
def test_refusal_attaches_without_terminus_and_detaches_with_reason(role: bool) -> None:
    peer, session = scripted()
    attach = Attach(
        name="wish",
        handle=6,
        role=not role,
        source=Source(address="from"),
        target=Target(address="to"),
        initial_delivery_count=0 if role == RECEIVER else None,
    )
    (event,) = peer.say(frame(attach, channel=session.remote_channel))
    assert isinstance(event, LinkAttached)
    event.link.refuse(REASON)
    answer, detach = peer.heard()
    assert (answer.body.source, answer.body.target) == (None, None)
    assert answer.body.initial_delivery_count == (0 if role == SENDER else None)
    assert detach.body == Detach(handle=answer.body.handle, closed=True, error=REASON)
    assert peer.detach(session, event.link) == [LinkDetached(event.link, True, None)]
    assert peer.heard() == []
    assert session.links == {}


# Credit.


def test_nothing_is_sent_without_credit() -> None:
    peer, session = scripted()
    link = peer.attach(session, "out", SENDER, credit=0)
    with pytest.raises(LocalProtocolError, match="no credit"):
        link.send(b"", tag=b"t")
    assert peer.heard() == []
    (event,) = peer.grant(session, link, 2)
    assert event == CreditGranted(link, 2, drain=False)
    link.send(b"one", tag=b"t")
    link.send(b"two", tag=b"t")
    assert link.credit == 0
    with pytest.raises(LocalProtocolError, match="no credit"):
        link.send(b"three", tag=b"t")
    assert [heard.payload for heard in peer.heard()] == [b"one", b"two"]


def test_credit_counts_from_delivery_count_of_receiver() -> None:
    peer, session = scripted()
    link = peer.attach(session, "out", SENDER, credit=5)
    for _ in range(3):
        link.send(b"", tag=b"t")
    (event,) = peer.grant(session, link, 5, delivery_count=1)
    assert event == CreditGranted(link, 3, drain=False), "two of the five are under way"
    (event,) = peer.grant(session, link, 1, delivery_count=1)
    assert event == CreditGranted(link, 0, drain=False), "more is under way than the receiver wants by now"


@pytest.mark.parametrize("credit", [2**31 - 1, 2**31, WRAP - 1])
def test_receiver_may_grant_maximum_credit(credit: int) -> None:
    peer, session = scripted()
    link = peer.attach(session, "out", SENDER, credit=0)
    (event,) = peer.grant(session, link, credit)
    assert event == CreditGranted(link, credit, drain=False)
    link.send(b"one of many", tag=b"t")
    (event,) = peer.grant(session, link, credit, delivery_count=0)
    assert event == CreditGranted(link, credit - 1, drain=False)


def test_receiver_without_delivery_count_means_initial_one() -> None:
    peer, session = scripted()
    link = peer.attach(session, "out", SENDER, credit=5)
    for _ in range(3):
        link.send(b"", tag=b"t")
    (event,) = peer.grant(session, link, 5, delivery_count=None)
    assert event == CreditGranted(link, 2, drain=False), "part 2.6.7: the initial-delivery-count, not the present one"


def test_flow_without_credit_leaves_credit_unchanged() -> None:
    peer, session = scripted()
    link = peer.attach(session, "out", SENDER, credit=5)
    (event,) = peer.flow(session, handle=link.remote_handle, delivery_count=0)
    assert event == CreditGranted(link, 5, drain=False)


def test_delivery_count_wraps_around() -> None:
    pair, sender, receiver = joined()
    sender.delivery_count = receiver.delivery_count = WRAP - 2
    receiver.flow(5)
    pair.exchange()
    assert sender.credit == 5
    for number in range(4):
        sender.send(b"%d" % number, tag=b"t")
    pair.exchange()
    assert sender.delivery_count == receiver.delivery_count == 2
    receiver.flow(5)
    pair.exchange()
    assert sender.credit == receiver.credit == 5


def test_receiver_takes_initial_count_of_sender() -> None:
    peer, session = scripted()
    link = peer.attach(session, "in", RECEIVER, initial_delivery_count=WRAP - 1, credit=2)
    link.flow(2)
    (flow,) = peer.bodies(Flow)
    assert (flow.delivery_count, flow.link_credit) == (WRAP - 1, 2)
    peer.transfer(session, link, b"")
    link.flow(2)
    (flow,) = peer.bodies(Flow)
    assert (flow.delivery_count, flow.link_credit) == (0, 2)


def test_count_is_unknown_before_attach_of_sender() -> None:
    peer, session = scripted(Side.CLIENT)
    link = session.attach("in", RECEIVER)
    peer.heard()
    link.flow(7)
    (flow,) = peer.bodies(Flow)
    assert (flow.handle, flow.delivery_count, flow.link_credit) == (link.handle, None, 7)
    attach = Attach(name="in", handle=5, role=SENDER, initial_delivery_count=40)
    peer.say(frame(attach, channel=session.remote_channel))
    assert (link.delivery_count, link.credit) == (40, 7)


@pytest.mark.parametrize("credit", [-1, 2**31, 2**32])
def test_invalid_credit_is_rejected(credit: int) -> None:
    peer, session = scripted()
    link = peer.attach(session, "in", RECEIVER, credit=3)
    with pytest.raises(LocalProtocolError):
        link.flow(credit)
    assert link.credit == 3
    assert peer.heard() == []
    link.flow(2**31 - 1)
    assert peer.bodies(Flow)[0].link_credit == 2**31 - 1


def test_can_send_reflects_credit() -> None:
    peer, session = scripted()
    link = peer.attach(session, "out", SENDER, credit=0)
    seen = [link.can_send]
    peer.grant(session, link, 1)
    seen.append(link.can_send)
    link.send(b"", tag=b"t")
    seen.append(link.can_send)
    peer.grant(session, link, 1)
    peer.detach(session, link)
    seen.append(link.can_send)
    assert seen == [False, True, False, False]
    assert not peer.attach(session, "in", RECEIVER).can_send


def test_only_receiver_grants_and_only_sender_drains_credit() -> None:
    peer, session = scripted()
    sender = peer.attach(session, "out", SENDER)
    receiver = peer.attach(session, "in", RECEIVER)
    with pytest.raises(LocalProtocolError):
        sender.flow(1)
    with pytest.raises(LocalProtocolError):
        receiver.drained()
    with pytest.raises(LocalProtocolError):
        receiver.send(b"", tag=b"t")
    assert peer.heard() == []


def test_unattached_link_neither_grants_credit_nor_sends() -> None:
    peer, session = scripted()
    attaches = [
        frame(Attach(name="in", handle=1, role=SENDER, initial_delivery_count=0), channel=session.remote_channel),
        frame(Attach(name="out", handle=2, role=RECEIVER), channel=session.remote_channel),
    ]
    receiver, sender = (event.link for event in peer.say(*attaches) if isinstance(event, LinkAttached))
    with pytest.raises(LocalProtocolError, match="not been attached"):
        receiver.flow(1)
    with pytest.raises(LocalProtocolError, match="not sent"):
        sender.send(b"", tag=b"t", beyond_credit=True)
    with pytest.raises(LocalProtocolError, match="not been attached"):
        sender.drained()
    assert peer.heard() == []
    sender.attach()
    assert peer.bodies(Attach)[0].initial_delivery_count == 0


def test_sender_may_send_beyond_credit_on_request() -> None:
    peer, session = scripted()
    link = peer.attach(session, "answers", SENDER, credit=1)
    for number in range(3):
        link.send(b"%d" % number, tag=b"t", beyond_credit=True)
    assert [heard.payload for heard in peer.heard()] == [b"0", b"1", b"2"]
    assert (link.credit, link.delivery_count) == (0, 3)


def test_delivery_uses_one_credit_for_any_number_of_frames() -> None:
    pair, sender, receiver = joined()
    receiver.flow(3)
    pair.exchange()
    sender.send(b"." * 5000, tag=b"t")
    pair.exchange()
    assert sender.credit == receiver.credit == 2


def test_sender_beyond_credit_is_detached_if_strict() -> None:
    for strict in (True, False):
        peer, session = scripted(strict=strict)
        link = peer.attach(session, "in", RECEIVER, credit=2)
        events = [event for _ in range(4) for event in peer.transfer(session, link, b"", settled=True)]
        if strict:
            assert [type(event) for event in events] == [Delivery, Delivery, LinkDetached]
            assert isinstance(events[2], LinkDetached)
            assert type(events[2].violation) is TransferLimitError
        else:
            assert [type(event) for event in events] == [Delivery] * 4
            assert (link.credit, link.delivery_count) == (0, 4)


def test_revoked_credit_allows_deliveries_in_flight() -> None:
    pair, sender, receiver = joined()
    receiver.flow(10)
    pair.exchange()
    for number in range(6):
        sender.send(b"%d" % number, tag=b"t")
    receiver.flow(2)
    pair.exchange()
    assert receiver.is_attached, "the sender kept to its credit"
    assert payloads(pair.server_events) == [b"%d" % number for number in range(6)]
    assert sender.credit == 0
    receiver.flow(3)
    pair.exchange()
    assert sender.credit == receiver.credit == 3


# Draining.


@pytest.mark.parametrize("sent", [0, 2, 5])
def test_drained_sender_uses_or_returns_credit(sent: int) -> None:
    pair, sender, receiver = joined(credit=0)
    receiver.flow(5, drain=True)
    pair.exchange()
    assert pair.client_events[-1] == CreditGranted(sender, 5, drain=True)
    for _ in range(sent):
        sender.send(b"", tag=b"t")
    pair.exchange()
    assert any(isinstance(event, LinkDrained) for event in pair.server_events) == (sent == 5)
    sender.drained()
    flow = read(pair.client.data_to_send())[0].body
    assert (flow.delivery_count, flow.link_credit, flow.drain) == (5, 0, True)
    pair.server_events += pair.server.receive_data(_flow_bytes(flow))
    assert [event for event in pair.server_events if isinstance(event, LinkDrained)] == [LinkDrained(receiver)]
    assert (sender.credit, receiver.credit) == (0, 0)
    assert sender.delivery_count == receiver.delivery_count == 5
    assert not receiver.drain


def _flow_bytes(flow: Flow) -> bytes:
    return frame(flow, channel=0)


@pytest.mark.parametrize("credit", [0, 2, 6])
def test_link_is_drained_after_deliveries_in_flight(credit: int) -> None:
    pair, sender, receiver = joined(credit=0)
    receiver.flow(10)
    pair.exchange()
    for number in range(6):
        sender.send(b"%d" % number, tag=b"t")
    receiver.flow(credit, drain=True)
    pair.client_events += pair.client.receive_data(pair.server.data_to_send())
    sender.drained()
    pair.exchange()
    assert _arrivals(pair) == [Delivery] * 6 + [LinkDrained]
    assert (sender.credit, receiver.credit) == (0, 0)
    assert sender.delivery_count == receiver.delivery_count


def test_link_is_not_drained_inside_a_message() -> None:
    pair, sender, receiver = joined(credit=0, incoming_window=2)
    receiver.flow(1, drain=True)
    pair.exchange()
    sender.send(b"." * 2000, tag=b"t")
    sender.drained()
    pair.exchange()
    assert _arrivals(pair) == [Delivery, LinkDrained]


def _arrivals(pair: ConnectionPair) -> list[type]:
    return [type(event) for event in pair.server_events if isinstance(event, (Delivery, LinkDrained))]


def test_credit_may_be_granted_after_drain() -> None:
    pair, sender, receiver = joined()
    for _ in range(3):
        receiver.flow(5, drain=True)
        pair.exchange()
        sender.drained()
        pair.exchange()
        assert isinstance(pair.server_events[-1], LinkDrained)
    receiver.flow(4)
    pair.exchange()
    assert pair.client_events[-1] == CreditGranted(sender, 4, drain=False)
    sender.send(b"more", tag=b"t")
    pair.exchange()
    assert payloads(pair.server_events) == [b"more"]


def test_drain_of_peer_is_handled() -> None:
    peer, session = scripted()
    link = peer.attach(session, "in", RECEIVER, credit=0)
    link.flow(10, drain=True)
    (flow,) = peer.bodies(Flow)
    assert (flow.link_credit, flow.drain) == (10, True)
    peer.transfer(session, link, b"last")
    assert peer.flow(session, handle=link.remote_handle, delivery_count=1, link_credit=9) == []
    events = peer.flow(session, handle=link.remote_handle, delivery_count=10, link_credit=0, drain=True)
    assert events == [LinkDrained(link)]
    assert (link.credit, link.delivery_count) == (0, 10)


def test_credit_returned_while_revoked_is_counted_once() -> None:
    pair, sender, receiver = joined()
    receiver.flow(5)
    pair.exchange()
    sender.drained()
    receiver.flow(2)
    pair.exchange()
    assert sender.delivery_count == receiver.delivery_count
    receiver.flow(1)
    pair.exchange()
    assert sender.credit == receiver.credit == 1, "or the receiver waits for a message that the sender may not send"


def test_available_is_sent_to_receiver() -> None:
    peer, session = scripted()
    sender = peer.attach(session, "out", SENDER)
    sender.available = 17
    peer.flow(session, handle=sender.remote_handle, echo=True)
    (flow,) = peer.bodies(Flow)
    assert (flow.available, flow.handle, flow.echo) == (17, sender.handle, False)
    receiver = peer.attach(session, "in", RECEIVER)
    peer.flow(session, handle=receiver.remote_handle, available=23)
    assert receiver.available == 23
    peer.flow(session, handle=receiver.remote_handle)
    assert receiver.available == 23


def test_echo_is_answered_with_link_state() -> None:
    peer, session = scripted()
    link = peer.attach(session, "in", RECEIVER, credit=9)
    peer.transfer(session, link, b"")
    assert peer.flow(session, handle=link.remote_handle, delivery_count=1, echo=True) == []
    (flow,) = peer.bodies(Flow)
    assert (flow.handle, flow.delivery_count, flow.link_credit) == (link.handle, 1, 8)
    link.flow(9, echo=True)
    (flow,) = peer.bodies(Flow)
    assert flow.echo


def test_credit_in_flow_of_sender_is_ignored() -> None:
    peer, session = scripted(strict=False)
    link = peer.attach(session, "in", RECEIVER, credit=9)
    assert peer.flow(session, handle=link.remote_handle, delivery_count=0, link_credit=10_000) == []
    assert (link.credit, link.delivery_count) == (9, 0)
    assert peer.flow(session, handle=link.remote_handle, delivery_count=5_000, link_credit=10_000) == []
    assert (link.credit, link.delivery_count) == (9, 0), "nor when it counts what it never had credit for"


def test_count_of_sender_beyond_credit_does_not_reduce_credit() -> None:
    peer, session = scripted(strict=False)
    link = peer.attach(session, "in", RECEIVER, credit=1)
    for _ in range(20):
        peer.transfer(session, link, b"", settled=True)
    assert peer.flow(session, handle=link.remote_handle, delivery_count=0, link_credit=10_000) == []
    assert (link.credit, link.delivery_count) == (0, 20)
    link.flow(10)
    assert peer.flow(session, handle=link.remote_handle, delivery_count=0, link_credit=10_000) == []
    assert (link.credit, link.delivery_count) == (10, 20)


# Messages.


def test_message_is_delivered_with_all_fields() -> None:
    pair, sender, receiver = joined()
    state = TransactionalState(txn_id=b"tx")
    sent = sender.send(b"body", tag=b"tag", message_format=0x80013700, state=state)
    pair.exchange()
    arrived = pair.server_events[-1]
    assert isinstance(arrived, Delivery)
    assert (arrived.payload, arrived.delivery_tag, arrived.message_format) == (b"body", b"tag", 0x80013700)
    assert (arrived.state, arrived.settled, arrived.link) == (state, False, receiver)
    assert arrived.delivery_id == sent.delivery_id == 0


SIZES: Final = st.integers(0, 20) | st.integers(430, 530) | st.integers(900, 1050) | st.integers(0, 5000)


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(SIZES, min_size=1, max_size=5), role=st.booleans(), tag=st.binary(max_size=32))
def test_message_of_any_size_is_split_into_fitting_frames(sizes: list[int], role: bool, tag: bytes) -> None:
    pair, link, other = joined(role)
    sender, receiver = (link, other) if role == SENDER else (other, link)
    receiver.flow(10)
    pair.exchange()
    messages = [bytes(number % 251 for number in range(size)) for size in sizes]
    for message in messages:
        sender.send(message, tag=tag, state=Received(section_number=1, section_offset=2) if len(sizes) > 2 else None)
    engine, other_engine = (pair.client, pair.server) if role == SENDER else (pair.server, pair.client)
    said = engine.data_to_send()
    frames = read(said)
    assert max(_sizes(said)) <= 512
    for number, message in enumerate(messages):
        own = [heard for heard in frames if heard.body.delivery_id == number]
        assert len(own) == 1, "only the first frame of a delivery has its number"
        assert own[0].body.more == (_frames_needed(frames, number) > 1)
        assert len(message) < 400 or max(_sizes(said)) > 400, "frames are filled"
    events = other_engine.receive_data(said)
    assert payloads(events) == messages
    assert [event.delivery_tag for event in events if isinstance(event, Delivery)] == [tag] * len(messages)


def _sizes(data: bytes) -> list[int]:
    sizes = []
    while data:
        sizes.append(int.from_bytes(data[:4], "big"))
        data = data[sizes[-1] :]
    return sizes


def _frames_needed(frames: list[Heard], number: int) -> int:
    """Count the frames of a delivery: its first, and those without a number that follow."""
    start = next(index for index, heard in enumerate(frames) if heard.body.delivery_id == number)
    count = 1
    while start + count < len(frames) and frames[start + count].body.delivery_id is None:
        count += 1
    return count


@pytest.mark.parametrize("size", range(470, 520))
def test_message_near_frame_size_uses_no_extra_frame(size: int) -> None:
    peer, session = scripted()
    peer.attach(session, "out", SENDER).send(b"." * size, tag=b"t")
    sizes = _sizes(peer.engine.data_to_send())
    assert len(sizes) == (1 if size + 25 <= 512 else 2) or sum(sizes) - size < 60
    assert all(one <= 512 for one in sizes)
    assert sizes[0] == 512 or len(sizes) == 1
    assert min(sizes) > 8


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param((), id="nothing"),
        pytest.param((False,), id="more"),
        pytest.param((None, None, None, None, None, None), id="nulls"),
        pytest.param((False, None, None, False, False, False), id="all that is false"),
        pytest.param((False, None, None, False, False, True), id="batchable"),
    ],
)
def test_transfer_may_have_explicit_nulls(rest: tuple[object, ...]) -> None:
    peer, session = scripted()
    link = peer.attach(session, "in", RECEIVER)
    fields = [UInt(link.remote_handle), UInt(0), b"tag", UInt(7), False, *rest]
    (event,) = peer.say(frame(Described(ULong(0x14), fields), channel=session.remote_channel, payload=b"body"))
    assert isinstance(event, Delivery)
    assert (event.payload, event.delivery_tag, event.message_format, event.settled) == (b"body", b"tag", 7, False)


def test_continued_transfers_may_repeat_delivery_id() -> None:
    peer, session = scripted()
    link = peer.attach(session, "in", RECEIVER)
    assert peer.transfer(session, link, b"one ", delivery_id=0, more=True) == []
    assert peer.transfer(session, link, b"two ", delivery_id=0, more=True) == []
    (event,) = peer.transfer(session, link, b"three", delivery_id=None)
    assert payloads([event]) == [b"one two three"]


@pytest.mark.parametrize("last", [0, 1, 2])
def test_message_may_be_settled_by_any_frame(last: int) -> None:
    peer, session = scripted()
    link = peer.attach(session, "in", RECEIVER)
    events: list[Any] = []
    for number in range(3):
        fields: dict[str, Any] = {"settled": True} if number == last else {}
        if number:
            fields["delivery_id"] = None
        events += peer.transfer(session, link, b"part", more=number < 2, **fields)
    (event,) = events
    assert isinstance(event, Delivery)
    assert event.settled
    assert session.unsettled == 0
    link.settle(event, ACCEPTED)
    assert peer.heard() == []


def test_aborted_message_is_dropped() -> None:
    peer, session = scripted()
    link = peer.attach(session, "in", RECEIVER, credit=3)
    peer.transfer(session, link, b"much", more=True)
    (event,) = peer.transfer(session, link, b"ignored", delivery_id=None, aborted=True)
    assert isinstance(event, DeliveryAborted)
    assert event.error is None
    assert event.delivery.settled
    assert event.delivery.payload == b""
    assert peer.engine.incomplete_bytes == 0
    assert session.unsettled == 0
    assert peer.heard() == [], "it is settled, so there is no answer"
    (event,) = peer.transfer(session, link, b"next")
    assert payloads([event]) == [b"next"]
    assert link.credit == 1
    (event,) = peer.transfer(session, link, b"", aborted=True)
    assert isinstance(event, DeliveryAborted), "even in its first frame"


def test_transfer_may_request_another_receiver_settle_mode() -> None:
    peer, session = scripted()
    link = peer.attach(session, "in", RECEIVER)
    (event,) = peer.transfer(session, link, b"", rcv_settle_mode=ReceiverSettleMode.SECOND)
    assert isinstance(event, Delivery)
    assert event.rcv_settle_mode is ReceiverSettleMode.SECOND
    (event,) = peer.transfer(session, link, b"")
    assert isinstance(event, Delivery)
    assert event.rcv_settle_mode is None


def test_unsendable_message_is_rejected_and_next_one_sent() -> None:
    peer, session = scripted()
    link = peer.attach(session, "out", SENDER, credit=5)
    wrong: list[dict[str, Any]] = [
        {"tag": b"t" * 33},
        {"tag": b"t", "message_format": -1},
        {"tag": b"t", "message_format": WRAP},
        {"tag": b"t", "state": Rejected(Error("a:b", "." * 400))},
    ]
    for fields in wrong:
        with pytest.raises(LocalProtocolError):
            link.send(b"wrong", **fields)
    with pytest.raises(EncodeError):
        link.send(b"wrong", tag=b"t", state=object())
    assert (link.credit, link.delivery_count, session.queued) == (5, 0, 0)
    link.send(b"right", tag=b"t" * 32, message_format=WRAP - 1)
    (heard,) = peer.heard()
    assert heard.payload == b"right"
    assert heard.body.delivery_id == 0


@pytest.mark.parametrize(
    ("payload", "tag"), [("text", b"t"), (bytearray(b"array"), b"t"), (None, b"t"), (b"", "text"), (b"", None)], ids=str
)
def test_only_bytes_are_sent(payload: Any, tag: Any) -> None:
    peer, session = scripted()
    link = peer.attach(session, "out", SENDER, credit=5)
    with pytest.raises(TypeError, match="bytes"):
        link.send(payload, tag=tag)
    assert (link.credit, session.queued, peer.heard()) == (5, 0, [])


@pytest.mark.parametrize(("limit", "largest"), [(None, None), (0, None), (1, 1), (1000, 1000)])
def test_message_beyond_limit_of_peer_is_not_sent(limit: int | None, largest: int | None) -> None:
    peer, session = scripted()
    link = peer.attach(session, "out", SENDER, credit=5, max_message_size=limit)
    link.send(b"." * (largest or 100_000), tag=b"t")
    peer.heard()
    if largest is not None:
        with pytest.raises(MessageTooLargeError, match=f"at most {largest} bytes"):
            link.send(b"." * (largest + 1), tag=b"t")
        assert (link.credit, peer.heard()) == (4, [])


@pytest.mark.parametrize("mode", SenderSettleMode)
def test_sender_settles_according_to_mode(mode: SenderSettleMode) -> None:
    peer, session = scripted(Side.CLIENT)
    link = session.attach("out", SENDER, snd_settle_mode=mode)
    peer.say(frame(Attach(name="out", handle=5, role=RECEIVER), channel=session.remote_channel))
    peer.grant(session, link, 5)
    peer.heard()
    link.send(b"", tag=b"t")
    link.send(b"", tag=b"t", settled=True)
    settled = [heard.body.settled for heard in peer.heard()]
    assert settled == [mode is SenderSettleMode.SETTLED, True]
    assert session.unsettled == settled.count(False)


def test_sender_settles_last_in_mode_second() -> None:
    pair = ConnectionPair()
    session = pair.open()
    sender = session.attach("link", SENDER, rcv_settle_mode=ReceiverSettleMode.SECOND)
    pair.exchange()
    receiver = next(event.link for event in pair.server_events if isinstance(event, LinkAttached))
    assert receiver.rcv_settle_mode is ReceiverSettleMode.SECOND
    sent = [sender.send(b"", tag=b"t") for _ in range(3)]
    pair.exchange()
    arrived = [event for event in pair.server_events if isinstance(event, Delivery)]
    for delivery in arrived:
        receiver.update(delivery, ACCEPTED)
    said = pair.server.data_to_send()
    assert [heard.body for heard in read(said)] == [Disposition(RECEIVER, 0, 2, False, ACCEPTED)]
    (event,) = pair.client.receive_data(said)
    assert isinstance(event, DispositionReceived)
    assert event.deliveries == sent
    for delivery in sent:
        sender.settle(delivery, delivery.state)
    said = pair.client.data_to_send()
    assert [heard.body for heard in read(said)] == [Disposition(SENDER, 0, 2, True, ACCEPTED)]
    (event,) = pair.server.receive_data(said)
    assert isinstance(event, DispositionReceived)
    assert (event.deliveries, event.settled) == (arrived, True)


@pytest.mark.parametrize("size", [0, 2000], ids=["that has not gone out", "of which a part has gone out"])
@pytest.mark.parametrize("state", [None, RELEASED], ids=["without a state", "with a state"])
def test_queued_message_may_be_settled(size: int, state: object) -> None:
    pair = ConnectionPair(server=Configuration(container_id="s", incoming_window=2, max_frame_size=512))
    session = pair.open()
    sender, receiver = pair.attach(session, "link", SENDER)
    for _ in range(0 if size else 2):
        sender.send(b"first", tag=b"t")
    waiting = sender.send(b"." * size, tag=b"u")
    assert session.queued == 1
    sender.settle(waiting, state)
    sender.settle(waiting, ACCEPTED)
    sender.update(waiting, ACCEPTED)
    pair.exchange()
    arrived = [event for event in pair.server_events if isinstance(event, Delivery)][-1]
    assert arrived.payload == b"." * size
    assert arrived.settled, "Link.settle: the peer is notified"
    assert arrived.state == state, "and neither end says more about it"
    receiver.settle(arrived, ACCEPTED)
    assert pair.server.data_to_send() == b""


# Messages that are too large.


@pytest.mark.parametrize("parts", [[1001], [600, 401], [1000, 1], [300] * 5], ids=str)
def test_oversized_message_detaches_or_is_rejected(parts: list[int]) -> None:
    for reject in (True, False):
        peer, session = scripted(max_message_size=1000, reject_oversized=reject)
        link = peer.attach(session, "in", RECEIVER)
        peer.transfer(session, link, b"." * 1000)
        events: list[Any] = []
        for number, size in enumerate(parts):
            fields = {} if number == 0 else {"delivery_id": None}
            events += peer.transfer(session, link, b"." * size, more=number < len(parts) - 1, **fields)
        (event,) = events
        assert peer.engine.incomplete_bytes == 0
        (heard,) = peer.heard()
        if reject:
            assert isinstance(event, DeliveryAborted)
            assert isinstance(event.error, MessageSizeError)
            assert event.delivery.payload == b""
            assert heard.body.first == event.delivery.delivery_id == 1
            assert heard.body.settled
            assert heard.body.state.error.condition == "amqp:link:message-size-exceeded"
            (event,) = peer.transfer(session, link, b"small enough")
            assert payloads([event]) == [b"small enough"]
            assert session.unsettled == 2
        else:
            assert isinstance(event, LinkDetached)
            assert isinstance(event.violation, MessageSizeError)
            assert heard.body.error.condition == "amqp:link:message-size-exceeded"


def test_oversized_settled_message_is_dropped() -> None:
    peer, session = scripted(max_message_size=10, reject_oversized=True)
    link = peer.attach(session, "in", RECEIVER)
    (event,) = peer.transfer(session, link, b"." * 11, settled=True)
    assert isinstance(event, DeliveryAborted)
    assert isinstance(event.error, MessageSizeError)
    assert peer.heard() == []


def test_link_may_have_its_own_size_limit() -> None:
    peer, session = scripted(max_message_size=100)
    attach = Attach(name="in", handle=1, role=SENDER, initial_delivery_count=0)
    (event,) = peer.say(frame(attach, channel=session.remote_channel))
    assert isinstance(event, LinkAttached)
    link = event.link
    link.attach(max_message_size=200)
    link.flow(9)
    (answer,) = peer.bodies(Attach)
    assert answer.max_message_size == 200
    (event,) = peer.transfer(session, link, b"." * 200)
    assert isinstance(event, Delivery)
    (event,) = peer.transfer(session, link, b"." * 201)
    assert isinstance(event, LinkDetached)
    other = peer.attach(session, "other", RECEIVER)
    assert other.max_message_size == 100


def test_only_receiver_sends_size_limit() -> None:
    peer, session = scripted(Side.CLIENT, max_message_size=100)
    session.attach("out", SENDER)
    session.attach("in", RECEIVER)
    assert [attach.max_message_size for attach in peer.bodies(Attach)] == [None, 100]


def test_memory_of_incomplete_messages_is_released_at_every_end() -> None:
    peer, session = scripted(max_message_size=1000)
    link = peer.attach(session, "in", RECEIVER)
    other = peer.attach(session, "other", RECEIVER)
    peer.transfer(session, link, b"." * 300, more=True)
    assert peer.engine.incomplete_bytes == 300
    peer.transfer(session, link, b"." * 300, delivery_id=None)
    assert peer.engine.incomplete_bytes == 0
    peer.transfer(session, link, b"." * 300, more=True)
    peer.transfer(session, other, b"." * 200, more=True)
    assert peer.engine.incomplete_bytes == 500
    link.detach()
    assert peer.engine.incomplete_bytes == 200
    peer.detach(session, other)
    assert peer.engine.incomplete_bytes == 0
    last = peer.attach(session, "last", RECEIVER)
    peer.transfer(session, last, b"." * 300, more=True)
    session.end()
    assert peer.engine.incomplete_bytes == 0


def test_frame_with_extended_header_is_read() -> None:
    peer, session = scripted()
    link = peer.attach(session, "in", RECEIVER)
    plain = frame(Transfer(link.remote_handle, 0, b"t", 0, False), channel=session.remote_channel, payload=b"body")
    size = int.from_bytes(plain[:4], "big") + 4
    (event,) = peer.say(size.to_bytes(4, "big") + b"\x03" + plain[5:8] + b"more" + plain[8:])
    assert payloads([event]) == [b"body"]


def test_oversized_disposition_is_rejected_and_can_be_repeated() -> None:
    peer, session = scripted()
    link = peer.attach(session, "in", RECEIVER)
    (delivery,) = peer.transfer(session, link, b"")
    assert isinstance(delivery, Delivery)
    with pytest.raises(FrameTooLargeError):
        link.settle(delivery, Rejected(Error("a:b", "." * 600)))
    assert session.unsettled == 1
    link.settle(delivery, Rejected(REASON))
    (disposition,) = peer.bodies(Disposition)
    assert disposition.state == Rejected(REASON)


def test_link_states_are_distinct() -> None:
    peer, session = scripted(Side.CLIENT)
    link = session.attach("out", SENDER)
    seen = [(link.local, link.remote, link.is_attached)]
    peer.say(frame(Attach(name="out", handle=5, role=RECEIVER), channel=session.remote_channel))
    seen.append((link.local, link.remote, link.is_attached))
    link.detach()
    seen.append((link.local, link.remote, link.is_attached))
    assert seen == [
        (LinkState.ATTACHED, LinkState.UNATTACHED, False),
        (LinkState.ATTACHED, LinkState.ATTACHED, True),
        (LinkState.DETACHED, LinkState.ATTACHED, False),
    ]


def test_settle_returns_whether_peer_is_notified() -> None:
    pair, sender, receiver = joined()
    sent = sender.send(b"", tag=b"1")
    pair.exchange()
    arrived = pair.server_events[-1]
    assert isinstance(arrived, Delivery)
    assert receiver.update(arrived, ACCEPTED)
    assert receiver.settle(arrived, ACCEPTED)
    assert not receiver.settle(arrived, ACCEPTED), "it was settled before"
    pair.exchange()
    assert sent.settled
    sender.send(b"", tag=b"2")
    pair.exchange()
    gone = pair.server_events[-1]
    assert isinstance(gone, Delivery)
    sender.detach()
    pair.exchange()
    assert not receiver.settle(gone, ACCEPTED), "it went with its link"


def test_link_reports_drain_with_last_credit() -> None:
    pair, sender, receiver = joined(credit=0)
    receiver.flow(1, drain=True)
    pair.exchange()
    sender.send(b"", tag=b"1")
    pair.exchange()
    assert isinstance(pair.server_events[-2], Delivery)
    assert pair.server_events[-1] == LinkDrained(receiver)
