"""Consumption of one entity: messages are received with locks, so that no other receiver gets them meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate
from typing import Final
from uuid import UUID

from pairbus.background_tasks import BackgroundTasks
from pairbus.backoff import Backoff
from pairbus.client.errors import EntityNotFoundError, InvalidRequestError, MessageLockLostError, MessagingError
from pairbus.client.factory import MessagingFactory
from pairbus.client.lock_renewer import LockRenewer
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.client.session import MessageSession
from pairbus.spark.locks import LockedMessage, LockTime, are_first, is_any_there, request_groups, still_there
from pairbus.spark.offset import NO_LEFTOVERS, NOTHING, Leftovers, Portion
from pairbus.spark.sequences import SequenceMarks, SequenceRanges

_log = logging.getLogger(__name__)

_REQUIRES_SESSIONS: Final = "requires sessions"
"""Part of the error for an entity that requires a session to receive from; Azure uses the same words."""

_BACKOFF: Final = Backoff(1.0, 30.0)
_CLOSE_TIMEOUT_S: Final = 4.0
_FIRST_RECEIVE: Final = 20
_RECEIVE_BYTES: Final = 4 * 1024 * 1024
_PAUSE_S: Final = 1.0
_LINK_MESSAGES: Final = 2_000
_LINK_BYTES: Final = 8 * 1024 * 1024
"""Limits of one link. A link keeps received messages until they are settled over it, which does not happen here: so it
is replaced from time to time, which frees their memory, here and in the namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedReceiverSettings:
    """Settings of a locked receiver."""

    long_poll: timedelta
    """Timeout of one receive."""

    at_once: int
    """Number of messages requested by one receive."""

    keeps: bool
    """True if the messages of a batch are kept until the batch is committed. Otherwise the sink settles them, and a
    message that is delivered again was abandoned by it."""

    sessions: int = 0
    """Maximum number of sessions that are locked at a time, if the entity requires sessions."""

    waits: bool = False
    """True to wait for an entity that does not exist; otherwise that stops the stream."""


class LockedReceiver:
    """Receives messages while there is room, and renews their locks until they are settled.

    A received message waits to be planned (``take``), then belongs to a batch, and is removed when that is committed
    (``remove``) unless the sink has settled it (``drop``). A lost lock loses no message: it is delivered again, and
    recognised by its number if it was processed already.
    """

    def __init__(
        self,
        factory: MessagingFactory,
        path: str,
        settings: LockedReceiverSettings,
        on_change: Callable[[], None],
        has_room: Callable[[], bool],
        target: SequenceMarks | None = None,
    ) -> None:
        self.path = path
        self.receives = 0
        self.error: MessagingError | None = None
        """The error that stopped the receiver."""

        self.is_missing = False
        """True while the receiver waits for an entity that does not exist."""

        self.is_drained = False
        """True once all available messages up to the target have been received."""

        self.left = NO_LEFTOVERS
        self.lock_time = LockTime()

        self._factory = factory
        self._settings = settings
        self._on_change = on_change
        self._has_room = has_room
        self._target = target
        """The last numbers to receive, unless everything is received."""

        self._wait_until_s: float | None = None
        """Deadline for messages before the target that others have locked, once no other message arrives."""

        self._after_target: dict[int, LockedMessage] = {}
        """Messages after the target. They are kept to the end: once abandoned, only they would be delivered again."""

        self._is_past_target = False
        """True if the last receive showed that no message before the target is available."""

        self._unplanned: dict[int, LockedMessage] = {}
        """Messages that belong to no batch yet."""

        self._held = NOTHING
        """The messages of a batch that is not committed yet."""

        self._planned: dict[int, LockedMessage] = {}
        """The messages that are locked by this receiver."""

        self._largest_bytes = 0
        """Size of the largest of the last messages; 0 before the first message."""

        self._room = asyncio.Event()
        self._settler: MessageReceiver | None = None
        """Settles and peeks; it never receives."""

        self._has_leftovers = asyncio.Event()
        """Set when there is something to receive after the end: leftovers."""

        self._is_start_checked = settings.keeps
        """True once the received messages are known to be the first of the queue."""

        self._background = BackgroundTasks(path, expected=MessagingError)
        self._renewer: LockRenewer[LockedMessage] | None = self._lock_renewer()

    def _lock_renewer(self) -> LockRenewer[LockedMessage] | None:
        """Return what renews the locks of messages, unless another lock covers them."""
        return LockRenewer(
            self._renew,
            tasks=self._background,
            lock_s=lambda: self.lock_time.careful_s,
            on_lost=self._lock_lost,
            find_settled=self._find_settled,
            lost_are_adjacent=True,
        )

    def resume(self, held: Portion | None, left: Leftovers | None) -> None:
        """Restore the state of a checkpoint; call it before ``start``."""
        self._held = held or NOTHING
        self.left = left or NO_LEFTOVERS

    async def start(self) -> None:
        """Start receiving. Raise ``MessagingError`` if the entity cannot be read."""
        self._settler = await self._factory.create_message_receiver(self.path)
        self._background.start(self._run())

    @property
    def waiting(self) -> int:
        """Number of messages that belong to no batch yet."""
        return len(self._unplanned)

    @property
    def waiting_bytes(self) -> int:
        """Size of the messages that belong to no batch yet."""
        return sum(locked.size_bytes for locked in self._unplanned.values())

    @property
    def locked(self) -> int:
        """Number of messages that are locked by this receiver."""
        return len(self._unplanned) + len(self._planned) + len(self._after_target)

    @property
    def oldest_ms(self) -> int | None:
        """Enqueued time of the oldest message that is not removed yet; ``None`` if there is none."""
        return min((one.enqueued_ms for one in (*self._unplanned.values(), *self._planned.values())), default=None)

    # Receiving.

    async def _run(self) -> None:
        """Receive until closed. An outage is logged once; an error that is not transient stops the receiver."""
        pause_s = _BACKOFF.first_s
        while True:
            if not self._has_more:
                self._has_leftovers.clear()
                await self._has_leftovers.wait()
            try:
                await (self._find() if self.is_missing else self._receive_over_one_link())
            except MessagingError as error:
                if self._settings.waits and isinstance(error, EntityNotFoundError):
                    self.is_missing = True
                elif not error.is_transient:
                    self.error = _with_hint(error)
                    self._on_change()
                    return
                level = logging.WARNING if pause_s == _BACKOFF.first_s else logging.DEBUG
                _log.log(level, 'receive failed, retrying entity=%s error="%s"', self.path, error)
                await asyncio.wait((self._factory.reached(),), timeout=pause_s)
                pause_s = _BACKOFF.after(pause_s)
            else:
                pause_s = _BACKOFF.first_s

    async def _find(self) -> None:
        """Check that a missing entity exists again: a receive would notice only with the first message."""
        await self._receiver.peek(1, 0)
        self.is_missing = False
        _log.info("entity found again entity=%s", self.path)

    @property
    def _has_more(self) -> bool:
        return not self.is_drained or bool(self.left)

    async def _receive_over_one_link(self) -> None:
        receiver = await self._factory.create_message_receiver(self.path)
        try:
            messages = size_bytes = 0
            while messages < _LINK_MESSAGES and size_bytes < _LINK_BYTES and self._has_more:
                await self._wait_for_room()
                self.receives += 1
                received = await receiver.receive(self._receive_count, self._settings.long_poll)
                if received and not self._is_start_checked:
                    received = await self._check_start(receiver, received)
                    if not received:
                        continue
                messages += len(received)
                sizes = [len(message.payload) for message in received]
                size_bytes += sum(sizes)
                self._largest_bytes = max(self._largest_bytes // 2, *sizes, 1) if sizes else self._largest_bytes
                self._admit(received)
                if self._target is not None:
                    await self._check_drained(self._target, received)
        finally:
            await receiver.close()

    @property
    def _receive_count(self) -> int:
        """Number of messages to request: all of them are in memory for a moment, and they may be large."""
        if self._is_past_target:
            return 1
        if not self._largest_bytes:
            return min(self._settings.at_once, _FIRST_RECEIVE)
        return max(1, min(self._settings.at_once, _RECEIVE_BYTES // self._largest_bytes))

    async def _wait_for_room(self) -> None:
        while not self._has_room():
            self._room.clear()
            await self._room.wait()

    async def _check_start(self, receiver: MessageReceiver, received: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """Before the first batch, check that no earlier message is still locked by a process that was killed.

        Such a message is delivered when its lock expires, and must come first to keep sessions in order. A live
        receiver may hold it as well, so wait no longer than that. Return the messages to admit now.
        """
        self._is_start_checked = True
        if await are_first(self._receiver, {message.sequence_number for message in received}):
            return received
        _log.info("waiting for locks of earlier messages to expire entity=%s", self.path)
        self.lock_time.note(received[-1])
        await receiver.abandon(received)
        await asyncio.sleep(self.lock_time.patient_s)
        return []

    def make_room(self) -> None:
        """Signal that messages of this or another entity were planned."""
        self._room.set()

    def _admit(self, messages: list[ReceivedMessage], session: MessageSession | None = None) -> None:
        now_s = asyncio.get_running_loop().time()
        done: list[LockedMessage] = []
        if messages:
            self.lock_time.note(messages[-1])
        for message in messages:
            locked = LockedMessage.of(message, now_s)
            if locked is None:
                continue  # it cannot be identified; it is delivered again
            locked.session = session
            if self.left.holds(locked.number, locked.enqueued_ms):
                done.append(locked)
            elif self._settings.keeps and self._held.holds(locked.number, locked.enqueued_ms):
                self._store(self._planned, locked)
            elif self._target is not None and locked.number not in self._target:
                self._store(self._after_target, locked)
            else:
                self._store(self._unplanned, locked)
        if done:
            self._background.start(self._complete(done), is_due=True)
        self._on_change()

    async def _check_drained(self, target: SequenceMarks, received: list[ReceivedMessage]) -> None:
        """Stop if no message before the target is available any more. Locked ones may exist all the same: those of a
        killed process are delivered when their locks expire; those of a live one are not waited for any longer.
        """
        beyond = sum(message.sequence_number not in target for message in received)
        # Partitions take turns, so one message beyond the target shows nothing of the other partitions.
        is_end = beyond == len(received) or (beyond > 0 and not target.is_partitioned)
        self._is_past_target = is_end and beyond > 0
        if not is_end or self.is_drained:
            self._wait_until_s = None
        elif not self._settings.keeps or not await is_any_there(self._receiver, self._missing(target)):
            self._end()
        elif self._wait_until_s is None:
            _log.info("waiting for locks of other receivers to expire entity=%s", self.path)
            self._wait_until_s = asyncio.get_running_loop().time() + self.lock_time.patient_s
        elif asyncio.get_running_loop().time() >= self._wait_until_s:
            self._end()
        if self._is_past_target:
            await asyncio.sleep(_PAUSE_S)  # a receive that returns messages does not wait as an empty one does

    def _missing(self, target: SequenceMarks) -> SequenceRanges:
        """Return the numbers up to the target of messages that this receiver neither has nor had."""
        known = SequenceRanges.of((*self._unplanned, *self._planned)) | self._held.numbers
        for portion in self.left.portions:
            known |= portion.numbers
        return target.ranges - known

    def _end(self) -> None:
        self.is_drained = True
        self._on_change()

    def _store(self, locked_messages: dict[int, LockedMessage], locked: LockedMessage) -> None:
        """Store a message that is locked now. If it was stored before, its lock was lost meanwhile."""
        before = locked_messages.get(locked.number)
        if before is not None and before.enqueued_ms == locked.enqueued_ms:
            self.lock_time.was_lost(locked.locked_s - before.locked_s, locked.locked_s)
        if before is not None:
            before.is_settled = True
        locked_messages[locked.number] = locked
        if self._renewer is not None:
            self._renewer.watch(locked)

    # Batches.

    def take(self, limit: int, limit_bytes: int | None = None) -> Portion:
        """Plan up to ``limit`` of the received messages, which belong to a batch from now on.

        Of messages that are larger than ``limit_bytes`` together, plan the first ones, and one at least.
        """
        numbers = sorted(self._unplanned)[:limit]
        if limit_bytes is not None:
            ends = accumulate(self._unplanned[number].size_bytes for number in numbers)
            numbers = numbers[: max(1, sum(end <= limit_bytes for end in ends))]
        self._forget_planned()
        self._planned = {number: self._unplanned.pop(number) for number in numbers}
        if not numbers:
            return NOTHING
        until_ms = max(locked.enqueued_ms for locked in self._planned.values())
        self._held = Portion(
            numbers=SequenceRanges.of(numbers), until_ms=until_ms, sessions=self._sessions(self._planned)
        )
        return self._held

    def _sessions(self, locked_messages: Mapping[int, LockedMessage]) -> tuple[SequenceRanges, ...]:  # noqa: ARG002
        """Return the numbers of each session."""
        return ()

    def tokens(self, portion: Portion) -> dict[int, UUID]:
        """Return the lock tokens of the messages that are locked by this receiver."""
        return {
            number: locked.token
            for number, locked in self._planned.items()
            if portion.holds(number, locked.enqueued_ms)
        }

    def drop(self) -> None:
        """Forget the messages of the last batch, which the sink has settled or left to be delivered again."""
        self._held = NOTHING
        self._forget_planned()

    def _forget_planned(self) -> None:
        for locked in self._planned.values():
            locked.is_settled = True
        self._planned = {}

    def remove(self, portion: Portion) -> None:
        """Remove the messages of a committed batch, in the background, or when they are delivered again."""
        locked_messages = [
            locked for locked in self._planned.values() if portion.holds(locked.number, locked.enqueued_ms)
        ]
        self.drop()
        self.left += portion
        self._background.start(self._complete(locked_messages), is_due=True)
        self._has_leftovers.set()

    async def wait_removed(self) -> None:
        """Wait until all messages are removed that can be removed now."""
        await self._background.finish()

    async def _complete(self, locked_messages: list[LockedMessage]) -> None:
        for group in self._groups(locked_messages):
            messages = [locked.message() for locked in group]
            try:
                await self._settler_of(group[0]).complete(messages)
            except MessagingError as error:
                _log.info('messages not removed, waiting for redelivery entity=%s error="%s"', self.path, error)
            removed = [locked for locked, message in zip(group, messages, strict=True) if message.is_settled]
            self.left = self.left.without((locked.number, locked.enqueued_ms) for locked in removed)

    def _groups(self, locked_messages: Iterable[LockedMessage]) -> Iterator[list[LockedMessage]]:
        """Split messages into groups that one request can settle."""
        return request_groups(locked_messages)

    def _settler_of(self, locked: LockedMessage) -> MessageReceiver:  # noqa: ARG002
        """Return the receiver that settles a message."""
        return self._receiver

    async def refresh_leftovers(self) -> None:
        """Forget leftovers that are gone, or were deferred by another receiver."""
        for portion in self.left.portions:
            there = await still_there(self._receiver, portion)
            self.left = self.left.narrowed(portion.until_ms, portion.numbers - SequenceRanges.of(there))

    @property
    def _receiver(self) -> MessageReceiver:
        if self._settler is None:
            raise RuntimeError(f"the receiver of '{self.path}' is not started; call start() first")
        return self._settler

    # Locks.

    async def _renew(self, locked_messages: list[LockedMessage]) -> None:
        now_s = asyncio.get_running_loop().time()
        await self._receiver.renew_locks(locked.message() for locked in locked_messages)
        for locked in locked_messages:
            locked.locked_s = now_s

    def _may_be_settled(self, locked: LockedMessage) -> bool:
        """Return whether the sink may have settled a message, which it does with those of a batch."""
        return not (self._settings.keeps or locked.number in self._unplanned or locked.number in self._after_target)

    async def _find_settled(self, locked_messages: list[LockedMessage]) -> None:
        """Forget the messages that the sink has settled: they do not exist any more."""
        if not any(map(self._may_be_settled, locked_messages)):
            return
        until_ms = max(locked.enqueued_ms for locked in locked_messages)
        portion = Portion(numbers=SequenceRanges.of(locked.number for locked in locked_messages), until_ms=until_ms)
        there = await still_there(self._receiver, portion)
        self._lose([locked for locked in locked_messages if locked.number not in there])

    def _lock_lost(self, lost: list[LockedMessage], error: MessagingError | None) -> None:
        if error is not None and not all(map(self._may_be_settled, lost)):
            now_s = asyncio.get_running_loop().time()
            self.lock_time.was_lost(now_s - lost[0].locked_s, now_s)
        _log.info('locks lost entity=%s count=%d error="%s"', self.path, len(lost), error or "expired")
        self._lose(lost)

    def _lose(self, lost: list[LockedMessage]) -> None:
        """Forget messages whose locks are lost. They are delivered again; a batch that holds them keeps them."""
        for locked in lost:
            locked.is_settled = True
            for locked_messages in (self._unplanned, self._planned, self._after_target):
                if locked_messages.get(locked.number) is locked:
                    del locked_messages[locked.number]
        if lost:
            self.make_room()
            self._on_change()

    # Close.

    async def close(self) -> None:
        """Stop receiving, and abandon the messages that belong to no batch. Idempotent."""
        await self._background.close()
        if self._renewer is not None:
            await self._renewer.close()
        settler, self._settler = self._settler, None
        if settler is None:
            return
        planned = (
            [] if self._settings.keeps else [one for one in self._planned.values() if one.number not in self._unplanned]
        )
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                for locked_messages in (self._after_target.values(), self._unplanned.values(), planned):
                    for group in request_groups(locked_messages):
                        await _abandon(settler, group)
        except (MessagingError, TimeoutError) as error:
            _log.info('messages not abandoned, their locks expire entity=%s error="%s"', self.path, error)
        await settler.close()


def _with_hint(error: MessagingError) -> MessagingError:
    """Return the error with a hint for the author of the query."""
    if not isinstance(error, InvalidRequestError) or _REQUIRES_SESSIONS not in error.message:
        return error
    explained = error.copy()
    explained.hint = (
        "set the number of sessions to lock at a time, .option('sessions', 8), or, to lock and remove nothing,"
        " use browse, .option('mode', 'browse')"
    )
    return explained


async def _abandon(receiver: MessageReceiver, locked_messages: list[LockedMessage]) -> None:
    """Abandon messages. One that the sink has settled makes the request fail for its whole group, so it is searched for
    by bisection; if the first and the last are settled, all are assumed to be.
    """
    if not locked_messages or await _is_abandoned(receiver, locked_messages):
        return
    ends = [await _is_abandoned(receiver, end) for end in (locked_messages[:1], locked_messages[1:][-1:]) if end]
    if any(ends):
        rest, half = locked_messages[1:-1], len(locked_messages) // 2
        await _abandon(receiver, rest[:half])
        await _abandon(receiver, rest[half:])


async def _is_abandoned(receiver: MessageReceiver, locked_messages: list[LockedMessage]) -> bool:
    try:
        await receiver.abandon(locked.message() for locked in locked_messages)
    except MessageLockLostError:
        return False
    return True
