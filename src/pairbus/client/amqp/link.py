"""A client link, from attach to detach, and the request link on top of it."""

from __future__ import annotations

import asyncio
from typing import Any, Final
from uuid import uuid4

from pairbus.client.amqp.conditions import error_from, lost
from pairbus.client.amqp.connection import ClientConnection, LinkEnd
from pairbus.client.errors import (
    ClosedError,
    InternalServerError,
    InvalidRequestError,
    MessageSizeExceededError,
    MessagingCommunicationError,
    MessagingError,
    MessagingTimeoutError,
)
from pairbus.dialect.management import Request, Response, read_response, write_request
from pairbus.wire import (
    ACCEPTED,
    RECEIVER,
    SENDER,
    Accepted,
    Attach,
    Delivery,
    Error,
    Link,
    LocalProtocolError,
    Modified,
    ProtocolError,
    ReceiverSettleMode,
    Rejected,
    Released,
    SenderSettleMode,
    Session,
    Source,
    Target,
)

OUTCOMES: Final = (Accepted, Rejected, Released, Modified)
_DETACH_S: Final = 5.0
"""The time to wait for the peer's detach."""


class AmqpLink(LinkEnd):
    """A link on its own session, so that a failure of one link does not affect another.

    It does not reconnect; ``error`` is the error that ended it.
    """

    def __init__(self, connection: ClientConnection, entity: str) -> None:
        if connection.error is not None:
            raise connection.error.copy(entity)
        self.connection = connection
        self.entity = entity
        self.error: MessagingError | None = None
        self._links: list[Link] = []
        self._waiting_for = 0
        self._is_closing = False
        loop = connection.loop
        self._attached: asyncio.Future[None] = loop.create_future()
        self._detached: asyncio.Future[None] = loop.create_future()
        try:
            self.session: Session = connection.engine.begin()
        except LocalProtocolError as error:
            raise MessagingCommunicationError(str(error), entity=entity).caused_by(error) from error
        self.session.context = self
        connection.links[self] = None

    def attach(self, name: str, role: bool, **options: Any) -> Link:
        """Attach a link to the session."""
        try:
            link = self.session.attach(name, role, **options)
        except LocalProtocolError as error:
            self.lose(ClosedError("the link could not be attached", entity=self.entity))
            invalid = InvalidRequestError(f"invalid attach: {error}", entity=self.entity)
            raise invalid.caused_by(error) from error
        link.context = self
        self._links.append(link)
        self._waiting_for += 1
        self.connection.flush_soon()
        return link

    async def attached(self, timeout_s: float) -> None:
        """Wait for the attach of the peer; raise the error if it refuses."""
        started_s = self.connection.loop.time()
        try:
            async with asyncio.timeout(timeout_s) as limit:
                await asyncio.shield(self._attached)
        except TimeoutError as error:
            if not limit.expired():
                raise
            late = MessagingTimeoutError(f"the link was not attached within {timeout_s:g} s", entity=self.entity)
            self.suspect(late, started_s)
            raise late.caused_by(error) from error
        except BaseException:
            self.lose(ClosedError("the link was abandoned before it was attached", entity=self.entity))
            raise

    def on_attached(self, link: Link, attach: Attach) -> None:
        # An attach without a terminus is a refusal: the reason follows in a detach (part 2.6.3).
        if (attach.target if attach.role else attach.source) is None:
            return
        self.accept(link, attach)
        self._waiting_for -= 1
        if not self._waiting_for and not self._attached.done():
            self._attached.set_result(None)

    def accept(self, link: Link, attach: Attach) -> None:
        """Store the parameters of the peer's attach."""

    def on_detached(self, reason: Error | None) -> None:
        if self._is_closing:  # the answer to our detach
            self.lose(ClosedError("the link has been closed", entity=self.entity))
        else:
            self.lose(lost(None, "the link") if reason is None else error_from(reason, self.entity))

    def on_ended(self, reason: Error | None) -> None:
        # Some peers refuse a link by ending its session.
        is_refusal = reason is not None and not self._attached.done()
        self.lose(error_from(reason, self.entity) if reason is not None and is_refusal else lost(reason, "the session"))

    def lose(self, error: MessagingError) -> None:
        if self.error is None:
            self.error = error = error.copy(self.entity)
            self.connection.links.pop(self, None)
            self.session.context = None
            for link in self._links:
                link.context = None
            self.session.end()
            self.connection.flush_soon()
            if not self._attached.done():
                self._attached.set_exception(error.copy())
                self._attached.exception()  # mark as retrieved: no caller may be waiting
            self.on_lost(error)
        if not self._detached.done():
            self._detached.set_result(None)

    def on_lost(self, error: MessagingError) -> None:
        """Notify everything that depends on the link."""

    def suspect(self, error: MessagingError, since_s: float) -> None:
        """Fail the link because of a missing response; fail the connection too if it has received nothing since."""
        if self.connection.received_s <= since_s:
            self.connection.fail(MessagingCommunicationError(f"no data received from {self.connection.endpoint}"))
        self.lose(error)

    async def close(self) -> None:
        """Detach, and wait a few seconds for the peer's detach, which releases its locks."""
        if self.error is not None:
            return
        self._is_closing = True
        for link in self._links:
            link.detach()
        self.connection.flush()
        try:
            await asyncio.wait((self._detached,), timeout=_DETACH_S)
        finally:
            self.lose(ClosedError("the link has been closed", entity=self.entity))


_CREDIT: Final = 100
_MORE_BELOW: Final = 50


class RequestLink(AmqpLink):
    """Sends requests, and matches responses to them."""

    def __init__(self, connection: ClientConnection, address: str, entity: str) -> None:
        super().__init__(connection, entity)
        self._waiting: dict[str, asyncio.Future[Response]] = {}
        self._queue: list[tuple[bytes, str]] = []
        self._reply_to = f"pairbus-{uuid4().hex}"
        self._sender: Link = self.attach(
            f"{self._reply_to}-requests",
            SENDER,
            source=Source(address=self._reply_to),
            target=Target(address=address),
            snd_settle_mode=SenderSettleMode.UNSETTLED,
            rcv_settle_mode=ReceiverSettleMode.FIRST,
        )
        self._receiver: Link = self.attach(
            self._reply_to,
            RECEIVER,
            source=Source(address=address),
            target=Target(address=self._reply_to),
            rcv_settle_mode=ReceiverSettleMode.FIRST,
        )
        self._receiver.flow(_CREDIT)

    async def ask(self, operation: str, body: Any = None, properties: dict[str, Any] | None = None) -> Response:
        """Send a request and return its response, of any status. The caller sets the timeout."""
        if self.error is not None:
            raise self.error.copy()
        message_id = uuid4().hex
        payload = self._request(message_id, operation, body, properties or {})
        future: asyncio.Future[Response] = self.connection.loop.create_future()
        self._waiting[message_id] = future
        self._queue.append((payload, message_id))
        self.on_credit()
        try:
            return await future
        finally:
            self._waiting.pop(message_id, None)

    def _request(self, message_id: str, operation: str, body: Any, properties: dict[str, Any]) -> bytes:
        try:
            payload = write_request(
                Request(
                    operation=operation,
                    message_id=message_id,
                    reply_to=self._reply_to,
                    properties=properties,
                    body=body,
                )
            )
        except LocalProtocolError as error:
            invalid = InvalidRequestError(f"the request cannot be encoded: {error}", entity=self.entity)
            raise invalid.caused_by(error) from error
        most = self._sender.remote_max_message_size
        if most and len(payload) > most:
            raise MessageSizeExceededError(
                f"the request has {len(payload):,} bytes, the limit is {most:,}", entity=self.entity
            )
        return payload

    def on_credit(self) -> None:
        while self._queue and self._sender.can_send and self.connection.is_writable:
            payload, message_id = self._queue.pop(0)
            if message_id in self._waiting:
                self._sender.send(payload, tag=bytes.fromhex(message_id)).context = message_id
                self.connection.flush_soon()
        if self._sender.drain and not self._queue:
            self._sender.drained()
            self.connection.flush_soon()

    def on_outcome(self, deliveries: list[Delivery], state: Any, settled: bool) -> None:
        for delivery in deliveries:
            if not settled:
                delivery.link.settle(delivery)
            if isinstance(state, Rejected):
                future = self._waiting.get(delivery.context)
                if future is not None and not future.done():
                    future.set_exception(
                        InternalServerError("the request was refused", entity=self.entity)
                        if state.error is None
                        else error_from(state.error, self.entity)
                    )

    def on_delivery(self, delivery: Delivery) -> None:
        self._receiver.settle(delivery, ACCEPTED)
        if self._receiver.credit < _MORE_BELOW:
            self._receiver.flow(_CREDIT)
        try:
            message_id, response = read_response(delivery.payload)
        except ProtocolError as error:
            self.lose(InternalServerError(f"malformed response: {error}", entity=self.entity))
            return
        future = self._waiting.get(str(message_id))
        if future is not None and not future.done():
            future.set_result(response)

    def on_lost(self, error: MessagingError) -> None:
        self._queue.clear()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error.copy())
