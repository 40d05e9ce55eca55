"""The receiver of a queue, a subscription, or one of their sub-queues."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from types import NoneType
from typing import Any, Final, Self

from pairbus.client.amqp.authorization import Reconnecting
from pairbus.client.amqp.receiving_link import PendingSettlement, ReceiveOptions, ReceivingLink, is_confirmed
from pairbus.client.client_resource import ClientResource, ResourceFactory
from pairbus.client.errors import (
    ClosedError,
    FactoryFaultedError,
    InvalidRequestError,
    MessageLockLostError,
    MessagingError,
)
from pairbus.client.lock_renewer import LockRenewer
from pairbus.client.message import BrokeredMessage
from pairbus.client.node import ManagementClient, sequence_numbers
from pairbus.client.received_message import (
    COMPLETE,
    Changes,
    ReceivedMessage,
    SettlementOutcome,
    abandon,
    dead_letter,
    defer,
)
from pairbus.client.retrying import retrying
from pairbus.client.settings import ReceiveMode
from pairbus.client.tracing import is_tracing, trace_receiving, trace_settling
from pairbus.client.validation import check_type
from pairbus.wire import Delivery

_log = logging.getLogger(__name__)

_PEEK_LOCK: Final = ReceiveMode.PEEK_LOCK
_NO_TIME = timedelta()
_SINGLE: Final = (BrokeredMessage, str, bytes)
"""Types that are no list of messages, even if they can be iterated over."""

_CLOSE_TIMEOUT_S: Final = 5.0
_WELL_S: Final = 30.0


class MessageReceiver(ClientResource):
    """Receives messages and settles them.

    With a prefetch count the namespace sends and locks up to that many messages ahead, so that the next ``receive``
    need not request them. Without one, it sends messages only when they are requested.
    """

    def __init__(
        self,
        factory: ResourceFactory,
        path: str,
        receive_mode: ReceiveMode,
        *,
        prefetch_count: int = 0,
        max_auto_lock_renewal: timedelta = _NO_TIME,
    ) -> None:
        receive_mode = ReceiveMode(receive_mode)  # accepts the name of a mode; raises for anything else
        check_type("max_auto_lock_renewal", max_auto_lock_renewal, (timedelta,))
        if max_auto_lock_renewal < _NO_TIME:
            raise ValueError(f"max_auto_lock_renewal must be >= 0, got {max_auto_lock_renewal}")
        self._wish = ReceiveOptions(peek_lock=receive_mode is ReceiveMode.PEEK_LOCK, prefetch=prefetch_count)
        super().__init__(factory, path)
        self._mode = receive_mode
        self._prefetch_count = prefetch_count
        self._node = ManagementClient(factory, path)
        self._current = Reconnecting(self._open)
        self._turn = asyncio.Lock()
        self._takers = 0
        self._peeked = 0
        self._salvaged: list[ReceivedMessage] = []
        """Messages from a lost link that are still locked for this receiver."""

        self._renewer: LockRenewer[Any] | None = None
        if max_auto_lock_renewal and receive_mode is ReceiveMode.PEEK_LOCK:
            self._renewer = LockRenewer(self._renew, max_auto_lock_renewal)

    @property
    def receive_mode(self) -> ReceiveMode:
        return self._mode

    @property
    def prefetch_count(self) -> int:
        return self._prefetch_count

    # Receiving.

    async def receive(
        self, max_message_count: int = 1, max_wait_time: timedelta | None = None
    ) -> list[ReceivedMessage]:
        """Receive up to ``max_message_count`` messages; return an empty list if none arrives in time.

        ``max_wait_time`` limits the wait for the first message; the default is the operation timeout. Zero returns what
        is available now; with a prefetch count, what has been prefetched by now.
        """
        _check_count(max_message_count)
        if max_wait_time is not None:
            check_type("max_wait_time", max_wait_time, (timedelta, NoneType))
            if max_wait_time < _NO_TIME:
                raise ValueError(f"max_wait_time must be >= 0, got {max_wait_time}")
        if not is_tracing():
            return self._take_now(max_message_count) or await self._receive_messages(max_message_count, max_wait_time)
        with trace_receiving(self._path, self._factory.endpoint) as note:
            received = self._take_now(max_message_count)
            if not received:
                received = await self._receive_messages(max_message_count, max_wait_time)
            note(received)
            return received

    def _take_now(self, count: int) -> list[ReceivedMessage]:
        """Return messages that are here already."""
        if self._mode is not _PEEK_LOCK and not self._is_closed:
            left_over = self._take_left_over(count)
            if left_over:
                return left_over
        self._check_open()
        link = self._current.ready
        if not self._prefetch_count or link is None or not link.buffer or self._salvaged:
            return []
        return self._hand_out(_messages(link.take_now(count)))

    async def _receive_messages(self, count: int, max_wait_time: timedelta | None) -> list[ReceivedMessage]:
        """Request messages, and wait for them."""
        wait = self._factory.settings.operation_timeout if max_wait_time is None else max_wait_time
        deadline_s = asyncio.get_running_loop().time() + wait.total_seconds()
        try:
            if self._prefetch_count:
                return await self._receive(count, deadline_s)
            return await self._receive_in_turn(count, deadline_s)
        except ClosedError:
            self._check_open()  # raises the cause
            raise

    async def _receive_in_turn(self, max_message_count: int, deadline_s: float) -> list[ReceivedMessage]:
        """Let one caller at a time request messages."""
        self._takers += 1
        try:
            # The wait for the lock is limited only if another caller holds it.
            async with asyncio.timeout_at(deadline_s if self._takers > 1 else None) as limit:
                await self._turn.acquire()
            try:
                return await self._receive(max_message_count, deadline_s)
            finally:
                self._turn.release()
        except TimeoutError as error:
            if isinstance(error, MessagingError) or not limit.expired():
                raise
            return []  # another caller was receiving all the time
        finally:
            self._takers -= 1

    async def _receive(self, count: int, deadline_s: float) -> list[ReceivedMessage]:
        """Receive, over a new link if needed. The wait is for messages: the time to open a link is added to it.

        All attempts to open a link together may take the operation timeout.
        """
        loop = asyncio.get_running_loop()
        give_up_s = deadline_s + self._factory.settings.operation_timeout.total_seconds()
        opening_s = 0.0
        failures, failure = 0, None
        while True:
            link = self._current.ready
            if link is None:
                began_s = loop.time()
                link = await retrying(
                    self._get_link,
                    settings=self._factory.settings,
                    entity=self._path,
                    failure=failure,
                    failures=failures,
                    started_s=began_s - opening_s,
                    reconnected=self._factory.reached,
                )
                opening_s += loop.time() - began_s
                deadline_s += loop.time() - began_s
            if self._salvaged:
                return self._hand_out(self._take_salvaged(count))
            waiting_s = loop.time()
            try:
                deliveries = await link.take(count, deadline_s, give_up_s)
            except MessagingError as error:
                self._check_open()
                if not error.is_transient:
                    raise
                if loop.time() >= deadline_s:
                    return []
                if loop.time() - waiting_s > _WELL_S:  # the link worked for a while: this is a new outage
                    failures, failure, opening_s = 0, None, 0.0
                    give_up_s = deadline_s + self._factory.settings.operation_timeout.total_seconds()
                failures, failure = failures + (failure is not None), error
            else:
                return self._hand_out(_messages(deliveries))

    async def _get_link(self) -> ReceivingLink:
        self._check_open()
        return await self._current.get()

    async def _open(self) -> ReceivingLink:
        lost = self._current.last
        if lost is not None:
            await self._salvage(lost)
        return await self._factory.open_receiving_link(self._path, self._wish)

    async def _salvage(self, lost: ReceivingLink) -> None:
        """Keep the messages of a lost link that are still locked; a namespace that restarted has forgotten the locks.

        Messages in receive-and-delete mode exist nowhere else, so they are always kept.
        """
        messages = _messages(lost.buffer)
        lost.buffer.clear()
        if not messages:
            return
        if self._mode is ReceiveMode.PEEK_LOCK:
            try:
                await self._renew(messages)
            except MessagingError as error:
                _log.info('left for redelivery entity=%s count=%d error="%s"', self._path, len(messages), error)
                return
        self._salvaged += messages

    def _take_left_over(self, count: int) -> list[ReceivedMessage]:
        """Return messages that were received and deleted over a lost link; they exist nowhere else and need no link."""
        lost = self._last_link()
        if lost is not None and lost.error is not None and lost.buffer:
            self._salvaged += _messages(lost.buffer)
            lost.buffer.clear()
        return self._take_salvaged(count)

    def _last_link(self) -> ReceivingLink | None:
        return self._current.last

    def _take_salvaged(self, count: int) -> list[ReceivedMessage]:
        taken, self._salvaged = self._salvaged[:count], self._salvaged[count:]
        return taken

    def _hand_out(self, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        if self._renewer is not None:
            for message in messages:
                self._renewer.watch(message)
        return messages

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        """Return the next message, without a timeout; retry transient errors, and stop when the receiver is closed."""
        failures = 0
        policy = replace(self._factory.settings.retry_policy, maximum_retries=None)
        while not self.is_closed:
            try:
                received = await self.receive()
            except FactoryFaultedError:
                raise
            except ClosedError:
                break
            except MessagingError as error:
                failures += 1
                delay_s = policy.delay_s(failures, error)
                if delay_s is None:
                    raise
                _log.warning('receive failed, retrying entity=%s error="%s"', self._path, error)
                await asyncio.sleep(delay_s)
            else:
                failures = 0
                if received:
                    return received[0]
        self._factory.check_faulted()
        raise StopAsyncIteration

    # Settlement.

    async def complete(self, message: ReceivedMessage | Iterable[ReceivedMessage]) -> None:
        """Complete messages: the namespace removes them."""
        await self._settle(message, COMPLETE)

    async def abandon(
        self, message: ReceivedMessage | Iterable[ReceivedMessage], properties_to_modify: Changes | None = None
    ) -> None:
        """Release the locks, so that the messages are delivered again at once; their delivery count increases."""
        await self._settle(message, abandon(properties_to_modify))

    async def defer(
        self, message: ReceivedMessage | Iterable[ReceivedMessage], properties_to_modify: Changes | None = None
    ) -> None:
        """Defer messages: from now on they can be received only by their sequence number."""
        await self._settle(message, defer(properties_to_modify))

    async def dead_letter(
        self,
        message: ReceivedMessage | Iterable[ReceivedMessage],
        reason: str | None = None,
        error_description: str | None = None,
        properties_to_modify: Changes | None = None,
    ) -> None:
        """Move messages to the dead-letter queue."""
        await self._settle(message, dead_letter(reason, error_description, properties_to_modify))

    def _settle(
        self, message: ReceivedMessage | Iterable[ReceivedMessage], verdict: SettlementOutcome
    ) -> Coroutine[Any, Any, None]:
        """Check the messages, and return the coroutine that settles them."""
        self._check_open()
        messages: list[ReceivedMessage]
        if isinstance(message, _SINGLE) or not isinstance(message, Iterable):
            messages = [message]
        else:
            messages = [*dict.fromkeys(message)]
        for one in messages:
            self._check_locked(one)
        return (self._settle_traced if is_tracing() else self._settle_locked)(messages, verdict)

    async def _settle_traced(self, messages: list[ReceivedMessage], verdict: SettlementOutcome) -> None:
        with trace_settling(messages, verdict, self._path, self._factory.endpoint):
            await self._settle_locked(messages, verdict)

    async def _settle_locked(self, messages: list[ReceivedMessage], verdict: SettlementOutcome) -> None:
        started_s = asyncio.get_running_loop().time()
        failure: MessagingError | None = None
        link = self._current.ready
        settlement = None if link is None else _settled_over(link, messages, verdict)
        if settlement is not None:
            try:
                await settlement.done  # the link limits this wait
            finally:
                for one in messages:
                    if one.delivery is not None and is_confirmed(one.delivery):
                        one.is_settled = True
            failure = settlement.error
            if failure is not None and not failure.is_transient and not isinstance(failure, ClosedError):
                raise failure
        rest = [one for one in messages if not one.is_settled]  # they may be settled by lock token
        if rest:
            await self._settle_by_node(rest, verdict, started_s, failure)

    def _check_locked(self, message: ReceivedMessage) -> None:
        if not isinstance(message, ReceivedMessage):
            raise InvalidRequestError(f"{message!r:.100} was not received, so it cannot be settled", entity=self._path)
        if self._mode is not _PEEK_LOCK:
            raise InvalidRequestError("a message in receive-and-delete mode cannot be settled", entity=self._path)
        if message.is_settled:
            raise MessageLockLostError(f"{message!r} is already settled", entity=self._path, hint="")

    async def _settle_by_node(
        self,
        messages: list[ReceivedMessage],
        verdict: SettlementOutcome,
        started_s: float,
        failure: MessagingError | None,
    ) -> None:
        """Settle by lock token: messages of a lost link, and deferred messages, which belong to no link."""
        tokens = [message.lock_token for message in messages if message.lock_token is not None]
        if len(tokens) < len(messages):
            if any(message.delivery is None for message in messages):
                raise InvalidRequestError("a peeked message has no lock and cannot be settled", entity=self._path)
            raise MessageLockLostError("the link of the message is lost", entity=self._path, hint="")
        try:
            await self._node.settle(
                verdict.status,
                tokens,
                verdict.details,
                session_id=self._session(),
                link_name=self._link_name(),
                started_s=started_s,
                failure=failure,
            )
        except MessageLockLostError:
            if len(messages) == 1:
                raise
            await self._settle_in_halves(messages, verdict, started_s)
        else:
            for message in messages:
                message.is_settled = True

    async def _settle_in_halves(
        self, messages: list[ReceivedMessage], verdict: SettlementOutcome, started_s: float
    ) -> None:
        """Settle in halves: one lost lock, such as one whose settlement was not confirmed, must not fail the others."""
        lost: MessageLockLostError | None = None
        half = len(messages) // 2
        for part in (messages[:half], messages[half:]):
            try:
                await self._settle_by_node(part, verdict, started_s, None)
            except MessageLockLostError as error:
                lost = error
        if lost is not None:
            raise lost

    # Locks, peeking, deferred messages.

    async def renew_lock(self, message: ReceivedMessage) -> datetime:
        """Renew the lock of a message for another lock duration; return when it ends."""
        self._check_open()
        self._check_locked(message)
        return (await self._renew([message]))[0]

    async def renew_locks(self, messages: Iterable[ReceivedMessage]) -> None:
        """Renew the locks of messages for another lock duration, in one request.

        Raises ``MessageLockLostError`` if one of them is no longer locked; the other locks may not have been renewed
        then.
        """
        self._check_open()
        locked = [*messages]
        for message in locked:
            self._check_locked(message)
        if locked:
            await self._renew(locked)

    async def _renew(self, messages: list[ReceivedMessage]) -> list[datetime]:
        tokens = [message.lock_token for message in messages if message.lock_token is not None]
        if len(tokens) < len(messages):
            raise InvalidRequestError("the message is not locked", entity=self._path)
        moments = await self._node.renew_locks(tokens, link_name=self._link_name())
        for message, moment in zip(messages, moments, strict=True):
            message.locked_until = moment
        return moments

    async def peek(self, max_message_count: int = 1, from_sequence_number: int | None = None) -> list[ReceivedMessage]:
        """Return messages in any state without locking them. Each call continues where the previous one ended."""
        self._check_open()
        _check_count(max_message_count)
        first = self._peeked + 1 if from_sequence_number is None else from_sequence_number
        found = await self._node.peek(max_message_count, first, self._session(), self._link_name())
        if found:
            self._peeked = found[-1].sequence_number
        return found

    async def receive_deferred(self, sequence_number: int | Iterable[int]) -> list[ReceivedMessage]:
        """Receive deferred messages; raises ``MessageNotFoundError`` if one of them does not exist."""
        self._check_open()
        numbers = sequence_numbers(sequence_number)
        if not numbers:
            return []
        with trace_receiving(self._path, self._factory.endpoint) as note:
            found = await self._node.receive_deferred(
                numbers,
                peek_lock=self._mode is ReceiveMode.PEEK_LOCK,
                session_id=self._session(),
                link_name=self._link_name(),
            )
            note(found)
        return self._hand_out(found)

    def _session(self) -> str | None:
        return None

    def _link_name(self) -> str | None:
        link = self._current.ready
        return None if link is None else link.name

    async def _give_back_salvaged(self) -> None:
        """Abandon the messages of a lost link; if that fails, they become available when their locks expire."""
        if self._salvaged and self._mode is not ReceiveMode.PEEK_LOCK:
            count = len(self._salvaged)
            _log.warning("received and deleted messages discarded entity=%s count=%d", self._path, count)
        elif self._salvaged:
            with suppress(MessagingError, TimeoutError):
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    now_s = asyncio.get_running_loop().time()
                    await self._settle_by_node(self._salvaged, abandon(None), now_s, None)

    async def _close_links(self) -> None:
        if self._renewer is not None:
            await self._renewer.close()
        await self._give_back_salvaged()
        link = await self._current.clear()
        if link is not None:
            await link.close()
        await self._node.close()


def _messages(deliveries: Iterable[Delivery]) -> list[ReceivedMessage]:
    return [ReceivedMessage(delivery.payload, delivery) for delivery in deliveries]


def _settled_over(
    link: ReceivingLink, messages: list[ReceivedMessage], verdict: SettlementOutcome
) -> PendingSettlement | None:
    """Settle the messages that the link has received; ``None`` if there are none."""
    deliveries = [one.delivery for one in messages if one.delivery is not None and link.carries(one.delivery)]
    return link.settle(deliveries, verdict.state) if deliveries else None


def _check_count(count: int) -> None:
    check_type("max_message_count", count, (int,))
    if count < 1:
        raise ValueError(f"max_message_count must be >= 1, got {count}")
