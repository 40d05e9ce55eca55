"""A sending link: pipelines messages within the credit of the namespace."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from uuid import uuid4

from pairbus.client.amqp.conditions import error_from
from pairbus.client.amqp.connection import ClientConnection
from pairbus.client.amqp.link import OUTCOMES, AmqpLink
from pairbus.client.errors import (
    InternalServerError,
    InvalidMessageError,
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
    LocalProtocolError,
    ReceiverSettleMode,
    Rejected,
    SenderSettleMode,
    Source,
    Symbol,
    Target,
)

_LARGE: Final = 1 << 20
_SMALL_BATCH: Final = 256 << 10
_FLUSH_BYTES: Final = 64 << 10
_BATCH_OF_THE_REST: Final = 1 << 20
"""The batch size for a peer without a limit, in bytes."""


class _Waiting(NamedTuple):
    """A message that waits for credit."""

    payload: bytes
    message_format: int
    future: asyncio.Future[None]
    since_s: float


class SendingLink(AmqpLink):
    """Sends in the order of the calls; each message is confirmed individually."""

    def __init__(self, connection: ClientConnection, path: str, properties: Mapping[str, object] | None = None) -> None:
        super().__init__(connection, path)
        self.max_message_bytes = 0
        """The size limit of the entity; 0 if there is none."""

        self.max_batch_bytes = _BATCH_OF_THE_REST
        self.takes_batches = connection.is_service_bus
        self._patience_s = connection.settings.operation_timeout.total_seconds()
        self._queue: deque[_Waiting] = deque()
        self._pending: dict[asyncio.Future[None], float] = {}
        """Unconfirmed messages, oldest first, with the time of their sending."""

        self._progress_s = connection.loop.time()
        """The time at which a message was last confirmed, or sent after a pause."""

        self._timer: asyncio.TimerHandle | None = None
        self._next_tag = 0
        self._link: Link = self.attach(
            f"{path}-{uuid4().hex}",
            SENDER,
            source=Source(address=f"pairbus-{uuid4().hex}"),
            target=Target(address=path),
            snd_settle_mode=SenderSettleMode.UNSETTLED,
            rcv_settle_mode=ReceiverSettleMode.FIRST,
            properties=None if properties is None else {Symbol(name): each for name, each in properties.items()},
        )

    @property
    def in_flight(self) -> int:
        """The number of unconfirmed messages."""
        return len(self._pending) + len(self._queue)

    def accept(self, link: Link, attach: Attach) -> None:
        self.max_message_bytes = link.remote_max_message_size
        announced = (attach.properties or {}).get(MAX_MESSAGE_BATCH_SIZE)
        if isinstance(announced, int) and announced > 0:
            self.max_batch_bytes = int(announced)
        elif self.max_message_bytes:  # as the service does: 1 MB for premium namespaces, else 256 KB
            limit = _LARGE if self.max_message_bytes >= _LARGE else _SMALL_BATCH
            self.max_batch_bytes = min(limit, self.max_message_bytes)

    def accepts(self, size_bytes: int) -> bool:
        """Return whether the entity would accept a message of this size."""
        return not self.max_message_bytes or size_bytes <= self.max_message_bytes

    def check_size(self, size_bytes: int) -> None:
        """Raise ``MessageSizeExceededError`` if the entity would reject a message of this size."""
        if not self.accepts(size_bytes):
            raise MessageSizeExceededError(
                f"the message has {size_bytes:,} bytes including its properties, the limit is "
                f"{self.max_message_bytes:,}",
                entity=self.entity,
            )

    def send(self, payload: bytes, message_format: int = 0) -> asyncio.Future[None]:
        """Send now, or as soon as there is credit. The returned future is done when the namespace has confirmed it."""
        future: asyncio.Future[None] = self.connection.loop.create_future()
        if self.error is not None:
            future.set_exception(self.error.copy())
            return future
        now_s = self.connection.loop.time()
        if not self._queue and not self._pending:
            self._progress_s = now_s
        if self._queue or not self._may_write:
            self._queue.append(_Waiting(payload, message_format, future, now_s))
            self._pump(now_s)
        else:  # the common case, kept short
            self._write(payload, message_format, future, now_s)
            self._flush_soon()
        if self._timer is None:
            self._timer = self.connection.loop.call_later(self.connection.send_attempt_s, self._sweep)
        return future

    def on_limit(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self.connection.loop.call_later(self.connection.send_attempt_s, self._sweep)

    def on_credit(self) -> None:
        self._pump(self.connection.loop.time())

    def _pump(self, now_s: float) -> None:
        """Send while there is credit, the session window has room, and the peer keeps up with reading."""
        queue = self._queue
        while queue and self._may_write:
            payload, message_format, future, _ = queue.popleft()
            if not future.done():  # else the caller has cancelled it
                self._write(payload, message_format, future, now_s)
        self._flush_soon()

    @property
    def _may_write(self) -> bool:
        """True while there is credit, the session window has room, and the peer keeps up with reading."""
        return self._link.can_send and not self._link.queued and self.connection.is_writable

    def _write(self, payload: bytes, message_format: int, future: asyncio.Future[None], now_s: float) -> None:
        connection = self.connection
        tag = self._next_tag.to_bytes(8, "big")
        self._next_tag += 1
        try:
            delivery = self._link.send(payload, tag=tag, message_format=message_format)
        except LocalProtocolError as error:
            future.set_exception(InvalidMessageError(str(error), entity=self.entity))
            return
        delivery.context = future
        self._pending[future] = now_s
        connection.unflushed_bytes += len(payload)
        # The peer can process it meanwhile; and only flushed data shows whether the peer keeps up.
        if connection.unflushed_bytes > _FLUSH_BYTES:
            connection.flush()

    def _flush_soon(self) -> None:
        if self._link.drain and not self._queue:
            self._link.drained()  # the peer drains: return the unused credit
        self.connection.flush_soon()

    def on_outcome(self, deliveries: list[Delivery], state: Any, settled: bool) -> None:
        if not settled and not isinstance(state, OUTCOMES):
            return  # an intermediate state
        pending = self._pending
        self._progress_s = self.connection.loop.time()
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
        if self._queue:
            self.on_credit()

    def _refusal(self, state: Any) -> MessagingError:
        if isinstance(state, Rejected) and state.error is not None:
            return error_from(state.error, self.entity)
        outcome = type(state).__name__.lower()
        return InternalServerError(f"the message was not accepted, outcome: {outcome}", entity=self.entity)

    def _sweep(self) -> None:
        """Fail what has waited too long: for any confirmation at all, or for its own turn."""
        now_s = self.connection.loop.time()
        queue = self._queue = deque(waiting for waiting in self._queue if not waiting.future.done())
        pending = self._pending
        for future in [future for future in pending if future.done()]:
            del pending[future]
        while queue and queue[0].since_s + self._patience_s <= now_s:
            self._give_up(queue.popleft().future, "the link had no credit, or the session window was full")
        while pending and next(iter(pending.values())) + self._patience_s <= now_s:
            future = next(iter(pending))
            del pending[future]
            self._give_up(future, "not confirmed")
        if not pending and not queue:
            self._timer = None
            return
        timeout_s = self.connection.send_attempt_s
        due_s = self._progress_s + timeout_s
        if now_s >= due_s:
            self._timer = None
            waits_for = "not confirmed" if pending else "there was no credit to send with"
            late = MessagingTimeoutError(f"{waits_for} within {timeout_s:g} s", entity=self.entity)
            self.suspect(late, self._progress_s)
            return
        oldest_s = next(iter(pending.values()), now_s)
        if queue:
            oldest_s = min(oldest_s, queue[0].since_s)
        due_s = min(due_s, oldest_s + self._patience_s)
        self._timer = self.connection.loop.call_at(max(due_s, now_s + 0.001), self._sweep)

    def _give_up(self, future: asyncio.Future[None], reason: str) -> None:
        future.set_exception(MessagingTimeoutError(f"{reason} within {self._patience_s:g} s", entity=self.entity))

    def on_lost(self, error: MessagingError) -> None:
        if self._timer is not None:
            self._timer.cancel()
        waiting = [*self._pending, *(waiting.future for waiting in self._queue)]
        self._pending.clear()
        self._queue.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(error.copy())
