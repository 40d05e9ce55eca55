"""The sender of a queue or a topic."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import overload

from pairbus.client.client_resource import ClientResource, Pairing, ResourceFactory, SendRoute
from pairbus.client.entity_link import EntityLink, SendBatch
from pairbus.client.errors import ClosedError, MessagingError
from pairbus.client.message import BrokeredMessage, encode_brokered, messages_of
from pairbus.client.node import ManagementClient, sequence_numbers
from pairbus.client.tracing import TraceContext, is_tracing, trace_sending


class MessageSender(ClientResource):
    """Sends messages; a message is confirmed when it is durable on the namespace.

    Concurrent sends are pipelined: they go out in the order of the calls, without waiting for each other's
    confirmation.
    """

    def __init__(self, factory: ResourceFactory, path: str) -> None:
        super().__init__(factory, path)
        self._entity_link = EntityLink(factory, path)
        self._node = ManagementClient(factory, path)
        self._route = None if factory.pairing is None else factory.pairing.route(self._entity_link)

    def pair(self, pairing: Pairing) -> None:
        """Route the messages through a pair from now on."""
        self._route = pairing.route(self._entity_link)

    async def send(self, message: BrokeredMessage | Iterable[BrokeredMessage]) -> None:
        """Send one or several messages; returns when the namespace has confirmed all of them.

        Several messages are packed into as few batches as the entity's limit allows. Each batch is stored completely or
        not at all. If a batch fails permanently its error is raised; the outcome of the other batches is not reported.
        """
        self._check_open()
        if not isinstance(message, BrokeredMessage) or is_tracing():
            await self._send_traced([message] if isinstance(message, BrokeredMessage) else messages_of(message))
            return
        payload, route = self._encoded(message), self._route
        if route is not None and not route.is_direct:
            await self._send_indirectly(route, payload)
            return
        link = self._entity_link.ready
        if link is None:
            await self._send_batch(SendBatch([payload]))
            return
        started_s = link.connection.loop.time()  # the common case, kept short
        link.check_size(len(payload))
        try:
            await link.send(payload)
        except MessagingError as error:
            await self._send_batch(SendBatch([payload]), error, started_s)
        else:
            if route is not None:
                route.confirmed()

    async def _send_indirectly(self, route: SendRoute, payload: bytes) -> None:
        diversion = route.divert(payload)
        if diversion is None:
            await self._send_batch(SendBatch([payload]))
            return
        try:
            await diversion
        except ClosedError:
            self._check_open()  # raises the cause
            raise

    async def _send_traced(self, messages: list[BrokeredMessage]) -> None:
        with trace_sending(messages, self._path, self._factory.endpoint) as contexts:
            await self._send_batch(SendBatch(self._all_encoded(messages, contexts)))

    async def send_batch(self, messages: Iterable[BrokeredMessage]) -> None:
        """Send messages as one batch, which is stored completely or not at all.

        Raises ``MessageSizeExceededError`` if they do not fit into one.
        """
        self._check_open()
        batch = messages_of(messages)
        with trace_sending(batch, self._path, self._factory.endpoint) as contexts:
            payloads = self._all_encoded(batch, contexts)
            if self._route is not None:
                self._route.check_batch(payloads)
            await self._send_batch(SendBatch(payloads, whole=True))

    def _all_encoded(self, messages: list[BrokeredMessage], contexts: Iterable[TraceContext | None]) -> list[bytes]:
        # Without tracing there is no end of contexts.
        return [self._encoded(message, context) for message, context in zip(messages, contexts, strict=False)]

    def _encoded(self, message: BrokeredMessage, context: TraceContext | None = None) -> bytes:
        payload = encode_brokered(message, None, context)
        if self._route is not None:
            self._route.check(message, payload)
        return payload

    async def _send_batch(
        self, batch: SendBatch, failure: MessagingError | None = None, started_s: float | None = None
    ) -> None:
        try:
            await (self._route or self._entity_link).send(batch, failure, started_s)
        except ClosedError:
            self._check_open()  # raises the cause
            raise

    @overload
    async def schedule(self, message: BrokeredMessage, at: datetime) -> int: ...

    @overload
    async def schedule(self, message: Iterable[BrokeredMessage], at: datetime) -> list[int]: ...

    async def schedule(self, message: BrokeredMessage | Iterable[BrokeredMessage], at: datetime) -> int | list[int]:
        """Schedule messages for a time; return the sequence numbers with which they can be cancelled until then."""
        self._check_open()
        messages = [message] if isinstance(message, BrokeredMessage) else messages_of(message)
        with trace_sending(messages, self._path, self._factory.endpoint, "schedule") as contexts:
            if self._route is not None:
                self._all_encoded(messages, contexts)
                self._route.check_schedule()
            numbers = await self._node.schedule(messages, at, contexts) if messages else []
        return numbers[0] if isinstance(message, BrokeredMessage) else numbers

    async def cancel_scheduled(self, sequence_number: int | Iterable[int]) -> None:
        """Cancel scheduled messages; raises ``MessageNotFoundError`` if one of them is no longer scheduled."""
        self._check_open()
        numbers = sequence_numbers(sequence_number)
        if numbers:
            await self._node.cancel_scheduled(numbers)

    async def _close_links(self) -> None:
        await self._entity_link.close()
        await self._node.close()
