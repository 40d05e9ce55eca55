"""The fuzz targets: each takes bytes of an untrusted peer, and may raise only ``ProtocolError``.

The first byte of an input chooses the target; for an engine the second says where the rest is cut in two.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

from pairbus.build import COMPILED, build
from pairbus.wire import (
    ACCEPTED,
    ANONYMOUS,
    PLAIN,
    RECEIVER,
    RELEASED,
    SENDER,
    Attach,
    Begin,
    Configuration,
    Connection,
    ConnectionOpened,
    CreditGranted,
    Delivery,
    DispositionReceived,
    Event,
    Link,
    LinkAttached,
    LocalProtocolError,
    Open,
    ProtocolError,
    SaslClient,
    SaslCode,
    SaslServer,
    Sections,
    SessionBegun,
    accept_anonymous,
    encode,
    parse_plain,
)
from pairbus.wire.decoder import decode_at, skip
from pairbus.wire.frames import AMQP_HEADER
from pairbus.wire.performatives import Flow
from pairbus.wire.states import LinkState, SessionState
from tests.fuzz.watcher import Watcher
from tests.wire.pair import frame

MOST_SENT: Final = 3
"""The number of messages that the application sends for one grant of credit."""


def fuzz_decode(data: bytes) -> None:
    """Decode a value; what can be decoded can be skipped, and encoded again to something that decodes."""
    value, end = decode_at(data, 0)
    assert skip(data, 0) == end
    encoded = encode(value)
    again, _ = decode_at(encoded, 0)
    assert encode(again) == encoded


def fuzz_skip(data: bytes) -> None:
    assert 0 < skip(data, 0) <= len(data)


def fuzz_message(data: bytes) -> None:
    """Find the sections of a message, then decode each of them, whatever the others hold."""
    sections = Sections(data)
    for read in (
        sections.header,
        sections.properties,
        sections.application_properties,
        sections.message_annotations,
        sections.delivery_annotations,
        sections.footer,
        sections.data,
        sections.decode_body,
    ):
        try:
            read()
        except ProtocolError:
            continue


def _authenticate(mechanism: str, response: bytes) -> SaslCode | bytes:
    if mechanism == PLAIN:
        return SaslCode.OK if parse_plain(response) == ("user", "password") else SaslCode.AUTH
    if mechanism == "STEPS":
        return SaslCode.OK if response == b"step" else b"next"
    return accept_anonymous(mechanism, response)


SASL_SERVER: Final = SaslServer(
    mechanisms=("MSSBCBS", PLAIN, ANONYMOUS, "STEPS"), authenticate=_authenticate, required=False
)
SASL_CLIENT: Final = SaslClient(mechanism="STEPS", respond=lambda challenge: challenge[::-1])

STRICT: Final = Configuration(
    container_id="strict",
    max_frame_size=4096,
    channel_max=3,
    handle_max=7,
    max_links=8,
    max_unsettled=20,
    max_message_size=2000,
    incoming_window=10,
)
LENIENT: Final = Configuration(
    container_id="lenient",
    max_frame_size=4096,
    channel_max=3,
    handle_max=7,
    max_links=8,
    max_unsettled=20,
    max_message_size=300,
    incoming_window=4,
    strict=False,
    reject_oversized=True,
)


def fuzz_server(data: bytes) -> None:
    """A server that hears a stranger's first words."""
    _drive(Connection(STRICT, SASL_SERVER), Watcher(), data)


def fuzz_client(data: bytes) -> None:
    """A client whose server is a stranger; what it says early is held back until it is authenticated."""
    engine = Connection(LENIENT, SASL_CLIENT)
    engine.open()
    session = engine.begin()
    session.attach("out", SENDER)
    session.attach("in", RECEIVER).flow(5)
    _drive(engine, Watcher(), data)


_PREAMBLE: Final = b"".join(
    [
        AMQP_HEADER,
        frame(Open(container_id="peer", max_frame_size=1024, channel_max=3, idle_time_out=1000)),
        frame(Begin(next_outgoing_id=0, incoming_window=4, outgoing_window=100)),
        frame(Attach(name="in", handle=0, role=SENDER, initial_delivery_count=0)),
        frame(Attach(name="out", handle=1, role=RECEIVER)),
        frame(
            Flow(
                next_incoming_id=0,
                incoming_window=4,
                next_outgoing_id=0,
                outgoing_window=100,
                handle=1,
                delivery_count=0,
                link_credit=5,
            )
        ),
    ]
)
"""The frames of the peer of an open engine, with a session and two links."""


def _opened(strict: bool) -> tuple[Connection, Watcher]:
    """Bring an engine to where its peer has said the preamble."""
    engine = Connection(STRICT if strict else LENIENT)
    watcher = Watcher()
    answer(engine, engine.receive_data(_PREAMBLE))
    watcher.watch(engine.data_to_send(), engine)
    return engine, watcher


@cache
def _snapshot(strict: bool) -> bytes:
    return pickle.dumps(_opened(strict))


def _open(strict: bool) -> tuple[Connection, Watcher]:
    """Return an engine that is open. To thaw one is much faster than to open it, but compiled objects do not thaw."""
    return _opened(strict) if build() == COMPILED else pickle.loads(_snapshot(strict))  # noqa: S301 (our own bytes)


def fuzz_open_strict(data: bytes) -> None:
    _drive(*_open(strict=True), data)


def fuzz_open_lenient(data: bytes) -> None:
    _drive(*_open(strict=False), data)


TARGETS: Final[tuple[Callable[[bytes], None], ...]] = (
    fuzz_decode,
    fuzz_skip,
    fuzz_message,
    fuzz_server,
    fuzz_open_strict,
    fuzz_open_lenient,
    fuzz_client,
)


def run(data: bytes, targets: Sequence[Callable[[bytes], None]] = TARGETS) -> None:
    """Give one input to the target that its first byte chooses; only a ``ProtocolError`` is a way to fail."""
    if not data:
        return
    try:
        targets[data[0] % len(targets)](data[1:])
    except ProtocolError:
        return


def _drive(engine: Connection, watcher: Watcher, data: bytes) -> None:
    """Let an engine receive the input, cut in two where its first byte says, and answer as an application would."""
    cut = data[0] if data else 0
    for now_ms, piece in enumerate((data[1 : 1 + cut], data[1 + cut :])):
        try:
            events = engine.receive_data(piece)
        except ProtocolError as error:
            answer(engine, error.events)
            watcher.watch(engine.data_to_send(), engine)
            assert engine.is_closed
            assert engine.receive_data(piece) == []
            assert engine.data_to_send() == b""
            raise
        answer(engine, events)
        engine.tick(now_ms)
        watcher.watch(engine.data_to_send(), engine)


def answer(engine: Connection, events: list[object] | list[Event]) -> None:
    """Do what a friendly application would do about each event."""
    for event in events:
        match event:
            case ConnectionOpened():
                if engine.local.name == "HEADER":
                    engine.open()
            case SessionBegun(session=session):
                if session.local is SessionState.UNMAPPED:
                    session.begin()
            case LinkAttached(link=link):
                _answer_attach(engine, link)
            case CreditGranted(link=link, credit=credit, drain=drain):
                _answer_credit(link, credit, drain)
            case Delivery():
                event.link.settle(event, RELEASED if event.delivery_id % 3 == 0 else ACCEPTED)
            case DispositionReceived(deliveries=deliveries, state=state):
                for delivery in deliveries:
                    delivery.link.settle(delivery, state)


def _answer_attach(engine: Connection, link: Link) -> None:
    if link.local is not LinkState.UNATTACHED:
        return
    try:
        link.attach()
    except LocalProtocolError:  # a name that does not fit the frames that the peer takes
        engine.close()
    if link.role == RECEIVER:
        link.flow(5)


def _answer_credit(link: Link, credit: int, drain: bool) -> None:
    for number in range(min(credit, link.credit, MOST_SENT)):
        if link.is_attached:
            link.send(b"." * (600 * number), tag=b"t", settled=number == 1)
    if drain:
        link.drained()
