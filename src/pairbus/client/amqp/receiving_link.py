"""A receiving link: grants credit on request, or ahead of it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
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


_CONFIRMED: Final = "confirmed"


def is_confirmed(delivery: Delivery) -> bool:
    """Return whether the namespace has confirmed the settlement of a delivery."""
    return delivery.context is _CONFIRMED


class _Waiter(NamedTuple):
    """A caller that waits for a message."""

    future: asyncio.Future[bool]
    """The result is False if the time is up."""

    deadline_s: float


class PendingSettlement:
    """Deliveries that are settled together, and the result."""

    __slots__ = ("done", "error", "left", "since_s")

    def __init__(self, loop: asyncio.AbstractEventLoop, left: int) -> None:
        self.since_s = loop.time()
        self.done: asyncio.Future[None] = loop.create_future()
        """Done when the outcome of each delivery is known."""

        self.left = left
        self.error: MessagingError | None = None
        """The error of a delivery that could not be settled."""

    def report(self, delivery: Delivery, error: MessagingError | None) -> None:
        """Record the result of one delivery."""
        self.left -= 1
        if error is None:
            delivery.context = _CONFIRMED
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

        self._waiters: deque[_Waiter] = deque()
        """The callers that wait for a message, in the order of their calls."""

        self._alarm: asyncio.TimerHandle | None = None
        """Ends the wait of the first caller whose time is up; one timer serves all of them."""

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
        is_in_time = True
        while is_in_time and not self.buffer and self.error is None and not self._is_closing:
            waiter = self._wait(deadline_s)
            try:
                is_in_time = await waiter.future  # another caller may have taken the message since
            except BaseException:
                self._pass_on(waiter)
                raise

    def _wait(self, deadline_s: float) -> _Waiter:
        loop = self.connection.loop
        waiter = _Waiter(loop.create_future(), deadline_s)
        self._waiters.append(waiter)
        if self._alarm is None or deadline_s < self._alarm.when():
            self._set_alarm(deadline_s)
        return waiter

    def _set_alarm(self, at_s: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self.connection.loop.call_at(at_s, self._ring)

    def _ring(self) -> None:
        """End the waits whose time is up; set the alarm for the next one."""
        self._alarm = None
        now_s = self.connection.loop.time()
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            if waiter.deadline_s > now_s:
                self._waiters.append(waiter)
            elif not waiter.future.done():
                waiter.future.set_result(False)
        if self._waiters:
            self._set_alarm(min([waiter.deadline_s for waiter in self._waiters]))

    def _pass_on(self, waiter: _Waiter) -> None:
        """Wake the next caller if this one was cancelled just as a message arrived."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        if self.buffer:
            self._wake()

    def _wake(self) -> None:
        waiters = self._waiters
        while waiters:
            future = waiters.popleft().future
            if not future.done():
                future.set_result(True)
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
            if self._waiters:
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
        while self._waiters:
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
        for delivery in deliveries:
            if delivery in self.unsettled or not self._send_disposition(delivery, state):
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

    def _send_disposition(self, delivery: Delivery, state: object) -> bool:
        try:
            return self._link.settle(delivery, state) if self.settles_first else self._link.update(delivery, state)
        except LocalProtocolError as error:
            invalid = InvalidRequestError(
                f"the message cannot be settled with this outcome: {error}", entity=self.entity
            )
            raise invalid.caused_by(error) from error

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
        for timer in (self._timer, self._alarm):
            if timer is not None:
                timer.cancel()
        unsettled, self.unsettled = self.unsettled, {}
        for delivery, settlement in unsettled.items():
            settlement.report(delivery, error.copy())
        self.on_drained()
        while self._waiters:
            self._wake()


def _filter(options: ReceiveOptions) -> dict[Any, Any] | None:
    return {Symbol(SESSION_FILTER): options.session_id} if options.wants_session else None
