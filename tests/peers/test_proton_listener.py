"""Our engine as the client of a Qpid Proton listener."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pairbus.wire import (
    ACCEPTED,
    RECEIVER,
    RELEASED,
    SENDER,
    Authenticated,
    Condition,
    Configuration,
    ConnectionClosed,
    CreditGranted,
    Delivery,
    DeliveryAborted,
    DispositionReceived,
    Error,
    LinkDetached,
    LinkDrained,
    Message,
    Modified,
    ReceiverSettleMode,
    Rejected,
    SessionEnded,
    Source,
    Symbol,
    Target,
    anonymous,
    decode_message,
    encode_message,
    external,
    plain,
)
from pairbus.wire.errors import AuthenticationError, IdleTimeoutError
from tests.peers.node_server import MODIFIED, REJECTED
from tests.peers.payload import message, pattern
from tests.peers.proton_container import ProtonListener, is_closed, is_open, proton, settle_as
from tests.peers.socket_client import SocketClient
from tests.peers.waiting import SLOWNESS, passed
from tests.waiting import eventually

SIZES = (1, 1024, 1024 * 1024)
FRAME_SIZES = (512, 4096, 32768)

STATES = {"accepted": ACCEPTED, "rejected": REJECTED, "released": RELEASED, "modified": MODIFIED}


@pytest.fixture
def listener() -> Iterator[ProtonListener]:
    with ProtonListener() as listener:
        yield listener


@pytest.fixture
def client(listener: ProtonListener) -> Iterator[SocketClient]:
    with connect(listener) as client:
        yield client.opened()


def connect(listener: ProtonListener, **options: Any) -> SocketClient:
    return SocketClient(listener.port, listener.step, **{"sasl": anonymous(), **options})


# Connecting.


def test_anonymous_connection_exchanges_container_ids(client: SocketClient, listener: ProtonListener) -> None:
    assert client.seen(Authenticated) == [Authenticated("ANONYMOUS", b"")]
    assert client.engine.peer is not None
    assert client.engine.peer.container_id == "proton"
    (connection,) = listener.connections
    assert connection.remote_container == "socket-client"
    assert listener.transports[0].user == "anonymous"
    client.close()
    assert is_closed(connection)
    assert client.seen(ConnectionClosed) == [ConnectionClosed(None)]


def test_we_connect_without_sasl(listener: ProtonListener) -> None:
    with connect(listener, sasl=None) as client:
        client.opened()
        client.close()
    assert not client.seen(Authenticated)


@pytest.mark.parametrize("sasl", [plain("ada", "analytical engine"), external()], ids=["PLAIN", "EXTERNAL"])
def test_we_present_nothing_that_proton_does_not_ask_for(listener: ProtonListener, sasl: Any) -> None:
    with connect(listener, sasl=sasl) as client:
        client.engine.open()
        (failure,) = client.until(lambda: client.failures)
        assert isinstance(failure, AuthenticationError)
        assert "the peer offers ANONYMOUS" in failure.description
        client.failures.clear()
    assert not listener.connections


def test_proton_closes_a_connection_without_sasl_if_it_requires_authentication() -> None:
    with ProtonListener(require_auth=True) as listener, connect(listener, sasl=None) as client:
        client.engine.open()
        client.until(lambda: client.hung_up)
        assert not client.events
        assert not listener.connections


def test_properties_of_a_connection_reach_proton(listener: ProtonListener) -> None:
    configuration = Configuration(container_id="c", hostname="example.test", properties={"product": "pairbus"})
    with connect(listener, configuration=configuration) as client:
        client.opened()
        (connection,) = listener.connections
        assert connection.remote_properties == {proton.symbol("product"): "pairbus"}
        assert connection.remote_hostname == "example.test"


def test_everything_up_to_the_first_credit_can_be_asked_for_at_once(listener: ProtonListener) -> None:
    with connect(listener) as client:
        client.engine.open()
        session = client.engine.begin()
        sender = session.attach("out", SENDER, source=Source(), target=Target(address="queue"))
        receiver = session.attach("in", RECEIVER, source=Source(address="queue"), target=Target())
        receiver.flow(3)
        client.until(lambda: sender.credit and "in" in listener.links and listener.links["in"].credit == 3)
        assert client.send(sender, message()).state == ACCEPTED
        listener.send("in", proton.Message(body="hello"))
        (delivery,) = client.receive()
        assert decode_message(delivery.payload).body == ("hello",)


# Messages.


@pytest.mark.parametrize("frame_size", FRAME_SIZES)
def test_messages_of_any_size_go_there_and_come_back_byte_for_byte(frame_size: int) -> None:
    configuration = Configuration(container_id="c", max_frame_size=frame_size)
    with (
        ProtonListener(max_frame_size=frame_size) as listener,
        connect(listener, configuration=configuration) as client,
    ):
        session = client.opened().session()
        sender = client.sender(session, "queue")
        for size in SIZES:
            assert client.send(sender, message(size)).state == ACCEPTED
        assert [arrival.payload for arrival in listener.arrivals] == [message(size) for size in SIZES]
        client.receiver(session, "queue").flow(len(SIZES))
        client.until(lambda: listener.links["receiver"].credit)
        for arrival in listener.arrivals:
            listener.send("receiver", arrival.message)
        deliveries = client.receive(len(SIZES))
        assert [decode_message(delivery.payload).body for delivery in deliveries] == [
            (pattern(size),) for size in SIZES
        ]
        assert [delivery.payload for delivery in deliveries] == [a.message.encode() for a in listener.arrivals]
        assert listener.transports[0].frames_input >= SIZES[-1] / frame_size
        assert listener.transports[0].frames_output >= SIZES[-1] / frame_size


def test_message_larger_than_the_session_windows_gets_through_both_ways() -> None:
    configuration = Configuration(container_id="c", max_frame_size=512, incoming_window=4)
    with (
        ProtonListener(max_frame_size=512, incoming_capacity=2048) as listener,
        connect(listener, configuration=configuration) as client,
    ):
        session = client.opened().session()
        assert session.peer is not None
        assert session.peer.incoming_window == 4
        sender = client.sender(session, "queue")
        delivery = sender.send(message(100_000), tag=b"large")
        assert session.queued == 1
        client.until(lambda: delivery.settled)
        client.receiver(session, "queue").flow(1)
        client.until(lambda: listener.links["receiver"].credit)
        listener.send("receiver", listener.arrivals[0].message)
        (back,) = client.receive()
        assert decode_message(back.payload).body == (pattern(100_000),)


def test_many_messages_arrive_in_order_and_are_all_settled(client: SocketClient, listener: ProtonListener) -> None:
    session = client.session()
    sender = client.sender(session, "queue")
    sent = []
    for number in range(1000):
        client.until(lambda: sender.credit)
        sent.append(sender.send(encode_message(Message(body=(b"%d" % number,))), tag=b"%d" % number))
    client.until(lambda: all(delivery.settled for delivery in sent))
    assert {delivery.state for delivery in sent} == {ACCEPTED}
    assert [bytes(arrival.message.body) for arrival in listener.arrivals] == [b"%d" % n for n in range(1000)]
    assert [bytes(arrival.delivery.tag, "utf8") for arrival in listener.arrivals[:2]] == [b"0", b"1"]
    receiver = client.receiver(session, "queue")
    receiver.flow(1000)
    client.until(lambda: listener.links["receiver"].credit)
    back = [listener.send("receiver", proton.Message(body=number)) for number in range(1000)]
    for delivery in client.receive(1000):
        receiver.settle(delivery, ACCEPTED)
    client.until(lambda: all(delivery.settled for delivery in back))
    assert {delivery.remote_state for delivery in back} == {proton.Delivery.ACCEPTED}
    assert session.unsettled == 0


# Settling.


@pytest.mark.parametrize("outcome", STATES)
def test_we_as_sender_see_what_proton_makes_of_a_message(client: SocketClient, outcome: str) -> None:
    delivery = client.send(client.sender(client.session(), outcome), message())
    assert delivery.state == STATES[outcome]
    (reported,) = client.seen(DispositionReceived)
    assert (reported.deliveries, reported.state, reported.settled) == ([delivery], STATES[outcome], True)


def receive_one(client: SocketClient, listener: ProtonListener, **options: Any) -> tuple[Delivery, Any]:
    """Let Proton send us a message; return our end of the delivery and Proton's."""
    client.receiver(client.session(), "queue", **options).flow(1)
    client.until(lambda: listener.links["receiver"].credit)
    theirs = listener.send("receiver", proton.Message(body="x"))
    (ours,) = client.receive()
    return ours, theirs


@pytest.mark.parametrize("outcome", STATES)
def test_proton_as_sender_sees_what_we_make_of_a_message(
    client: SocketClient, listener: ProtonListener, outcome: str
) -> None:
    ours, theirs = receive_one(client, listener)
    ours.link.settle(ours, STATES[outcome])
    client.until(lambda: theirs.settled)
    assert theirs.remote_state == getattr(proton.Delivery, outcome.upper())
    if outcome == "rejected":
        condition = theirs.remote.condition
        assert (condition.name, condition.description, condition.info) == (
            "test:no-good",
            "not good enough",
            {proton.symbol("line"): 7},
        )
    if outcome == "modified":
        assert (theirs.remote.failed, theirs.remote.undeliverable) == (True, True)
        assert theirs.remote.annotations == {proton.symbol("x-opt-reason"): "bruised"}


def test_neighbours_that_are_settled_at_once_each_get_their_own_outcome(
    client: SocketClient, listener: ProtonListener
) -> None:
    session = client.session()
    names = ["accepted", "accepted", "released", "rejected", "modified", "accepted", "released", "released"]
    receiver = client.receiver(session, "queue")
    receiver.flow(len(names))
    client.until(lambda: listener.links["receiver"].credit)
    theirs = [listener.send("receiver", proton.Message(body=name)) for name in names]
    for delivery, name in zip(client.receive(len(names)), names, strict=True):
        receiver.settle(delivery, STATES[name])
    client.until(lambda: all(delivery.settled for delivery in theirs))
    assert [delivery.remote_state.name.lower() for delivery in theirs] == names
    sender = client.sender(session, "held")
    ours = [sender.send(message(), tag=b"%d" % number) for number in range(len(names))]
    client.until(lambda: len(listener.arrivals) == len(names))
    for arrival, name in zip(listener.arrivals, names, strict=True):
        settle_as(arrival.delivery, name)
        arrival.delivery.settle()
    client.until(lambda: all(delivery.settled for delivery in ours))
    assert [delivery.state for delivery in ours] == [STATES[name] for name in names]


@pytest.mark.parametrize(
    ("state", "remote_state"),
    [
        (Rejected(), proton.Delivery.REJECTED),
        (Rejected(Error("test:only-a-condition")), proton.Delivery.REJECTED),
        (Modified(), proton.Delivery.MODIFIED),
        (None, 0),
    ],
    ids=["rejected", "rejected-with-condition", "modified", "nothing"],
)
def test_proton_accepts_outcomes_without_optional_fields(
    client: SocketClient, listener: ProtonListener, state: object, remote_state: int
) -> None:
    ours, theirs = receive_one(client, listener)
    ours.link.settle(ours, state)
    client.until(lambda: theirs.settled)
    assert theirs.remote_state == remote_state


def test_message_that_we_send_settled_needs_no_answer(client: SocketClient, listener: ProtonListener) -> None:
    session = client.session()
    delivery = client.sender(session, "queue").send(message(), tag=b"1", settled=True)
    client.until(lambda: listener.arrivals)
    assert listener.arrivals[0].delivery.settled
    assert delivery.settled
    assert session.unsettled == 0


def test_message_that_proton_sends_settled_needs_no_answer(client: SocketClient, listener: ProtonListener) -> None:
    session = client.session()
    client.receiver(session, "queue").flow(1)
    client.until(lambda: listener.links["receiver"].credit)
    listener.send("receiver", proton.Message(body="x")).settle()
    (delivery,) = client.receive()
    assert delivery.settled
    assert session.unsettled == 0


def test_proton_settles_before_we_do_where_we_settle_second(client: SocketClient, listener: ProtonListener) -> None:
    ours, theirs = receive_one(client, listener, rcv_settle_mode=ReceiverSettleMode.SECOND)
    ours.link.update(ours, ACCEPTED)
    client.until(lambda: theirs.remote_state == proton.Delivery.ACCEPTED)
    assert not theirs.settled
    theirs.update(proton.Delivery.ACCEPTED)
    theirs.settle()
    client.until(lambda: ours.settled)
    assert ours.state == ACCEPTED


def test_we_settle_before_proton_does_where_it_settles_second(client: SocketClient, listener: ProtonListener) -> None:
    sender = client.sender(client.session(), "queue", rcv_settle_mode=ReceiverSettleMode.SECOND)
    ours = sender.send(message(), tag=b"1")
    client.until(lambda: ours.state == ACCEPTED)
    assert not ours.settled
    sender.settle(ours, ACCEPTED)
    theirs = listener.arrivals[0].delivery
    client.until(lambda: theirs.settled)
    assert theirs.remote_state == proton.Delivery.ACCEPTED


def test_message_that_proton_aborts_is_reported_and_the_next_one_arrives(
    client: SocketClient, listener: ProtonListener
) -> None:
    client.receiver(client.session(), "queue").flow(2)
    link = client.until(lambda: listener.links["receiver"].credit and listener.links["receiver"])
    doomed = link.delivery("doomed")
    link.stream(pattern(100_000))
    client.until(lambda: link.session.outgoing_bytes == 0)
    doomed.abort()
    (aborted,) = client.until(lambda: client.seen(DeliveryAborted))
    assert aborted.error is None
    listener.send("receiver", proton.Message(body="next"))
    (delivery,) = client.receive()
    assert decode_message(delivery.payload).body == ("next",)


# Credit.


def test_proton_sends_no_more_messages_than_we_granted(client: SocketClient, listener: ProtonListener) -> None:
    session = client.session()
    receiver = client.receiver(session, "queue")
    receiver.flow(3)
    client.until(lambda: listener.links["receiver"].credit == 3)
    for number in range(10):
        listener.send("receiver", proton.Message(body=number))
    client.receive(3)
    client.send(client.sender(session, "queue"), message())  # whatever was written before has arrived now
    assert len(client.seen(Delivery)) == 3
    assert receiver.credit == 0
    receiver.flow(2)
    assert [decode_message(delivery.payload).body[0] for delivery in client.receive(5)] == [0, 1, 2, 3, 4]


def test_we_learn_how_much_credit_proton_grants() -> None:
    with ProtonListener(credit=2) as listener, connect(listener) as client:
        sender = client.opened().sender(client.session(), "held")
        assert [event.credit for event in client.seen(CreditGranted)] == [2]
        sender.send(message(), tag=b"1")
        sender.send(message(), tag=b"2")
        assert sender.credit == 0
        client.until(lambda: len(listener.arrivals) == 2)
        listener.links["sender"].flow(5)
        client.until(lambda: sender.credit == 5)


def test_we_drain_a_link_and_get_the_credit_back_that_found_no_message(
    client: SocketClient, listener: ProtonListener
) -> None:
    receiver = client.receiver(client.session(), "queue")
    receiver.flow(10, drain=True)
    link = listener.links["receiver"]
    client.until(lambda: link.drain_mode)
    for _ in range(3):
        listener.send("receiver", proton.Message(body="x"))
    assert link.drained() == 7
    (drained,) = client.until(lambda: client.seen(LinkDrained))
    assert drained.link is receiver
    assert len(client.seen(Delivery)) == 3
    assert receiver.credit == 0
    receiver.flow(1)
    client.until(lambda: link.credit == 1)
    listener.send("receiver", proton.Message(body="after"))
    client.receive(4)


def test_proton_drains_our_link(client: SocketClient, listener: ProtonListener) -> None:
    sender = client.sender(client.session(), "held")
    link = listener.links["sender"]
    sender.send(message(), tag=b"1")
    link.drain(0)
    granted = client.until(lambda: [event for event in client.seen(CreditGranted) if event.drain])
    assert granted[-1].credit == 99
    sender.drained()
    client.until(lambda: not link.draining())
    assert link.drained() == 99
    assert link.credit == 0
    link.drain_mode = False
    link.flow(1)
    client.until(lambda: sender.credit == 1)
    sender.send(message(), tag=b"2")
    client.until(lambda: len(listener.arrivals) == 2)


def test_flow_that_asks_for_an_echo_does_no_harm(client: SocketClient, listener: ProtonListener) -> None:
    receiver = client.receiver(client.session(), "queue")
    receiver.flow(5, echo=True)
    client.until(lambda: listener.links["receiver"].credit == 5)
    listener.send("receiver", proton.Message(body="x"))
    client.receive()


# Links and sessions.


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "detached"])
def test_link_is_detached_and_attached_again_under_its_name(
    client: SocketClient, listener: ProtonListener, closed: bool
) -> None:
    session = client.session()
    for _ in range(3):
        listener.happened.clear()
        sender = client.sender(session, "queue", name="again")
        assert client.send(sender, message()).state == ACCEPTED
        sender.detach(closed=closed)
        client.until(lambda: not session.links)
        assert f"on_link_remote_{'close' if closed else 'detach'}" in listener.happened
        assert [event.closed for event in client.seen(LinkDetached)][-1] == closed
        listener.links["again"].free()
    assert len(client.seen(LinkDetached)) == 3
    assert len(listener.arrivals) == 3


@pytest.mark.parametrize("role", [SENDER, RECEIVER], ids=["sender", "receiver"])
def test_attach_to_a_missing_address_is_refused_with_a_reason(client: SocketClient, role: bool) -> None:
    session = client.session()
    session.attach("nothing", role, source=Source(address="missing"), target=Target(address="missing"))
    (detached,) = client.until(lambda: client.seen(LinkDetached))
    assert (detached.error, detached.closed) == (Error("amqp:not-found", "there is no such node"), True)
    assert detached.link.peer is not None
    assert (detached.link.peer.source if role == RECEIVER else detached.link.peer.target) is None
    assert client.send(client.sender(session, "queue"), message()).state == ACCEPTED


def test_link_close_of_proton_has_a_reason(client: SocketClient, listener: ProtonListener) -> None:
    session = client.session()
    client.sender(session, "queue", name="victim")
    listener.links["victim"].condition = proton.Condition("amqp:link:detach-forced", "idle", {"after": 600})
    listener.links["victim"].close()
    (detached,) = client.until(lambda: client.seen(LinkDetached))
    assert detached.error == Error(Condition.DETACH_FORCED, "idle", {Symbol("after"): 600})
    client.until(lambda: is_closed(listener.links["victim"]))
    assert not session.links


def test_proton_gets_the_reason_of_our_link_close(client: SocketClient, listener: ProtonListener) -> None:
    session = client.session()
    sender = client.sender(session, "queue")
    sender.detach(error=Error("test:enough", "for today"))
    client.until(lambda: not session.links)
    condition = listener.links["sender"].remote_condition
    assert (condition.name, condition.description) == ("test:enough", "for today")


def test_messages_that_are_not_settled_when_a_link_goes_are_forgotten(
    client: SocketClient, listener: ProtonListener
) -> None:
    session = client.session()
    sender = client.sender(session, "held")
    delivery = sender.send(message(), tag=b"1")
    client.until(lambda: listener.arrivals)
    listener.links["sender"].close()
    client.until(lambda: client.seen(LinkDetached))
    assert session.unsettled == 0
    assert not delivery.settled


def test_sessions_are_ended_by_us_and_begun_again(client: SocketClient, listener: ProtonListener) -> None:
    for number in range(3):
        session = client.session()
        assert session.channel == 0
        client.send(client.sender(session, "queue"), message())
        session.end()
        client.until(lambda: not client.engine.sessions)
        assert is_closed(listener.sessions[number])
        listener.sessions[number].free()
    assert len(client.seen(SessionEnded)) == 3


def test_proton_gets_the_reason_of_our_session_end(client: SocketClient, listener: ProtonListener) -> None:
    client.session().end(error=Error("test:enough", "for today"))
    client.until(lambda: "on_session_remote_close" in listener.happened)
    condition = listener.sessions[0].remote_condition
    assert (condition.name, condition.description) == ("test:enough", "for today")


def test_session_end_of_proton_has_a_reason(client: SocketClient, listener: ProtonListener) -> None:
    session = client.session()
    client.sender(session, "queue")
    listener.sessions[0].condition = proton.Condition("test:enough", "for today")
    listener.sessions[0].close()
    (ended,) = client.until(lambda: client.seen(SessionEnded))
    assert (ended.session, ended.error) == (session, Error("test:enough", "for today"))
    client.until(lambda: is_closed(listener.sessions[0]))
    client.send(client.sender(client.session(), "queue"), message())


def test_two_sessions_with_two_links_each_carry_large_messages_at_once() -> None:
    configuration = Configuration(container_id="c", max_frame_size=512, incoming_window=16)
    with (
        ProtonListener(max_frame_size=512, incoming_capacity=8192) as listener,
        connect(listener, configuration=configuration) as client,
    ):
        client.opened()
        sessions = [client.session(), client.session()]
        addresses = ["a", "b", "c", "d"]
        senders = [client.sender(sessions[i % 2], address, name=address) for i, address in enumerate(addresses)]
        sent = [sender.send(message(20_000 + number), tag=b"%d" % number) for number in range(3) for sender in senders]
        client.until(lambda: all(delivery.settled for delivery in sent))
        for address in addresses:
            bodies = [bytes(a.message.body) for a in listener.arrivals if a.link.name == address]
            assert bodies == [pattern(20_000 + number) for number in range(3)]


# Time, and the end.


def test_our_heartbeats_keep_us_connected_to_proton() -> None:
    with ProtonListener(heartbeat=0.6 * SLOWNESS) as listener, connect(listener) as client:
        client.opened()
        assert client.engine.peer is not None
        assert client.engine.peer.idle_time_out == 300 * SLOWNESS
        before = listener.transports[0].frames_input
        client.until(passed(1.3 * SLOWNESS))
        assert is_open(listener.connections[0])
        assert listener.transports[0].frames_input - before >= 5
        client.send(client.sender(client.session(), "queue"), message())


def test_proton_gives_us_up_without_heartbeats() -> None:
    with ProtonListener(heartbeat=0.2) as listener, connect(listener, silent=True) as client:
        client.opened()
        (closed,) = client.until(lambda: client.seen(ConnectionClosed))
        assert closed.error is not None
        assert closed.error.condition == "amqp:resource-limit-exceeded"


def test_protons_heartbeats_keep_it_connected_to_us(listener: ProtonListener) -> None:
    configuration = Configuration(container_id="c", idle_time_out_ms=800 * SLOWNESS)
    with connect(listener, configuration=configuration) as client:
        client.opened()
        client.until(passed(1.3 * SLOWNESS))
        client.send(client.sender(client.session(), "queue"), message())


def test_we_give_up_a_proton_that_is_silent(listener: ProtonListener) -> None:
    configuration = Configuration(container_id="c", idle_time_out_ms=500)
    with connect(listener, configuration=configuration) as client:
        client.opened()
        (failure,) = eventually(lambda: client.failures, step=client.step_alone)
        assert isinstance(failure, IdleTimeoutError)
        client.failures.clear()
        client.until(lambda: "on_connection_remote_close" in listener.happened)
        assert listener.connections[0].remote_condition.name == "amqp:resource-limit-exceeded"


def test_close_of_proton_has_a_reason(client: SocketClient, listener: ProtonListener) -> None:
    session = client.session()
    sender = client.sender(session, "queue")
    listener.connections[0].condition = proton.Condition("amqp:connection:forced", "maintenance", {"minutes": 5})
    listener.connections[0].close()
    (closed,) = client.until(lambda: client.seen(ConnectionClosed))
    assert closed.error == Error(Condition.CONNECTION_FORCED, "maintenance", {Symbol("minutes"): 5})
    client.until(lambda: client.hung_up)
    assert is_closed(listener.connections[0])
    assert not sender.is_attached
    assert not session.is_mapped


def test_proton_gets_the_reason_of_our_close(client: SocketClient, listener: ProtonListener) -> None:
    client.engine.close(error=Error("test:enough", "for today", {"minutes": 5}))
    client.until(lambda: "on_connection_remote_close" in listener.happened)
    condition = listener.connections[0].remote_condition
    assert (condition.name, condition.description, condition.info) == (
        "test:enough",
        "for today",
        {proton.symbol("minutes"): 5},
    )
    client.until(lambda: client.hung_up)
    assert client.seen(ConnectionClosed) == [ConnectionClosed(None)]
