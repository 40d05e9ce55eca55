"""A connection: the AMQP engine with a byte stream, a clock, and the links that it carries."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
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
_FAREWELL_S: Final = 5.0
"""How long we wait for the peer to say goodbye as well."""


class AmqpConnection(asyncio.Protocol):
    """One connection. When it is lost, it is lost for good: another one is opened."""

    def __init__(self, endpoint: Endpoint, settings: MessagingFactorySettings, credentials: Credentials) -> None:
        self.endpoint = endpoint
        self.settings = settings
        self.send_attempt_s = settings.attempt_s
        """How long a link that sends waits for anything to be confirmed."""

        self.loop = asyncio.get_running_loop()
        self.error: MessagingError | None = None
        """Why it is gone; ``None`` while it is there."""

        self.is_service_bus = isinstance(credentials, TokenProvider)
        """Whether the peer knows what Service Bus adds to AMQP: only there are tokens put."""

        self.is_writable = True
        """Whether the peer keeps up with what we send."""

        self.unflushed_bytes = 0
        """How much has been written since the last flush, more or less."""

        self.received_s = self.loop.time()
        """When we last heard from the peer."""

        self.links: dict[LinkEnd, None] = {}
        self.engine = Connection(
            Configuration(
                container_id=f"pairbus-{uuid4().hex}",
                hostname=endpoint.host,
                channel_max=0xFFFF,
                idle_time_out_ms=int(settings.idle_timeout.total_seconds() * 1_000),
                max_unsettled=(1 << 31) - 1,  # the application says how many it takes
                strict=False,
            ),
            plain(credentials.user, credentials.password) if isinstance(credentials, PlainCredentials) else anonymous(),
        )
        self._transport: asyncio.Transport | None = None
        self._opened: asyncio.Future[None] = self.loop.create_future()
        self.gone: asyncio.Future[None] = self.loop.create_future()
        """Done when the connection is."""

        self._lost: asyncio.Future[None] = self.loop.create_future()
        """Done when the transport is closed, too."""

        self._flushing: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    async def open(
        cls, endpoint: Endpoint, settings: MessagingFactorySettings, credentials: Credentials
    ) -> AmqpConnection:
        """Connect, say who we are, and open; raises ``MessagingError``."""
        connection = cls(endpoint, settings, credentials)
        try:
            await connect(connection, endpoint, settings)
            await connection._opened
        except BaseException as error:
            connection.fail(error if isinstance(error, MessagingError) else _gave_up(endpoint))
            raise
        if connection.error is not None:  # it opened and closed in one breath
            raise connection.error.copy()
        return connection

    @property
    def announced_name(self) -> str | None:
        """The name that the namespace announces in its open frame; ``None`` if it announces none that can be one."""
        peer = self.engine.peer
        name = None if peer is None else (peer.properties or {}).get(NAMESPACE)
        return str(name) if isinstance(name, str) and _NAME.fullmatch(name) else None

    @property
    def attempt_s(self) -> float:
        """How long whoever needs an answer before sending waits for it."""
        return min(self.settings.attempt_s, self.send_attempt_s)

    def limit_send_attempts(self, attempt_s: float) -> None:
        """Have links wait so long for anything to be confirmed, also those that wait already."""
        self.send_attempt_s = attempt_s
        for link in self.links:
            link.on_limit()

    async def close(self) -> None:
        """Say goodbye, and wait a little for the peer to do the same."""
        if self.error is None:
            self.engine.close()
            self.flush()
            try:
                async with asyncio.timeout(_FAREWELL_S):
                    await asyncio.shield(self.gone)
            except TimeoutError:
                pass
            finally:
                self.fail(MessagingCommunicationError("the connection has been closed"))
        await self._hung_up()

    async def _hung_up(self) -> None:
        """Wait until the socket is closed, which TLS takes a few words for."""
        if self._transport is not None:
            await asyncio.wait((self._lost,), timeout=_HANG_UP_S)
            if not self._lost.done():
                self._transport.abort()
                await asyncio.sleep(0)

    def fail(self, error: MessagingError, *, politely: bool = False) -> None:
        """Give the connection up, and tell everyone who counts on it. ``politely`` lets what we said last get out."""
        if self.error is not None:
            return
        self.error = error
        for handle in (self._flushing, self._timer):
            if handle is not None:
                handle.cancel()
        if not self._opened.done():
            self._opened.set_exception(error.copy())
            self._opened.exception()  # nobody may be waiting
        if not self.gone.done():
            self.gone.set_result(None)
        for link in [*self.links]:
            link.lose(error)
        if self._transport is not None:
            if politely and not self._transport.get_write_buffer_size():
                self._transport.close()
            else:  # a peer that does not read would keep us waiting
                self._transport.abort()

    # What we send.

    def flush_soon(self) -> None:
        """Send what the engine has written, together with what else is written in this turn of the loop."""
        if self._flushing is None:
            self._flushing = self.loop.call_soon(self.flush)

    def flush(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        if self._transport is not None and self.error is None:
            self.unflushed_bytes = 0
            data = self.engine.data_to_send()
            if data and not self._transport.is_closing():  # else asyncio complains of every one
                self._transport.write(data)

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True
        for link in [*self.links]:
            link.on_credit()

    # What we receive.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none, and do as well
        if self.error is not None:
            self._transport.abort()
            return
        self.engine.open()
        self._tick()
        self.flush()

    def data_received(self, data: bytes) -> None:
        if self.error is not None:
            return
        self.received_s = self.loop.time()
        fault: ProtocolError | None = None
        try:
            events = self.engine.receive_data(data)
        except ProtocolError as error:
            events, fault = error.events, error
        for event in events:
            handle = _HANDLERS.get(type(event))
            if handle is not None:
                handle(event)
            elif isinstance(event, LinkAttached):
                self.attached(event)
            elif isinstance(event, ConnectionOpened):
                self.opened()
            elif isinstance(event, ConnectionClosed):
                self.closed(event.error)
        self.flush()
        if fault is not None:
            self.fail(_fault(fault))

    def eof_received(self) -> None:
        self.fail(MessagingCommunicationError(f"{self.endpoint} has hung up"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._lost.done():
            self._lost.set_result(None)
        reason = f": {exc}" if exc is not None else ""
        self.fail(MessagingCommunicationError(f"the connection to {self.endpoint} was lost{reason}"))

    def opened(self) -> None:
        """The peer has opened too."""
        self._tick()
        if not self._opened.done():
            self._opened.set_result(None)

    def attached(self, event: LinkAttached) -> None:
        """The peer has attached a link: one of ours, or it is confused, and to answer would confuse it more."""
        if event.link.context is not None:
            event.link.context.on_attached(event.link, event.attach)
        elif event.link.local is LinkState.UNATTACHED:
            self.fail(MessagingCommunicationError(f"{self.endpoint} has attached a link that nobody asked for"))

    def closed(self, reason: Error | None) -> None:
        """The peer has closed."""
        self.flush()
        self.fail(lost(reason, "the connection"), politely=True)

    # Time.

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
    """What a connection tells the end of a link that it carries. All links of a session have one end."""

    error: MessagingError | None = None

    def on_attached(self, link: Any, attach: Any) -> None:
        """The peer has attached."""

    def on_detached(self, reason: Any) -> None:
        """The peer has detached."""

    def on_ended(self, reason: Any) -> None:
        """The peer has ended the session."""

    def on_credit(self) -> None:
        """There may be room to send."""

    def on_limit(self) -> None:
        """How long to wait is another time now."""

    def on_drained(self) -> None:
        """The peer has given all credit back."""

    def on_delivery(self, delivery: Delivery) -> None:
        """A message has come."""

    def on_outcome(self, deliveries: list[Delivery], state: Any, settled: bool) -> None:
        """The peer has told what became of some deliveries."""

    def lose(self, error: MessagingError) -> None:
        """The link is gone."""


def _gave_up(endpoint: Endpoint) -> MessagingCommunicationError:
    return MessagingCommunicationError(f"the connection to {endpoint} was given up before it was open")


def _fault(error: ProtocolError) -> MessagingError:
    if isinstance(error, AuthenticationError):
        hint = "check the user name and the password, or whether the peer wants any"
        return UnauthorizedError(error.description, condition=str(error.condition), hint=hint)
    return MessagingCommunicationError(str(error), condition=str(error.condition))


def _ended(event: SessionEnded) -> None:
    if event.session.context is not None:
        event.session.context.on_ended(event.error)


def _detached(event: LinkDetached) -> None:
    if event.link.context is not None:
        event.link.context.on_detached(event.error)


def _credited(event: CreditGranted) -> None:
    if event.link.context is not None:
        event.link.context.on_credit()


def _drained(event: LinkDrained) -> None:
    if event.link.context is not None:
        event.link.context.on_drained()


def _delivered(delivery: Delivery) -> None:
    if delivery.link.context is not None:
        delivery.link.context.on_delivery(delivery)


def _disposed(event: DispositionReceived) -> None:
    link = event.deliveries[0].link.context
    if link is not None:
        link.on_outcome(event.deliveries, event.state, event.settled)


_HANDLERS: Final[dict[type, Callable[[Any], None]]] = {
    SessionEnded: _ended,
    LinkDetached: _detached,
    CreditGranted: _credited,
    LinkDrained: _drained,
    Delivery: _delivered,
    DispositionReceived: _disposed,
}
"""What is done about the events of sessions and links; the others need nothing."""
