"""Connections: bytes in, events out; calls in, bytes out (part 2.4 of the standard)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from pairbus.wire import encoder
from pairbus.wire.composites import Layout, from_list, layout_of
from pairbus.wire.configuration import Configuration, NumberPool
from pairbus.wire.decoder import decode_at, decode_list, skip
from pairbus.wire.errors import (
    DecodeError,
    FrameTooLargeError,
    FramingError,
    IdleTimeoutError,
    IllegalStateError,
    InvalidFieldError,
    LocalProtocolError,
    PeerLimitError,
    ProtocolError,
    SessionError,
    UnknownPerformativeError,
)
from pairbus.wire.frames import (
    AMQP_FRAME,
    AMQP_HEADER,
    HEADER_SIZE,
    SASL_FRAME,
    SASL_HEADER,
    FrameBuffer,
    FrameWriter,
    body_of,
)
from pairbus.wire.hotpath import read_disposition
from pairbus.wire.link import (
    CreditGranted,
    Delivery,
    DeliveryAborted,
    LinkAttached,
    LinkDetached,
    LinkDrained,
)
from pairbus.wire.performatives import Attach, Begin, Close, Detach, Disposition, End, Flow, Open
from pairbus.wire.sasl import Authenticated, SaslClient, SaslExchange, SaslServer
from pairbus.wire.session import DispositionReceived, Host, Session, SessionBegun, SessionEnded
from pairbus.wire.settlement import Error, error_of, shortened
from pairbus.wire.states import CONNECTION, SESSION, ConnectionState, Frame, SaslState, SessionState
from pairbus.wire.types import ULong

_LOWEST_MAX_FRAME_SIZE: Final = 512
_SHORTEST_PAUSE_MS: Final = 50
"""The minimum interval of heartbeats; a peer that requests shorter ones does not get them."""

# Module constants, because an enum member lookup for every frame would cost more than handling the frame.
_TRANSFER: Final = 0x14
_START: Final = ConnectionState.START
_OPENED: Final = ConnectionState.OPENED
_CLOSED: Final = ConnectionState.CLOSED
_ENDED: Final = SessionState.ENDED


@dataclass(frozen=True, slots=True)
class ConnectionOpened:
    """The peer sent open: a new connection to answer with ``open``, or the answer to our open."""

    open: Open


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """The peer closed the connection. It needs no answer; ours has been written."""

    error: Error | None


Event = (
    Authenticated
    | ConnectionOpened
    | ConnectionClosed
    | SessionBegun
    | SessionEnded
    | LinkAttached
    | LinkDetached
    | CreditGranted
    | LinkDrained
    | Delivery
    | DeliveryAborted
    | DispositionReceived
)


class Connection(Host):
    """The protocol state of one end of an AMQP connection, without I/O: it uses no socket, no clock and no log.

    Pass received bytes to ``receive_data``, which returns events; get the bytes to send from ``data_to_send``. If the
    peer violates the protocol, the engine responds as the standard requires. If that ends a link or a session, an event
    reports it; if it ends the connection, ``receive_data`` raises ``ProtocolError``: the events before the violation
    are in its ``events``, and the close frame is in ``data_to_send``.
    """

    def __init__(self, configuration: Configuration, sasl: SaslServer | SaslClient | None = None) -> None:
        if not (sasl is None or isinstance(sasl, SaslServer | SaslClient)):
            raise TypeError(f"sasl must be anonymous(), plain(…), external() or a SaslServer, got {sasl!r:.200}")
        super().__init__(configuration.bounds)
        self.configuration = configuration
        self.local = ConnectionState.START
        self.remote = ConnectionState.START
        self.peer: Open | None = None
        """The peer's open."""
        self.sessions: dict[int, Session] = {}
        """The sessions by our channel."""
        self._remote_sessions: dict[int, Session] = {}
        self._channels = NumberPool()
        self._buffer = FrameBuffer(configuration.max_frame_size)
        self._writer = FrameWriter()
        self._open = _encode_open(configuration)
        self._sasl = sasl
        self._exchange: SaslExchange | None = None
        self._awaiting_header = True
        self._received = False
        self._received_ms: int | None = None
        self._sent_ms: int | None = None
        self._ticked_ms = 0

    def __repr__(self) -> str:
        return (
            f"<Connection of {self.configuration.container_id!r}, local {self.local.name}, remote {self.remote.name}>"
        )

    @property
    def is_open(self) -> bool:
        """True if both ends have opened and neither has closed."""
        return self.local is ConnectionState.OPENED and self.remote is ConnectionState.OPENED

    @property
    def is_closed(self) -> bool:
        """True if our end is closed; the transport can be closed once the peer has read that."""
        return self.local is ConnectionState.CLOSED

    @property
    def is_finished(self) -> bool:
        """True if both ends are closed."""
        return self.local is ConnectionState.CLOSED and self.remote is ConnectionState.CLOSED

    @property
    def held_bytes(self) -> int:
        """The number of buffered bytes of incomplete frames and messages."""
        return self.incomplete_bytes + len(self._buffer)

    # Outgoing.

    def open(self) -> None:
        """Send open, unless it has been sent: start a connection as the client, or answer the peer's open."""
        if self.local is ConnectionState.OPENED or self.local is ConnectionState.CLOSED:
            return
        if self.local is ConnectionState.START:
            self._start(self.configuration.hostname)
        self._writer.write(0, self._open)
        self.local = CONNECTION[self.local, Frame.OPEN]

    def _start(self, hostname: str | None) -> None:
        """Send the first protocol header as the client."""
        if isinstance(self._sasl, SaslServer):
            raise LocalProtocolError("only a client starts the connection")
        if isinstance(self._sasl, SaslClient):
            self._exchange = SaslExchange(self._sasl, hostname, self._writer)
            self._writer.write_header(SASL_HEADER)
            self._writer.hold()
        else:
            self._writer.write_header(AMQP_HEADER)
        self.local = CONNECTION[self.local, Frame.HEADER]

    def begin(self, *, properties: dict[str, Any] | None = None) -> Session:
        """Begin a new session. It is usable at once: frames sent early wait for the peer's begin."""
        if self.local is ConnectionState.CLOSED:
            raise LocalProtocolError("the connection is closed")
        highest = 0xFFFF if self.peer is None else self.peer.channel_max
        if self._channels.lowest() > highest:
            raise LocalProtocolError(f"the peer allows {highest + 1} sessions")
        session = self._new_session()
        try:
            session.begin(properties=properties)
        except LocalProtocolError:
            self._release(session)
            raise
        return session

    def close(self, *, error: Error | None = None) -> None:
        """Send close. Frames from the peer are ignored until its own close."""
        if self.local is ConnectionState.CLOSED:
            return
        if self.local is not ConnectionState.START:
            self.open()  # part 2.4.6: close must follow an open, even if it only carries an error
            error = shortened(error, self._writer.max_frame_size)
            self._writer.write(0, encoder.encode(Close(error=error)))
        self.local = ConnectionState.CLOSED
        self._abandon_sessions()

    def abandon(self) -> None:
        """Release everything after the transport is closed, and break the reference cycles of the connection."""
        self.local = self.remote = ConnectionState.CLOSED
        self._abandon_sessions()
        self._buffer = FrameBuffer(self.configuration.max_frame_size)
        self._sasl = self._exchange = None

    def data_to_send(self) -> bytes:
        """Return and clear the bytes to send."""
        return self._writer.take()

    def tick(self, now_ms: int) -> int | None:
        """Send heartbeats and detect a silent peer.

        Call it once after opening, then no later than the time that it returns; ``None`` means no deadline.
        Writes an empty frame when the peer's idle timeout is near; raises ``IdleTimeoutError`` when the peer has been
        silent for too long.
        """
        if self.local is ConnectionState.CLOSED:
            return None
        deadlines: list[int] = []
        limit = self.configuration.idle_time_out_ms
        if limit is not None:
            if self._received or self._received_ms is None:
                self._received = False
                self._received_ms = now_ms
            if now_ms - self._received_ms >= 2 * limit:
                error = IdleTimeoutError(f"no data received from the peer for {2 * limit} ms")
                self._fail(error)
                raise error
            deadlines.append(self._received_ms + 2 * limit)
        pause = None if self.peer is None else self.peer.idle_time_out
        if pause and self.local is ConnectionState.OPENED:
            deadlines.append(self._keep_alive(now_ms, max(_SHORTEST_PAUSE_MS, pause // 2)))
        return min(deadlines) if deadlines else None

    def _keep_alive(self, now_ms: int, pause_ms: int) -> int:
        """Write an empty frame if no other frame was sent for half of the peer's idle timeout (part 2.4.5)."""
        if self._sent_ms is None:
            self._sent_ms = now_ms
        elif self._writer.written:
            self._sent_ms = self._ticked_ms  # the last frame may have been written right after that
        if now_ms - self._sent_ms >= pause_ms:
            self._writer.write(0, b"")
            self._sent_ms = now_ms
        self._writer.written = False
        self._ticked_ms = now_ms
        return self._sent_ms + pause_ms

    # Incoming.

    def receive_data(self, data: bytes | bytearray | memoryview) -> list[Event]:
        """Process received bytes, in pieces of any size, and return the events."""
        events: list[Event] = []
        if self.remote is ConnectionState.CLOSED:
            return events
        self._received = True
        self._buffer.feed(bytes(data))
        try:
            self._receive_buffered(events)
        except ProtocolError as error:
            error.events = list(events)
            self._fail(error)
            raise
        return events

    def _receive_buffered(self, events: list[Event]) -> None:
        """Process all complete frames."""
        while self._awaiting_header or self.remote is _START:
            if not self._receive_preamble(events):
                return
        while self.remote is not _CLOSED:
            frame = self._buffer.take_frame()
            if frame is None:
                return
            self._receive_frame(frame, events)

    def _fail(self, error: ProtocolError) -> None:
        self.close(error=error_of(error))
        self.remote = ConnectionState.CLOSED

    # Headers and authentication.

    def _receive_preamble(self, events: list[Event]) -> bool:
        """Process the next header or SASL frame; return False if none is complete."""
        if self._awaiting_header:
            header = self._buffer.take_header()
            if header is not None:
                self._receive_header(header)
            return header is not None
        frame = self._buffer.take_frame()
        if frame is not None:
            self._receive_sasl_frame(frame, events)
        return frame is not None

    def _receive_header(self, header: bytes) -> None:
        allowed = self._allowed_headers()
        if header not in allowed:
            if self.local is ConnectionState.START and self._exchange is None:
                self._writer.write_header(allowed[0])  # part 2.2: send the supported header, then close
            hint = "; it requires SASL: use anonymous() or another SASL layer" if header == SASL_HEADER else ""
            raise FramingError(f"the peer began with {header!r} instead of {allowed[0]!r}{hint}")
        self._awaiting_header = False
        if header == SASL_HEADER:
            if isinstance(self._sasl, SaslServer):
                self._writer.write_header(SASL_HEADER)
                self._exchange = SaslExchange(self._sasl, None, self._writer)
                self._exchange.offer()
            return
        self.remote = CONNECTION[self.remote, Frame.HEADER]
        if self.local is ConnectionState.START:
            self._writer.write_header(AMQP_HEADER)
            self.local = CONNECTION[self.local, Frame.HEADER]

    def _allowed_headers(self) -> tuple[bytes, ...]:
        if self._exchange is not None:
            return (AMQP_HEADER,) if self._exchange.state is SaslState.DONE else (SASL_HEADER,)
        if isinstance(self._sasl, SaslClient):
            raise IllegalStateError("the peer sent a protocol header before the client did")
        if isinstance(self._sasl, SaslServer):
            return (SASL_HEADER,) if self._sasl.required else (SASL_HEADER, AMQP_HEADER)
        return (AMQP_HEADER,)

    def _receive_sasl_frame(self, frame: bytes, events: list[Event]) -> None:
        if frame[5] != SASL_FRAME:
            raise FramingError(f"a frame of type {frame[5]} before authentication has ended")
        layout, position = _performative_at(frame, body_of(frame))
        if "sasl-frame" not in layout.provides:
            raise IllegalStateError(f"{layout.name} before authentication has ended")
        if self._exchange is None:
            return
        self.check_values(frame, position)
        authenticated = self._exchange.receive(_decode_performative(layout, frame, position))
        if authenticated is not None:
            events.append(authenticated)
            self._awaiting_header = True
            if isinstance(self._sasl, SaslClient):
                self._writer.release()

    # Frames.

    def _receive_frame(self, frame: bytes, events: list[Event]) -> None:
        if frame[5] != AMQP_FRAME:
            raise FramingError(f"a frame of type {frame[5]} where AMQP frames are expected")
        channel = frame[6] << 8 | frame[7]
        position = HEADER_SIZE if frame[4] == 2 else body_of(frame)
        if position == len(frame):
            self._advance(Frame.EMPTY)
            return
        if len(frame) > position + 3 and frame[position] == 0x00 and frame[position + 1] == 0x53:
            code = frame[position + 2]
            position += 3
        else:
            layout, position = _performative_at(frame, position)
            code = layout.code
        if code == _TRANSFER and self.local is _OPENED and self.remote is _OPENED:
            self._receive_transfer(channel, frame, position, events)
        else:
            self._receive_performative(code, channel, frame, position, events)

    def _receive_transfer(self, channel: int, frame: bytes, position: int, events: list[Event]) -> None:
        session = self._remote_sessions.get(channel)
        if session is None:
            session = self._mapped(channel, Frame.TRANSFER)
        if session.local is _ENDED:
            return
        try:
            event = session.receive_transfer(frame, position)
        except SessionError as error:
            events.append(self._end_violator(session, error))
            return
        if event is not None:
            events.append(event)
            if isinstance(event, Delivery) and event.link.drain and event.link.is_drained():
                events.append(LinkDrained(event.link))

    def _receive_performative(self, code: int, channel: int, frame: bytes, position: int, events: list[Event]) -> None:
        layout = layout_of(ULong(code))
        if layout is None or "frame" not in layout.provides:
            raise UnknownPerformativeError(f"0x{code:02x} is not the descriptor of a frame's body")
        self._advance(Frame(code))
        if self.local is ConnectionState.CLOSED and code != Frame.CLOSE:
            return
        if code == Frame.TRANSFER:
            self._receive_transfer(channel, frame, position, events)
            return
        self.check_values(frame, position)
        if code == Frame.DISPOSITION:
            performative: Any = read_disposition(frame, position)
        else:
            performative = _decode_performative(layout, frame, position)
        if code == Frame.OPEN:
            event: Event = self._receive_open(performative)
        elif code == Frame.CLOSE:
            event = self._receive_close(performative)
        elif code == Frame.BEGIN:
            event = self._receive_begin(channel, performative)
        else:
            self._receive_for_session(self._mapped(channel, Frame(code)), performative, events)
            return
        events.append(event)

    def _advance(self, frame: Frame) -> None:
        state = CONNECTION.get((self.remote, frame))
        if state is None:
            raise IllegalStateError(f"{frame.name.lower()} cannot come in state {self.remote.name}")
        self.remote = state

    def _receive_open(self, performative: Open) -> ConnectionOpened:
        if performative.max_frame_size < _LOWEST_MAX_FRAME_SIZE:
            raise InvalidFieldError(f"max-frame-size is {performative.max_frame_size}, below {_LOWEST_MAX_FRAME_SIZE}")
        self.peer = performative
        self._writer.max_frame_size = min(performative.max_frame_size, self.configuration.max_frame_size)
        return ConnectionOpened(performative)

    def _receive_close(self, performative: Close) -> ConnectionClosed:
        self.close()
        return ConnectionClosed(performative.error)

    def _receive_begin(self, channel: int, performative: Begin) -> SessionBegun:
        if channel > self.configuration.channel_max:
            bound = self.bounds.name_of("sessions")
            raise FramingError(
                f"channel {channel}, where {self.configuration.channel_max} is the highest ({bound})", bound
            )
        if channel in self._remote_sessions:
            raise IllegalStateError(f"a session on channel {channel} has begun already")
        if performative.remote_channel is None:
            if len(self._remote_sessions) >= self.bounds.sessions:
                bound = self.bounds.name_of("sessions")
                raise PeerLimitError(
                    f"the connection has {self.bounds.sessions} sessions, the maximum ({bound})", bound
                )
            session = self._new_session()
        else:
            answered = self.sessions.get(performative.remote_channel)
            if answered is None or answered.remote is not SessionState.UNMAPPED:
                raise InvalidFieldError(
                    f"begin refers to channel {performative.remote_channel}, which has no pending begin"
                )
            session = answered
        self._remote_sessions[channel] = session
        session.receive_begin(channel, performative)
        return SessionBegun(session, performative)

    def _receive_for_session(self, session: Session, performative: object, events: list[Event]) -> None:
        event: Event | None = None
        if isinstance(performative, End):
            event = self._receive_end(session, performative)
        elif session.local is not SessionState.ENDED:
            try:
                event = self._receive_in_session(session, performative, events)
            except SessionError as error:
                event = self._end_violator(session, error)
        if event is not None:
            events.append(event)

    def _receive_in_session(self, session: Session, performative: object, events: list[Event]) -> Event | None:
        match performative:
            case Disposition():
                return session.receive_disposition(performative)
            case Flow():
                return session.receive_flow(performative)
            case Attach():
                stolen = session.detach_stolen(performative)
                if stolen is not None:
                    events.append(stolen)
                return session.receive_attach(performative)
            case Detach():
                return session.receive_detach(performative)
        return None

    def _receive_end(self, session: Session, performative: End) -> SessionEnded | None:
        session.receive_end()
        del self._remote_sessions[session.remote_channel]
        self._release(session)
        if session.end_reported:
            return None
        session.end_reported = True
        return SessionEnded(session, performative.error)

    def _end_violator(self, session: Session, error: SessionError) -> SessionEnded:
        reason = error_of(error)
        session.end(error=reason)
        session.end_reported = True
        return SessionEnded(session, reason, error)

    # Sessions.

    def _mapped(self, channel: int, frame: Frame) -> Session:
        session = self._remote_sessions.get(channel)
        state = SessionState.UNMAPPED if session is None else session.remote
        if session is None or (state, frame) not in SESSION:
            raise IllegalStateError(f"{frame.name.lower()} on channel {channel}, which is {state.name}")
        return session

    def _new_session(self) -> Session:
        session = Session(self, self._channels.take(), self.configuration, self._writer)
        self.sessions[session.channel] = session
        return session

    def _release(self, session: Session) -> None:
        del self.sessions[session.channel]
        self._channels.give_back(session.channel)

    def _abandon_sessions(self) -> None:
        for session in self.sessions.values():
            session.abandon()
        self.sessions.clear()
        self._remote_sessions.clear()


def _encode_open(configuration: Configuration) -> bytes:
    performative = encoder.encode(
        Open(
            container_id=configuration.container_id,
            hostname=configuration.hostname,
            max_frame_size=configuration.max_frame_size,
            channel_max=configuration.channel_max,
            idle_time_out=configuration.idle_time_out_ms,
            properties=configuration.properties or None,
        )
    )
    # Until the peer has opened, only the standard's minimum frame size is safe.
    if len(performative) > _LOWEST_MAX_FRAME_SIZE - HEADER_SIZE:
        raise FrameTooLargeError(f"the open frame has {len(performative)} bytes with this configuration; 504 are safe")
    return performative


def _performative_at(frame: bytes, position: int) -> tuple[Layout, int]:
    """Decode the descriptor of a frame's body; return its layout and the position of its list."""
    if position >= len(frame) or frame[position] != 0x00:
        raise DecodeError("the body of a frame is not a described list")
    descriptor, position = decode_at(frame, position + 1)
    layout = layout_of(descriptor)
    if layout is None:
        raise UnknownPerformativeError(f"{descriptor!r:.200} is not the descriptor of a frame's body")
    return layout, position


def _decode_performative(layout: Layout, frame: bytes, position: int) -> Any:
    performative = from_list(layout, decode_list(frame, position))
    if skip(frame, position) != len(frame):
        raise DecodeError(f"bytes follow {layout.name} in its frame")
    return performative
