"""A pair of links for questions and their answers: to ``$cbs``, or to the management node of an entity."""

from __future__ import annotations

import asyncio
from typing import Any, Final
from uuid import uuid4

from pairbus.client.amqp.conditions import error_from
from pairbus.client.amqp.connection import AmqpConnection
from pairbus.client.amqp.link import AmqpLink
from pairbus.client.errors import (
    InternalServerError,
    InvalidRequestError,
    MessageSizeExceededError,
    MessagingError,
)
from pairbus.dialect.management import Request, Response, read_response, write_request
from pairbus.wire import (
    ACCEPTED,
    RECEIVER,
    SENDER,
    Delivery,
    Link,
    LocalProtocolError,
    ProtocolError,
    ReceiverSettleMode,
    Rejected,
    SenderSettleMode,
    Source,
    Target,
)

_CREDIT: Final = 100
_MORE_BELOW: Final = 50


class RequestLink(AmqpLink):
    """Asks, and finds the answer that belongs to the question."""

    def __init__(self, connection: AmqpConnection, address: str, entity: str) -> None:
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
        """Ask, and wait for the answer, whatever it is. The caller sets the limit of time."""
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
            raise InvalidRequestError(f"this cannot be asked: {error}", entity=self.entity) from error
        most = self._sender.remote_max_message_size
        if most and len(payload) > most:
            raise MessageSizeExceededError(
                f"the request has {len(payload):,} bytes, and at most {most:,} are taken", entity=self.entity
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
            self.lose(InternalServerError(f"an answer that makes no sense: {error}", entity=self.entity))
            return
        future = self._waiting.get(str(message_id))
        if future is not None and not future.done():
            future.set_result(response)

    def on_lost(self, error: MessagingError) -> None:
        self._queue.clear()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error.copy())
