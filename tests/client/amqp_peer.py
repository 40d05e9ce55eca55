"""A scripted peer of the client's connection: behaves as a namespace does, or as none should.

Client and peer share an event loop with virtual time, so that no test waits for a clock.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Final, TypeVar, cast

from pairbus.client.amqp.connection import ClientConnection
from pairbus.client.endpoint import Endpoint
from pairbus.client.factory import MessagingFactory
from pairbus.client.settings import MessagingFactorySettings
from pairbus.client.token_provider import Credentials, TokenProvider
from pairbus.dialect.annotations import LOCKED_UNTIL, LOCKED_UNTIL_UTC, SEQUENCE_NUMBER, SESSION_FILTER, to_ticks
from pairbus.dialect.management import Operation, Request, Response, read_request, write_response
from pairbus.dialect.paths import CBS
from pairbus.dialect.sent import BATCH_FORMAT, split_batch
from pairbus.wire import (
    ACCEPTED,
    RECEIVER,
    SENDER,
    Attach,
    Configuration,
    Connection,
    ConnectionOpened,
    CreditGranted,
    Delivery,
    DispositionReceived,
    Error,
    Event,
    Link,
    LinkAttached,
    Message,
    Properties,
    ProtocolError,
    ReceiverSettleMode,
    SaslServer,
    SessionBegun,
    Source,
    Symbol,
    Timestamp,
    encode_message,
)
from tests.faults.virtual_loop import VirtualLoop
from tests.waiting import eventually_async

T = TypeVar("T")
E = TypeVar("E")

START_S: Final = 1_700_000_000
LOCK_S: Final = 60
HEARTBEAT: Final = bytes.fromhex("0000000802000000")
ROOT: Final = TokenProvider.from_key("root", "secret")
_TOKEN_CREDIT: Final = 100
_LONGEST_S: Final = 7 * 86_400.0
_SETTLED_S: Final = 0.1
"""More than it takes for what has been said to be heard, and answered."""


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Run to the end, and check that nothing is left: no task, no connection, no unretrieved error."""
    loop = VirtualLoop()
    gc.freeze()  # objects created before are irrelevant, and take long to collect

    async def bounded() -> None:
        async with asyncio.timeout(_LONGEST_S):
            await scenario
        await asyncio.sleep(_SETTLED_S)
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not left, f"tasks are left behind: {left}"

    try:
        with wall_clock(loop):
            try:
                loop.run_until_complete(bounded())
                streams = [*loop.network.streams]
            finally:
                _end(loop)
        gc.collect()
        assert not streams, "connections are left open"
        assert not loop.complaints, loop.complaints
    finally:
        gc.unfreeze()
        loop.close()


def _end(loop: VirtualLoop) -> None:
    """Let nothing of a test that failed disturb the next one."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))


@contextmanager
def wall_clock(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """The time of day goes with the loop's."""
    real = time.time
    time.time = lambda: START_S + loop.time()
    try:
        yield
    finally:
        time.time = real


def now() -> datetime:
    return datetime.fromtimestamp(time.time(), UTC)


async def settled() -> None:
    """Wait until everything that has been said is heard, and answered."""
    await asyncio.sleep(_SETTLED_S)


async def until(condition: Callable[[], T | None]) -> T:
    """Wait until something is so, for a virtual minute at the most."""
    return await eventually_async(condition, 60.0, every_s=0.01)


def message_bytes(
    body: bytes = b"body", *, sequence_number: int | None = None, locked_s: float | None = None, **properties: Any
) -> bytes:
    """A message as a namespace delivers it."""
    annotations: dict[Any, Any] = {}
    if sequence_number is not None:
        annotations[Symbol(SEQUENCE_NUMBER)] = sequence_number
    if locked_s is not None:
        annotations[Symbol(LOCKED_UNTIL)] = Timestamp(int((time.time() + locked_s) * 1_000))
    return encode_message(
        Message(message_annotations=annotations or None, properties=Properties(**properties), body=(body,))
    )


def lock_token(number: int) -> bytes:
    return number.to_bytes(16, "big")


Answer = Response | bytes | None
"""The response to a request: an answer, bytes (which may be empty), or none."""


class Peer:
    """A namespace as it is, unless a test changes one of these."""

    def __init__(self) -> None:
        self.credit = 1_000
        """The credit of a sender when it attaches."""
        self.replenishes = True
        """True if it gets more when half of that is used."""
        self.max_message_size: int | None = None
        self.properties: dict[str, Any] = {}
        """The properties of its attach to a sender."""
        self.mode: ReceiverSettleMode | None = None
        """The receiver settle mode of the answer, instead of the requested one."""
        self.refusals: deque[Error | None] = deque()
        """The errors for the next attaches; ``None`` to let one pass."""
        self.attaches = True
        """True if attaches are answered, other than those for tokens."""
        self.begins = True
        self.opens = True
        self.closing: Error | None = None
        """The error with which connections are closed instead of opened."""
        self.outcome: Callable[[Delivery], object] = lambda _delivery: ACCEPTED
        """The outcome of a sent message; ``None`` for no response."""
        self.verdict: Callable[[Delivery, object], object] = lambda _delivery, _state: ACCEPTED
        """The response to a settlement; ``None`` for no response."""
        self.answers: dict[str, Callable[[Request], Answer]] = defaultdict(lambda: lambda _request: Response())
        """The responses to the requests of an operation."""
        self.session_id: object = None
        """The session id that receivers get, instead of the requested one."""
        self.locked_until: object = None
        """The lock expiry of that session, regardless of the time."""
        self.drains = True
        """True if credit is returned when the receiver drains."""
        self.stock: deque[bytes] = deque()
        """The messages that receivers get."""
        self.configuration = Configuration(container_id="peer", max_unsettled=1_000_000)
        self.sasl = SaslServer()

        self.connections: list[PeerConnection] = []
        self.received: list[Delivery] = []
        """The messages that were sent here, in their order."""
        self.requests: list[Request] = []
        """Other than those that put tokens."""
        self._tags = count(1)
        self._server: asyncio.AbstractServer | None = None
        self.port = 0

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: PeerConnection(self), "127.0.0.1", self.port)
        self.port = cast("Any", self._server).port

    def stop(self) -> None:
        """Take no more connections."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def close(self) -> None:
        self.stop()
        for connection in self.connections:
            connection.hang_up()

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint("127.0.0.1", self.port, tls=False)

    @property
    def last(self) -> PeerConnection:
        return self.connections[-1]

    @property
    def bodies(self) -> list[bytes]:
        return [delivery.payload for delivery in self.received]

    def seen(self, kind: type[E]) -> list[E]:
        return [event for connection in self.connections for event in connection.events if isinstance(event, kind)]

    def links(self, role: bool) -> list[Link]:
        """The links that are attached for messages; the role is the client's."""
        return [link for link in self.all_links() if link.role is not role and not _is_node(link)]

    def all_links(self) -> list[Link]:
        """The links that are attached, other than those for tokens."""
        return [
            event.link
            for connection in self.connections
            for event in connection.events
            if isinstance(event, LinkAttached)
            and event.link.is_attached
            and not connection.is_lost
            and _address(event.link) != CBS
        ]

    @property
    def attached(self) -> list[LinkAttached]:
        """Every attach so far, other than those for tokens."""
        return [event for event in self.seen(LinkAttached) if _address(event.link) != CBS]

    @property
    def sender(self) -> Link:
        """The one link that the client sends messages on."""
        [link] = self.links(SENDER)
        return link

    @property
    def receiver(self) -> Link:
        """The one link that the client receives messages on."""
        [link] = self.links(RECEIVER)
        return link

    def settle(self, deliveries: list[Delivery], state: object = ACCEPTED) -> None:
        for delivery in deliveries:
            delivery.link.settle(delivery, state)
        self.flush()

    def deliver(self, payload: bytes, link: Link | None = None, tag: bytes | None = None) -> Delivery:
        """Send a message to a receiver, whether it has given credit or not."""
        chosen = self.receiver if link is None else link
        delivery = chosen.send(payload, tag=tag or lock_token(next(self._tags)), beyond_credit=True)
        self.flush()
        return delivery

    def detach(self, link: Link, error: Error | None = None) -> None:
        link.detach(error=error)
        self.flush()

    def flush(self) -> None:
        for connection in self.connections:
            connection.flush()

    def supply(self, link: Link) -> None:
        """Send what there is credit for."""
        while self.stock and link.can_send:
            link.send(self.stock.popleft(), tag=lock_token(next(self._tags)))
        if link.drain and self.drains:
            link.drained()


def batches(peer: Peer) -> list[list[bytes]]:
    """The messages that were sent, transfer by transfer."""
    return [
        split_batch(delivery.payload) if delivery.message_format == BATCH_FORMAT else [delivery.payload]
        for delivery in peer.received
    ]


def _address(link: Link) -> str:
    """The address that a link of the client is attached to."""
    return _address_of(link.peer and (link.peer.target if link.role is RECEIVER else link.peer.source))


def _address_of(terminus: object) -> str:
    return str(getattr(terminus, "address", ""))


def _is_node(link: Link) -> bool:
    return _address(link).rpartition("/")[2].startswith("$")


class PeerConnection(asyncio.Protocol):
    """A connection of the client."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.engine = Connection(peer.configuration, peer.sasl)
        self.events: list[Event] = []
        self.violation: ProtocolError | None = None
        self.is_deaf = False
        """True if everything received is ignored."""
        self.is_lost = False
        self.transport: asyncio.Transport | None = None
        self._replies: dict[str, Link] = {}
        self._tags = count(1)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.peer.connections.append(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (it is gone either way)
        self.is_lost = True

    def flush(self) -> None:
        data = self.engine.data_to_send()
        if data and self.transport is not None and not self.is_lost and not self.is_deaf:
            self.transport.write(data)

    def beat(self) -> None:
        """Send a heartbeat."""
        if self.transport is not None and not self.is_lost:
            self.transport.write(HEARTBEAT)

    def hang_up(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def pause(self) -> None:
        """Read no more."""
        assert self.transport is not None
        self.transport.pause_reading()

    def resume(self) -> None:
        assert self.transport is not None
        self.transport.resume_reading()

    def close(self, error: Error | None = None) -> None:
        self.engine.close(error=error)
        self.flush()

    def data_received(self, data: bytes) -> None:
        if self.is_deaf:
            return
        try:
            events = self.engine.receive_data(data)
        except ProtocolError as error:
            events, self.violation = error.events, error
        for event in events:
            self.events.append(event)
            self._answer(event)
        self.flush()
        if self.engine.is_finished:
            self.hang_up()

    def _answer(self, event: Event) -> None:
        match event:
            case ConnectionOpened():
                if self.peer.closing is not None:
                    self.engine.close(error=self.peer.closing)
                elif self.peer.opens:
                    self.engine.open()
            case SessionBegun() if self.peer.begins:
                event.session.begin()
            case LinkAttached() if self.peer.attaches or _address(event.link) == CBS:
                self._attach(event.link, event.attach)
            case CreditGranted() if not _is_node(event.link):
                self.peer.supply(event.link)
            case Delivery():
                self._receive(event)
            case DispositionReceived() if event.deliveries[0].link.role == SENDER:
                self._confirm(event)

    def _attach(self, link: Link, attach: Attach) -> None:
        is_for_tokens = _address(link) == CBS
        refusal = self.peer.refusals.popleft() if self.peer.refusals and not is_for_tokens else None
        if refusal is not None:
            link.refuse(refusal)
        elif is_for_tokens and link.role == RECEIVER:
            link.attach(source=attach.source, target=attach.target)
            link.flow(_TOKEN_CREDIT)
        elif link.role == RECEIVER:
            link.attach(
                source=attach.source,
                target=attach.target,
                max_message_size=self.peer.max_message_size,
                properties=self.peer.properties,
            )
            if self.peer.credit:
                link.flow(self.peer.credit)
        else:
            source, properties = self._session(attach)
            link.attach(source=source, target=attach.target, rcv_settle_mode=self.peer.mode, properties=properties)
            self._replies[getattr(attach.target, "address", "")] = link

    def _session(self, attach: Attach) -> tuple[Any, dict[str, Any] | None]:
        """The session that a receiver gets: the one that it wants, or any."""
        wanted = getattr(attach.source, "filter", None) or {}
        if SESSION_FILTER not in wanted:
            return attach.source, None
        session_id = self.peer.session_id or wanted[SESSION_FILTER] or "next"
        locked_until = self.peer.locked_until or to_ticks(int((time.time() + LOCK_S) * 1_000))
        source = Source(address=_address_of(attach.source), filter={Symbol(SESSION_FILTER): session_id})
        return source, {LOCKED_UNTIL_UTC: locked_until}

    def _receive(self, delivery: Delivery) -> None:
        if _is_node(delivery.link):
            self._answer_request(delivery)
            return
        self.peer.received.append(delivery)
        outcome = self.peer.outcome(delivery)
        if outcome is not None:
            delivery.link.settle(delivery, outcome)
        if self.peer.replenishes and delivery.link.credit < self.peer.credit // 2:
            delivery.link.flow(self.peer.credit)

    def _answer_request(self, delivery: Delivery) -> None:
        delivery.link.settle(delivery, ACCEPTED)
        delivery.link.flow(_TOKEN_CREDIT if _address(delivery.link) == CBS else self.peer.credit)
        request = read_request(delivery.payload)
        if request.operation != Operation.PUT_TOKEN:
            self.peer.requests.append(request)
        self.reply(request, self.peer.answers[request.operation](request))

    def reply(self, request: Request, answer: Answer) -> None:
        if answer is not None:
            payload = write_response(request, answer) if isinstance(answer, Response) else answer
            self._replies[str(request.reply_to)].send(payload, tag=next(self._tags).to_bytes(4, "big"), settled=True)
            self.flush()

    def _confirm(self, event: DispositionReceived) -> None:
        for delivery in event.deliveries:
            if not event.settled:
                state = self.peer.verdict(delivery, event.state)
                if state is not None:
                    delivery.link.settle(delivery, state)


@asynccontextmanager
async def scripted(
    credentials: Credentials = ROOT, peer: Peer | None = None, **settings: Any
) -> AsyncIterator[tuple[Peer, MessagingFactory]]:
    """A peer, and a factory that takes it for a namespace."""
    chosen = peer or Peer()
    await chosen.listen()
    factory = MessagingFactory.create(chosen.endpoint, credentials, MessagingFactorySettings(**settings))
    try:
        yield chosen, factory
    finally:
        await factory.close()
        chosen.close()


@asynccontextmanager
async def connected(peer: Peer | None = None, **settings: Any) -> AsyncIterator[tuple[Peer, ClientConnection]]:
    """A peer, and a connection to it."""
    chosen = peer or Peer()
    await chosen.listen()
    try:
        connection = await ClientConnection.open(chosen.endpoint, MessagingFactorySettings(**settings), ROOT)
        try:
            yield chosen, connection
        finally:
            await connection.close()
    finally:
        chosen.close()


SECOND: Final = timedelta(seconds=1)
