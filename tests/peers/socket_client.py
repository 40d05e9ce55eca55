"""Our engine as a client, on a socket, driven step by step in the test's own thread."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from pairbus.wire import (
    RECEIVER,
    SENDER,
    Configuration,
    Connection,
    Delivery,
    Event,
    Link,
    ProtocolError,
    SaslClient,
    Session,
    Source,
    Target,
)
from tests.peers.waiting import DEADLINE_S
from tests.waiting import eventually

T = TypeVar("T")
E = TypeVar("E")


class SocketClient:
    """A connection of ours to a port of the loopback interface.

    ``peer_step`` lets the peer run, which lives in this thread too. A peer that breaks the protocol fails the ``with``
    at its end, unless the test expected it and took the error out of ``failures``.
    """

    def __init__(
        self,
        port: int,
        peer_step: Callable[[], object],
        *,
        configuration: Configuration | None = None,
        sasl: SaslClient | None = None,
        silent: bool = False,
    ) -> None:
        self.engine = Connection(configuration or Configuration(container_id="socket-client"), sasl)
        self.events: list[Event] = []
        self.failures: list[ProtocolError] = []
        self.hung_up = False
        """True if the peer has closed its end of the socket."""
        self._peer_step = peer_step
        self._silent = silent
        self._outgoing = bytearray()
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        if kind is None:
            assert not self.failures, self.failures

    # The shell.

    def step(self) -> None:
        """Send what can be sent, take in what has arrived, and let the peer run."""
        if self.failures:
            raise self.failures[0]
        self.step_alone()
        self._peer_step()

    def step_alone(self) -> None:
        """Send what can be sent, and take in what has arrived."""
        try:
            self._exchange()
        except ProtocolError as error:
            self.events.extend(cast("list[Event]", error.events))
            self.failures.append(error)

    def _exchange(self) -> None:
        if not self._silent:
            self.engine.tick(int(time.monotonic() * 1000))
        self._outgoing += self.engine.data_to_send()
        writing = [self._socket] if self._outgoing else []
        reading = [] if self.hung_up else [self._socket]
        readable, writable, _ = select.select(reading, writing, [], 0)
        if writable:
            del self._outgoing[: self._socket.send(self._outgoing)]
        if readable:
            data = self._socket.recv(1 << 16)
            self.hung_up = not data
            self.events.extend(self.engine.receive_data(data))

    # What a test asks and does.

    def until(self, condition: Callable[[], T]) -> T:
        """Let both ends run until ``condition`` is true, and return what it returned."""
        return eventually(condition, step=self.step)

    def seen(self, kind: type[E]) -> list[E]:
        """The events of one kind, so far."""
        return [event for event in self.events if isinstance(event, kind)]

    def opened(self) -> Self:
        """Open the connection, and wait for the peer to do the same."""
        self.engine.open()
        self.until(lambda: self.engine.is_open)
        return self

    def session(self) -> Session:
        """Begin a session, and wait for the peer to do the same."""
        session = self.engine.begin()
        self.until(lambda: session.is_mapped)
        return session

    def sender(self, session: Session, target: str, name: str = "sender", **options: Any) -> Link:
        """Attach a sender, and wait for its credit."""
        link = session.attach(name, SENDER, source=Source(), target=Target(address=target), **options)
        self.until(lambda: link.credit)
        return link

    def receiver(self, session: Session, source: str, name: str = "receiver", **options: Any) -> Link:
        """Attach a receiver, without credit."""
        link = session.attach(name, RECEIVER, source=Source(address=source), target=Target(), **options)
        self.until(lambda: link.is_attached)
        return link

    def send(self, link: Link, payload: bytes) -> Delivery:
        """Send a message, and wait for the peer to settle it."""
        delivery = link.send(payload, tag=b"tag")
        self.until(lambda: delivery.settled)
        return delivery

    def receive(self, count: int = 1) -> list[Delivery]:
        """Wait for so many messages to have arrived."""
        self.until(lambda: len(self.seen(Delivery)) >= count)
        return self.seen(Delivery)

    def close(self) -> None:
        """Close the connection, and wait for the peer to hang up."""
        self.engine.close()
        self.until(lambda: self.hung_up)
