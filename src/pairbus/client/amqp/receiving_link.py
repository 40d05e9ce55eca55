"""A receiving link: grants credit on request, or ahead of it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from pairbus.client.amqp.conditions import error_from
from pairbus.client.amqp.connection import ClientConnection
from pairbus.client.amqp.link import OUTCOMES, AmqpLink
from pairbus.client.errors import (
    ClosedError,
    InternalServerError,
    InvalidRequestError,
    MessageLockLostError,
    MessagingError,
    MessagingTimeoutError,
)
from pairbus.client.validation import check_type
from pairbus.dialect.annotations import LINK_TIMEOUT, LOCKED_UNTIL_UTC, SESSION_FILTER, from_ticks
from pairbus.wire import (
    RECEIVER,
    RELEASED,
    Attach,
    Delivery,
    Link,
    LocalProtocolError,
    Modified,
    ReceiverSettleMode,
    Rejected,
    SenderSettleMode,
    Source,
    Symbol,
    Target,
    UInt,
)

_log = logging.getLogger(__name__)

MOST: Final = (1 << 31) - 1
"""The largest number of messages in one request."""

_MODIFIED: Final = "amqp:modified:list"
_CLOSE_TIMEOUT_S: Final = 5.0
"""The time that closing a link waits for deliveries in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiveOptions:
    """The options of a receiving link."""

    peek_lock: bool = True
    prefetch: int = 0
    wants_session: bool = False
    session_id: str | None = None
    """``None`` for the next unlocked session."""

    session_wait_ms: int | None = None

    def __post_init__(self) -> None:
        check_type("prefetch_count", self.prefetch, (int,))
        if not 0 <= self.prefetch <= MOST:
            raise ValueError(f"prefetch_count must be between 0 and {MOST}, got {self.prefetch}")


class PendingSettlement:
    """Deliveries that are settled together, and the result."""

    __slots__ = ("confirmed", "done", "error", "left", "since_s")

    def __init__(self, loop: asyncio.AbstractEventLoop, left: int) -> None:
        self.since_s = loop.time()
        self.done: asyncio.Future[None] = loop.create_future()
        """Done when the outcome of each delivery is known."""

        self.left = left
        self.confirmed: set[Delivery] = set()
        self.error: MessagingError | None = None
        """The error of a delivery that could not be settled."""

    def report(self, delivery: Delivery, error: MessagingError | None) -> None:
        """Record the result of one delivery."""
        self.left -= 1
        if error is None:
            self.confirmed.add(delivery)
        elif self.error is None or self.error.is_transient:  # permanent errors first
            self.error = error
        if not self.left and not self.done.done():
            self.done.set_result(None)


class ReceivingLink(AmqpLink):
    """Receives messages, returns them in order, and settles them."""

    def __init__(self, connection: ClientConnection, path: str, options: ReceiveOptions) -> None:
        super().__init__(connection, path)
        self.options = options
        self.session_id: str | None = None
        self.session_locked_until_ms: int | None = None
        self.buffer: deque[Delivery] = deque()
        self.unsettled: dict[Delivery, PendingSettlement] = {}
        """Deliveries that wait for the namespace to confirm their settlement."""

        self.settles_first = False
        """True if the peer expects deliveries to be settled at once, without a second step, as most AMQP peers do."""

        self._knows_modified = True
        self._wanted = False
        """True while a caller waits for messages."""

        self._arrivals: deque[asyncio.Future[None]] = deque()
        """The callers that wait for a message."""

        self._timer: asyncio.TimerHandle | None = None
        self._drain: asyncio.Future[None] | None = None
        self._timeout_s = connection.settings.attempt_s
        self._link: Link = self.attach(
            f"{path}-{uuid4().hex}",
            RECEIVER,
            source=Source(address=path, filter=_filter(options)),
            target=Target(address=f"pairbus-{uuid4().hex}"),
            snd_settle_mode=SenderSettleMode.UNSETTLED if options.peek_lock else SenderSettleMode.SETTLED,
            # Second: the peer confirms each settlement. Not every peer other than Service Bus supports it.
            rcv_settle_mode=ReceiverSettleMode.SECOND if self._is_answered() else ReceiverSettleMode.FIRST,
            properties=None if options.session_wait_ms is None else {LINK_TIMEOUT: UInt(options.session_wait_ms)},
        )

    def _is_answered(self) -> bool:
        return self.options.peek_lock and self.connection.is_service_bus

    @property
    def name(self) -> str:
        return self._link.name

    def accept(self, link: Link, attach: Attach) -> None:
        self.settles_first = not self._is_answered() or attach.rcv_settle_mode is ReceiverSettleMode.FIRST
        outcomes = attach.source.outcomes if isinstance(attach.source, Source) else ()
        self._knows_modified = not outcomes or _MODIFIED in outcomes
        if self.options.wants_session:
            granted = attach.source.filter if isinstance(attach.source, Source) else None
            session_id = (granted or {}).get(SESSION_FILTER)
            if not isinstance(session_id, str):
                self.lose(InternalServerError(f"malformed session id {session_id!r:.100}", entity=self.entity))
                return
            self.session_id = session_id
            ticks = (attach.properties or {}).get(LOCKED_UNTIL_UTC)
            self.session_locked_until_ms = from_ticks(ticks) if isinstance(ticks, int) else None
        if self.options.prefetch:
            link.flow(self.options.prefetch)

    # Receiving.

    async def take(self, count: int, deadline_s: float, give_up_s: float) -> list[Delivery]:
        """Return up to ``count`` messages; wait for the first one until ``deadline_s``, and not at all for more.

        Taking back unused credit may take until ``give_up_s``.
        """
        if not self.buffer:
            if self.error is not None:
                raise self.error.copy()
            if self._is_closing:
                raise ClosedError("the link is being closed", entity=self.entity)
            if self.options.prefetch:
                await self._arrive(deadline_s)
            else:
                await self._ask(count, deadline_s, give_up_s)
        if self._is_closing and (self.options.peek_lock or not self.buffer):  # what arrives now is abandoned
            raise ClosedError("the link is being closed", entity=self.entity)
        taken = self.take_now(count)
        if not taken and self.error is not None:
            raise self.error.copy()
        return taken

    def take_now(self, count: int) -> list[Delivery]:
        """Return up to ``count`` of the messages that have arrived."""
        buffer = self.buffer
        taken = [buffer.popleft() for _ in range(min(count, len(buffer)))]
        if self.options.prefetch and self.error is None:
            self._replenish()
        return taken

    async def _ask(self, count: int, deadline_s: float, give_up_s: float) -> None:
        """Grant credit, and take back the rest as soon as a message has arrived or the time is up."""
        self._wanted = True
        try:
            await self._drain_or_suspect(give_up_s)  # credit of a caller that was cancelled
            if self.error is None and not self.buffer and not self._is_closing:
                at_once = deadline_s <= self.connection.loop.time()
                self._link.flow(min(count, MOST), drain=at_once)
                self.connection.flush_soon()
                if not at_once:
                    await self._arrive(deadline_s)
                await self._drain_or_suspect(give_up_s)
        except BaseException:
            if self.error is None:
                if self._link.credit and not self._link.drain:
                    self._link.flow(self._link.credit, drain=True)
                self._give_back()
                self.connection.flush_soon()
            raise
        finally:
            self._wanted = False

    async def _arrive(self, deadline_s: float) -> None:
        """Wait until a message is buffered, the time is up, or the link is lost."""
        try:
            async with asyncio.timeout_at(deadline_s) as limit:
                while not self.buffer and self.error is None and not self._is_closing:  # or another caller has taken it
                    arrival = self.connection.loop.create_future()
                    self._arrivals.append(arrival)
                    try:
                        await arrival
                    except BaseException:
                        self._pass_on(arrival)
                        raise
        except TimeoutError:
            if not limit.expired():
                raise

    def _pass_on(self, arrival: asyncio.Future[None]) -> None:
        """Wake the next caller if this one was cancelled just as a message arrived."""
        if arrival in self._arrivals:
            self._arrivals.remove(arrival)
        if self.buffer:
            self._wake()

    def _wake(self) -> None:
        arrivals = self._arrivals
        while arrivals:
            arrival = arrivals.popleft()
            if not arrival.done():
                arrival.set_result(None)
                return

    async def _drain_or_suspect(self, give_up_s: float) -> None:
        since_s = self.connection.loop.time()
        limit_s = min(self._timeout_s, give_up_s - since_s)
        if not await self.drain(limit_s):
            late = MessagingTimeoutError(f"credit was not returned within {limit_s:g} s", entity=self.entity)
            self.suspect(late, since_s)

    async def drain(self, limit_s: float) -> bool:
        """Take back all credit, and wait for the deliveries in flight; return True if that ended in time."""
        if self.error is not None or not (self._link.credit or self._link.drain):
            return True
        if self._drain is None:
            self._drain = self.connection.loop.create_future()
        if not self._link.drain:
            self._link.flow(self._link.credit, drain=True)
            self.connection.flush_soon()
        done, _ = await asyncio.wait((self._drain,), timeout=max(0.0, limit_s))  # other callers may wait for it too
        return bool(done)

    def _replenish(self) -> None:
        wanted = self.options.prefetch - len(self.buffer)
        if not self._is_closing and self._link.credit * 2 <= wanted:
            self._link.flow(wanted)
            self.connection.flush_soon()

    def on_delivery(self, delivery: Delivery) -> None:
        if self.options.prefetch or self._wanted or not self.options.peek_lock:
            self.buffer.append(delivery)
            if self._arrivals:
                self._wake()
        else:  # no caller is waiting: release it for other receivers at once
            self._link.settle(delivery, RELEASED)

    def on_drained(self) -> None:
        if self._drain is not None:
            self._drain.set_result(None)
            self._drain = None

    def _give_back(self) -> None:
        """Abandon buffered messages; keep those that are already removed from the entity, for the next caller."""
        if self.options.peek_lock:
            while self.buffer:
                self._link.settle(self.buffer.popleft(), RELEASED)

    async def close(self) -> None:
        self._is_closing = True
        self._wanted = self._wanted and not self.options.peek_lock
        while self._arrivals:
            self._wake()
        is_drained = await self.drain(_CLOSE_TIMEOUT_S)
        while is_drained and self._wanted:  # noqa: ASYNC110 (a caller gets deleted messages at once)
            await asyncio.sleep(0)
        if self.error is None:
            self._give_back()
        if self.buffer and not self.options.peek_lock:
            _log.warning("received and deleted messages discarded entity=%s count=%d", self.entity, len(self.buffer))
        await super().close()

    # Settlement.

    def carries(self, delivery: Delivery) -> bool:
        """Return True if the delivery belongs to this link."""
        return delivery.link is self._link

    def settle(self, deliveries: Sequence[Delivery], state: object) -> PendingSettlement:
        """Settle deliveries; raises ``InvalidRequestError`` if the outcome cannot be encoded or is not supported."""
        if isinstance(state, Modified) and not self._knows_modified:
            if state.undeliverable_here:
                raise InvalidRequestError("the peer does not support deferring messages", entity=self.entity)
            state = RELEASED
        settlement = PendingSettlement(self.connection.loop, len(deliveries))
        settle = self._link.settle if self.settles_first else self._link.update
        for delivery in deliveries:
            if delivery in self.unsettled or not self._send_disposition(settle, delivery, state):
                lost = MessageLockLostError("the message is already settled", entity=self.entity, hint="")
                settlement.report(delivery, lost)
            elif self.settles_first:
                settlement.report(delivery, None)
            else:
                self.unsettled[delivery] = settlement
        if self.unsettled and self._timer is None:
            self._timer = self.connection.loop.call_later(self._timeout_s, self._sweep)
        self.connection.flush_soon()
        return settlement

    def _sweep(self) -> None:
        """Fail the link if the oldest settlement has waited too long for its confirmation."""
        self._timer = None
        oldest = next(iter(self.unsettled.values()), None)
        if oldest is None:
            return
        loop = self.connection.loop
        due_s = oldest.since_s + self._timeout_s
        if loop.time() >= due_s:
            late = MessagingTimeoutError(f"not settled within {self._timeout_s:g} s", entity=self.entity)
            self.suspect(late, oldest.since_s)
        else:
            self._timer = loop.call_at(due_s, self._sweep)

    def _send_disposition(self, settle: Callable[[Delivery, object], bool], delivery: Delivery, state: object) -> bool:
        try:
            return settle(delivery, state)
        except LocalProtocolError as error:
            raise InvalidRequestError(
                f"the message cannot be settled with this outcome: {error}", entity=self.entity
            ) from error

    def on_outcome(self, deliveries: list[Delivery], state: Any, settled: bool) -> None:
        if not settled and not isinstance(state, OUTCOMES):
            return  # an intermediate state
        failed = isinstance(state, Rejected) and state.error is not None
        for delivery in deliveries:
            if not settled:
                self._link.settle(delivery)
            settlement = self.unsettled.pop(delivery, None)
            if settlement is not None:
                settlement.report(delivery, error_from(state.error, self.entity) if failed else None)

    def on_lost(self, error: MessagingError) -> None:
        if self._timer is not None:
            self._timer.cancel()
        unsettled, self.unsettled = self.unsettled, {}
        for delivery, settlement in unsettled.items():
            settlement.report(delivery, error.copy())
        self.on_drained()
        while self._arrivals:
            self._wake()


def _filter(options: ReceiveOptions) -> dict[Any, Any] | None:
    return {Symbol(SESSION_FILTER): options.session_id} if options.wants_session else None
