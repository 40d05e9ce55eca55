"""Sources of messages: a backlog queue whose messages are received with locks, and their settlement."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final, TypeAlias

from pairbus.background_tasks import BackgroundTasks
from pairbus.client.errors import (
    InvalidMessageError,
    InvalidRequestError,
    MessageLockLostError,
    MessageNotFoundError,
    MessagingError,
)
from pairbus.client.lock_renewer import LockRenewer
from pairbus.client.received_message import MessageState, ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.dialect.transfer import TransferError
from pairbus.pairing.events import Listener, MessageDeadLettered
from pairbus.pairing.syphon.message import (
    BacklogMessage,
    DeadLetterReason,
    Line,
    LockedGroup,
    UndeliverableMessage,
    line_of,
    note_delivered,
    one_line,
    read_diverted,
    read_locked,
    sequence_of,
    youngest,
)
from pairbus.pairing.syphon.order import BacklogScanner, OrderIndex
from pairbus.pairing.syphon.send_limit import SendLimit

_log = logging.getLogger(__name__)

_MAX_REQUEST: Final = 1_000
"""Maximum number of messages in one settlement request."""

_MAX_LOCKED_BYTES: Final = 16 << 20
"""Maximum size of the locked messages of a queue, if they are as large as those received last."""

_GATHER_S: Final = 0.02
"""The time that a delivered message waits for those that were received with it."""

_MAX_UNREMOVED: Final = 10_000
_FRONT_PAGE: Final = 200

SyphonMessage: TypeAlias = BacklogMessage | UndeliverableMessage
Settle: TypeAlias = Callable[[list[ReceivedMessage]], Awaitable[None]]


class OutcomeKind(Enum):
    """The outcome of a message."""

    DELIVERED = "delivered"
    """Its destination has confirmed it, and it is removed from the backlog."""
    UNREMOVED = "unremoved"
    """Its destination has confirmed it, and it could not be removed from the backlog: it is delivered again."""
    PARKED = "parked"
    """Its destination does not accept it at the moment: it is deferred in the backlog."""
    FOUND = "found parked"
    """Another syphon had deferred it before."""
    GIVEN_BACK = "given back"
    """The primary namespace is unreachable: it is available in the backlog as before."""
    DEAD_LETTERED = "dead-lettered"
    """It can never be delivered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementReport:
    """The result of settling messages in one way."""

    kind: OutcomeKind
    settled: Sequence[SyphonMessage]
    unsettled: Sequence[SyphonMessage]
    """Messages that could not be settled, and are delivered again when their locks expire."""

    cause: str | None = None
    reason: DeadLetterReason | None = None
    description: str | None = None


class Settler:
    """Settles messages of one backlog queue, and reports the results.

    ``complete`` and ``dead_letter`` work in the background, in ``tasks``; ``tasks.finish()`` waits for them.
    """

    def __init__(
        self, receiver: MessageReceiver, tasks: BackgroundTasks, report: Callable[[SettlementReport], None]
    ) -> None:
        self._receiver = receiver
        self._tasks = tasks
        self._report = report
        self._delivered: list[BacklogMessage] = []
        self._is_group_delivered = asyncio.Event()
        self._is_completing = False

    def complete(self, messages: list[BacklogMessage]) -> None:
        """Remove delivered messages.

        Those that were received together are removed together, if they are delivered within a moment: the messages of
        a queue are for many destinations, and adjacent ones are settled with one frame.
        """
        self._delivered += messages
        if note_delivered(messages):
            self._is_group_delivered.set()
        if not self._is_completing:
            self._is_completing = True
            self._tasks.start(self._complete(), is_due=True)

    async def _complete(self) -> None:
        try:
            while self._delivered:
                await self._gather()
                delivered, self._delivered = self._delivered, []
                delivered.sort(key=sequence_of)
                received = [message for message in delivered if not message.is_deferred]
                deferred = [message for message in delivered if message.is_deferred]
                for group in (received, deferred):  # they are settled with different requests
                    await self._settle(group, self._receiver.complete, OutcomeKind.DELIVERED)
        finally:
            self._is_completing = False

    async def _gather(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_GATHER_S):
                await self._is_group_delivered.wait()
        self._is_group_delivered.clear()

    def dead_letter(self, messages: Sequence[SyphonMessage], reason: DeadLetterReason, description: str) -> None:
        """Move messages to the dead-letter queue."""
        self._tasks.start(self._dead_letter(messages, reason, one_line(description)), is_due=True)

    async def _dead_letter(self, messages: Sequence[SyphonMessage], reason: DeadLetterReason, description: str) -> None:
        async def settle(locked: list[ReceivedMessage]) -> None:
            await self._receiver.dead_letter(locked, reason.value, description)

        await self._settle(messages, settle, OutcomeKind.DEAD_LETTERED, reason=reason, description=description)

    async def defer(self, messages: Sequence[BacklogMessage], cause: str | None = None) -> None:
        """Park messages: they can be received only by their sequence numbers from now on."""
        await self._settle(messages, self._receiver.defer, OutcomeKind.PARKED, cause=cause)

    async def abandon(self, messages: Sequence[BacklogMessage], cause: str | None = None) -> None:
        """Give messages back, to be received again."""
        await self._settle(messages, self._receiver.abandon, OutcomeKind.GIVEN_BACK, cause=cause)

    async def _settle(
        self,
        messages: Sequence[SyphonMessage],
        settle: Settle,
        kind: OutcomeKind,
        *,
        cause: str | None = None,
        reason: DeadLetterReason | None = None,
        description: str | None = None,
    ) -> None:
        if not messages:
            return
        for start in range(0, len(messages), _MAX_REQUEST):
            if not await self._settle_group(messages[start : start + _MAX_REQUEST], settle):
                break
        settled = [message for message in messages if message.message.is_settled]
        unsettled = [message for message in messages if not message.message.is_settled]
        self._report(
            SettlementReport(
                kind=kind, settled=settled, unsettled=unsettled, cause=cause, reason=reason, description=description
            )
        )

    async def _settle_group(self, messages: Sequence[SyphonMessage], settle: Settle) -> bool:
        """Settle messages as far as possible; return whether the namespace responds."""
        for _ in range(2):  # a lost lock may have made the request fail for the other messages
            rest = [message.message for message in messages if not message.message.is_settled]
            if not rest:
                break
            try:
                await settle(rest)
            except MessageLockLostError as error:
                self._log(logging.INFO, len(rest), error)
            except MessagingError as error:
                self._log(logging.WARNING, len(rest), error)
                return False
        return True

    def _log(self, level: int, count: int, error: MessagingError) -> None:
        _log.log(
            level,
            'settlement failed, waiting for redelivery entity=%s count=%d error="%s"',
            self._receiver.path,
            count,
            error,
        )


class BacklogClock:
    """The clock of the secondary namespace, read from locks: a new lock ends one lock duration from now.

    The clocks of this machine and of the primary namespace may differ from it.
    """

    def __init__(self) -> None:
        self.lock = timedelta(minutes=1)
        """The lock duration. A message is not locked before it is enqueued, which reveals a shorter one."""

        self._offset_s: float | None = None
        """The time by which the clock of the namespace is ahead of that of the event loop."""

    def note(self, message: BacklogMessage) -> None:
        """Read the clock from a message that was just locked."""
        until_ms = message.locked_until_ms
        if until_ms is None:
            return
        longest = timedelta(milliseconds=until_ms - message.enqueued_ms)
        if timedelta() < longest < self.lock:
            self.lock = longest
        self._offset_s = until_ms / 1_000 - self.lock.total_seconds() - asyncio.get_running_loop().time()

    def age(self, message: BacklogMessage) -> timedelta:
        """Return the time since a message was enqueued; 0 if it is unknown."""
        if self._offset_s is None:
            return timedelta()
        now_s = asyncio.get_running_loop().time() + self._offset_s
        return timedelta(seconds=max(0.0, now_s - message.enqueued_ms / 1_000))


class BacklogSource:
    """One backlog queue: receives its messages with locks, renews the locks, and settles the messages.

    ``report`` is called with the result of each settlement, ``on_deferred`` with the destination, the sequence number
    and the line of a deferred message that has to be fetched (again), ``on_free`` with a line of which another receiver
    has one message less, and ``on_blocked`` when a message has to wait for another receiver. ``limit`` is that of all
    sources of the process together.
    """

    def __init__(
        self,
        receiver: MessageReceiver,
        report: Callable[[SettlementReport], None],
        on_deferred: Callable[[str, int, Line | None], None],
        on_free: Callable[[Line], None],
        on_blocked: Callable[[], None],
        limit: SendLimit | None = None,
    ) -> None:
        self.path = receiver.path
        self.on_blocked: Final = on_blocked
        self.receives = 0
        self.syphoned = 0
        self.dead_lettered = 0
        self.fresh = 0
        """Number of locked messages that were received; the others were deferred, and fetched by number."""

        self._mean_bytes = 1

        self.order = OrderIndex()
        self.taken_by_others: set[int] = set()
        """Deferred messages that another receiver has locked."""

        self.tasks = BackgroundTasks(self.path, expected=MessagingError)
        self.scanner = BacklogScanner(receiver, self.order, self.__contains__, self._found_deferred, on_free)
        self._receiver = receiver
        self._report = report
        self._on_deferred = on_deferred
        self._on_free = on_free
        self._clock = BacklogClock()
        self._locked: dict[int, BacklogMessage] = {}
        self._room = asyncio.Event()
        self._send_limit = limit
        self._unremoved: dict[int, tuple[datetime, str]] = {}
        """Delivered messages that are still in the queue: when they were enqueued, and their ids. A sequence number
        alone does not identify a message, because a queue that is re-created counts from 1 again."""

        self._settler = Settler(receiver, self.tasks, self._settled)
        self._renewer: LockRenewer[LockedGroup] = LockRenewer(
            self._renew,
            tasks=self.tasks,
            lock_s=lambda: self.lock_s,
            on_lost=self._locks_lost,
        )

    def __contains__(self, sequence: object) -> bool:
        return sequence in self._locked

    def age(self, message: BacklogMessage) -> timedelta:
        return self._clock.age(message)

    # Receiving.

    async def wait_for_room(self, most: int) -> int:
        """Wait until a receive is worthwhile; return how many messages it may return, so that ``most`` are locked."""
        while self.fresh > (limit := self._limit(most)) // 2:
            self._room.clear()
            await self._room.wait()
        return limit - self.fresh

    def _limit(self, most: int) -> int:
        return max(1, min(most, _MAX_LOCKED_BYTES // self._mean_bytes))

    async def receive(self, count: int, long_poll: timedelta) -> list[ReceivedMessage]:
        """Receive messages, which ``lock`` takes over. Raise ``MessagingError``."""
        self.receives += 1
        messages = await self._receiver.receive(count, long_poll)
        if messages:
            self.scanner.arrivals += 1
            self._mean_bytes = 1 + sum([len(message.payload) for message in messages]) // len(messages)
        return messages

    def lock(self, messages: list[ReceivedMessage], *, is_deferred: bool = False) -> list[BacklogMessage]:
        """Take over messages that were just locked; return those to deliver.

        A message without a valid destination is dead-lettered, and one that was delivered before is only removed.
        """
        locked = read_locked(messages, self._refuse, is_deferred=is_deferred)
        if not locked:
            return locked
        self._clock.note(youngest(locked))
        self._renewer.watch(LockedGroup(locked))
        found: list[BacklogMessage] = []
        for message in locked:
            if not is_deferred and self._is_recreated(message):
                self.forget_order()
            self.order.received(message.sequence)
            is_new = self._hold(message)
            if is_new:
                found.append(message)
            if is_deferred or not is_new:
                self.received(message.sequence)
        return found

    def _refuse(self, bad: UndeliverableMessage) -> None:
        self._settler.dead_letter([bad], bad.reason, bad.description)

    def _hold(self, message: BacklogMessage) -> bool:
        """Keep a message locked; return whether it has to be delivered."""
        before = self._locked.get(message.sequence)
        if before is not None:  # its lock expired, and it was received again
            self._drop([before])
        self._locked[message.sequence] = message
        self.fresh += not message.is_deferred
        if message.sequence not in self._unremoved or self._unremoved[message.sequence] != _identity(message):
            return True
        self._settler.complete([message])
        return False

    def received(self, sequence: int) -> None:
        """Note that a message belongs to this process now: messages that waited for it may be delivered."""
        self.taken_by_others.discard(sequence)
        if sequence in self.order.others:
            self.scanner.gone(sequence)

    def _is_recreated(self, message: BacklogMessage) -> bool:
        """Return whether a new message has a number that was known to have no message: the queue was re-created."""
        order, sequence = self.order, message.sequence
        return (
            not order.is_unknown(sequence)
            and sequence not in order.others
            and sequence not in self._locked
            and message.message.delivery_count == 0
        )

    def forget_order(self) -> None:
        """Forget what was known of the queue, which was re-created."""
        _log.info("backlog queue was re-created entity=%s", self.path)
        self.taken_by_others.clear()
        for line in self.order.forget():
            self._on_free(line)

    def _drop(self, messages: Sequence[SyphonMessage]) -> None:
        """Let go of messages; their locks are not renewed any longer."""
        for message in messages:
            if isinstance(message, BacklogMessage):
                message.is_dropped = True
                if self._locked.get(message.sequence) is message:
                    del self._locked[message.sequence]
                    self.fresh -= not message.is_deferred
        if self._send_limit is not None:
            self.end_send([message for message in messages if isinstance(message, BacklogMessage)])
        self._room.set()

    # Locks.

    @property
    def lock_s(self) -> float:
        """The lock duration of the queue, as far as it is known."""
        return self._clock.lock.total_seconds()

    async def _renew(self, groups: list[LockedGroup]) -> None:
        messages = [message for group in groups for message in group.locked]
        for start in range(0, len(messages), _MAX_REQUEST):
            await self._renew_some(messages[start : start + _MAX_REQUEST])

    async def _renew_some(self, messages: list[BacklogMessage]) -> None:
        """Renew locks. One that is lost makes the request fail for all of them, and is found in halves."""
        locked = [message for message in messages if not message.is_settled]
        try:
            await self._receiver.renew_locks(message.message for message in locked)
        except MessageLockLostError as error:
            if len(locked) > 1:
                half = len(locked) // 2
                await self._renew_some(locked[:half])
                await self._renew_some(locked[half:])
            elif locked[0].group is not None:
                self._log_lost(1, error)
                locked[0].group.lose(locked[0])

    def _locks_lost(self, groups: list[LockedGroup], error: MessagingError | None) -> None:
        self._log_lost(sum(len(group.locked) for group in groups), error)

    def _log_lost(self, count: int, error: MessagingError | None) -> None:
        # Their settlement fails, and they are received again.
        _log.info('locks lost entity=%s count=%d error="%s"', self.path, count, error or "expired")

    # Settlement.

    async def start_send(self, messages: list[BacklogMessage]) -> int:
        """Wait until messages may be sent; return how many of them."""
        if self._send_limit is None:
            return len(messages)
        count = await self._send_limit.acquire(len(messages))
        for message in messages[:count]:
            message.is_sent = True
        return count

    def end_send(self, messages: Iterable[BacklogMessage]) -> None:
        """Note that messages were not sent after all, or are removed."""
        if self._send_limit is None:
            return
        sent = [message for message in messages if message.is_sent]
        for message in sent:
            message.is_sent = False
        self._send_limit.release(len(sent))

    def complete(self, messages: list[BacklogMessage]) -> None:
        self.syphoned += len(messages)
        self._settler.complete(messages)

    def dead_letter(self, messages: Sequence[SyphonMessage], reason: DeadLetterReason, description: str) -> None:
        self._settler.dead_letter(messages, reason, description)

    async def defer(self, messages: list[BacklogMessage]) -> list[BacklogMessage]:
        """Park messages; return those that are deferred now, which includes those that were before."""
        await self._settler.defer(messages)
        parked = [message for message in messages if message.message.is_settled or message.is_deferred]
        self._leave([message for message in messages if not message.message.is_settled and not message.is_deferred])
        return parked

    async def abandon(self, messages: list[BacklogMessage]) -> None:
        """Give messages back."""
        await self._settler.abandon(messages)
        self._leave(messages)

    def abandon_later(self, messages: list[BacklogMessage]) -> None:
        self.tasks.start(self.abandon(messages), is_due=True)

    def _leave(self, messages: list[BacklogMessage]) -> None:
        """Note messages that any receiver may get next."""
        for message in messages:
            if message.sequence not in self._locked:  # unless it was received again already
                self.order.saw(message.sequence, message.line)

    def _settled(self, settlement: SettlementReport) -> None:
        self._drop([*settlement.settled, *settlement.unsettled])
        if settlement.kind is OutcomeKind.DELIVERED:
            self._note_unremoved(settlement)
        elif settlement.kind is OutcomeKind.DEAD_LETTERED:
            self.dead_lettered += len(settlement.settled)
        self._report(settlement)
        if settlement.kind in (OutcomeKind.DELIVERED, OutcomeKind.DEAD_LETTERED):
            for message in settlement.unsettled:  # a deferred message is received only if it is fetched again
                if message.is_deferred and isinstance(message, BacklogMessage):
                    self._on_deferred(message.path, message.sequence, message.line)

    def _note_unremoved(self, settlement: SettlementReport) -> None:
        """Remember messages that were delivered and not removed, so that they are not sent again when received."""
        if self._unremoved:
            for message in settlement.settled:
                self._unremoved.pop(message.sequence, None)
        for message in settlement.unsettled:
            self._unremoved[message.sequence] = _identity(message)
        while len(self._unremoved) > _MAX_UNREMOVED:
            self._unremoved.pop(next(iter(self._unremoved)))

    # Deferred messages.

    async def fetch(self, sequences: list[int], lines: list[Line | None]) -> list[BacklogMessage]:
        """Lock deferred messages; return those that this process got. Raise ``MessagingError``."""
        try:
            return self.lock(await self._receiver.receive_deferred(sequences), is_deferred=True)
        except (MessageNotFoundError, InvalidRequestError) as error:
            if len(sequences) > 1:  # another receiver has one of them, or they are too large for one response
                return await self._fetch_in_halves(sequences, lines)
            _log.debug('message not deferred any more entity=%s sequence=%d error="%s"', self.path, sequences[0], error)
            self.taken_by_others.add(sequences[0])
            self.order.saw(sequences[0], lines[0])
            self.on_blocked()
            return []

    async def _fetch_in_halves(self, sequences: list[int], lines: list[Line | None]) -> list[BacklogMessage]:
        half = len(sequences) // 2
        first = await self.fetch(sequences[:half], lines[:half])
        try:
            return [*first, *await self.fetch(sequences[half:], lines[half:])]
        except BaseException:
            self.tasks.start(self._settler.defer(first), is_due=True)
            raise

    def _found_deferred(self, message: ReceivedMessage) -> None:
        """Take over a message that a receiver deferred which may have ended."""
        try:
            transfer = read_diverted(message.payload)
        except (TransferError, InvalidMessageError):
            self.tasks.start(self._fetch_undeliverable(message.sequence_number))
        else:
            self._on_deferred(transfer.path, message.sequence_number, line_of(transfer))

    async def _fetch_undeliverable(self, sequence: int) -> None:
        """Lock a deferred message without a valid destination, which dead-letters it."""
        await self.fetch([sequence], [None])

    # Peeking.

    async def check(self) -> None:
        """Check that the queue can be read. Raise ``MessagingError``."""
        await self._receiver.peek(1, 0)

    async def scan(self) -> None:
        """Find deferred messages in the whole queue. Raise ``MessagingError``."""
        await self.scanner.rescan()
        await self.scanner.scan()

    async def scan_front(self) -> None:
        """Find the deferred messages before all available ones. Raise ``MessagingError``.

        Delivered messages are removed from the front of the queue, so what was left behind is there.
        """
        cursor = 0
        while True:
            page = await self._receiver.peek(_FRONT_PAGE, cursor)
            deferred = [message for message in page if message.state is MessageState.DEFERRED]
            for message in deferred:
                if message.sequence_number not in self._locked:
                    self._found_deferred(message)
            if not deferred:
                return
            cursor = page[-1].sequence_number + 1

    async def release(self) -> None:
        """Wait for the settlements under way, and give all other locked messages back."""
        await self.tasks.finish()
        left = [*self._locked.values()]
        await self._settler.defer([message for message in left if message.is_deferred])
        await self._settler.abandon([message for message in left if not message.is_deferred])

    async def close(self, timeout_s: float) -> None:
        """Give all locked messages back, as far as that is possible in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.release()
        except (MessagingError, TimeoutError) as error:
            _log.info('messages not given back, their locks expire entity=%s error="%s"', self.path, error)
        await self._renewer.close()
        await self.tasks.close()
        await self._receiver.close()


def _identity(message: SyphonMessage) -> tuple[datetime, str]:
    return message.message.enqueued_time, str(message.message.message_id)


def message_id_of(message: ReceivedMessage) -> str:
    """Return the id of a message; an empty string if it cannot be read."""
    try:
        return str(message.message_id)
    except InvalidMessageError:
        return ""


def publish_dead_letters(queue: str, settlement: SettlementReport, publish: Listener) -> None:
    """Publish an event for each dead letter, and log them together."""
    reason = "" if settlement.reason is None else settlement.reason.value
    description = settlement.description or ""
    for message in settlement.settled:
        publish(
            MessageDeadLettered(
                at=datetime.now(UTC),
                backlog_queue=queue,
                message_id=message_id_of(message.message),
                path=message.path,
                reason=reason,
                description=description,
            )
        )
    if settlement.settled:
        log_dead_letters(queue, len(settlement.settled), reason, description)


def log_dead_letters(queue: str, count: int, reason: str, description: str) -> None:
    _log.warning('messages dead-lettered entity=%s count=%d reason=%s error="%s"', queue, count, reason, description)
