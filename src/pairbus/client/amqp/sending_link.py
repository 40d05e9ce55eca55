"""A link that we send on: as many messages at a time as the namespace takes."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import count
from typing import Any, Final
from uuid import uuid4

from pairbus.client.amqp.conditions import error_from
from pairbus.client.amqp.connection import AmqpConnection
from pairbus.client.amqp.link import AmqpLink
from pairbus.client.errors import (
    InternalServerError,
    MessageSizeExceededError,
    MessagingError,
    MessagingTimeoutError,
)
from pairbus.dialect.annotations import MAX_MESSAGE_BATCH_SIZE
from pairbus.wire import (
    SENDER,
    Accepted,
    Attach,
    Delivery,
    Link,
    ReceiverSettleMode,
    Rejected,
    SenderSettleMode,
    Source,
    Target,
)

_LARGE: Final = 1 << 20
_SMALL_BATCH: Final = 256 << 10
_BATCH_OF_THE_REST: Final = 1 << 20
"""What goes into a batch for a peer that names no limit."""


class SendingLink(AmqpLink):
    """Sends in the order in which it is asked to, and has each message confirmed on its own."""

    def __init__(self, connection: AmqpConnection, path: str) -> None:
        super().__init__(connection, path)
        self.max_message_bytes = 0
        """The largest message that the entity takes; 0 if it names no limit."""

        self.max_batch_bytes = _BATCH_OF_THE_REST
        self._timeout_s = min(
            connection.settings.attempt_timeout, connection.settings.operation_timeout
        ).total_seconds()
        self._queue: deque[tuple[bytes, int, asyncio.Future[None]]] = deque()
        self._pending: dict[asyncio.Future[None], float] = {}
        """What is not confirmed yet, in the order in which its time runs out, with the time when it was handed in."""

        self._timer: asyncio.TimerHandle | None = None
        self._tags = count()
        self._link: Link = self.attach(
            f"{path}-{uuid4().hex}",
            SENDER,
            source=Source(address=f"pairbus-{uuid4().hex}"),
            target=Target(address=path),
            snd_settle_mode=SenderSettleMode.UNSETTLED,
            rcv_settle_mode=ReceiverSettleMode.FIRST,
        )

    @property
    def in_flight(self) -> int:
        """How many messages are not confirmed yet."""
        return len(self._pending)

    def accept(self, link: Link, attach: Attach) -> None:
        self.max_message_bytes = link.remote_max_message_size
        told = (attach.properties or {}).get(MAX_MESSAGE_BATCH_SIZE)
        if isinstance(told, int) and told > 0:
            self.max_batch_bytes = int(told)
        elif self.max_message_bytes:  # as the service has it: 1 MB for premium namespaces, else 256 KB
            limit = _LARGE if self.max_message_bytes >= _LARGE else _SMALL_BATCH
            self.max_batch_bytes = min(limit, self.max_message_bytes)

    def check_size(self, size_bytes: int) -> None:
        """Refuse what the entity would refuse."""
        if self.max_message_bytes and size_bytes > self.max_message_bytes:
            raise MessageSizeExceededError(
                f"the message has {size_bytes:,} bytes with all its properties, and at most "
                f"{self.max_message_bytes:,} are taken",
                entity=self.entity,
            )

    def send(self, payload: bytes, message_format: int = 0) -> asyncio.Future[None]:
        """Send, now or as soon as there is room. The future is done when the namespace has confirmed the message."""
        future: asyncio.Future[None] = self.connection.loop.create_future()
        if self.error is not None:
            future.set_exception(self.error.copy())
            return future
        now_s = self.connection.loop.time()
        self._pending[future] = now_s
        if self._timer is None:
            self._timer = self.connection.loop.call_at(now_s + self._timeout_s, self._sweep)
        self._queue.append((payload, message_format, future))
        self._pump()
        return future

    def on_credit(self) -> None:
        self._pump()

    def _pump(self) -> None:
        """Send what there is credit for, while the peer keeps up with reading."""
        link, queue = self._link, self._queue
        sent = False
        while queue and link.can_send and self.connection.is_writable:
            payload, message_format, future = queue.popleft()
            if future.done():  # whoever wanted it sent has thought better of it
                self._pending.pop(future, None)
                continue
            tag = next(self._tags).to_bytes(8, "big")
            link.send(payload, tag=tag, message_format=message_format).context = future
            sent = True
        if sent:
            self.connection.flush_soon()

    def on_outcome(self, deliveries: list[Delivery], state: Any, settled: bool) -> None:
        pending = self._pending
        accepted = type(state) is Accepted
        for delivery in deliveries:
            if not settled:
                self._link.settle(delivery)
            future = delivery.context
            pending.pop(future, None)
            if not future.done():
                if accepted:
                    future.set_result(None)
                else:
                    future.set_exception(self._refusal(state))

    def _refusal(self, state: Any) -> MessagingError:
        if isinstance(state, Rejected) and state.error is not None:
            return error_from(state.error, self.entity)
        outcome = type(state).__name__.lower()
        return InternalServerError(f"the message was not taken over, but {outcome}", entity=self.entity)

    def _sweep(self) -> None:
        """Look whether the oldest has waited for too long: then those behind it wait in vain too."""
        self._timer = None
        for future in [future for future in self._pending if future.cancelled()]:
            del self._pending[future]
        if not self._pending:
            return
        since_s = next(iter(self._pending.values()))
        due_s = since_s + self._timeout_s
        if self.connection.loop.time() >= due_s:
            late = MessagingTimeoutError(f"not confirmed within {self._timeout_s:g} s", entity=self.entity)
            self.suspect(late, since_s)
        else:
            self._timer = self.connection.loop.call_at(due_s, self._sweep)

    def on_lost(self, error: MessagingError) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._queue.clear()
        pending, self._pending = self._pending, {}
        for future in pending:
            if not future.done():
                future.set_exception(error.copy())
