"""Our engine as a client of the server: blocking, with deadlines, and with everything that an SDK would not allow."""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import pytest

from pairbus.broker import Address, QueueDescription
from pairbus.dialect.management import ASSOCIATED_LINK, Operation
from pairbus.testing import RunningNamespace
from pairbus.wire import (
    AMQP_VALUE,
    RECEIVER,
    SENDER,
    Configuration,
    Connection,
    ConnectionClosed,
    Coordinator,
    Delivery,
    Error,
    Event,
    Link,
    LinkAttached,
    LinkDetached,
    Message,
    Properties,
    ProtocolError,
    ReceiverSettleMode,
    SaslClient,
    SenderSettleMode,
    Session,
    Source,
    Symbol,
    Target,
    anonymous,
    decode_message,
    encode_message,
    plain,
)

T = TypeVar("T")
E = TypeVar("E")

DEADLINE_S: Final = 60.0
"""Generous: the machine may be shared with many other tests."""


class LinkRefusedError(Exception):
    """The server did not attach a link: its attach, which must be answered all the same, and the reason."""

    def __init__(self, attached: LinkAttached, error: Error) -> None:
        super().__init__(f"{error.condition}: {error.description}")
        self.attach = attached.attach
        self.error = error


class HungUpError(Exception):
    """The server has closed the stream."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The response to a request."""

    status: int
    description: str
    condition: str | None
    body: Any
    message: Message


def text_message(body: str | bytes = b"body", **properties: Any) -> bytes:
    """Return a message with a data body."""
    data = body.encode() if isinstance(body, str) else body
    return encode_message(Message(properties=Properties(**properties), body=(data,)))


def body_of(delivery: Delivery) -> bytes:
    return b"".join(decode_message(delivery.payload).body)


class WireClient:
    """One connection. Every wait ends within the deadline, or the test fails."""

    def __init__(
        self,
        port: int,
        *,
        sasl: SaslClient | None = None,
        has_sasl: bool = True,
        ca_file: Path | None = None,
        configuration: Configuration | None = None,
    ) -> None:
        # Not strict: the server sends responses beyond credit, because the SDK for Python grants it only once.
        chosen = configuration or Configuration(container_id="wire-client", strict=False)
        self.engine = Connection(chosen, (sasl or anonymous()) if has_sasl else None)
        self.events: list[Event] = []
        self.sent: list[bytes] = []
        """Everything that has been written, to be replayed by other tests."""
        self.failure: ProtocolError | None = None
        self._numbers = count(1)
        self._sessions: list[Session] = []
        self._hung_up = False
        plain = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket: socket.socket = plain
        if ca_file is not None:
            context = ssl.create_default_context(cafile=str(ca_file))
            self.socket = context.wrap_socket(plain, server_hostname="localhost")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    # Input and output.

    def flush(self) -> None:
        data = self.engine.data_to_send()
        if data:
            self.sent.append(data)
            try:
                self.socket.sendall(data)
            except ConnectionError:
                self._hung_up = True

    def until(self, condition: Callable[[], T | None]) -> T:
        """Exchange bytes with the server until a condition is true, and return its value."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            self.flush()
            answer = condition()
            if answer:
                return answer
            self._receive(deadline)

    def _receive(self, deadline: float) -> None:
        if self._hung_up:
            raise HungUpError(str(self.failure or self.closed))
        left = deadline - time.monotonic()
        if left <= 0:
            pytest.fail(f"the server did not answer within {DEADLINE_S:.0f} s", pytrace=True)
        self.socket.settimeout(left)
        try:
            data = self.socket.recv(1 << 16)
        except TimeoutError:
            return
        except ConnectionError:
            data = b""
        self._hung_up = not data
        try:
            self.events.extend(self.engine.receive_data(data))
        except ProtocolError as error:
            self.events.extend(error.events)
            self.failure = error
        self.flush()

    def seen(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    def hang_up(self) -> None:
        """Disconnect without closing."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self.socket.close()

    # Connections and sessions.

    def open(self) -> Self:
        self.engine.open()
        self.until(lambda: self.engine.is_open)
        return self

    @property
    def closed(self) -> Error | None:
        """Return why the server closed the connection, if it did."""
        found = self.seen(ConnectionClosed)
        return found[0].error if found else None

    def until_hung_up(self) -> Error | None:
        """Wait until the server has closed the stream; return its last error."""
        with pytest.raises(HungUpError):
            self.until(lambda: False)
        return self.closed

    def session(self) -> Session:
        """Begin a session."""
        session = self.engine.begin()
        self.until(lambda: session.is_mapped)
        self._sessions.append(session)
        return session

    @property
    def first_session(self) -> Session:
        return self._sessions[0] if self._sessions else self.session()

    def barrier(self) -> None:
        """Wait until the server has processed everything sent so far, and its immediate responses have arrived."""
        session = self.engine.begin()
        self.until(lambda: session.is_mapped)
        session.end()
        self.flush()

    # Links.

    def attach(
        self, role: bool, *, source: Any, target: Any, name: str = "", session: Session | None = None, **options: Any
    ) -> Link:
        """Attach a link and wait for the server's attach; raises ``LinkRefusedError``."""
        link = self.begin_attach(role, source=source, target=target, name=name, session=session, **options)
        return self.attached(link)

    def begin_attach(
        self, role: bool, *, source: Any, target: Any, name: str = "", session: Session | None = None, **options: Any
    ) -> Link:
        """Attach a link without waiting."""
        link = (session or self.first_session).attach(
            name or f"link-{next(self._numbers)}", role, source=source, target=target, **options
        )
        self.flush()
        return link

    def attached(self, link: Link) -> Link:
        """Wait for the server's answer to an attach; raises ``LinkRefusedError``."""
        answer = self.until(lambda: self._attach_of(link))
        near = answer.attach.target if link.role == SENDER else answer.attach.source
        if near is None:
            raise LinkRefusedError(answer, self.detached(link))
        return link

    def _attach_of(self, link: Link) -> LinkAttached | None:
        return next((event for event in self.seen(LinkAttached) if event.link is link), None)

    def attach_of(self, link: Link) -> LinkAttached:
        found = self._attach_of(link)
        assert found is not None
        return found

    def detached(self, link: Link) -> Error:
        """Wait for the server to detach a link; return the reason."""
        event = self.until(lambda: next((event for event in self.seen(LinkDetached) if event.link is link), None))
        assert event.error is not None
        assert event.closed
        return event.error

    def detach(self, link: Link) -> None:
        """Detach a link, and wait for the server's detach."""
        link.detach()
        self.until(lambda: any(event.link is link for event in self.seen(LinkDetached)))

    def sender(self, address: str, **options: Any) -> Link:
        """Return a sending link, with its credit."""
        target = Target(address=address)
        link = self.attach(SENDER, source=Source(address="here"), target=target, **options)
        self.until(lambda: link.credit)
        return link

    def receiver(self, address: str, *, credit: int = 0, deletes: bool = False, **options: Any) -> Link:
        """Return a receiving link, attached like the SDKs do."""
        link = self.attach(RECEIVER, source=Source(address=address), **_receiving(deletes), **options)
        if credit:
            link.flow(credit)
            self.flush()
        return link

    def session_receiver(
        self, address: str, session_id: object, *, credit: int = 0, deletes: bool = False, **options: Any
    ) -> Link:
        """Return a link that holds a session; with ``None``, the next one."""
        link = self.attached(self.begin_session_receiver(address, session_id, deletes=deletes, **options))
        if credit:
            link.flow(credit)
            self.flush()
        return link

    def begin_session_receiver(
        self, address: str, session_id: object, *, deletes: bool = False, **options: Any
    ) -> Link:
        source = Source(address=address, filter={Symbol("com.microsoft:session-filter"): session_id})
        return self.begin_attach(RECEIVER, source=source, **_receiving(deletes), **options)

    def coordinator(self) -> Link:
        link = self.attach(SENDER, source=Source(address="here"), target=Coordinator())
        self.until(lambda: link.credit)
        return link

    # Messages.

    def send(self, link: Link, payload: bytes, **options: Any) -> object:
        """Send a message, and wait for its outcome."""
        return self.outcome(self.begin_send(link, payload, **options))

    def begin_send(self, link: Link, payload: bytes, **options: Any) -> Delivery:
        delivery = link.send(payload, tag=next(self._numbers).to_bytes(4), **options)
        self.flush()
        return delivery

    def outcome(self, delivery: Delivery) -> object:
        """Wait for the outcome of a message that we sent."""
        self.until(lambda: delivery.settled)
        return delivery.state

    def deliveries(self, link: Link) -> list[Delivery]:
        return [delivery for delivery in self.seen(Delivery) if delivery.link is link]

    def receive(self, link: Link, number: int = 1) -> list[Delivery]:
        """Wait until that many messages have arrived on a link, since it was attached."""
        self.until(lambda: len(self.deliveries(link)) >= number)
        return self.deliveries(link)

    def is_empty(self, link: Link) -> bool:
        """Return whether nothing more can be received on a link; its credit is drained."""
        have = len(self.deliveries(link))
        link.flow(1, drain=True)
        self.until(lambda: len(self.deliveries(link)) > have or not link.credit)
        return len(self.deliveries(link)) == have

    def receive_one(self, link: Link) -> Delivery:
        """Return the next message of a link, with credit for it alone."""
        have = len(self.deliveries(link))
        link.flow(1)
        return self.receive(link, have + 1)[have]

    def settle(self, delivery: Delivery, state: object) -> object:
        """Settle a message like the SDKs do, and wait for the server's answer."""
        delivery.link.update(delivery, state)
        self.until(lambda: delivery.settled)
        return delivery.state

    # Requests.

    def requests(self, node: str, *, session: Session | None = None) -> Requests:
        """Return a pair of links to a request-response node, attached like the SDK for Python does."""
        there = session or self.first_session
        replies = self.attach(RECEIVER, source=Source(address=node), target=Target(address=node), session=there)
        asking = self.attach(SENDER, source=Source(address=node), target=Target(address=node), session=there)
        replies.flow(10_000)
        self.until(lambda: asking.credit)
        return Requests(self, asking, replies, node)

    def put_token(self, audience: str, token: str, node: Requests | None = None) -> Answer:
        return (node or self.requests("$cbs")).call(
            Operation.PUT_TOKEN, token, properties={"name": audience, "type": "jwt"}
        )


class Requests:
    """A request-response node."""

    def __init__(self, client: WireClient, asking: Link, replies: Link, node: str) -> None:
        self.asking = asking
        self.replies = replies
        self._client = client
        self._node = node
        self._numbers = count(1)
        self._read = 0
        self._answers: dict[object, Answer] = {}

    def call(
        self,
        operation: str,
        body: Any = None,
        *,
        link: str | None = None,
        message_id: Any = None,
        properties: Mapping[str, Any] | None = None,
    ) -> Answer:
        """Send a request, and wait for the response with the same id."""
        identity = message_id if message_id is not None else f"request-{self._node}-{next(self._numbers)}"
        self.ask(operation, body, link=link, message_id=identity, properties=properties)
        return self._client.until(lambda: self.answer_to(identity))

    def ask(
        self,
        operation: str,
        body: Any = None,
        *,
        link: str | None = None,
        message_id: Any = None,
        properties: Mapping[str, Any] | None = None,
    ) -> Delivery:
        """Send a request without waiting."""
        words: dict[str, Any] = {"operation": operation, **(properties or {})}
        if link is not None:
            words[ASSOCIATED_LINK] = link
        message = Message(
            properties=Properties(message_id=message_id, reply_to=self._node),
            application_properties=words,
            body=({} if body is None else body,),
            body_kind=AMQP_VALUE,
        )
        return self._client.begin_send(self.asking, encode_message(message))

    def answer_to(self, identity: object) -> Answer | None:
        """Return the response with this correlation id, of the same type."""
        events = self._client.events
        for event in events[self._read :]:
            if isinstance(event, Delivery) and event.link is self.replies:
                message = decode_message(event.payload)
                identified = message.properties.correlation_id
                self._answers[type(identified), identified] = _answer(message)
        self._read = len(events)
        return self._answers.pop((type(identity), identity), None)


# A namespace for the client.

_names = count(1)


def connect(namespace: RunningNamespace, **options: Any) -> WireClient:
    """Return a connection with all rights."""
    return WireClient(namespace.port, sasl=plain("RootManageSharedAccessKey", namespace.key), **options).open()


def fresh_queue(namespace: RunningNamespace, **settings: Any) -> str:
    """Create a new queue; return its name."""
    name = f"queue-{next(_names)}"
    namespace.call(lambda host: host.use_namespace().create_queue(name, QueueDescription(**settings), host.now_ms()))
    return name


def messages_in(namespace: RunningNamespace, address: Address) -> list[tuple[bytes, int]]:
    """Return the bodies of all messages in a queue, and their delivery counts."""
    found = namespace.call(lambda host: host.use_namespace().peek(address, 0, 10_000, host.now_ms()))
    return [(b"".join(decode_message(each.body).body), each.record.delivery_count) for each in found]


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the internal errors in the server's log."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


def _answer(message: Message) -> Answer:
    words = message.application_properties or {}
    dashed = "status-code" in words
    return Answer(
        status=words["status-code" if dashed else "statusCode"],
        description=words["status-description" if dashed else "statusDescription"],
        condition=words.get("errorCondition"),
        body=message.body[0] if message.body else None,
        message=message,
    )


def _receiving(deletes: bool) -> dict[str, Any]:
    return {
        "target": Target(address="there"),
        "snd_settle_mode": SenderSettleMode.SETTLED if deletes else SenderSettleMode.UNSETTLED,
        "rcv_settle_mode": ReceiverSettleMode.FIRST if deletes else ReceiverSettleMode.SECOND,
    }
