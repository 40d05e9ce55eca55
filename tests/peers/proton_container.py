"""Qpid Proton, driven step by step in the test's own thread, as a client or as a listener."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from tests.peers.presence import import_peer
from tests.peers.waiting import eventually

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
        self.container.timeout = 0.01
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
        """Let Proton read, think and write, for 10 ms at the most."""
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
        """Why the transport failed."""

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


def is_open(endpoint: Any) -> bool:
    """Whether a connection, session or link is open at both ends."""
    return bool(endpoint.state == proton.Endpoint.LOCAL_ACTIVE | proton.Endpoint.REMOTE_ACTIVE)


def is_closed(endpoint: Any) -> bool:
    """Whether a connection, session or link is closed at both ends."""
    return bool(endpoint.state == proton.Endpoint.LOCAL_CLOSED | proton.Endpoint.REMOTE_CLOSED)
