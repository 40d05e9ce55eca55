"""The entry point to a namespace: creates senders, receivers and clients, which share one connection."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from enum import Enum
from types import NoneType, TracebackType
from typing import Final, Self

from pairbus.client.amqp.authorization import Authorization, Reconnecting
from pairbus.client.amqp.connection import ClientConnection
from pairbus.client.amqp.link import AmqpLink, RequestLink
from pairbus.client.amqp.receiving_link import ReceiveOptions, ReceivingLink
from pairbus.client.amqp.sending_link import SendingLink
from pairbus.client.client_resource import ClientResource, P, PairedNamespaceOptions, Pairing
from pairbus.client.endpoint import Endpoint, OutageLog, connect_by
from pairbus.client.entity_clients import QueueClient, SubscriptionClient, TopicClient
from pairbus.client.errors import (
    ClosedError,
    FactoryFaultedError,
    InvalidRequestError,
    MessagingError,
    MessagingTimeoutError,
    UnauthorizedError,
)
from pairbus.client.receiver import MessageReceiver
from pairbus.client.retrying import retrying
from pairbus.client.sender import MessageSender
from pairbus.client.session import MessageSession
from pairbus.client.settings import MessagingFactorySettings, ReceiveMode
from pairbus.client.token_provider import Credentials, PlainCredentials, TokenProvider
from pairbus.client.validation import check_path, check_type, shown
from pairbus.dialect.paths import split_entity_path

_log = logging.getLogger(__name__)

_NO_TIME = timedelta()
_LONGEST_MS: Final = 0xFFFFFFFF
_CLOSE_TIMEOUT_S: Final = 5.0
"""The time that resources may take to close before the connection is closed under them."""


class FactoryState(Enum):
    """The state of a factory."""

    OPEN = "open"
    CLOSED = "closed"
    FAULTED = "faulted"


_OPEN: Final = FactoryState.OPEN


class _AuthorizedConnection:
    """A connection and the tokens that authorize it."""

    def __init__(self, connection: ClientConnection, authorization: Authorization | None) -> None:
        self.connection = connection
        self.authorization = authorization

    @property
    def error(self) -> MessagingError | None:
        return self.connection.error

    async def close(self) -> None:
        if self.authorization is not None:
            await self.authorization.close()
        await self.connection.close()


class MessagingFactory:
    """Creates senders, receivers and clients of one namespace.

    It connects when the first message is sent or received, and reconnects automatically. A factory must be used in
    one event loop only.
    """

    def __init__(self, endpoint: Endpoint, credentials: Credentials, settings: MessagingFactorySettings) -> None:
        check_type("endpoint", endpoint, (Endpoint,))
        check_type("token_provider", credentials, (TokenProvider, PlainCredentials, NoneType))
        check_type("settings", settings, (MessagingFactorySettings,))
        self._endpoint = endpoint
        self._credentials = credentials
        self._settings = settings
        self._state = FactoryState.OPEN
        self._fault: BaseException | None = None
        self._resources: dict[ClientResource, None] = {}
        self._current = Reconnecting(self._connect)
        self._ending: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reached: asyncio.Future[None] | None = None
        self._outage_log = OutageLog(endpoint, _log)
        self._send_attempt_s = settings.attempt_s
        self._pairing: Pairing | None = None
        self._is_pairing = False
        self._primaries = 0
        """The number of factories that use this one as their secondary."""

        self._ended: asyncio.Future[None] | None = None
        self._connection_string: str | None = None

    @classmethod
    def from_connection_string(
        cls, connection_string: str, settings: MessagingFactorySettings | None = None
    ) -> MessagingFactory:
        """Create a factory from a connection string; raises ``ValueError`` if the connection string is invalid.

        Values in ``settings`` override ``OperationTimeout`` and ``TransportType`` of the connection string.
        """
        factory = cls(*connect_by(connection_string, settings))
        factory._connection_string = connection_string
        return factory

    @classmethod
    def create(
        cls,
        endpoint: str | Endpoint,
        token_provider: Credentials = None,
        settings: MessagingFactorySettings | None = None,
    ) -> MessagingFactory:
        """Create a factory for the namespace at an address such as ``sb://contoso.servicebus.windows.net``."""
        where = Endpoint.parse(endpoint) if isinstance(endpoint, str) else endpoint
        return cls(where, token_provider, settings or MessagingFactorySettings())

    def __repr__(self) -> str:
        return f"<MessagingFactory of {self._endpoint}, {self._state.value}>"

    @property
    def endpoint(self) -> Endpoint:
        return self._endpoint

    @property
    def credentials(self) -> Credentials:
        """The credentials that the factory authenticates with."""
        return self._credentials

    @property
    def settings(self) -> MessagingFactorySettings:
        return self._settings

    @property
    def state(self) -> FactoryState:
        return self._state

    @property
    def is_closed(self) -> bool:
        """True if the factory is closed or faulted."""
        return self._state is not FactoryState.OPEN

    @property
    def connection_string(self) -> str | None:
        """The connection string that it was created from, including the key; ``None`` if there was none."""
        return self._connection_string

    # Senders, receivers and clients.

    async def create_message_sender(self, path: str) -> MessageSender:
        """Create a sender for a queue or a topic. It connects at its first send."""
        self.check_open()
        return MessageSender(self, self._checked(path))

    async def create_message_receiver(
        self,
        path: str,
        receive_mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        *,
        prefetch_count: int = 0,
        max_auto_lock_renewal: timedelta = _NO_TIME,
    ) -> MessageReceiver:
        """Create a receiver for a queue, ``topic/Subscriptions/name``, or the ``…/$DeadLetterQueue`` of one of them.

        With ``max_auto_lock_renewal`` the lock of each message is renewed for up to that time, until it is settled.
        """
        self.check_open()
        return MessageReceiver(
            self,
            self._checked(path),
            receive_mode,
            prefetch_count=prefetch_count,
            max_auto_lock_renewal=max_auto_lock_renewal,
        )

    async def create_queue_client(
        self,
        path: str,
        receive_mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        *,
        prefetch_count: int = 0,
        max_auto_lock_renewal: timedelta = _NO_TIME,
    ) -> QueueClient:
        """Create a client that sends to a queue and receives from it."""
        self.check_open()
        return QueueClient(
            self,
            self._checked(path),
            receive_mode,
            prefetch_count=prefetch_count,
            max_auto_lock_renewal=max_auto_lock_renewal,
        )

    async def create_topic_client(self, path: str) -> TopicClient:
        """Create a client that sends to a topic."""
        self.check_open()
        return TopicClient(self, self._checked(path))

    async def create_subscription_client(
        self,
        topic_path: str,
        name: str,
        receive_mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        *,
        prefetch_count: int = 0,
        max_auto_lock_renewal: timedelta = _NO_TIME,
    ) -> SubscriptionClient:
        """Create a client that receives from a subscription and manages its rules."""
        self.check_open()
        return SubscriptionClient(
            self,
            self._checked(topic_path),
            self._checked(name),
            receive_mode,
            prefetch_count=prefetch_count,
            max_auto_lock_renewal=max_auto_lock_renewal,
        )

    async def accept_message_session(
        self,
        path: str,
        session_id: str | None = None,
        receive_mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        *,
        server_wait_time: timedelta | None = None,
        prefetch_count: int = 0,
        max_auto_lock_renewal: timedelta = _NO_TIME,
    ) -> MessageSession:
        """Lock a session of a queue or subscription: the one with this id, or the next unlocked one that has messages.

        Waits up to ``server_wait_time`` (default: the operation timeout) for a session to become available, then
        raises ``MessagingTimeoutError``. If another receiver holds the session with this id, raises
        ``SessionCannotBeLockedError``.
        """
        self.check_open()
        path = self._checked(path)
        receive_mode = ReceiveMode(receive_mode)
        check_type("server_wait_time", server_wait_time, (timedelta, NoneType))
        check_type("session_id", session_id, (str, NoneType))
        wait = self._settings.operation_timeout if server_wait_time is None else server_wait_time
        options = ReceiveOptions(
            peek_lock=receive_mode is ReceiveMode.PEEK_LOCK,
            prefetch=prefetch_count,
            wants_session=True,
            session_id=session_id,
        )
        link = await self._accept(path, options, wait.total_seconds())
        try:
            self.check_open()  # the factory may have been closed meanwhile, and would not close this session
            return MessageSession(
                self,
                path,
                link,
                receive_mode,
                prefetch_count=prefetch_count,
                max_auto_lock_renewal=max_auto_lock_renewal,
            )
        except BaseException:
            await link.close()
            raise

    async def _accept(self, path: str, options: ReceiveOptions, wait_s: float) -> ReceivingLink:
        """Lock a session. A timeout that the namespace reports, because no session is available, is not retried."""
        deadline_s = asyncio.get_running_loop().time() + wait_s

        async def attempt() -> ReceivingLink | MessagingTimeoutError:
            authorized = await self._authorized(path)
            left_s = max(0.001, deadline_s - asyncio.get_running_loop().time())
            link = ReceivingLink(
                authorized.connection,
                path,
                replace(options, session_wait_ms=min(math.ceil(left_s * 1_000), _LONGEST_MS)),
            )
            try:
                await link.attached(left_s + self._settings.attempt_s)
            except MessagingTimeoutError as error:
                if error.condition is None:  # no response at all
                    raise
                return error
            return link

        accepted = await retrying(attempt, settings=self._settings, entity=path, patience_s=wait_s)
        if isinstance(accepted, MessagingTimeoutError):
            raise accepted
        return accepted

    # Pairing.

    async def pair_namespace(self, options: PairedNamespaceOptions[P]) -> P:
        """Pair the namespace with a secondary; applies to every sender and client, created before or after this call.

        Returns the pairing when it is complete. On failure, raises the error, and the factory can be paired again.
        """
        self.check_open()
        check_type("options", options, (PairedNamespaceOptions,))
        if self._pairing is not None or self._is_pairing:
            raise InvalidRequestError(f"the factory of {self._endpoint} is already paired; it can be paired only once")
        if self._primaries:
            raise InvalidRequestError(
                f"the factory of {self._endpoint} is the secondary of a pair and cannot be paired itself"
            )
        self._is_pairing = True
        try:
            pairing = await options.pair(self)
        finally:
            self._is_pairing = False
        self._pairing = pairing
        if self.is_closed:  # while pairing: the call that closed it did not know of the pair
            await pairing.close()
            self.check_open()
        for resource in self._resources:
            if isinstance(resource, MessageSender):
                resource.pair(pairing)
        return pairing

    @property
    def pairing(self) -> Pairing | None:
        return self._pairing

    def enlist(self) -> None:
        """Mark the factory as a secondary; raises ``InvalidRequestError`` if it is paired itself."""
        self.check_open()
        if self._pairing is not None or self._is_pairing:
            raise InvalidRequestError(f"the factory of {self._endpoint} is paired itself and cannot be a secondary")
        self._primaries += 1

    def dismiss(self) -> None:
        """Remove the mark of a secondary when the pair is closed."""
        self._primaries -= 1

    @property
    def send_attempt_s(self) -> float:
        return self._send_attempt_s

    @property
    def _attempt_s(self) -> float:
        """The timeout in seconds of each step towards a sending link: connect, authorize, attach.

        All links share the connection. A step that took longer than a send attempt would delay the first send after an
        outage.
        """
        return min(self._settings.attempt_s, self._send_attempt_s)

    def limit_send_attempts(self, attempt_s: float) -> None:
        self._send_attempt_s = min(attempt_s, self._settings.operation_timeout.total_seconds())
        authorized = self._current.ready
        if authorized is not None:
            authorized.connection.limit_send_attempts(self._send_attempt_s)

    # Closing.

    def ended(self) -> asyncio.Future[None]:
        """Return a future that is done when the factory is closed or faulted."""
        if self._ended is None:
            self._ended = asyncio.get_running_loop().create_future()
            if self.is_closed:
                self._ended.set_result(None)
        return asyncio.shield(self._ended)  # a caller that stops waiting must not cancel it for the others

    async def close(self) -> None:
        """Close the factory and everything created by it. Closing twice is safe."""
        if self._state is FactoryState.OPEN:
            self._state = FactoryState.CLOSED
        await asyncio.shield(self._end())

    def fault(self, error: BaseException) -> None:
        """Fault the factory: it and everything created by it raise ``FactoryFaultedError`` with this cause."""
        if self._state is FactoryState.OPEN:
            self._state = FactoryState.FAULTED
            self._fault = error
            self._end()

    def _end(self) -> asyncio.Task[None]:
        """Shut down once, in a task, so that it completes even if the caller does not wait."""
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._shut_down())
            if self._ended is not None:
                self._ended.set_result(None)
        return self._ending

    async def _shut_down(self) -> None:
        closing = [asyncio.ensure_future(resource.close()) for resource in [*self._resources]]
        if self._pairing is not None:
            closing.append(asyncio.ensure_future(self._pairing.close()))
        if closing:  # all at once: each waits for the peer, which may not answer
            await asyncio.wait(closing, timeout=_CLOSE_TIMEOUT_S)
        authorized = await self._current.clear()
        if authorized is not None:
            await authorized.close()
        for outcome in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(outcome, Exception):
                _log.warning('close failed endpoint=%s error="%s"', self._endpoint, outcome)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # For the resources.

    def check_open(self) -> None:
        """Raise if the factory is closed or faulted."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError("the factory belongs to another event loop; create one per loop or use pairbus.blocking")
        if self._state is not _OPEN:
            self.check_faulted()
            raise ClosedError(f"the factory of {self._endpoint} has been closed")

    def check_faulted(self) -> None:
        """Raise if the factory is faulted."""
        if self._state is FactoryState.FAULTED:
            error = FactoryFaultedError(f"the factory of {self._endpoint} is faulted: {self._fault}")
            raise error from self._fault

    def _checked(self, path: str) -> str:
        """Return the path if it is valid; raise ``TypeError`` or ``ValueError`` if not.

        The namespace would treat some invalid characters as the end of the path and attach the link to another entity.
        Other brokers have their own rules for addresses, so only paths of a Service Bus namespace are checked.
        """
        check_type("path", path, (str,))
        if not isinstance(self._credentials, TokenProvider):
            return path
        inner = path.strip("/")
        check_path("path", inner)
        if split_entity_path(inner) is None:
            raise ValueError(f"{shown(path)} is not the path of a queue, topic or subscription")
        return inner

    def adopt(self, resource: ClientResource) -> None:
        self._resources[resource] = None

    def release(self, resource: ClientResource) -> None:
        self._resources.pop(resource, None)

    async def open_sending_link(self, path: str, properties: Mapping[str, object] | None = None) -> SendingLink:
        authorized = await self._authorized(path)
        link = SendingLink(authorized.connection, path, properties)
        await self._attached(link, path, self._attempt_s)
        return link

    async def open_receiving_link(self, path: str, options: ReceiveOptions) -> ReceivingLink:
        authorized = await self._authorized(path)
        link = ReceivingLink(authorized.connection, path, options)
        await self._attached(link, path)
        return link

    async def open_request_link(self, address: str, entity: str) -> RequestLink:
        authorized = await self._authorized(entity)
        link = RequestLink(authorized.connection, address, entity)
        await self._attached(link, entity)
        return link

    async def _attached(self, link: AmqpLink, path: str, timeout_s: float | None = None) -> None:
        try:
            await link.attached(self._settings.attempt_s if timeout_s is None else timeout_s)
        except UnauthorizedError:
            self.forget_token(path)
            raise

    def forget_token(self, path: str) -> None:
        """Discard the token of an entity, because the key's claims may have changed; the next link gets another."""
        authorized = self._current.ready
        if authorized is not None and authorized.authorization is not None:
            authorized.authorization.forget(path)

    async def _authorized(self, path: str) -> _AuthorizedConnection:
        """Return the connection, authorized for an entity."""
        self.check_open()
        authorized = await self._current.get()
        if authorized.authorization is not None:
            await authorized.authorization.authorize(path)
        return authorized

    async def greet(self, path: str) -> None:
        """Get a response from the namespace, independent of its entities; raises ``MessagingError``."""
        self.check_open()
        authorized = await self._current.get()
        if authorized.authorization is not None:
            authorized.authorization.forget(path)
            await authorized.authorization.authorize(path)

    async def announced_name(self) -> str | None:
        """Return the name that the namespace announces on connection; ``None`` if it announces none.

        Connects if needed, without a key; raises ``MessagingError`` if that fails.
        """
        self.check_open()
        return (await self._current.get()).connection.announced_name

    def reached(self) -> asyncio.Future[None]:
        """Return a future that is done when the namespace is next reached, so that a pending retry need not wait."""
        if self._reached is None or self._reached.done():
            self._reached = asyncio.get_running_loop().create_future()
        return self._reached

    async def _connect(self) -> _AuthorizedConnection:
        """Connect; log an outage once when it begins and once when it ends."""
        self.check_open()
        try:
            authorized = await self._try_to_connect()
        except MessagingError as error:
            self._outage_log.failed(error)
            raise
        self._outage_log.reached()
        authorized.connection.send_attempt_s = self._send_attempt_s
        authorized.connection.gone.add_done_callback(lambda _: self._disconnected(authorized.connection))
        if self._reached is not None and not self._reached.done():
            self._reached.set_result(None)
        return authorized

    def _disconnected(self, connection: ClientConnection) -> None:
        if self._state is FactoryState.OPEN and self._ending is None:
            self._outage_log.began(connection.error, "reconnecting on demand")

    async def _try_to_connect(self) -> _AuthorizedConnection:
        timeout_s = self._attempt_s
        try:
            async with asyncio.timeout(timeout_s) as limit:
                connection = await ClientConnection.open(self._endpoint, self._settings, self._credentials)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise MessagingTimeoutError(f"{self._endpoint} did not respond within {timeout_s:g} s") from error
        provider = self._credentials
        return _AuthorizedConnection(
            connection, Authorization(connection, provider) if isinstance(provider, TokenProvider) else None
        )
