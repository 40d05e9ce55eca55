"""Receiving from a queue, a subscription, or one of their sub-queues."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from types import NoneType
from typing import Final, Self

from pairbus.client.amqp.receiving_link import ReceivingLink, Wish
from pairbus.client.amqp.slot import Slot
from pairbus.client.errors import (
    ClosedError,
    FactoryFaultedError,
    InvalidRequestError,
    MessageLockLostError,
    MessagingError,
)
from pairbus.client.lock_renewer import LockRenewer
from pairbus.client.message import BrokeredMessage
from pairbus.client.node import ManagementNode, sequence_numbers
from pairbus.client.part import Maker, Part
from pairbus.client.receive_mode import ReceiveMode
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.retrying import retrying
from pairbus.client.settling import COMPLETE, Changes, Verdict, abandon, dead_letter, defer
from pairbus.client.validation import check_type
from pairbus.wire import Delivery

_log = logging.getLogger(__name__)

_NO_TIME = timedelta()
_FAREWELL_S: Final = 5.0
_WELL_S: Final = 30.0


class MessageReceiver(Part):
    """Receives messages and settles them.

    With a prefetch count the namespace sends so many messages ahead, and locks them, so that the next ``receive`` need
    not ask for them. Without, it sends what is asked for when it is asked for.
    """

    def __init__(
        self,
        maker: Maker,
        path: str,
        receive_mode: ReceiveMode,
        *,
        prefetch_count: int = 0,
        max_auto_lock_renewal: timedelta = _NO_TIME,
    ) -> None:
        receive_mode = ReceiveMode(receive_mode)  # its name will do; anything else must not be taken for the other one
        check_type("max_auto_lock_renewal", max_auto_lock_renewal, (timedelta,))
        if max_auto_lock_renewal < _NO_TIME:
            raise ValueError(f"max_auto_lock_renewal is {max_auto_lock_renewal}; it cannot be below 0")
        self._wish = Wish(peek_lock=receive_mode is ReceiveMode.PEEK_LOCK, prefetch=prefetch_count)
        super().__init__(maker, path)
        self._mode = receive_mode
        self._prefetch_count = prefetch_count
        self._node = ManagementNode(maker, path)
        self._slot = Slot(self._open)
        self._turn = asyncio.Lock()
        self._takers = 0
        self._peeked = 0
        self._salvaged: list[ReceivedMessage] = []
        """What was taken in over a link that was lost, and is locked for us all the same."""

        self._renewer: LockRenewer | None = None
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
        """Receive up to so many messages, waiting so long for the first one; an empty list if none has come.

        Without ``max_wait_time`` it waits for the operation time-out. Zero gives what is there now; with a prefetch
        count, what has come by now.
        """
        _check_count(max_message_count)
        check_type("max_wait_time", max_wait_time, (timedelta, NoneType))
        if max_wait_time is not None and max_wait_time < _NO_TIME:
            raise ValueError(f"max_wait_time is {max_wait_time}; it cannot be below 0")
        with self._explaining():
            left_over = [] if self._is_closed else self._take_left_over(max_message_count)
            return left_over or await self._receive_in_turn(max_message_count, max_wait_time)

    async def _receive_in_turn(self, max_message_count: int, max_wait_time: timedelta | None) -> list[ReceivedMessage]:
        """Who prefetches takes what has come; otherwise one asks after the other."""
        self._check_open()
        wait = self._maker.settings.operation_timeout if max_wait_time is None else max_wait_time
        deadline_s = asyncio.get_running_loop().time() + wait.total_seconds()
        if self._prefetch_count:
            link = self._slot.ready
            if link is not None and link.buffer and not self._salvaged:  # most of what is prefetched goes this way
                return self._hand_out(_messages(link.take_now(max_message_count)))
            return await self._receive(max_message_count, deadline_s)
        self._takers += 1
        try:
            # The wait for one's turn has a limit if there is anyone to wait for.
            async with asyncio.timeout_at(deadline_s if self._takers > 1 else None) as limit:
                await self._turn.acquire()
            try:
                return await self._receive(max_message_count, deadline_s)
            finally:
                self._turn.release()
        except TimeoutError as error:
            if isinstance(error, MessagingError) or not limit.expired():
                raise
            return []  # somebody else has been receiving all the time
        finally:
            self._takers -= 1

    async def _receive(self, count: int, deadline_s: float) -> list[ReceivedMessage]:
        """Receive, over another link if need be. The wait is for messages: what opening takes is added to it.

        All openings together may take the operation time-out.
        """
        loop = asyncio.get_running_loop()
        give_up_s = deadline_s + self._maker.settings.operation_timeout.total_seconds()
        opening_s = 0.0
        failures, failure = 0, None
        while True:
            link = self._slot.ready
            if link is None:
                began_s = loop.time()
                link = await retrying(
                    self._get_link,
                    settings=self._maker.settings,
                    entity=self._path,
                    failure=failure,
                    failures=failures,
                    started_s=began_s - opening_s,
                    hurry=self._maker.reached,
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
                if loop.time() - waiting_s > _WELL_S:  # it went well for a while: this is another outage
                    failures, failure, opening_s = 0, None, 0.0
                    give_up_s = deadline_s + self._maker.settings.operation_timeout.total_seconds()
                failures, failure = failures + (failure is not None), error
            else:
                return self._hand_out(_messages(deliveries))

    async def _get_link(self) -> ReceivingLink:
        self._check_open()
        return await self._slot.get()

    async def _open(self) -> ReceivingLink:
        lost = self._slot.last
        if lost is not None:
            await self._salvage(lost)
        return await self._maker.open_receiving_link(self._path, self._wish)

    async def _salvage(self, lost: ReceivingLink) -> None:
        """Keep what a lost link has taken in, if it is still locked for us; a namespace that restarted has forgotten.

        What was received and deleted is nowhere else any more, and is kept in any case.
        """
        messages = _messages(lost.buffer)
        lost.buffer.clear()
        if not messages:
            return
        if self._mode is ReceiveMode.PEEK_LOCK:
            try:
                await self._renew(messages)
            except MessagingError as error:
                _log.info("%d messages of %s are left for another delivery: %s", len(messages), self._path, error)
                return
        self._salvaged += messages

    def _take_left_over(self, count: int) -> list[ReceivedMessage]:
        """What was received and deleted over a lost link is nowhere else: it is handed out without another link."""
        if self._mode is ReceiveMode.PEEK_LOCK:
            return []
        lost = self._last_link()
        if lost is not None and lost.error is not None and lost.buffer:
            self._salvaged += _messages(lost.buffer)
            lost.buffer.clear()
        return self._take_salvaged(count)

    def _last_link(self) -> ReceivingLink | None:
        return self._slot.last

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
        """The next message, whenever it comes. Rides out what is transient; ends when the receiver is closed."""
        failures = 0
        policy = replace(self._maker.settings.retry_policy, maximum_retries=None)
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
                _log.warning("receiving from %s goes on after: %s", self._path, error)
                await asyncio.sleep(delay_s)
            else:
                failures = 0
                if received:
                    return received[0]
        self._maker.check_faulted()
        raise StopAsyncIteration

    # Settlement.

    async def complete(self, message: ReceivedMessage | Iterable[ReceivedMessage]) -> None:
        """Remove messages: they have been dealt with."""
        await self._settle(message, COMPLETE)

    async def abandon(
        self, message: ReceivedMessage | Iterable[ReceivedMessage], properties_to_modify: Changes | None = None
    ) -> None:
        """Give messages back at once; their delivery count goes up."""
        await self._settle(message, abandon(properties_to_modify))

    async def defer(
        self, message: ReceivedMessage | Iterable[ReceivedMessage], properties_to_modify: Changes | None = None
    ) -> None:
        """Put messages aside: they are received by their sequence number only."""
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

    async def _settle(self, message: ReceivedMessage | Iterable[ReceivedMessage], verdict: Verdict) -> None:
        self._check_open()
        if isinstance(message, BrokeredMessage | str | bytes) or not isinstance(message, Iterable):
            message = (message,)
        messages: list[ReceivedMessage] = [*dict.fromkeys(message)]
        for one in messages:
            self._check_locked(one)
        started_s = asyncio.get_running_loop().time()
        link = self._slot.ready
        failure: MessagingError | None = None
        if link is not None:
            failure = await self._settle_here(link, messages, verdict)
        rest = [one for one in messages if not one.is_settled]
        if rest:
            await self._settle_by_node(rest, verdict, started_s, failure)

    def _check_locked(self, message: ReceivedMessage) -> None:
        if not isinstance(message, ReceivedMessage):
            raise InvalidRequestError(f"{message!r:.100} was not received, so it cannot be settled", entity=self._path)
        if self._mode is not ReceiveMode.PEEK_LOCK:
            raise InvalidRequestError("what was received and deleted is not settled", entity=self._path)
        if message.is_settled:
            raise MessageLockLostError(f"{message!r} has been settled already", entity=self._path, hint="")

    async def _settle_here(
        self, link: ReceivingLink, messages: Sequence[ReceivedMessage], verdict: Verdict
    ) -> MessagingError | None:
        """Settle what came over the link of the moment. What is not settled then can be tried in another way."""
        deliveries = {one.delivery: one for one in messages if one.delivery is not None and link.carries(one.delivery)}
        if not deliveries:
            return None
        settlement = link.settle([*deliveries], verdict.state)
        try:
            await settlement.done  # the link sees to it that this does not take for ever
        finally:
            for delivery in settlement.confirmed:
                deliveries[delivery].is_settled = True
        error = settlement.error
        if error is not None and not error.is_transient and not isinstance(error, ClosedError):
            raise error
        return error

    async def _settle_by_node(
        self, messages: list[ReceivedMessage], verdict: Verdict, started_s: float, failure: MessagingError | None
    ) -> None:
        """Settle by lock token: what came over a link that is gone, or over none, as deferred messages do."""
        tokens = [message.lock_token for message in messages if message.lock_token is not None]
        if len(tokens) < len(messages):
            if any(message.delivery is None for message in messages):
                raise InvalidRequestError("what was peeked has no lock, and cannot be settled", entity=self._path)
            raise MessageLockLostError("the message came over a link that is gone", entity=self._path, hint="")
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

    async def _settle_in_halves(self, messages: list[ReceivedMessage], verdict: Verdict, started_s: float) -> None:
        """One that is not locked any more, such as one that was settled unheard, must not keep the others."""
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
        """Keep a message locked for another lock duration; gives until when."""
        self._check_open()
        self._check_locked(message)
        return (await self._renew([message]))[0]

    async def renew_locks(self, messages: Iterable[ReceivedMessage]) -> None:
        """Keep messages locked for another lock duration, in one request.

        Raises ``MessageLockLostError`` if one of them is not locked any more; the locks of the others may not have been
        renewed then.
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
            raise InvalidRequestError("the message has no lock", entity=self._path)
        moments = await self._node.renew_locks(tokens, link_name=self._link_name())
        for message, moment in zip(messages, moments, strict=True):
            message.locked_until = moment
        return moments

    async def peek(self, max_message_count: int = 1, from_sequence_number: int | None = None) -> list[ReceivedMessage]:
        """Look at messages without locking them, in every state. Each call goes on where the last one ended."""
        self._check_open()
        _check_count(max_message_count)
        first = self._peeked + 1 if from_sequence_number is None else from_sequence_number
        found = await self._node.peek(max_message_count, first, self._session(), self._link_name())
        if found:
            self._peeked = found[-1].sequence_number
        return found

    async def receive_deferred(self, sequence_number: int | Iterable[int]) -> list[ReceivedMessage]:
        """Receive messages that were deferred; raises ``MessageNotFoundError`` if one of them is not there."""
        self._check_open()
        numbers = sequence_numbers(sequence_number)
        if not numbers:
            return []
        found = await self._node.receive_deferred(
            numbers,
            peek_lock=self._mode is ReceiveMode.PEEK_LOCK,
            session_id=self._session(),
            link_name=self._link_name(),
        )
        return self._hand_out(found)

    def _session(self) -> str | None:
        return None

    def _link_name(self) -> str | None:
        link = self._slot.ready
        return None if link is None else link.name

    async def _give_back_salvaged(self) -> None:
        """Let others have what came over a link that was lost; if that fails, they have it when the locks end."""
        if self._salvaged and self._mode is not ReceiveMode.PEEK_LOCK:
            count = len(self._salvaged)
            _log.warning("%d messages of %s, received and deleted, were never asked for", count, self._path)
        elif self._salvaged:
            with suppress(MessagingError, TimeoutError):
                async with asyncio.timeout(_FAREWELL_S):
                    now_s = asyncio.get_running_loop().time()
                    await self._settle_by_node(self._salvaged, abandon(None), now_s, None)

    async def _let_go(self) -> None:
        if self._renewer is not None:
            await self._renewer.close()
        await self._give_back_salvaged()
        link = await self._slot.clear()
        if link is not None:
            await link.close()
        await self._node.close()


def _messages(deliveries: Iterable[Delivery]) -> list[ReceivedMessage]:
    return [ReceivedMessage(delivery.payload, delivery) for delivery in deliveries]


def _check_count(count: int) -> None:
    check_type("max_message_count", count, (int,))
    if count < 1:
        raise ValueError(f"max_message_count is {count}; it must be at least 1")
