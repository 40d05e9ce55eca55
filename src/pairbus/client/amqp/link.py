"""The end of a link, from attach to detach."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from pairbus.client.amqp.conditions import error_from, lost
from pairbus.client.amqp.connection import AmqpConnection, LinkEnd
from pairbus.client.errors import (
    ClosedError,
    InvalidRequestError,
    MessagingCommunicationError,
    MessagingError,
    MessagingTimeoutError,
)
from pairbus.wire import (
    Accepted,
    Attach,
    Error,
    Link,
    LocalProtocolError,
    Modified,
    Rejected,
    Released,
    Session,
)

OUTCOMES: Final = (Accepted, Rejected, Released, Modified)
_DETACH_S: Final = 5.0
"""How long we wait for the peer to let go as well."""


class AmqpLink(LinkEnd):
    """A link on a session of its own, so that what happens to one does not happen to another.

    Once it is lost it is lost for good, and ``error`` says why.
    """

    def __init__(self, connection: AmqpConnection, entity: str) -> None:
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
            raise MessagingCommunicationError(str(error), entity=entity) from error
        self.session.context = self
        connection.links[self] = None

    def attach(self, name: str, role: bool, **options: Any) -> Link:
        """Attach a link of the session."""
        try:
            link = self.session.attach(name, role, **options)
        except LocalProtocolError as error:
            self.lose(ClosedError("the link could not be attached", entity=self.entity))
            raise InvalidRequestError(f"no link can be attached like this: {error}", entity=self.entity) from error
        link.context = self
        self._links.append(link)
        self._waiting_for += 1
        self.connection.flush_soon()
        return link

    async def attached(self, timeout_s: float) -> None:
        """Wait until the peer has attached too; raises why it has not."""
        started_s = self.connection.loop.time()
        try:
            async with asyncio.timeout(timeout_s) as limit:
                await asyncio.shield(self._attached)
        except TimeoutError as error:
            if not limit.expired():
                raise
            late = MessagingTimeoutError(f"the link was not attached within {timeout_s:g} s", entity=self.entity)
            self.suspect(late, started_s)
            raise late from error
        except BaseException:
            self.lose(ClosedError("the link was given up before it was attached", entity=self.entity))
            raise

    def on_attached(self, link: Link, attach: Attach) -> None:
        # A link that leads nowhere is a refusal: the reason follows in a detach (part 2.6.3).
        if (attach.target if attach.role else attach.source) is None:
            return
        self.accept(link, attach)
        self._waiting_for -= 1
        if not self._waiting_for and not self._attached.done():
            self._attached.set_result(None)

    def accept(self, link: Link, attach: Attach) -> None:
        """Take note of what the peer has said in its attach."""

    def on_detached(self, reason: Error | None) -> None:
        if self._is_closing:  # it answers us
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
                self._attached.exception()  # nobody may be waiting
            self.on_lost(error)
        if not self._detached.done():
            self._detached.set_result(None)

    def on_lost(self, error: MessagingError) -> None:
        """Tell everyone who counts on the link."""

    def suspect(self, error: MessagingError, since_s: float) -> None:
        """Give the link up because an answer did not come; and the connection, if nothing at all has come since."""
        if self.connection.received_s <= since_s:
            self.connection.fail(MessagingCommunicationError(f"nothing came from {self.connection.endpoint} any more"))
        self.lose(error)

    async def close(self) -> None:
        """Detach, and wait a little for the peer to do so too: then what we held is free."""
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
