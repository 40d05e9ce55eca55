"""Qpid Proton, driven step by step in the test's own thread, as a client or as a listener."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from tests.peers.presence import import_peer
from tests.waiting import eventually

PEER = "Qpid Proton (python-qpid-proton)"

proton: Any = import_peer("proton", PEER)
reactor: Any = import_peer("proton.reactor", PEER)

T = TypeVar("T")


class Arrival(NamedTuple):
    """A message that reached Proton whole."""

    link: Any
    delivery: Any
    payload: bytes
    message: Any
    """Proton's reading of it. Binary values in it are views of memory that lives as long as this."""


class ProtonContainer:
    """A container of Proton's that keeps a record of what reached it; it does nothing between two steps."""

    def __init__(self) -> None:
        self.container = reactor.Container()
        self.container.timeout = 0.002
        self.container.start()
        self.arrivals: list[Arrival] = []
        self.happened: list[str] = []
        """The names of Proton's events, such as ``on_link_remote_open``."""
        self._buffers: dict[str, bytearray] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shut()

    def step(self) -> None:
        """Let Proton read, think and write, for 2 ms at the most."""
        self.container.process()

    def until(self, condition: Callable[[], T]) -> T:
        """Let Proton run until ``condition`` is true, and return what it returned."""
        return eventually(condition, step=self.step)

    def shut(self) -> None:
        """Close every socket."""
        eventually(lambda: not self.container.process())
        self.container.stop()
        self.container.process()
        self.container.stop_events()

    # Proton calls these.

    def on_unhandled(self, name: str, _event: Any) -> None:
        self.happened.append(name)

    def on_delivery(self, event: Any) -> None:
        self.happened.append("on_delivery")
        delivery = event.delivery
        link = event.link
        if not link.is_receiver or not delivery.readable:
            return
        buffer = self._buffers.setdefault(link.name, bytearray())
        buffer += link.recv(delivery.pending) or b""
        if not delivery.partial:
            message = proton.Message()
            message.decode(bytes(buffer))
            self.arrivals.append(Arrival(link, delivery, bytes(buffer), message))
            buffer.clear()
            link.advance()


class ProtonClient(ProtonContainer):
    """A connection of Proton's to a port of the loopback interface."""

    def __init__(self, port: int, **options: Any) -> None:
        super().__init__()
        self.connection = self.container.connect(
            f"amqp://127.0.0.1:{port}", handler=self, reconnect=False, container_id="proton", **options
        )
        self.failure: Any = None
        """The reason why the transport failed."""

    def on_transport_error(self, event: Any) -> None:
        self.failure = event.transport.condition

    def opened(self) -> Self:
        """Wait until the connection is open."""
        self.until(lambda: is_open(self.connection) or self.failure)
        assert self.failure is None, self.failure
        return self

    def session(self, *, incoming_capacity: int = 0) -> Any:
        """Begin a session; with a capacity in bytes, Proton keeps its incoming window that small."""
        session = self.connection.session()
        if incoming_capacity:
            session.incoming_capacity = incoming_capacity
        session.open()
        return session

    def sender(self, target: str, *, session: Any = None, name: str | None = None, options: Any = None) -> Any:
        """Attach a sender, and wait for its credit."""
        sender = self.container.create_sender(session or self.connection, target, name=name, options=options)
        self.until(lambda: sender.credit > 0)
        return sender

    def receiver(self, source: str, *, session: Any = None, name: str | None = None, options: Any = None) -> Any:
        """Attach a receiver, without credit."""
        receiver = self.container.create_receiver(session or self.connection, source, name=name, options=options)
        self.until(lambda: is_open(receiver))
        return receiver

    def send(self, sender: Any, message: Any) -> Any:
        """Send a message, and wait for the peer to settle it."""
        delivery = sender.send(message)
        self.until(lambda: delivery.settled)
        return delivery

    def receive(self, count: int = 1) -> list[Arrival]:
        """Wait for so many messages to have arrived."""
        self.until(lambda: len(self.arrivals) >= count)
        return self.arrivals

    def close(self) -> None:
        """Close the connection, and wait for the peer to do the same."""
        self.connection.close()
        self.until(lambda: is_closed(self.connection))

    def shut(self) -> None:
        if self.connection.state & proton.Endpoint.LOCAL_ACTIVE:
            self.connection.close()
        transport = self.connection.transport
        if transport is not None and self.connection.state & proton.Endpoint.REMOTE_UNINIT:
            transport.close_tail()
        super().shut()


class ProtonListener(ProtonContainer):
    """A port of the loopback interface on which Proton answers whoever opens, begins and attaches.

    A message to ``rejected``, ``released`` or ``modified`` gets that outcome, one to ``held`` none, and any other is
    accepted. An attach to ``missing`` is refused.
    """

    def __init__(
        self,
        *,
        credit: int = 100,
        heartbeat: float = 0,
        max_frame_size: int = 0,
        incoming_capacity: int = 0,
        require_auth: bool = False,
    ) -> None:
        super().__init__()
        self.credit = credit
        self.connections: list[Any] = []
        self.transports: list[Any] = []
        self.sessions: list[Any] = []
        self.links: dict[str, Any] = {}
        """The links by their names."""
        self._heartbeat = heartbeat
        self._max_frame_size = max_frame_size
        self._incoming_capacity = incoming_capacity
        self._require_auth = require_auth
        self._acceptor = self.container.acceptor("127.0.0.1", 0, handler=self)
        self.port: int = self._acceptor._selectable.getsockname()[1]

    def shut(self) -> None:
        self._acceptor.close()
        for transport in self.transports:
            if not transport.closed:
                transport.close_tail()
                transport.close_head()
        super().shut()

    def send(self, name: str, message: Any) -> Any:
        """Send a message on a link of a receiver of ours."""
        return self.links[name].send(message)

    # Proton calls these.

    def on_connection_bound(self, event: Any) -> None:
        transport = event.transport
        self.transports.append(transport)
        transport.require_auth(self._require_auth)
        if self._heartbeat:
            transport.idle_timeout = self._heartbeat
        if self._max_frame_size:
            transport.max_frame_size = self._max_frame_size

    def on_connection_remote_open(self, event: Any) -> None:
        self.connections.append(event.connection)
        event.connection.container = "proton"
        event.connection.open()

    def on_session_remote_open(self, event: Any) -> None:
        self.sessions.append(event.session)
        if self._incoming_capacity:
            event.session.incoming_capacity = self._incoming_capacity
        event.session.open()

    def on_link_remote_open(self, event: Any) -> None:
        link = event.link
        self.links[link.name] = link
        if "missing" in {link.remote_source.address, link.remote_target.address}:
            link.source.type = link.target.type = proton.Terminus.UNSPECIFIED
            link.open()
            link.condition = proton.Condition("amqp:not-found", "there is no such node")
            link.close()
            return
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        link.rcv_settle_mode = link.remote_rcv_settle_mode
        link.open()
        if link.is_receiver:
            link.flow(self.credit)

    def on_delivery(self, event: Any) -> None:
        before = len(self.arrivals)
        super().on_delivery(event)
        for arrival in self.arrivals[before:]:
            self._settle(arrival)

    def _settle(self, arrival: Arrival) -> None:
        address = arrival.link.remote_target.address
        delivery = arrival.delivery
        if address == "held":
            return
        settle_as(delivery, address if address in OUTCOMES else "accepted")
        if arrival.link.rcv_settle_mode == proton.Link.RCV_FIRST:
            delivery.settle()
        if arrival.link.credit <= self.credit // 2:
            arrival.link.flow(self.credit - arrival.link.credit)

    def on_link_remote_close(self, event: Any) -> None:
        self.happened.append("on_link_remote_close")
        event.link.close()

    def on_link_remote_detach(self, event: Any) -> None:
        self.happened.append("on_link_remote_detach")
        event.link.detach()

    def on_session_remote_close(self, event: Any) -> None:
        self.happened.append("on_session_remote_close")
        event.session.close()

    def on_connection_remote_close(self, event: Any) -> None:
        self.happened.append("on_connection_remote_close")
        event.connection.close()


OUTCOMES = ("accepted", "rejected", "released", "modified")


def settle_as(delivery: Any, outcome: str) -> None:
    """Give a delivery that Proton received the same outcome, with the same details, as the node server gives."""
    if outcome == "rejected":
        delivery.local.condition = proton.Condition("test:no-good", "not good enough", {proton.symbol("line"): 7})
    elif outcome == "modified":
        delivery.local.failed = True
        delivery.local.undeliverable = True
        delivery.local.annotations = {proton.symbol("x-opt-reason"): "bruised"}
    delivery.update(getattr(proton.Delivery, outcome.upper()))


def is_open(endpoint: Any) -> bool:
    """Return whether a connection, session or link is open at both ends."""
    return bool(endpoint.state == proton.Endpoint.LOCAL_ACTIVE | proton.Endpoint.REMOTE_ACTIVE)


def is_closed(endpoint: Any) -> bool:
    """Return whether a connection, session or link is closed at both ends."""
    return bool(endpoint.state == proton.Endpoint.LOCAL_CLOSED | proton.Endpoint.REMOTE_CLOSED)
