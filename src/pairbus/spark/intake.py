"""One entity that a stream consumes: its messages are received with locks, so that nobody else has them meanwhile."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Final, TypeVar
from uuid import UUID

from pairbus.client.chores import Chores
from pairbus.client.errors import MessageLockLostError, MessagingError
from pairbus.client.factory import MessagingFactory
from pairbus.client.received_message import MessageState, ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.client.times import to_ms
from pairbus.dialect.enqueued import read_enqueued
from pairbus.spark.offset import NO_LEFTOVERS, NOTHING, Leftovers, Portion
from pairbus.spark.sequence_ranges import SequenceRanges

_log = logging.getLogger(__name__)
T = TypeVar("T")

_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0
_SETTLED_AT_ONCE: Final = 1_000
_LOOKED_AT_ONCE: Final = 100
_RENEW_AT: Final = 0.5
"""How much of a lock's time may pass before it is renewed."""

_USUAL_LOCK_S: Final = 60.0
_SHORTEST_LOCK_S: Final = 5.0
_TICK_S: Final = 1.0
_DOUBT_S: Final = 600.0
_FAREWELL_S: Final = 4.0
_UNDER_WAY_S: Final = 1.0
_FIRST_RECEIVE: Final = 20
_RECEIVE_BYTES: Final = 4 * 1024 * 1024
_LINK_MESSAGES: Final = 2_000
_LINK_BYTES: Final = 8 * 1024 * 1024
"""What is received over one link. A link keeps what it has received until that is settled over it, and nothing is: so
it is replaced now and then, which takes its memory with it, here and in the namespace."""


@dataclass(slots=True, kw_only=True)
class Claim:
    """A message that is locked for the stream. Its body is read by whoever runs the task: the driver keeps none."""

    number: int
    enqueued_ms: int
    token: UUID
    locked_s: float
    """When it was locked, or its lock renewed, on the clock of the loop."""

    def message(self) -> ReceivedMessage:
        """What a receiver can settle."""
        return ReceivedMessage(b"", lock_token=self.token)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeSettings:
    """How messages are taken in."""

    long_poll: timedelta
    """How long one receive waits."""

    at_once: int
    """How many messages one receive asks for."""

    keeps: bool
    """Whether what a batch holds is ours until the batch is committed; else the sink settles it, and what comes again
    has been given back by it."""


class Intake:
    """Receives as long as there is room, and keeps the locks until the messages are settled.

    What it has received waits to be planned (``take``), is held by a batch then, and is removed when that is committed
    (``remove``) unless the sink has seen to it (``drop``). Whoever loses a lock loses no message: it comes again, and
    is known again by its number if it was dealt with already.
    """

    def __init__(
        self,
        factory: MessagingFactory,
        path: str,
        settings: IntakeSettings,
        on_change: Callable[[], None],
        has_room: Callable[[], bool],
        target: int | None = None,
    ) -> None:
        self.path = path
        self.receives = 0
        self.error: MessagingError | None = None
        """What has ended it."""

        self.is_drained = False
        """Whether everything up to the target has been received that can be."""

        self.left = NO_LEFTOVERS

        self._factory = factory
        self._settings = settings
        self._on_change = on_change
        self._has_room = has_room
        self._target = target
        """The last number that is to be received, if not all are."""

        self._fresh: dict[int, Claim] = {}
        """What no batch holds yet."""

        self._held = NOTHING
        """What a batch holds that is not committed yet."""

        self._planned: dict[int, Claim] = {}
        """That of it which is locked for us."""

        self._largest_bytes = 0
        """How large messages are, going by the largest of the last ones; 0 before there was one."""

        self._room = asyncio.Event()
        self._desk: MessageReceiver | None = None
        """Settles and peeks; it never receives."""

        self._wanted = asyncio.Event()
        """Set when there is something to receive after the end: what is left."""

        self._lock_s: float | None = None
        """How long a lock is, or less; not known before there was one."""

        self._doubted_s = -_DOUBT_S
        self._is_sure = settings.keeps
        """Whether what has come is what lies first in the queue."""

        self._chores = Chores(path)

    def resume(self, held: Portion | None, left: Leftovers | None) -> None:
        """What is known from a checkpoint before anything is received."""
        self._held = held or NOTHING
        self.left = left or NO_LEFTOVERS

    async def start(self) -> None:
        """Begin to receive; raises ``MessagingError`` if the entity cannot be read."""
        self._desk = await self._factory.create_message_receiver(self.path)
        self._chores.start(self._run())
        self._chores.start(self._renew())

    @property
    def waiting(self) -> int:
        """How many messages no batch holds yet."""
        return len(self._fresh)

    @property
    def fresh(self) -> int:
        """How many of them can be planned."""
        return sum(map(self._is_due, self._fresh))

    def _is_due(self, number: int) -> bool:
        return self._target is None or number <= self._target

    # Receiving.

    async def _run(self) -> None:
        """Receive for ever; an outage is told once, and what does not pass by itself ends it."""
        pause_s = _FIRST_PAUSE_S
        while True:
            if not self._goes_on:
                self._wanted.clear()
                await self._wanted.wait()
            try:
                await self._receive_over_one_link()
            except MessagingError as error:
                if not error.is_transient:
                    self.error = error
                    self._on_change()
                    return
                level = logging.WARNING if pause_s == _FIRST_PAUSE_S else logging.DEBUG
                _log.log(level, "'%s' is read again after: %s", self.path, error)
                await asyncio.wait((self._factory.reached(),), timeout=pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            else:
                pause_s = _FIRST_PAUSE_S

    @property
    def _goes_on(self) -> bool:
        return not self.is_drained or bool(self.left)

    async def _receive_over_one_link(self) -> None:
        receiver = await self._factory.create_message_receiver(self.path)
        try:
            messages = size_bytes = 0
            while messages < _LINK_MESSAGES and size_bytes < _LINK_BYTES and self._goes_on:
                await self._wait_for_room()
                self.receives += 1
                received = await receiver.receive(self._worth_asking_for, self._settings.long_poll)
                if received and not self._is_sure:
                    received = await self._make_sure(receiver, received)
                    if not received:
                        continue
                messages += len(received)
                sizes = [len(message.payload) for message in received]
                size_bytes += sum(sizes)
                self._largest_bytes = max(self._largest_bytes // 2, *sizes, 1) if sizes else self._largest_bytes
                self._admit(received)
        finally:
            await receiver.close()

    @property
    def _worth_asking_for(self) -> int:
        """How many messages one receive asks for: all of them are in memory for a moment, and they may be large."""
        if not self._largest_bytes:
            return min(self._settings.at_once, _FIRST_RECEIVE)
        return max(1, min(self._settings.at_once, _RECEIVE_BYTES // self._largest_bytes))

    async def _wait_for_room(self) -> None:
        while not self._has_room():
            self._room.clear()
            await self._room.wait()

    async def _make_sure(self, receiver: MessageReceiver, received: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """Before the first batch: see that nothing lies before it which a process that was killed has left locked.

        That comes when its lock ends, and has to go first: messages of a session stay in order. Somebody who is alive
        may have it as well, so it is not waited for longer than that. Gives what is to be taken in now.
        """
        self._is_sure = True
        if await self._are_first({message.sequence_number for message in received}):
            return received
        _log.info("'%s' is read when the locks have ended of what lies before", self.path)
        self._note_lock(received[-1])
        await receiver.abandon(received)
        await asyncio.sleep((self._lock_s or _USUAL_LOCK_S) + _UNDER_WAY_S)
        return []

    async def _are_first(self, numbers: set[int]) -> bool:
        """Whether nothing that could be received lies before these messages, or between them."""
        cursor, last = 0, max(numbers)
        while cursor < last:
            page = await self._receiver.peek(_LOOKED_AT_ONCE, cursor)
            if not page:
                return True
            for one in page:
                is_before = one.sequence_number < last and one.sequence_number not in numbers
                if is_before and one.state is MessageState.ACTIVE:
                    return False
            cursor = page[-1].sequence_number + 1
        return True

    def make_room(self) -> None:
        """Something was planned, of this entity or of another one."""
        self._room.set()

    def _admit(self, messages: list[ReceivedMessage]) -> None:
        now_s = asyncio.get_running_loop().time()
        done: list[Claim] = []
        for message in messages:
            claim = _claim(message, now_s)
            if claim is None:
                continue  # nobody can name it; it comes again
            if self.left.holds(claim.number, claim.enqueued_ms):
                done.append(claim)
            elif self._settings.keeps and self._held.holds(claim.number, claim.enqueued_ms):
                self._regain(self._planned, claim)
            else:
                self._regain(self._fresh, claim)
        if messages:
            self._note_lock(messages[-1])
        if done:
            self._chores.start(self._complete(done), is_due=True)
        if self._target is not None and (not messages or max(self._fresh, default=0) > self._target):
            self.is_drained = True
        self._on_change()

    def _regain(self, claims: dict[int, Claim], claim: Claim) -> None:
        """Have a message that is locked for us now. One that was so before has lost its lock meanwhile."""
        before = claims.get(claim.number)
        if before is not None and before.enqueued_ms == claim.enqueued_ms:
            self._found_short(claim.locked_s - before.locked_s, claim.locked_s)
        claims[claim.number] = claim

    def _shorten(self, lock_s: float) -> None:
        self._lock_s = max(_SHORTEST_LOCK_S, min(self._lock_s or _USUAL_LOCK_S, lock_s))

    def _found_short(self, lock_s: float, now_s: float) -> None:
        """A lock was lost; which may have another reason, so that is not believed for ever."""
        self._shorten(lock_s)
        self._doubted_s = now_s

    def _note_lock(self, message: ReceivedMessage) -> None:
        """No message was locked before it was enqueued, nor, if the clocks of this machine and of the namespace agree,
        before it came. Where they do not, a lock may seem longer than it is, until one is lost.
        """
        if message.locked_until is not None:
            if asyncio.get_running_loop().time() - self._doubted_s > _DOUBT_S:
                self._lock_s = None
            ends = message.locked_until.timestamp()
            self._shorten(min(ends - message.enqueued_time.timestamp(), ends - time.time() + _UNDER_WAY_S))

    # What batches hold.

    def take(self, most: int) -> Portion:
        """Plan messages that were received, as many as there are or may be: they are held from now on."""
        numbers = sorted(filter(self._is_due, self._fresh))[:most]
        self._planned = {number: self._fresh.pop(number) for number in numbers}
        if not numbers:
            return NOTHING
        until_ms = max(claim.enqueued_ms for claim in self._planned.values())
        self._held = Portion(numbers=SequenceRanges.of(numbers), until_ms=until_ms)
        return self._held

    def tokens(self, portion: Portion) -> dict[int, UUID]:
        """The lock tokens of those that are locked for us."""
        return {
            number: claim.token for number, claim in self._planned.items() if portion.holds(number, claim.enqueued_ms)
        }

    def drop(self) -> None:
        """The sink has settled what the last batch held, or left it to be received again."""
        self._held = NOTHING
        self._planned = {}

    def remove(self, portion: Portion) -> None:
        """A batch is committed: remove what it held, soon. What cannot be removed now is when it comes again."""
        claims = [claim for claim in self._planned.values() if portion.holds(claim.number, claim.enqueued_ms)]
        self.drop()
        self.left += portion
        self._chores.start(self._complete(claims), is_due=True)
        self._wanted.set()

    async def removed(self) -> None:
        """Wait until everything is removed that can be now."""
        await self._chores.finish()

    async def _complete(self, claims: list[Claim]) -> None:
        for group in _groups(claims, _SETTLED_AT_ONCE):
            messages = [claim.message() for claim in group]
            try:
                await self._receiver.complete(messages)
            except MessagingError as error:
                _log.info("messages of '%s' are removed when they come again: %s", self.path, error)
            removed = [claim for claim, message in zip(group, messages, strict=True) if message.is_settled]
            self.left = self.left.without((claim.number, claim.enqueued_ms) for claim in removed)

    async def look_for_left(self) -> None:
        """Forget of what was left that which is not there any more, or is somebody else's: it was deferred."""
        for portion in self.left.portions:
            there = await self._still_there(portion)
            gone = portion.numbers - SequenceRanges.of(there)
            self.left = self.left.without((number, portion.until_ms) for number in gone)

    async def _still_there(self, portion: Portion) -> list[int]:
        found: list[int] = []
        cursor = portion.numbers
        while cursor:
            first, last = cursor.ranges[0].first, cursor.ranges[-1].last
            page = await self._receiver.peek(min(_SETTLED_AT_ONCE, last - first + 1), first)
            for message in page:
                number = message.sequence_number
                if message.state is MessageState.ACTIVE and portion.holds(number, to_ms(message.enqueued_time)):
                    found.append(number)
            cursor = cursor.since(page[-1].sequence_number + 1) if page else SequenceRanges()
        return found

    @property
    def _receiver(self) -> MessageReceiver:
        if self._desk is None:
            raise RuntimeError("it has not been started")
        return self._desk

    # Locks.

    async def _renew(self) -> None:
        while True:
            lock_s = self._lock_s or _SHORTEST_LOCK_S
            await asyncio.sleep(min(_TICK_S, lock_s * _RENEW_AT / 4))
            now_s = asyncio.get_running_loop().time()
            claims = [*self._planned.values(), *self._fresh.values()]
            self._lose([claim for claim in claims if claim.locked_s + lock_s <= now_s])
            due = [claim for claim in claims if now_s - lock_s < claim.locked_s <= now_s - lock_s * _RENEW_AT]
            try:
                for group in _groups(due, _SETTLED_AT_ONCE):
                    await self._renew_group(group)
            except MessagingError as error:
                _log.info("locks of '%s' could not be renewed: %s", self.path, error)

    async def _renew_group(self, claims: list[Claim]) -> None:
        now_s = asyncio.get_running_loop().time()
        if await self._is_renewed(claims):
            for claim in claims:
                claim.locked_s = now_s
        elif unsettled := await self._unsettled(claims):
            await self._renew_all(unsettled)

    async def _renew_all(self, claims: list[Claim]) -> None:
        """Renew locks. One that is lost keeps the namespace from renewing the others of its group; it is looked for,
        without asking for each of them: what a sink has settled, or a namespace forgotten, are many in a row.
        """
        now_s = asyncio.get_running_loop().time()
        if await self._is_renewed(claims):
            for claim in claims:
                claim.locked_s = now_s
        elif len(claims) == 1 or not (await self._is_renewed(claims[-1:]) or await self._is_renewed(claims[:1])):
            self._learn(claims, now_s)
            self._lose(claims)
        else:
            half = len(claims) // 2
            await self._renew_all(claims[:half])
            await self._renew_all(claims[half:])

    async def _unsettled(self, claims: list[Claim]) -> list[Claim]:
        """Those that the sink has not settled yet, as far as it does: what it has settled is not there any more."""
        if self._settings.keeps:
            return claims
        until_ms = max(claim.enqueued_ms for claim in claims)
        portion = Portion(numbers=SequenceRanges.of(claim.number for claim in claims), until_ms=until_ms)
        there = set(await self._still_there(portion))
        self._lose([claim for claim in claims if claim.number not in there])
        return [claim for claim in claims if claim.number in there]

    async def _is_renewed(self, claims: list[Claim]) -> bool:
        try:
            await self._receiver.renew_locks(claim.message() for claim in claims)
        except MessageLockLostError:
            return False
        return True

    def _learn(self, lost: list[Claim], now_s: float) -> None:
        """Locks that are lost are no longer than they have been held, unless the sink has settled the messages."""
        is_ours = self._settings.keeps or any(claim.number in self._fresh for claim in lost)
        if is_ours:
            self._found_short(now_s - lost[0].locked_s, now_s)

    def _lose(self, lost: list[Claim]) -> None:
        """They come again, to somebody; a batch that holds them goes on holding them."""
        for claim in lost:
            for claims in (self._fresh, self._planned):
                if claims.get(claim.number) is claim:
                    del claims[claim.number]
        if lost:
            self.make_room()
            self._on_change()

    # The end.

    async def close(self) -> None:
        """Stop, and give back what no batch holds. To close twice is fine."""
        await self._chores.close()
        desk, self._desk = self._desk, None
        if desk is None:
            return
        claims = [*self._fresh.values()] if self._settings.keeps else [*self._planned.values(), *self._fresh.values()]
        try:
            async with asyncio.timeout(_FAREWELL_S):
                for group in _groups(claims, _SETTLED_AT_ONCE):
                    with suppress(MessageLockLostError):  # some of a batch may be settled
                        await desk.abandon(claim.message() for claim in group)
        except (MessagingError, TimeoutError) as error:
            _log.info("messages of '%s' come back when their locks end: %s", self.path, error)
        await desk.close()


def _claim(message: ReceivedMessage, now_s: float) -> Claim | None:
    token, enqueued = message.lock_token, read_enqueued(message.payload)
    if token is None or enqueued.sequence_number is None or enqueued.time_ms is None:
        return None
    return Claim(number=enqueued.sequence_number, enqueued_ms=enqueued.time_ms, token=token, locked_s=now_s)


def _groups(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while group := list(islice(iterator, size)):
        yield group
