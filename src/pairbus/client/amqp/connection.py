"""A client connection: the AMQP engine with a transport, a clock, and its links."""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final, cast
from uuid import uuid4

from pairbus.client.amqp.conditions import lost
from pairbus.client.amqp.transport import connect
from pairbus.client.endpoint import Endpoint
from pairbus.client.errors import MessagingCommunicationError, MessagingError, UnauthorizedError
from pairbus.client.settings import MessagingFactorySettings
from pairbus.client.token_provider import Credentials, PlainCredentials, TokenProvider
from pairbus.dialect.annotations import NAMESPACE
from pairbus.wire import (
    AuthenticationError,
    Configuration,
    Connection,
    ConnectionClosed,
    ConnectionOpened,
    CreditGranted,
    Delivery,
    DispositionReceived,
    Error,
    Event,
    LinkAttached,
    LinkDetached,
    LinkDrained,
    ProtocolError,
    SessionEnded,
    anonymous,
    plain,
)
from pairbus.wire.states import LinkState

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,48}[A-Za-z0-9])?")
_HANG_UP_S: Final = 1.0
_CLOSE_TIMEOUT_S: Final = 5.0
"""The time to wait for the peer's close frame."""


class ClientConnection:
    """One connection. It does not reconnect: after an error another one has to be opened.

    It has the methods of ``asyncio.Protocol``, which cannot be the base of a compiled class.
    """

    def __init__(self, endpoint: Endpoint, settings: MessagingFactorySettings, credentials: Credentials) -> None:
        self.endpoint = endpoint
        self.settings = settings
        self.send_attempt_s = settings.attempt_s
        """The timeout in seconds of a sending link without any confirmation."""

        self.loop = asyncio.get_running_loop()
        self.error: MessagingError | None = None
        """The error that ended the connection; ``None`` while it is open."""

        self.is_service_bus = isinstance(credentials, TokenProvider)
        """True if the peer supports the extensions of Service Bus: only then tokens are used."""

        self.is_writable = True
        """False while the peer reads more slowly than we send."""

        self.unflushed_bytes = 0
        """The approximate number of bytes written since the last flush."""

        self.received_s = self.loop.time()
        """The time at which data was last received from the peer."""

        self.links: dict[LinkEnd, None] = {}
        self.engine = Connection(
            Configuration(
                container_id=f"pairbus-{uuid4().hex}",
                hostname=endpoint.host,
                channel_max=0xFFFF,
                idle_time_out_ms=int(settings.idle_timeout.total_seconds() * 1_000),
                max_unsettled=(1 << 31) - 1,  # the application limits them by credit
                strict=False,
            ),
            plain(credentials.user, credentials.password) if isinstance(credentials, PlainCredentials) else anonymous(),
        )
        self._transport: asyncio.Transport | None = None
        self._opened: asyncio.Future[None] = self.loop.create_future()
        self.gone: asyncio.Future[None] = self.loop.create_future()
        """Done when the connection is closed or lost."""

        self._lost: asyncio.Future[None] = self.loop.create_future()
        """Done when the transport is closed as well."""

        self._flushing: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    async def open(
        cls, endpoint: Endpoint, settings: MessagingFactorySettings, credentials: Credentials
    ) -> ClientConnection:
        """Connect, authenticate and open; raises ``MessagingError``."""
        connection = cls(endpoint, settings, credentials)
        try:
            await connect(connection, endpoint, settings)
            await connection._opened
        except BaseException as error:
            connection.fail(error if isinstance(error, MessagingError) else _abandoned(endpoint))
            raise
        if connection.error is not None:  # opened and closed at once
            raise connection.error.copy()
        return connection

    @property
    def announced_name(self) -> str | None:
        """The name that the namespace announces in its open frame; ``None`` if there is none or it is invalid."""
        peer = self.engine.peer
        name = None if peer is None else (peer.properties or {}).get(NAMESPACE)
        return str(name) if isinstance(name, str) and _NAME.fullmatch(name) else None

    @property
    def attempt_s(self) -> float:
        """The timeout in seconds of a response that is needed before sending."""
        return min(self.settings.attempt_s, self.send_attempt_s)

    def limit_send_attempts(self, attempt_s: float) -> None:
        """Set the confirmation timeout of all links, including those that are waiting already."""
        self.send_attempt_s = attempt_s
        for link in self.links:
            link.on_limit()

    async def close(self) -> None:
        """Send a close frame, and wait a few seconds for the peer's."""
        if self.error is None:
            self.engine.close()
            self.flush()
            try:
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await asyncio.shield(self.gone)
            except TimeoutError:
                pass
            finally:
                self.fail(MessagingCommunicationError("the connection has been closed"))
        await self._disconnected()

    async def _disconnected(self) -> None:
        """Wait until the socket is closed, which takes a few messages with TLS."""
        if self._transport is not None:
            await asyncio.wait((self._lost,), timeout=_HANG_UP_S)
            if not self._lost.done():
                self._transport.abort()
                await asyncio.sleep(0)

    def fail(self, error: MessagingError, *, politely: bool = False) -> None:
        """Fail the connection and all its links. ``politely`` flushes what has been written before closing."""
        if self.error is not None:
            return
        self.error = error
        for handle in (self._flushing, self._timer):
            if handle is not None:
                handle.cancel()
        if not self._opened.done():
            self._opened.set_exception(error.copy())
            self._opened.exception()  # mark as retrieved: no caller may be waiting
        if not self.gone.done():
            self.gone.set_result(None)
        for link in [*self.links]:
            link.lose(error)
        if self._transport is not None:
            if politely and not self._transport.get_write_buffer_size():
                self._transport.close()
            else:  # a peer that does not read would block the close
                self._transport.abort()

    # Sending.

    def flush_soon(self) -> None:
        """Send what the engine has written, combined with everything else written in this turn of the event loop."""
        if self._flushing is None:
            self._flushing = self.loop.call_soon(self.flush)

    def flush(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        if self._transport is not None and self.error is None:
            self.unflushed_bytes = 0
            data = self.engine.data_to_send()
            if data and not self._transport.is_closing():  # asyncio logs every write to a closing transport
                self._transport.write(data)

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True
        for link in [*self.links]:
            link.on_credit()

    # Receiving.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports only behave like one
        if self.error is not None:
            self._transport.abort()
            return
        self.engine.open()
        self._tick()
        self.flush()

    def data_received(self, data: Any) -> None:
        if self.error is not None:
            return
        self.received_s = self.loop.time()
        fault: ProtocolError | None = None
        try:
            events = self.engine.receive_data(data)
        except ProtocolError as error:
            events, fault = error.events, error
        for event in events:
            if isinstance(event, Delivery):
                end = event.link.context
                if end is not None:
                    end.on_delivery(event)
            elif isinstance(event, DispositionReceived):
                end = event.deliveries[0].link.context
                if end is not None:
                    end.on_outcome(event.deliveries, event.state, event.settled)
            else:
                self._handle(event)
        self.flush()
        if fault is not None:
            self.fail(_fault(fault))

    def _handle(self, event: Event) -> None:
        """Handle an event that does not occur for every message."""
        if isinstance(event, SessionEnded):
            end = event.session.context
            if end is not None:
                end.on_ended(event.error)
        elif isinstance(event, LinkAttached):
            self.attached(event)
        elif isinstance(event, LinkDetached | CreditGranted | LinkDrained):
            end = event.link.context
            if end is None:
                return
            if isinstance(event, LinkDetached):
                end.on_detached(event.error)
            elif isinstance(event, CreditGranted):
                end.on_credit()
            else:
                end.on_drained()
        elif isinstance(event, ConnectionOpened):
            self.opened()
        elif isinstance(event, ConnectionClosed):
            self.closed(event.error)

    def eof_received(self) -> None:
        self.fail(MessagingCommunicationError(f"{self.endpoint} closed the connection"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._lost.done():
            self._lost.set_result(None)
        reason = f": {exc}" if exc is not None else ""
        self.fail(MessagingCommunicationError(f"the connection to {self.endpoint} was lost{reason}"))

    def opened(self) -> None:
        """Handle the open frame of the peer."""
        self._tick()
        if not self._opened.done():
            self._opened.set_result(None)

    def attached(self, event: LinkAttached) -> None:
        """Handle an attach of the peer: of a link of ours, or a violation, for which the connection is failed."""
        if event.link.context is not None:
            event.link.context.on_attached(event.link, event.attach)
        elif event.link.local is LinkState.UNATTACHED:
            self.fail(MessagingCommunicationError(f"{self.endpoint} attached a link that was not requested"))

    def closed(self, reason: Error | None) -> None:
        """Handle the close frame of the peer."""
        self.flush()
        self.fail(lost(reason, "the connection"), politely=True)

    # Timers.

    def _tick(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.error is not None:
            return
        now_ms = int(self.loop.time() * 1_000)
        try:
            next_ms = self.engine.tick(now_ms)
        except ProtocolError as error:
            self.flush()
            self.fail(_fault(error))
            return
        self.flush()
        if next_ms is not None:
            self._timer = self.loop.call_later(max(0, next_ms - now_ms) / 1_000 + 0.001, self._tick)


class LinkEnd:
    """The callbacks by which a connection notifies a link. All links of a session share one."""

    error: MessagingError | None = None

    def on_attached(self, link: Any, attach: Any) -> None:
        """Handle the attach of the peer."""

    def on_detached(self, reason: Any) -> None:
        """Handle the detach of the peer."""

    def on_ended(self, reason: Any) -> None:
        """Handle the end of the session by the peer."""

    def on_credit(self) -> None:
        """Handle new credit or window space."""

    def on_limit(self) -> None:
        """Handle a change of the timeout."""

    def on_drained(self) -> None:
        """Handle the end of a drain: the peer has used up or returned all credit."""

    def on_delivery(self, delivery: Delivery) -> None:
        """Handle an incoming message."""

    def on_outcome(self, deliveries: list[Delivery], state: Any, settled: bool) -> None:
        """Handle the outcome of deliveries."""

    def lose(self, error: MessagingError) -> None:
        """Handle the loss of the link."""


def _abandoned(endpoint: Endpoint) -> MessagingCommunicationError:
    return MessagingCommunicationError(f"the connection to {endpoint} was closed before it was open")


def _fault(error: ProtocolError) -> MessagingError:
    if isinstance(error, AuthenticationError):
        hint = "check the user name and the password, or whether the peer requires any"
        return UnauthorizedError(error.description, condition=str(error.condition), hint=hint)
    return MessagingCommunicationError(str(error), condition=str(error.condition))
