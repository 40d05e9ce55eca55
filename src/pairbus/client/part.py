"""What a factory makes: something that belongs to it, works until it is closed, and is closed with it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol, Self

from pairbus.client.amqp.receiving_link import ReceivingLink, Wish
from pairbus.client.amqp.request_link import RequestLink
from pairbus.client.amqp.sending_link import SendingLink
from pairbus.client.errors import ClosedError
from pairbus.client.paired_namespace import Pairing
from pairbus.client.settings import MessagingFactorySettings


class Maker(Protocol):
    """What a part needs of its factory."""

    @property
    def settings(self) -> MessagingFactorySettings: ...

    @property
    def send_attempt_s(self) -> float:
        """How many seconds a try to send waits for an answer."""

    @property
    def pairing(self) -> Pairing | None:
        """What the namespace is paired by, if it is."""

    def check_open(self) -> None:
        """Raise if the factory is closed or faulted."""

    def check_faulted(self) -> None:
        """Raise if the factory is faulted."""

    def reached(self) -> asyncio.Future[None]:
        """Done when the namespace is reached the next time."""

    def forget_token(self, path: str) -> None:
        """The token for an entity was not good enough: put another one next time."""

    async def open_sending_link(self, path: str, properties: Mapping[str, object] | None = None) -> SendingLink: ...

    async def open_receiving_link(self, path: str, wish: Wish) -> ReceivingLink: ...

    async def open_request_link(self, address: str, entity: str) -> RequestLink: ...

    def adopt(self, part: Part) -> None:
        """Close it when the factory is closed."""

    def release(self, part: Part) -> None:
        """It has been closed."""


class Part(ABC):
    """A sender, receiver, session or client."""

    def __init__(self, maker: Maker, path: str) -> None:
        self._maker = maker
        self._path = path
        self._is_closed = False
        self._closing: asyncio.Task[None] | None = None
        maker.adopt(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._path!r}{', closed' if self._is_closed else ''}>"

    @property
    def path(self) -> str:
        """The path of the entity."""
        return self._path

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    async def close(self) -> None:
        """Let go of what it holds. To close twice is fine; one that is cancelled goes on, without being waited for."""
        self._is_closed = True
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            await self._let_go()
        finally:
            self._maker.release(self)

    @abstractmethod
    async def _let_go(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Whoever is told that a link has been closed hears why: with this part, or with a factory that was faulted."""
        try:
            yield
        except ClosedError:
            self._check_open()
            raise

    def _check_open(self) -> None:
        self._maker.check_open()
        if self._is_closed:
            raise ClosedError(f"this {type(self).__name__} has been closed", entity=self._path)
