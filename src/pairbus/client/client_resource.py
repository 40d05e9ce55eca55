"""Base class of senders, receivers and clients, and the protocols between a factory, its resources and a pair."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from pairbus.client.amqp.link import RequestLink
from pairbus.client.amqp.receiving_link import ReceiveOptions, ReceivingLink
from pairbus.client.amqp.sending_link import SendingLink
from pairbus.client.endpoint import Endpoint
from pairbus.client.entity_link import EntityLink, SendBatch
from pairbus.client.errors import ClosedError, MessagingError
from pairbus.client.message import BrokeredMessage
from pairbus.client.sending_link_factory import SendingLinkFactory
from pairbus.client.settings import MessagingFactorySettings


class Primary(SendingLinkFactory, Protocol):
    """A factory that can be paired with a secondary namespace."""

    @property
    def endpoint(self) -> Endpoint: ...

    @property
    def is_closed(self) -> bool: ...

    def ended(self) -> asyncio.Future[None]:
        """Return a future that is done when the factory is closed or faulted."""

    def fault(self, error: BaseException) -> None: ...

    def limit_send_attempts(self, attempt_s: float) -> None:
        """Limit every later send attempt to ``attempt_s`` seconds."""


class SendRoute(Protocol):
    """The route of one sender's messages: to the primary namespace or to a backlog queue."""

    @property
    def is_direct(self) -> bool:
        """True if a message sent now goes straight to the primary, over the sender's own link."""

    def check(self, message: BrokeredMessage, payload: bytes) -> None:
        """Raise ``MessagingError`` if the message cannot be sent on every route."""

    def check_batch(self, payloads: list[bytes]) -> None:
        """Raise ``MessagingError`` if the messages do not fit into one batch on every route."""

    def check_schedule(self) -> None:
        """Raise ``MessagingError`` if messages cannot be scheduled, because no sequence numbers can be returned."""

    def confirmed(self) -> None:
        """Record that a message was sent straight to the primary and confirmed."""

    def divert(self, payload: bytes) -> Coroutine[Any, Any, None] | None:
        """Return the coroutine that sends one message to the backlog queue in use.

        Returns ``None`` if the message has to be sent by ``send`` instead.
        """

    async def send(self, batch: SendBatch, failure: MessagingError | None, started_s: float | None) -> None:
        """Send over the current route; ``failure`` is the error of an earlier attempt straight to the primary."""


class Pairing(Protocol):
    """The connection between two paired namespaces."""

    def route(self, entity_link: EntityLink) -> SendRoute:
        """Return the route for the sender that sends to the primary over ``entity_link``."""

    async def close(self) -> None:
        """Stop everything that was started for the pair, because the primary factory is closed."""


P = TypeVar("P", bound=Pairing)


class PairedNamespaceOptions(ABC, Generic[P]):
    """Options for ``MessagingFactory.pair_namespace``."""

    @abstractmethod
    async def pair(self, primary: Primary) -> P:
        """Pair the namespaces and return the pairing; on failure, raise the error and undo what was done."""


class ResourceFactory(Protocol):
    """The interface of the factory that a client resource uses."""

    @property
    def endpoint(self) -> Endpoint: ...

    @property
    def settings(self) -> MessagingFactorySettings: ...

    @property
    def send_attempt_s(self) -> float:
        """The timeout of one send attempt, in seconds."""

    @property
    def pairing(self) -> Pairing | None:
        """The pairing of the namespace; ``None`` if it is not paired."""

    def check_open(self) -> None:
        """Raise if the factory is closed or faulted."""

    def check_faulted(self) -> None:
        """Raise if the factory is faulted."""

    def reached(self) -> asyncio.Future[None]:
        """Return a future that is done when the namespace is next reached."""

    def forget_token(self, path: str) -> None:
        """Discard the rejected token of an entity, so that the next link requests a new one."""

    async def open_sending_link(self, path: str, properties: Mapping[str, object] | None = None) -> SendingLink: ...

    async def open_receiving_link(self, path: str, options: ReceiveOptions) -> ReceivingLink: ...

    async def open_request_link(self, address: str, entity: str) -> RequestLink: ...

    def adopt(self, resource: ClientResource) -> None:
        """Register a resource, to close it when the factory is closed."""

    def release(self, resource: ClientResource) -> None:
        """Unregister a resource that has been closed."""


class ClientResource(ABC):
    """Base class of senders, receivers, sessions and clients."""

    def __init__(self, factory: ResourceFactory, path: str) -> None:
        self._factory = factory
        self._path = path
        self._is_closed = False
        self._closing: asyncio.Task[None] | None = None
        factory.adopt(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._path!r}{', closed' if self._is_closed else ''}>"

    @property
    def path(self) -> str:
        return self._path

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    async def close(self) -> None:
        """Close the links. Closing twice is safe; if the caller is cancelled, closing continues in the background."""
        self._is_closed = True
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            await self._close_links()
        finally:
            self._factory.release(self)

    @abstractmethod
    async def _close_links(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _check_open(self) -> None:
        self._factory.check_open()
        if self._is_closed:
            raise ClosedError(f"this {type(self).__name__} has been closed", entity=self._path)
