"""Two engines joined in memory, or one engine and a scripted peer."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from pairbus.wire import (
    RECEIVER,
    SENDER,
    Attach,
    Begin,
    Configuration,
    Connection,
    ConnectionOpened,
    Event,
    Link,
    LinkAttached,
    Open,
    SaslClient,
    SaslServer,
    Session,
    SessionBegun,
    Source,
    Target,
    encode,
)
from pairbus.wire.composites import from_described
from pairbus.wire.decoder import decode_at
from pairbus.wire.frames import AMQP_FRAME, AMQP_HEADER, HEADER_SIZE
from pairbus.wire.performatives import Close, Detach, End, Flow, Transfer
from pairbus.wire.states import LinkState

E = TypeVar("E")

MOST_ROUNDS = 10_000
"""More often than any two engines have to hear each other before they fall silent."""


class ConnectionPair:
    """A client and a server engine.

    The server answers opens, begins and attaches as a friendly server would, unless ``answer`` is replaced; every event
    is kept, in order, in ``client_events`` and ``server_events``.
    """

    def __init__(
        self,
        client: Configuration | None = None,
        server: Configuration | None = None,
        *,
        sasl_client: SaslClient | None = None,
        sasl_server: SaslServer | None = None,
    ) -> None:
        self.client = Connection(client or Configuration(container_id="client"), sasl_client)
        self.server = Connection(server or Configuration(container_id="server"), sasl_server)
        self.client_events: list[Event] = []
        self.server_events: list[Event] = []
        self.answer: Callable[[Event], None] = self.answer_friendly
        self.credit = 1000
        """The credit that the server grants on every link that it receives on."""

    def answer_friendly(self, event: Event) -> None:
        match event:
            case ConnectionOpened():
                self.server.open()
            case SessionBegun(session=session):
                session.begin()
            case LinkAttached(link=link, attach=attach) if link.local is LinkState.UNATTACHED:
                link.attach(source=attach.source, target=attach.target)
                if link.role == RECEIVER and self.credit:
                    link.flow(self.credit)

    def exchange(self) -> None:
        """Carry bytes to and fro until there are none."""
        for _ in range(MOST_ROUNDS):
            to_server = self.client.data_to_send()
            to_client = self.server.data_to_send()
            if not to_server and not to_client:
                return
            for event in self.server.receive_data(to_server):
                self.server_events.append(event)
                self.answer(event)
            self.client_events.extend(self.client.receive_data(to_client))
        raise AssertionError("the two engines never fall silent")

    def open(self) -> Session:
        """Open the connection and begin a session; return the client's end of it."""
        self.client.open()
        session = self.client.begin()
        self.exchange()
        return session

    def attach(self, session: Session, name: str, role: bool) -> tuple[Link, Link]:
        """Attach a link; return the client's and the server's end of it."""
        link = session.attach(name, role, source=Source(address="from"), target=Target(address="to"))
        self.exchange()
        event = next(
            event
            for event in reversed(self.server_events)
            if isinstance(event, LinkAttached) and event.link.name == name
        )
        return link, event.link


def frame(
    performative: object = None, *, channel: int = 0, payload: bytes = b"", kind: int = AMQP_FRAME, doff: int = 2
) -> bytes:
    """Make one frame; without a performative, an empty one."""
    body = (b"" if performative is None else encode(performative)) + payload
    return struct.pack(">IBBH", HEADER_SIZE + len(body), doff, kind, channel) + body


@dataclass(frozen=True, slots=True)
class Heard:
    """A frame that an engine wrote."""

    channel: int
    body: Any
    payload: bytes = b""
    kind: int = AMQP_FRAME


def read(data: bytes) -> list[Any]:
    """Read what an engine wrote: protocol headers as bytes, frames as ``Heard``."""
    found: list[Any] = []
    position = 0
    while position < len(data):
        if data[position : position + 4] == b"AMQP":
            found.append(data[position : position + HEADER_SIZE])
            position += HEADER_SIZE
            continue
        size, doff, kind, channel = struct.unpack_from(">IBBH", data, position)
        whole = data[position : position + size]
        assert len(whole) == size, "the last frame is cut off"
        assert doff == 2
        if size == HEADER_SIZE:
            found.append(Heard(channel, None, b"", kind))
        else:
            value, end = decode_at(whole, HEADER_SIZE)
            found.append(Heard(channel, from_described(value), whole[end:], kind))
        position += size
    return found


class Side(StrEnum):
    """The end of the connection that the engine under test is."""

    CLIENT = "client"
    SERVER = "server"


class ScriptedPeer:
    """The scripted peer of one engine: writes the frames of a test, and reads the engine's answers.

    The peer's channels and handles start at different numbers, so that a test fails if the engine confuses the two
    ends.
    """

    FIRST_CHANNEL = 3
    FIRST_HANDLE = 5

    def __init__(
        self,
        side: Side,
        configuration: Configuration | None = None,
        *,
        sasl: SaslClient | SaslServer | None = None,
    ) -> None:
        self.side = side
        self.engine = Connection(configuration or Configuration(container_id=side.value), sasl)
        self.events: list[Event] = []
        self._next_channel = self.FIRST_CHANNEL
        self._next_handle: dict[Session, int] = {}
        self._next_delivery: dict[Session, int] = {}

    def say(self, *frames: bytes) -> list[Event]:
        """Let the engine receive some bytes; return the events."""
        events = self.engine.receive_data(b"".join(frames))
        self.events.extend(events)
        return events

    def heard(self) -> list[Any]:
        """Read what the engine has written since the last time."""
        return read(self.engine.data_to_send())

    def bodies(self, kind: type[E]) -> list[E]:
        """Read what the engine has written since the last time; return the performatives of one kind."""
        return [heard.body for heard in self.heard() if isinstance(heard, Heard) and isinstance(heard.body, kind)]

    def open(self, **fields: Any) -> ScriptedPeer:
        """Open both ends."""
        mine = frame(Open(**{"container_id": "peer", **fields}))
        if self.side is Side.CLIENT:
            self.engine.open()
            self.say(AMQP_HEADER, mine)
        else:
            self.say(AMQP_HEADER, mine)
            self.engine.open()
        self.heard()
        return self

    def begin(self, **fields: Any) -> Session:
        """Begin a session at both ends; return the engine's."""
        channel = self._next_channel
        self._next_channel += 1
        defaults = {"next_outgoing_id": 0, "incoming_window": 1000, "outgoing_window": 1000}
        if self.side is Side.CLIENT:
            session = self.engine.begin()
            self.say(frame(Begin(**{"remote_channel": session.channel, **defaults, **fields}), channel=channel))
        else:
            (event,) = self.say(frame(Begin(**{**defaults, **fields}), channel=channel))
            assert isinstance(event, SessionBegun)
            session = event.session
            session.begin()
        self._next_handle[session] = self.FIRST_HANDLE
        self._next_delivery[session] = 0
        self.heard()
        return session

    def attach(self, session: Session, name: str, role: bool, *, credit: int = 100, **fields: Any) -> Link:
        """Attach a link at both ends, ``role`` being the engine's, and give its sender credit; return the engine's."""
        handle = self._next_handle[session]
        self._next_handle[session] += 1
        mine: dict[str, Any] = {
            "name": name,
            "handle": handle,
            "role": not role,
            "initial_delivery_count": 0 if role == RECEIVER else None,
            **fields,
        }
        answer = frame(Attach(**mine), channel=session.remote_channel)
        if self.side is Side.CLIENT:
            link = session.attach(name, role)
            self.say(answer)
        else:
            (event,) = self.say(answer)
            assert isinstance(event, LinkAttached)
            link = event.link
            link.attach()
        if role == RECEIVER and credit:
            link.flow(credit)
        elif credit:
            self.grant(session, link, credit)
        self.heard()
        return link

    def grant(self, session: Session, link: Link, credit: int, **fields: Any) -> list[Event]:
        """Give the engine credit on a link of which it is the sender."""
        assert link.role == SENDER
        values = {"delivery_count": link.delivery_count, "link_credit": credit, **fields}
        return self.flow(session, handle=link.remote_handle, **values)

    def flow(self, session: Session, **fields: Any) -> list[Event]:
        """Say flow, with a window that holds nothing back."""
        values = {
            "next_incoming_id": session._next_outgoing_id,
            "incoming_window": 1000,
            "next_outgoing_id": session._next_incoming_id,
            "outgoing_window": 1000,
            **fields,
        }
        return self.say(frame(Flow(**values), channel=session.remote_channel))

    def transfer(self, session: Session, link: Link, payload: bytes = b"", **fields: Any) -> list[Event]:
        """Send the engine a delivery; ``delivery_id=None`` makes it the next frame of the last one."""
        values: dict[str, Any] = {"delivery_id": self._next_delivery[session], **fields}
        if values["delivery_id"] is not None:
            values.setdefault("delivery_tag", b"tag-%d" % values["delivery_id"])
            values.setdefault("message_format", 0)
            self._next_delivery[session] = (values["delivery_id"] + 1) & 0xFFFFFFFF
        transfer = Transfer(handle=link.remote_handle, **values)
        return self.say(frame(transfer, channel=session.remote_channel, payload=payload))

    def detach(self, session: Session, link: Link, **fields: Any) -> list[Event]:
        return self.say(
            frame(Detach(**{"handle": link.remote_handle, "closed": True, **fields}), channel=session.remote_channel)
        )

    def end(self, session: Session, **fields: Any) -> list[Event]:
        return self.say(frame(End(**fields), channel=session.remote_channel))

    def close(self, **fields: Any) -> list[Event]:
        return self.say(frame(Close(**fields)))
