"""A server around our engine for other implementations to talk to: queues in memory, on a port of the loopback."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

from pairbus.wire import (
    ACCEPTED,
    ANONYMOUS,
    EXTERNAL,
    MSSBCBS,
    PLAIN,
    RECEIVER,
    RELEASED,
    SENDER,
    Attach,
    Condition,
    Configuration,
    Connection,
    ConnectionClosed,
    ConnectionOpened,
    CreditGranted,
    Delivery,
    DispositionReceived,
    Error,
    Event,
    Link,
    LinkAttached,
    LinkDetached,
    Modified,
    ProtocolError,
    ReceiverSettleMode,
    Rejected,
    Released,
    SaslCode,
    SaslServer,
    SessionBegun,
    SessionEnded,
    Source,
    Symbol,
    Target,
    accept_anonymous,
    parse_plain,
)
from tests.waiting import eventually

T = TypeVar("T")
E = TypeVar("E")

USER: Final = "ada"
PASSWORD: Final = "analytical engine"  # noqa: S105

REJECTED: Final = Rejected(Error("test:no-good", "not good enough", {"line": 7}))
MODIFIED: Final = Modified(
    delivery_failed=True, undeliverable_here=True, message_annotations={Symbol("x-opt-reason"): "bruised"}
)

OUTCOMES: Final[dict[str, object]] = {
    "accepted": ACCEPTED,
    "rejected": REJECTED,
    "released": RELEASED,
    "modified": MODIFIED,
}
"""The outcome of a message sent to one of these addresses. At any other it is accepted and stored."""

MISSING: Final = "missing"
"""The address at which there is nothing to attach to."""

NOT_FOUND: Final = Error(Condition.NOT_FOUND, "there is no such node")


def judge(mechanism: str, response: bytes) -> SaslCode:
    """Let in whoever claims nothing, and the one user with the right password."""
    if mechanism == PLAIN:
        return SaslCode.OK if parse_plain(response) == (USER, PASSWORD) else SaslCode.AUTH
    return accept_anonymous(mechanism, response)


SASL: Final = SaslServer(mechanisms=(MSSBCBS, PLAIN, ANONYMOUS, EXTERNAL), authenticate=judge, required=False)


@dataclass(frozen=True, slots=True)
class Stored:
    """A message that a queue holds."""

    payload: bytes
    message_format: int = 0
    settled: bool = False
    """True if it is delivered settled."""


class NodeServer:
    """The server, in a thread of its own, from ``with`` to the end of it.

    Whatever the engine reports is in ``events``. A peer that breaks the protocol does not stay unnoticed: the ``with``
    fails at its end, unless the test expected the violation and took it out of ``violations``.
    """

    def __init__(
        self,
        configuration: Configuration | None = None,
        *,
        sasl: SaslServer | None = SASL,
        credit: int = 100,
        silent: bool = False,
    ) -> None:
        self.configuration = configuration or Configuration(container_id="node-server")
        self.sasl = sasl
        self.credit = credit
        """The maximum number of messages in flight of a sender."""
        self.silent = silent
        """True if ``tick`` is never called, so that there are no heartbeats."""
        self.port = 0
        self.events: list[Event] = []
        self.violations: list[ProtocolError] = []
        self.queues: defaultdict[str, deque[Stored]] = defaultdict(deque)
        self.connections: list[NodeConnection] = []
        self._failures: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="node-server")

    def __enter__(self) -> Self:
        self._thread.start()
        eventually(lambda: self.port)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        eventually(lambda: not self._thread.is_alive())
        if kind is None:
            assert not self._failures, self._failures
            assert not self.violations, self.violations

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(lambda _, context: self._failures.append(context))
        self._stopped = asyncio.Event()
        server = await self._loop.create_server(lambda: NodeConnection(self), "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        await self._stopped.wait()
        server.close()
        for connection in self.connections:
            connection.abort()
            await connection.lost
        await server.wait_closed()

    # What a test asks and does.

    def seen(self, kind: type[E]) -> list[E]:
        """The events of one kind, so far."""
        return [event for event in self.events if isinstance(event, kind)]

    def arrived(self, address: str) -> list[Delivery]:
        """The messages that were sent to an address, so far."""
        return [
            event
            for event in self.events
            if isinstance(event, Delivery) and _address_of(cast("Attach", event.link.peer).target) == address
        ]

    def settled(self) -> list[Delivery]:
        """The messages that we sent and that the peer gave a state, in that order, so far."""
        return [
            delivery
            for event in self.seen(DispositionReceived)
            for delivery in event.deliveries
            if delivery.link.role == SENDER
        ]

    def put(self, address: str, *messages: Stored) -> None:
        """Let a queue have more messages, for whoever has credit."""

        def add() -> None:
            self.queues[address].extend(messages)
            for connection in self.connections:
                connection.deliver()
                connection.flush()

        self._call(add)

    def act(self, action: Callable[[NodeConnection], T]) -> T:
        """Do something to the newest connection, and send what comes of it."""

        def act() -> T:
            connection = self.connections[-1]
            result = action(connection)
            connection.flush()
            return result

        return self._call(act)

    def _call(self, function: Callable[[], T]) -> T:
        """Call a function in the server's thread."""

        async def call() -> T:
            return function()

        future = asyncio.run_coroutine_threadsafe(call(), self._loop)
        eventually(future.done)
        return future.result()


class NodeConnection(asyncio.Protocol):
    """One connection of the server: the engine's shell, and what a container of queues does with the events."""

    def __init__(self, server: NodeServer) -> None:
        self.engine = Connection(server.configuration, server.sasl)
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._over = False
        self._tags = itertools.count()
        self._on_loan: dict[Delivery, tuple[str, Stored]] = {}

    # The shell.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._server.connections.append(self)

    def data_received(self, data: bytes) -> None:
        try:
            events = self.engine.receive_data(data)
        except ProtocolError as error:
            events = cast("list[Event]", error.events)
            self._fail(error)
        for event in events:
            self._answer(event)
            self._server.events.append(event)
        self.flush()

    def connection_lost(self, _error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.lost.set_result(None)

    def flush(self) -> None:
        """Send what there is to send, and hang up when both ends have said their last."""
        if not self._server.silent and not self._over:
            self._tick()
        data = self.engine.data_to_send()
        if data:
            self._transport.write(data)
        if self._over:
            self._transport.write_eof()

    def abort(self) -> None:
        self._transport.abort()

    def _tick(self) -> None:
        try:
            next_ms = self.engine.tick(int(self._loop.time() * 1000))
        except ProtocolError as error:
            self._fail(error)
            next_ms = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if next_ms is not None:
            self._timer = self._loop.call_at((next_ms + 1) / 1000, self.flush)

    def _fail(self, error: ProtocolError) -> None:
        self._over = True
        self._server.violations.append(error)

    # The container of queues.

    def _answer(self, event: Event) -> None:
        match event:
            case ConnectionOpened():
                self.engine.open()
            case ConnectionClosed():
                self._over = True
            case SessionBegun(session=session):
                session.begin()
            case LinkAttached(link=link):
                self._attach(link)
            case LinkDetached(link=link):
                self._call_in(lambda delivery: delivery.link is link)
            case SessionEnded(session=session):
                self._call_in(lambda delivery: delivery.link.session is session)
            case CreditGranted(link=link):
                self._deliver_on(link)
            case Delivery():
                self._take(event)
            case DispositionReceived(deliveries=deliveries, state=state, settled=settled):
                for delivery in deliveries:
                    self._hand_back(delivery, state, settled)

    def _attach(self, link: Link) -> None:
        attach = cast("Attach", link.peer)
        if MISSING in {_address_of(attach.source), _address_of(attach.target)}:
            link.refuse(NOT_FOUND)
            return
        link.attach(source=attach.source, target=attach.target)
        if link.role == RECEIVER:
            link.flow(self._server.credit)

    def _take(self, delivery: Delivery) -> None:
        """Receive a message: keep it or not, and settle it as its address says."""
        link = delivery.link
        address = _address_of(cast("Attach", link.peer).target)
        state = OUTCOMES.get(address, ACCEPTED)
        if address not in OUTCOMES:
            self._server.queues[address].append(Stored(delivery.payload, delivery.message_format))
        if link.rcv_settle_mode == ReceiverSettleMode.SECOND:
            link.update(delivery, state)
        else:
            link.settle(delivery, state)
        if link.credit <= self._server.credit // 2:
            link.flow(self._server.credit)
        self.deliver()

    def link(self, name: str) -> Link:
        """Find a link by its name."""
        links = [link for session in self.engine.sessions.values() for link in session.links.values()]
        return next(link for link in links if link.name == name)

    def deliver(self) -> None:
        """Send what the queues hold to whoever has credit for it."""
        for session in self.engine.sessions.values():
            for link in session.links.values():
                if link.role == SENDER and link.is_attached:
                    self._deliver_on(link)

    def _deliver_on(self, link: Link) -> None:
        address = _address_of(cast("Attach", link.peer).source)
        queue = self._server.queues[address]
        while queue and link.credit > 0 and link.is_attached:  # it may have gone since the peer gave the credit
            stored = queue.popleft()
            tag = b"tag-%d" % next(self._tags)
            delivery = link.send(stored.payload, tag=tag, message_format=stored.message_format, settled=stored.settled)
            if not delivery.settled:
                self._on_loan[delivery] = address, stored
        if link.drain:
            link.drained()

    def _hand_back(self, delivery: Delivery, state: object, settled: bool) -> None:
        """Learn what the peer made of a message; one that it gives back is the next to be delivered."""
        loan = self._on_loan.pop(delivery, None)
        if loan is None:
            return
        address, stored = loan
        if isinstance(state, Released | Modified):
            self._server.queues[address].appendleft(stored)
        if not settled:
            delivery.link.settle(delivery, state)
        self.deliver()

    def _call_in(self, is_gone: Callable[[Delivery], bool]) -> None:
        """Take back the messages that were out when their link went."""
        for delivery in [delivery for delivery in reversed(self._on_loan) if is_gone(delivery)]:
            address, stored = self._on_loan.pop(delivery)
            self._server.queues[address].appendleft(stored)


def _address_of(terminus: Source | Target | None) -> str:
    return "" if terminus is None or terminus.address is None else terminus.address
