"""Third-party brokers, or brokers on a third-party AMQP engine, for tests of the client."""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pairbus.client.endpoint import Endpoint
from pairbus.client.token_provider import PlainCredentials
from tests.client import rabbitmq_server
from tests.client.rabbitmq_server import RabbitMqServer
from tests.peers.proton_container import ProtonContainer, proton


class OtherBroker(ABC):
    """A broker that has a queue wherever one is asked for, keeps its port, and can be gone for a while."""

    port: int
    credentials: PlainCredentials | None
    """The credentials for authentication; ``None`` for an anonymous broker."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint("127.0.0.1", self.port, tls=False)

    def queue(self) -> str:
        """Return the address of an unused queue."""
        return self.address(f"orders-{next(self._numbers)}")

    @property
    @abstractmethod
    def lasting_queue(self) -> str:
        """The address of a queue that outlives the broker."""

    @abstractmethod
    def address(self, name: str) -> str: ...

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def stop(self) -> None: ...


class RabbitMq(OtherBroker):
    """RabbitMQ with its plugin for AMQP 1.0."""

    credentials = PlainCredentials(rabbitmq_server.USER, rabbitmq_server.PASSWORD)

    def __init__(self, server: RabbitMqServer) -> None:
        super().__init__()
        self._server = server
        self.port = server.port

    @property
    def lasting_queue(self) -> str:
        return f"/amq/queue/{rabbitmq_server.DURABLE_QUEUE}"

    def address(self, name: str) -> str:
        return f"/queue/{name}"

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.stop()


class Settled(NamedTuple):
    """The outcome of a message as the receiver sent it."""

    outcome: str
    condition: Any
    """Of a rejection: Proton's ``Condition``."""


class Lent(NamedTuple):
    """A message that a receiver has, and has said nothing about yet."""

    queue: str
    payload: bytes
    link: Any
    delivery: Any


class ProtonBroker(OtherBroker):
    """Queues in memory on a Proton listener, which runs in a separate thread; they outlive the listener.

    Accepted and rejected messages are removed; released, modified and unsettled messages of a disconnected receiver are
    delivered next. A message to ``full`` is rejected, and the queue ``missing`` does not exist.
    """

    credentials = None

    def __init__(self) -> None:
        super().__init__()
        self.port = 0
        self.queues: dict[str, deque[bytes]] = defaultdict(deque)
        self.settled: list[Settled] = []
        self.users: list[str] = []
        """The names of the connected users, in order."""
        self._listener: _Listener | None = None

    @property
    def lasting_queue(self) -> str:
        return self.queue()

    def address(self, name: str) -> str:
        return name

    def start(self) -> None:
        self._listener = _Listener(self)
        self.port = self._listener.port
        self._listener.start()

    def stop(self) -> None:
        """Disconnect all clients without a close frame."""
        if self._listener is not None:
            self._listener.stop()
            self._listener = None


class _Listener(ProtonContainer):
    """Only the thread touches what is Proton's, until it has ended."""

    def __init__(self, broker: ProtonBroker) -> None:
        super().__init__()
        self._broker = broker
        self._acceptor = self.container.acceptor("127.0.0.1", broker.port, handler=self)
        self.port: int = self._acceptor._selectable.getsockname()[1]
        self._transports: list[Any] = []
        self._readers: dict[str, list[Any]] = defaultdict(list)
        self._lent: dict[str, Lent] = {}
        self._tags = itertools.count()
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proton-broker")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_stopping.set()
        self._thread.join()
        self._acceptor.close()
        for transport in self._transports:
            if not transport.closed:
                transport.close_tail()
                transport.close_head()
        self._take_back(lambda _lent: True)
        self.shut()

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            self.step()

    # Proton calls these.

    def on_connection_bound(self, event: Any) -> None:
        self._transports.append(event.transport)

    def on_connection_remote_open(self, event: Any) -> None:
        self._broker.users.append(event.transport.user)
        event.connection.open()

    def on_session_remote_open(self, event: Any) -> None:
        event.session.open()

    def on_link_remote_open(self, event: Any) -> None:
        link = event.link
        address = _address(link)
        if address == "missing":
            link.open()
            link.condition = proton.Condition("amqp:not-found", "there is no such queue")
            link.close()
            return
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        link.snd_settle_mode = link.remote_snd_settle_mode
        link.rcv_settle_mode = link.remote_rcv_settle_mode
        link.open()
        if link.is_receiver:
            link.flow(_CREDIT)
        else:
            self._readers[address].append(link)

    def on_link_flow(self, event: Any) -> None:
        if event.link.is_sender:
            self._deliver(_address(event.link))
            if event.link.drain_mode:
                event.link.drained()

    def on_delivery(self, event: Any) -> None:
        if event.link.is_receiver:
            self._take_in(event)
        elif event.delivery.updated:
            self._settle(event.delivery)

    def on_link_remote_close(self, event: Any) -> None:
        self._forget(event.link)
        event.link.close()

    def on_link_remote_detach(self, event: Any) -> None:
        self._forget(event.link)
        event.link.detach()

    def on_session_remote_close(self, event: Any) -> None:
        for readers in [*self._readers.values()]:
            for link in [link for link in readers if link.session == event.session]:
                self._forget(link)
        event.session.close()

    def on_connection_remote_close(self, event: Any) -> None:
        event.connection.close()

    def on_transport_closed(self, event: Any) -> None:
        for readers in [*self._readers.values()]:
            for link in [link for link in readers if link.connection == event.connection]:
                self._forget(link)

    # What a broker does.

    def _take_in(self, event: Any) -> None:
        before = len(self.arrivals)
        super().on_delivery(event)
        for link, delivery, payload, _message in self.arrivals[before:]:
            address = _address(link)
            if address == "full":
                delivery.local.condition = proton.Condition("amqp:resource-limit-exceeded", "not one more")
                delivery.update(proton.Delivery.REJECTED)
            else:
                self._broker.queues[address].append(payload)
                delivery.update(proton.Delivery.ACCEPTED)
            delivery.settle()
            link.flow(1)
            self._deliver(address)
        self.arrivals.clear()

    def _deliver(self, address: str) -> None:
        waiting = self._broker.queues[address]
        for link in self._readers[address]:
            while waiting and link.credit > 0:
                tag = f"lent-{next(self._tags)}"
                payload = waiting.popleft()
                delivery = link.delivery(tag)
                link.stream(payload)
                link.advance()
                if link.snd_settle_mode == proton.Link.SND_SETTLED:
                    delivery.settle()
                else:
                    self._lent[tag] = Lent(address, payload, link, delivery)

    def _settle(self, delivery: Any) -> None:
        lent = self._lent.pop(delivery.tag, None)
        if lent is None:
            return
        outcome = _OUTCOMES[delivery.remote_state]
        self._broker.settled.append(Settled(outcome, delivery.remote.condition))
        if outcome in {"released", "modified"}:
            counted = _once_more(lent.payload) if delivery.remote.failed else lent.payload
            self._broker.queues[lent.queue].appendleft(counted)
        delivery.update(delivery.remote_state)
        delivery.settle()
        self._deliver(lent.queue)

    def _forget(self, link: Any) -> None:
        address = _address(link)
        if link in self._readers[address]:
            self._readers[address].remove(link)
            self._take_back(lambda lent: lent.link == link)
            self._deliver(address)

    def _take_back(self, is_meant: Callable[[Lent], bool]) -> None:
        for tag, lent in reversed([*self._lent.items()]):
            if is_meant(lent):
                self._broker.queues[lent.queue].appendleft(lent.payload)
                del self._lent[tag]


_CREDIT = 200
_OUTCOMES = {
    proton.Delivery.ACCEPTED: "accepted",
    proton.Delivery.REJECTED: "rejected",
    proton.Delivery.RELEASED: "released",
    proton.Delivery.MODIFIED: "modified",
}


def _address(link: Any) -> str:
    terminus = link.remote_target if link.is_receiver else link.remote_source
    return str(terminus.address)


def _once_more(payload: bytes) -> bytes:
    """The same message, after one more delivery that failed."""
    message = proton.Message()
    message.decode(payload)
    message.delivery_count += 1
    encoded: bytes = message.encode()
    return encoded


@contextmanager
def proton_broker() -> Iterator[ProtonBroker]:
    broker = ProtonBroker()
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


@contextmanager
def rabbitmq(directory: Path) -> Iterator[RabbitMq]:
    """A separate node. It comes from the distribution, not from ``make setup``: without it, tests are skipped."""
    if reason := rabbitmq_server.missing():
        pytest.skip(reason)
    with RabbitMqServer(directory) as server:
        yield RabbitMq(server)
