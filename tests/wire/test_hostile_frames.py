"""Peers that violate the protocol: the answer to each violation, and what stays unaffected."""

from __future__ import annotations

import gc
import struct
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from pairbus.wire import (
    ACCEPTED,
    RECEIVER,
    SENDER,
    Attach,
    Begin,
    Bounds,
    Configuration,
    Decimal32,
    Delivery,
    Described,
    Event,
    Link,
    LinkAttached,
    LinkDetached,
    Open,
    ProtocolError,
    Rejected,
    SaslCode,
    Session,
    SessionBegun,
    SessionEnded,
    Symbol,
    UInt,
    ULong,
    decode,
    encode,
)
from pairbus.wire.composites import LAYOUTS, Layout
from pairbus.wire.errors import (
    DecodeError,
    DeliveryIdError,
    FramingError,
    HandleInUseError,
    IllegalStateError,
    InvalidFieldError,
    MessageSizeError,
    PeerLimitError,
    ResumeError,
    SessionResourceError,
    TransferDirectionError,
    TransferLimitError,
    TransferSequenceError,
    UnattachedHandleError,
    UnknownPerformativeError,
    WindowViolationError,
)
from pairbus.wire.frames import AMQP_HEADER, SASL_FRAME
from pairbus.wire.performatives import Close, Detach, Disposition, End, Flow, SaslOutcome, Transfer
from tests.wire.pair import ConnectionPair, ScriptedPeer, Side, frame

CONFIGURATION: Final = Configuration(
    container_id="careful",
    max_frame_size=4096,
    channel_max=9,
    handle_max=9,
    max_links=6,
    max_unsettled=3,
    max_message_size=1000,
    max_incomplete_bytes=1500,
)

BEGIN: Final = Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9)
FLOW: Final[dict[str, Any]] = {"incoming_window": 9, "next_outgoing_id": 0, "outgoing_window": 9}
PERFORMATIVES: Final = (
    Open(container_id="again"),
    BEGIN,
    Attach(name="new", handle=8, role=SENDER, initial_delivery_count=0),
    Flow(**FLOW),
    Transfer(5, 0, b"t", 0, False),
    Disposition(RECEIVER, 0, 0, True, ACCEPTED),
    Disposition(RECEIVER, 0, 0, True, Rejected(None)),
    Detach(handle=5),
    End(),
    Close(),
)
"""One of each performative, and a disposition that is not read the fast way."""


class Victim:
    """An engine with two sessions of two links each: one of each is attacked, the other has to stay unaffected.

    Its peer accepts frames of 512 bytes, so that even the error of an attack has to fit the smallest frame.
    """

    def __init__(self, side: Side, configuration: Configuration = CONFIGURATION) -> None:
        self.peer = ScriptedPeer(side, configuration).open(max_frame_size=512)
        self.session = self.peer.begin()
        self.receiver = self.peer.attach(self.session, "in", RECEIVER, credit=5)
        self.sender = self.peer.attach(self.session, "out", SENDER, credit=5)
        self.other_session = self.peer.begin()
        self.other_receiver = self.peer.attach(self.other_session, "in", RECEIVER, credit=5)
        self.other_sender = self.peer.attach(self.other_session, "out", SENDER, credit=5)

    def say(self, performative: object, payload: bytes = b"") -> list[Event]:
        return self.peer.say(frame(performative, channel=self.session.remote_channel, payload=payload))

    def fields(self, code: int, *fields: object) -> list[Event]:
        """Say a performative of which nothing is known but its fields."""
        return self.say(Described(ULong(code), list(fields)))

    def transfer(self, payload: bytes = b"", **fields: Any) -> list[Event]:
        values = {"handle": self.receiver.remote_handle, "delivery_id": 0, "delivery_tag": b"t", **fields}
        return self.say(Transfer(**values), payload)

    def attach(self, **fields: Any) -> list[Event]:
        values = {"name": "new", "handle": 9, "role": SENDER, "initial_delivery_count": 0, **fields}
        return self.say(Attach(**values))

    def assert_works(self, session: Session, receiver: Link | None, sender: Link | None) -> None:
        """Check that a message comes in and another goes out, on the links that are given."""
        assert session.is_mapped
        if receiver is not None:
            (delivery,) = self.peer.transfer(session, receiver, b"still here", delivery_id=77)
            assert isinstance(delivery, Delivery)
            assert delivery.payload == b"still here"
        if sender is not None:
            sender.send(b"me too", tag=b"t")
            (heard,) = self.peer.heard()
            assert heard.payload == b"me too"
            assert heard.channel == session.channel


Attack = Callable[[Victim], list[Event]]


def name_of(performative: object) -> str:
    return type(performative).__name__


# What ends the connection.


def repeat_a_key(victim: Victim) -> list[Event]:
    properties = {b"a" * 900: 1, b"b" * 900: 2}
    body = encode(Attach(name="new", handle=9, role=SENDER, properties=properties))
    return victim.peer.say(frame(payload=body.replace(b"b" * 900, b"a" * 900), channel=victim.session.remote_channel))


CONNECTION_ATTACKS: Final[dict[str, tuple[Attack, type[ProtocolError]]]] = {
    "a SASL frame after open": (
        lambda victim: victim.peer.say(frame(SaslOutcome(code=SaslCode.OK), kind=SASL_FRAME)),
        FramingError,
    ),
    "a frame of a type that does not exist": (lambda victim: victim.peer.say(frame(End(), kind=7)), FramingError),
    "a body that starts in the frame's header": (lambda victim: victim.peer.say(frame(Close(), doff=1)), FramingError),
    "a body that starts at zero": (lambda victim: victim.peer.say(frame(Close(), doff=0)), FramingError),
    "a body that starts behind the frame": (lambda victim: victim.peer.say(frame(Close(), doff=255)), FramingError),
    "an empty frame whose body starts behind it": (lambda victim: victim.peer.say(frame(doff=3)), FramingError),
    "a frame smaller than its header": (
        lambda victim: victim.peer.say(struct.pack(">IBBH", 7, 2, 0, 0)),
        FramingError,
    ),
    "a frame of no bytes": (lambda victim: victim.peer.say(struct.pack(">IBBH", 0, 2, 0, 0)), FramingError),
    "a frame beyond our max-frame-size, before its body has come": (
        lambda victim: victim.peer.say(struct.pack(">IBBH", 4097, 2, 0, 0)),
        FramingError,
    ),
    "the largest frame there is": (
        lambda victim: victim.peer.say(struct.pack(">IBBH", 2**32 - 1, 2, 0, 0)),
        FramingError,
    ),
    "a performative that does not exist": (lambda victim: victim.fields(0x19), UnknownPerformativeError),
    "a performative by a name that does not exist": (
        lambda victim: victim.say(Described(Symbol("amqp:attack:list"), [])),
        UnknownPerformativeError,
    ),
    "a descriptor that is a string": (
        lambda victim: victim.say(Described("amqp:close:list", [])),
        UnknownPerformativeError,
    ),
    "a SASL performative in an AMQP frame": (
        lambda victim: victim.say(SaslOutcome(code=SaslCode.OK)),
        UnknownPerformativeError,
    ),
    "a message section as the body of a frame": (lambda victim: victim.fields(0x70), UnknownPerformativeError),
    "a body that is not described": (lambda victim: victim.say(["not", "described"]), DecodeError),
    "a body that is not AMQP": (lambda victim: victim.peer.say(frame(payload=b"GET / HTTP/1.1")), DecodeError),
    "a body of one byte": (lambda victim: victim.peer.say(frame(payload=b"\x00")), DecodeError),
    "a descriptor without a value": (lambda victim: victim.peer.say(frame(payload=b"\x00\x53\x18")), DecodeError),
    "a performative that is a map": (lambda victim: victim.say(Described(ULong(0x17), {})), DecodeError),
    "a transfer that is a map": (lambda victim: victim.say(Described(ULong(0x14), {})), DecodeError),
    "a disposition that is a map": (lambda victim: victim.say(Described(ULong(0x15), {})), DecodeError),
    "a list that is cut off": (lambda victim: victim.peer.say(frame(payload=b"\x00\x53\x18\xc0\x09\x01")), DecodeError),
    "a transfer that is cut off": (
        lambda victim: victim.peer.say(frame(payload=b"\x00\x53\x14\xc0\x20\x05\x43", channel=3)),
        DecodeError,
    ),
    "a transfer with more in its list than its count says": (
        lambda victim: victim.peer.say(
            frame(payload=b"\x00\x53\x14\xc0\x08\x04\x52\x05\x43\xa0\x00\x43\x42", channel=3)
        ),
        DecodeError,
    ),
    "more fields than the standard knows": (lambda victim: victim.fields(0x17, None, None), DecodeError),
    "text that is not UTF-8": (
        lambda victim: victim.peer.say(
            frame(payload=encode(Attach(name="new", handle=9, role=SENDER)).replace(b"new", b"\xff\xfe\xfd"), channel=3)
        ),
        DecodeError,
    ),
    "a map that has a long key twice": (repeat_a_key, DecodeError),
    "a mandatory field that is missing": (lambda victim: victim.fields(0x12), InvalidFieldError),
    "a mandatory field that is null": (lambda victim: victim.fields(0x16, None), InvalidFieldError),
    "a transfer without a handle": (
        lambda victim: victim.fields(0x14, None, UInt(0), b"t", UInt(0), False),
        InvalidFieldError,
    ),
    "a disposition without a role": (lambda victim: victim.fields(0x15, None, UInt(0)), InvalidFieldError),
    "an outcome where a source belongs": (
        lambda victim: victim.attach(source=Described(ULong(0x24), [])),
        InvalidFieldError,
    ),
    "nonsense that takes four bytes a character to quote": (
        lambda victim: victim.fields(0x17, "\U0001f980" * 300),
        InvalidFieldError,
    ),
    "a second open": (lambda victim: victim.peer.say(frame(Open(container_id="again"))), IllegalStateError),
    "begin on a channel beyond channel-max": (
        lambda victim: victim.peer.say(frame(BEGIN, channel=10)),
        FramingError,
    ),
    "begin on a channel that is in use": (lambda victim: victim.say(BEGIN), IllegalStateError),
    "begin as the answer to nothing": (
        lambda victim: victim.peer.say(
            frame(Begin(remote_channel=8, next_outgoing_id=0, incoming_window=1, outgoing_window=1), channel=8)
        ),
        InvalidFieldError,
    ),
    "begin as a second answer": (
        lambda victim: victim.peer.say(
            frame(
                Begin(remote_channel=victim.session.channel, next_outgoing_id=0, incoming_window=1, outgoing_window=1),
                channel=8,
            )
        ),
        InvalidFieldError,
    ),
    "attach with a handle beyond handle-max": (lambda victim: victim.attach(handle=10), FramingError),
    "a link whose name does not fit the peer's own frames": (
        lambda victim: victim.attach(name="n" * 2000),
        InvalidFieldError,
    ),
}


def assert_closed(peer: ScriptedPeer, error: type[ProtocolError]) -> None:
    """Check that the engine said why, once, and neither says nor hears anything more."""
    (heard,) = peer.heard()
    assert isinstance(heard.body, Close)
    assert heard.channel == 0
    assert heard.body.error is not None
    assert heard.body.error.condition == error.condition
    assert heard.body.error.description
    assert peer.engine.is_closed
    assert peer.engine.sessions == {}
    assert peer.close() == []
    assert peer.heard() == []


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("attack", CONNECTION_ATTACKS)
def test_connection_violation_sends_one_close_with_reason(side: Side, attack: str) -> None:
    victim = Victim(side)
    act, error = CONNECTION_ATTACKS[attack]
    with pytest.raises(ProtocolError) as caught:
        act(victim)
    assert type(caught.value) is error
    assert_closed(victim.peer, error)


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize(
    "performative", [one for one in PERFORMATIVES if not isinstance(one, (Open, Begin, Close))], ids=name_of
)
def test_frame_on_unused_channel_ends_connection(side: Side, performative: object) -> None:
    victim = Victim(side)
    with pytest.raises(IllegalStateError):
        victim.peer.say(frame(performative, channel=8))
    assert_closed(victim.peer, IllegalStateError)


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize(
    "performative", [one for one in PERFORMATIVES if not isinstance(one, (Open, Transfer))], ids=name_of
)
def test_bytes_after_performative_end_connection(side: Side, performative: object) -> None:
    victim = Victim(side)
    with pytest.raises(DecodeError):
        victim.say(performative, b"\x40")
    assert_closed(victim.peer, DecodeError)


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("performative", PERFORMATIVES[1:], ids=name_of)
def test_frame_before_open_ends_connection(side: Side, performative: object) -> None:
    peer = ScriptedPeer(side)
    if side is Side.CLIENT:
        peer.engine.open()
    with pytest.raises(IllegalStateError):
        peer.say(AMQP_HEADER, frame(performative))
    header, opened, closed = peer.heard()
    assert header == AMQP_HEADER
    assert isinstance(opened.body, Open), "close comes after open, even when all there is to say is why"
    assert closed.body.error.condition == "amqp:illegal-state"


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize(
    ("opening", "error"),
    [
        (Open(container_id="tiny", max_frame_size=511), InvalidFieldError),
        (Described(ULong(0x10), []), InvalidFieldError),
        (Described(ULong(0x10), [Symbol("not a string")]), InvalidFieldError),
        (Described(ULong(0x10), ["id", "host", "\U0001f980" * 300]), InvalidFieldError),
        (Described(ULong(0x10), ["id"] + [None] * 10), DecodeError),
    ],
)
def test_invalid_open_ends_connection(side: Side, opening: object, error: type[ProtocolError]) -> None:
    peer = ScriptedPeer(side)
    if side is Side.CLIENT:
        peer.engine.open()
    with pytest.raises(ProtocolError) as caught:
        peer.say(AMQP_HEADER, frame(opening))
    assert type(caught.value) is error
    assert [type(heard.body) for heard in peer.heard()[1:]] == [Open, Close]
    assert peer.engine.is_closed


FIELDS: Final = [
    pytest.param(layout, index, id=f"{layout.name} {layout.fields[index].name}")
    for layout in LAYOUTS.values()
    if "frame" in layout.provides
    for index in range(len(layout.fields))
]


@pytest.mark.parametrize(("layout", "index"), FIELDS)
def test_every_performative_field_rejects_other_types(layout: Layout, index: int) -> None:
    peer = ScriptedPeer(Side.SERVER)
    if layout.composite is Open:
        peer.say(AMQP_HEADER)
    else:
        peer.open()
        peer.attach(peer.begin(), "in", RECEIVER)
    valid: Any = decode(encode(next(one for one in PERFORMATIVES if type(one) is layout.composite)))
    fields = valid.value + [None] * len(layout.fields)
    fields[index] = Decimal32(b"none")
    with pytest.raises(InvalidFieldError, match=layout.fields[index].name):
        peer.say(frame(Described(ULong(layout.code), fields[: index + 1]), channel=3))


# What ends the session.


def attach_another(victim: Victim) -> Link:
    """Attach another link of the peer's to the session that is hit, with credit."""
    (event,) = victim.attach()
    assert isinstance(event, LinkAttached)
    event.link.attach()
    event.link.flow(5)
    victim.peer.heard()
    return event.link


def hold_too_much(victim: Victim) -> list[Event]:
    another = attach_another(victim)
    victim.transfer(b"." * 900, more=True)
    return victim.transfer(b"." * 700, more=True, handle=another.remote_handle, delivery_id=1)


def send_beyond_window(victim: Victim) -> list[Event]:
    victim.session._incoming_window = 0
    return victim.transfer()


SESSION_ATTACKS: Final[dict[str, tuple[Attack, type[ProtocolError]]]] = {
    "flow for a handle that is not attached": (
        lambda victim: victim.say(Flow(**FLOW, handle=8, link_credit=1)),
        UnattachedHandleError,
    ),
    "transfer for a handle that is not attached": (lambda victim: victim.transfer(handle=8), UnattachedHandleError),
    "detach of a handle that is not attached": (lambda victim: victim.say(Detach(handle=8)), UnattachedHandleError),
    "attach with a handle that is in use": (
        lambda victim: victim.attach(handle=victim.receiver.remote_handle),
        HandleInUseError,
    ),
    "a delivery-id that is in use": (lambda victim: victim.transfer() and victim.transfer(), DeliveryIdError),
    "a disposition whose range ends before it begins": (
        lambda victim: victim.say(Disposition(RECEIVER, 5, 4, True, ACCEPTED)),
        DeliveryIdError,
    ),
    "a disposition for every delivery-id there is": (
        lambda victim: victim.say(Disposition(RECEIVER, 0, 2**32 - 1, True, ACCEPTED)),
        DeliveryIdError,
    ),
    "more links than max_links": (
        lambda victim: [victim.attach(name=f"link {number}", handle=number) for number in range(3)][-1],
        SessionResourceError,
    ),
    "more deliveries than max_unsettled": (
        lambda victim: [victim.transfer(delivery_id=number) for number in range(4)][-1],
        SessionResourceError,
    ),
    "more of incomplete messages than max_incomplete_bytes": (hold_too_much, SessionResourceError),
    "more transfers than the incoming window has room for": (send_beyond_window, WindowViolationError),
}


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("attack", SESSION_ATTACKS)
def test_session_violation_sends_one_end_with_reason(side: Side, attack: str) -> None:
    victim = Victim(side)
    act, error = SESSION_ATTACKS[attack]
    (event,) = act(victim)
    assert isinstance(event, SessionEnded)
    assert event.session is victim.session
    assert type(event.violation) is error
    assert event.error is not None
    assert event.error.condition == error.condition
    (heard,) = victim.peer.heard()
    assert isinstance(heard.body, End)
    assert heard.channel == victim.session.channel
    assert heard.body.error == event.error
    victim.assert_works(victim.other_session, victim.other_receiver, victim.other_sender)
    assert victim.transfer(delivery_id=5) == [], "what the peer sent before it heard of the end is passed over"
    assert victim.peer.end(victim.session) == [], "already reported to the application"
    assert victim.peer.heard() == [], "the peer's end is the answer to ours"
    again = victim.peer.begin()
    assert again.is_mapped
    assert again.channel == victim.session.channel, "the channel is free again"


# What ends the link.

LINK_ATTACKS: Final[dict[str, tuple[Attack, type[ProtocolError]]]] = {
    "a delivery without credit": (
        lambda victim: [
            victim.transfer(delivery_id=number, settled=True) for number in range(victim.receiver.credit + 1)
        ][-1],
        TransferLimitError,
    ),
    "a delivery that is too large": (lambda victim: victim.transfer(b"." * 1001), MessageSizeError),
    "a delivery in two frames that is too large": (
        lambda victim: victim.transfer(b"." * 600, more=True) or victim.transfer(b"." * 600, more=True),
        MessageSizeError,
    ),
    "a delivery without a delivery-id": (lambda victim: victim.transfer(delivery_id=None), TransferSequenceError),
    "a delivery without a delivery-tag": (lambda victim: victim.transfer(delivery_tag=None), TransferSequenceError),
    "a delivery that starts inside another": (
        lambda victim: victim.transfer(more=True) or victim.transfer(delivery_id=1),
        TransferSequenceError,
    ),
    "a delivery that is to be resumed": (lambda victim: victim.transfer(resume=True), ResumeError),
    "a transfer from the end that receives": (
        lambda victim: victim.transfer(handle=victim.sender.remote_handle),
        TransferDirectionError,
    ),
    "a transfer in parts from the end that receives": (
        lambda victim: victim.transfer(handle=victim.sender.remote_handle, more=True),
        TransferDirectionError,
    ),
}


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("attack", LINK_ATTACKS)
def test_link_violation_sends_one_detach_with_reason(side: Side, attack: str) -> None:
    victim = Victim(side)
    act, error = LINK_ATTACKS[attack]
    (event,) = act(victim)
    assert isinstance(event, LinkDetached)
    hit, spared = (
        (victim.sender, victim.receiver) if error is TransferDirectionError else (victim.receiver, victim.sender)
    )
    assert event.link is hit
    assert event.closed
    assert type(event.violation) is error
    assert event.error is not None
    assert event.error.condition == error.condition
    (heard,) = victim.peer.heard()
    assert heard.body == Detach(handle=hit.handle, closed=True, error=event.error)
    assert heard.channel == victim.session.channel
    if spared.role == RECEIVER:
        victim.assert_works(victim.session, spared, None)
    else:
        victim.assert_works(victim.session, None, spared)
    victim.assert_works(victim.other_session, victim.other_receiver, victim.other_sender)
    assert victim.transfer(delivery_id=50, handle=hit.remote_handle) == [], "what was under way is passed over"
    assert victim.peer.detach(victim.session, hit) == [], "already reported to the application"
    assert victim.peer.heard() == [], "the peer's detach is the answer to ours"
    again = victim.peer.attach(victim.session, hit.name, hit.role)
    assert again.is_attached, "the name is free again"
    assert again.handle == hit.handle, "and so is the handle"


@pytest.mark.parametrize("side", Side)
def test_events_before_violation_are_kept(side: Side) -> None:
    victim = Victim(side)
    good = frame(Transfer(victim.receiver.remote_handle, 0, b"t", 0, False), channel=3, payload=b"good")
    with pytest.raises(ProtocolError) as caught:
        victim.peer.say(good, frame(Described(ULong(0x19), [])))
    (delivery,) = caught.value.events
    assert isinstance(delivery, Delivery)
    assert delivery.payload == b"good"


def test_violation_has_condition_and_description() -> None:
    victim = Victim(Side.SERVER)
    (event,) = victim.transfer(b"." * 1001)
    assert isinstance(event, LinkDetached)
    assert str(event.violation) == "amqp:link:message-size-exceeded: 'in' takes messages of at most 1000 bytes"


# What costs too much.


def seconds_to_take_in(size: int) -> float:
    """Time how long a frame takes that arrives byte by byte."""
    peer = ScriptedPeer(Side.SERVER, Configuration(container_id="patient", max_frame_size=2**20)).open()
    link = peer.attach(peer.begin(), "in", RECEIVER)
    data = frame(Transfer(link.remote_handle, 0, b"t", 0, False), channel=3, payload=b"." * size)
    receive = peer.engine.receive_data
    start = time.process_time()
    for position in range(len(data) - 1):
        receive(data[position : position + 1])
    took = time.process_time() - start
    (delivery,) = receive(data[-1:])
    assert isinstance(delivery, Delivery)
    assert len(delivery.payload) == size
    return took


def test_cost_of_frame_sent_byte_by_byte_is_linear() -> None:
    small = min(seconds_to_take_in(2**15) for _ in range(3))
    large = min(seconds_to_take_in(2**18) for _ in range(2))
    assert large / small < 24, "8 times the bytes took much more than 8 times as long; 64 is quadratic"


def test_cost_of_wide_disposition_is_bounded_by_unsettled() -> None:
    victim = Victim(Side.SERVER)
    victim.peer.grant(victim.session, victim.sender, 50)
    sent = [victim.sender.send(b"", tag=b"t") for _ in range(50)]
    start = time.process_time()
    victim.say(Disposition(RECEIVER, 0, 2**31 - 1, True, ACCEPTED))
    assert time.process_time() - start < 1
    assert all(delivery.settled for delivery in sent)
    assert victim.session.unsettled == 0


@contextmanager
def memory() -> Iterator[Callable[[], int]]:
    """Return a function that counts the bytes in use."""
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def growth(rounds: Callable[[int], None]) -> int:
    """Return how many more bytes are held after many rounds than after a few."""
    with memory() as held:
        rounds(20)
        few = held()
        rounds(200)
        return held() - few


ENOUGH: Final = 50_000
"""More than 180 further rounds may leave behind, and far less than they would if each left something."""


def test_memory_is_bounded_with_all_sessions_begun() -> None:
    peer = ScriptedPeer(Side.SERVER, Configuration(container_id="host", channel_max=999)).open()
    with memory() as held:
        before = held()
        for channel in range(1000):
            (event,) = peer.engine.receive_data(frame(BEGIN, channel=channel))
            assert isinstance(event, SessionBegun)
            event.session.begin()
            peer.engine.data_to_send()
        assert (held() - before) / 1000 < 4000, "a session that does nothing takes little"
        with pytest.raises(FramingError):
            peer.say(frame(BEGIN, channel=1000))
        assert held() - before < 400_000, "a connection that is closed lets go of its sessions"


def test_beginning_and_ending_sessions_leaks_nothing() -> None:
    peer = ScriptedPeer(Side.SERVER).open()

    def rounds(count: int) -> None:
        for number in range(count):
            channel = number % 50
            assert len(peer.engine.receive_data(frame(BEGIN, channel=channel) + frame(End(), channel=channel))) == 2
            peer.engine.data_to_send()

    assert growth(rounds) < ENOUGH


def test_memory_is_bounded_with_endless_attaches() -> None:
    peer = ScriptedPeer(Side.SERVER, Configuration(container_id="host", max_links=40)).open()

    def rounds(count: int) -> None:
        for _ in range(count):
            peer.engine.receive_data(frame(BEGIN))
            for number in range(50):
                attach = Attach(name=f"link {number}", handle=number, role=SENDER, initial_delivery_count=0)
                events = peer.engine.receive_data(frame(attach))
                if number >= 40:
                    assert [type(event) for event in events] == ([SessionEnded] if number == 40 else [])
            peer.engine.receive_data(frame(End()))
            peer.engine.data_to_send()

    assert growth(rounds) < ENOUGH


def test_attaching_and_detaching_leaks_nothing() -> None:
    peer = ScriptedPeer(Side.SERVER).open()
    session = peer.begin()

    def rounds(count: int) -> None:
        for number in range(count):
            attach = Attach(name=f"link {number}", handle=number % 200, role=SENDER, initial_delivery_count=0)
            events = peer.engine.receive_data(frame(attach, channel=3))
            assert isinstance(events[0], LinkAttached)
            events[0].link.attach()
            peer.engine.receive_data(frame(Detach(handle=number % 200), channel=3))
            peer.engine.data_to_send()

    assert growth(rounds) < ENOUGH
    assert session.links == {}


@pytest.mark.parametrize("reject_oversized", [True, False])
@pytest.mark.parametrize("size", [0, 1000])
def test_memory_is_bounded_with_endless_message(reject_oversized: bool, size: int) -> None:
    configuration = Configuration(
        container_id="host", max_message_size=100_000, reject_oversized=reject_oversized, incoming_window=10
    )
    peer = ScriptedPeer(Side.SERVER, configuration).open()
    link = peer.attach(peer.begin(), "in", RECEIVER)
    data = frame(Transfer(link.remote_handle, 0, b"t", 0, False, True), channel=3, payload=b"." * size)

    def rounds(count: int) -> None:
        for _ in range(count * 10):
            peer.engine.receive_data(data)
            peer.engine.data_to_send()

    assert growth(rounds) < 100_000 + ENOUGH
    assert peer.engine.incomplete_bytes <= 100_000


def test_memory_is_bounded_with_endless_tiny_frames() -> None:
    victim = Victim(Side.SERVER)
    channel = victim.session.remote_channel
    tiny = [
        frame(),
        frame(Flow(**FLOW), channel=channel),
        frame(Flow(**FLOW, handle=victim.sender.remote_handle, delivery_count=0, link_credit=1), channel=channel),
        frame(Disposition(RECEIVER, 5, None, True, ACCEPTED), channel=channel),
        frame(Disposition(SENDER, 5, 9, False, ACCEPTED), channel=channel),
    ]
    together = b"".join(tiny * 10)

    def rounds(count: int) -> None:
        for _ in range(count):
            victim.peer.engine.receive_data(together)
            victim.peer.engine.data_to_send()

    assert growth(rounds) < ENOUGH


def test_repeated_dispositions_end_session() -> None:
    server = Configuration(container_id="server", incoming_window=2**31 - 1)
    pair = ConnectionPair(server=server)
    session = pair.open()
    sender, receiver = pair.attach(session, "link", SENDER)
    receiver.flow(5000)
    pair.exchange()
    for number in range(5000):
        sender.send(b"", tag=number.to_bytes(4, "big"))
    pair.exchange()
    again = frame(Disposition(SENDER, 0, 2**31 - 1, False), channel=session.channel)
    ended: list[SessionEnded] = []
    for _ in range(100):
        ended += [event for event in pair.server.receive_data(again) if isinstance(event, SessionEnded)]
    assert [type(event.violation) for event in ended] == [SessionResourceError]


# Bounds that a server narrows until it knows the peer.

NARROW: Final = Bounds(sessions=2, links=3, incomplete_bytes=2_000, values=100, names={"links": "links of a stranger"})


def narrow() -> ScriptedPeer:
    peer = ScriptedPeer(Side.SERVER, Configuration(container_id="careful")).open()
    peer.engine.bounds = NARROW
    return peer


def test_sessions_beyond_the_bounds_close_the_connection() -> None:
    peer = narrow()
    peer.begin()
    peer.begin()
    with pytest.raises(PeerLimitError, match=r"has 2 sessions, the maximum \(sessions\)") as caught:
        peer.begin()
    assert caught.value.bound == "sessions"


def test_links_beyond_the_bounds_end_the_session_until_the_bounds_are_widened() -> None:
    peer = narrow()
    session = peer.begin()
    for name in "abc":
        peer.attach(session, name, SENDER)
    attach = Attach(name="d", handle=9, role=RECEIVER)
    (event,) = peer.say(frame(attach, channel=session.remote_channel))
    assert isinstance(event, SessionEnded)
    assert isinstance(event.violation, SessionResourceError)
    assert event.violation.bound == "links of a stranger"
    peer.engine.bounds = peer.engine.configuration.bounds
    other = peer.begin()
    for name in "abcdef":
        peer.attach(other, name, SENDER)
    assert peer.engine.link_count == 6


def test_incomplete_messages_beyond_the_bounds_end_the_session() -> None:
    peer = narrow()
    session = peer.begin()
    links = [peer.attach(session, name, RECEIVER) for name in "ab"]
    assert peer.transfer(session, links[0], bytes(1_500), more=True) == []
    (event,) = peer.transfer(session, links[1], bytes(1_500), more=True)
    assert isinstance(event, SessionEnded)
    assert isinstance(event.violation, SessionResourceError)
    assert event.violation.bound == "incomplete_bytes"


BOMB: Final[dict[Any, Any]] = {Symbol("a"): [[] for _ in range(3_000)]}


@pytest.mark.parametrize(
    "performative",
    [
        Attach(name="x", handle=5, role=SENDER, properties=BOMB),
        Flow(incoming_window=1, next_outgoing_id=1, outgoing_window=1, properties=BOMB),
        Transfer(handle=0, delivery_id=5, delivery_tag=b"t", state=Described(ULong(0x34), [None, BOMB])),
        Disposition(role=RECEIVER, first=0, state=Described(ULong(0x27), [None, None, BOMB])),
        Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1, properties=BOMB),
    ],
    ids=lambda performative: type(performative).__name__,
)
def test_performative_with_too_many_values_is_not_decoded(performative: Any) -> None:
    peer = narrow()
    session = peer.begin()
    peer.attach(session, "a", SENDER)
    with pytest.raises(PeerLimitError, match="more than 100 values"):
        peer.say(frame(performative, channel=session.remote_channel))


class Canary:
    """Shows that what refers to it is gone; compiled classes take no weak references themselves."""


def test_abandoned_connection_is_freed_without_the_garbage_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        peer = ScriptedPeer(Side.SERVER, Configuration(container_id="careful")).open()
        session = peer.begin()
        link = peer.attach(session, "a", RECEIVER)
        peer.transfer(session, link, bytes(1_500), more=True)
        session.context, link.context = Canary(), Canary()
        canaries = [weakref.ref(session.context), weakref.ref(link.context)]
        peer.engine.abandon()
        assert peer.engine.incomplete_bytes == 0
        del peer, session, link
        assert [canary() for canary in canaries] == [None] * 2
    finally:
        gc.enable()
