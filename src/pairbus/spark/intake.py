"""One entity that a stream consumes: its messages are received with locks, so that nobody else has them meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from pairbus.client.chores import Chores
from pairbus.client.errors import InvalidRequestError, MessageLockLostError, MessagingError
from pairbus.client.factory import MessagingFactory
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.spark.claim import Claim, in_requests
from pairbus.spark.lock_time import LockTime
from pairbus.spark.lookout import are_first, is_any_there, still_there
from pairbus.spark.offset import NO_LEFTOVERS, NOTHING, Leftovers, Portion
from pairbus.spark.renewal import Renewal
from pairbus.spark.sequence_marks import SequenceMarks
from pairbus.spark.sequence_ranges import SequenceRanges

_log = logging.getLogger(__name__)

_REQUIRES_SESSIONS: Final = "requires sessions"
"""What the namespace says of an entity that cannot be received from without a session; Azure has the same words."""

_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0
_FAREWELL_S: Final = 4.0
_FIRST_RECEIVE: Final = 20
_RECEIVE_BYTES: Final = 4 * 1024 * 1024
_MOMENT_S: Final = 1.0
_LINK_MESSAGES: Final = 2_000
_LINK_BYTES: Final = 8 * 1024 * 1024
"""What is received over one link. A link keeps what it has received until that is settled over it, and nothing is: so
it is replaced now and then, which takes its memory with it, here and in the namespace."""


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
        target: SequenceMarks | None = None,
    ) -> None:
        self.path = path
        self.receives = 0
        self.error: MessagingError | None = None
        """What has ended it."""

        self.is_drained = False
        """Whether everything up to the target has been received that can be."""

        self.left = NO_LEFTOVERS
        self.lock_time = LockTime()

        self._factory = factory
        self._settings = settings
        self._on_change = on_change
        self._has_room = has_room
        self._target = target
        """The last numbers that are to be received, if not all are."""

        self._patient_until_s: float | None = None
        """Until when what others have locked before the target is waited for, once nothing else comes."""

        self._beyond: dict[int, Claim] = {}
        """What lies behind the target. It is kept to the end: given back at once, it would be all that comes again."""

        self._is_past_target = False
        """Whether the last receive showed that nothing before the target can be received."""

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
        self._chores.start(Renewal(self, self._desk).run())

    @property
    def waiting(self) -> int:
        """How many messages no batch holds yet."""
        return len(self._fresh)

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
                    self.error = _explained(error)
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
                if self._target is not None:
                    await self._see_whether_drained(self._target, received)
        finally:
            await receiver.close()

    @property
    def _worth_asking_for(self) -> int:
        """How many messages one receive asks for: all of them are in memory for a moment, and they may be large."""
        if self._is_past_target:
            return 1
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
        if await are_first(self._receiver, {message.sequence_number for message in received}):
            return received
        _log.info("'%s' is read when the locks have ended of what lies before", self.path)
        self.lock_time.note(received[-1])
        await receiver.abandon(received)
        await asyncio.sleep(self.lock_time.patient_s)
        return []

    def make_room(self) -> None:
        """Something was planned, of this entity or of another one."""
        self._room.set()

    def _admit(self, messages: list[ReceivedMessage]) -> None:
        now_s = asyncio.get_running_loop().time()
        done: list[Claim] = []
        for message in messages:
            claim = Claim.of(message, now_s)
            if claim is None:
                continue  # nobody can name it; it comes again
            if self.left.holds(claim.number, claim.enqueued_ms):
                done.append(claim)
            elif self._settings.keeps and self._held.holds(claim.number, claim.enqueued_ms):
                self._regain(self._planned, claim)
            elif self._target is not None and claim.number not in self._target:
                self._regain(self._beyond, claim)
            else:
                self._regain(self._fresh, claim)
        if messages:
            self.lock_time.note(messages[-1])
        if done:
            self._chores.start(self._complete(done), is_due=True)
        self._on_change()

    async def _see_whether_drained(self, target: SequenceMarks, received: list[ReceivedMessage]) -> None:
        """Nothing that comes lies before the target any more. There may be more all the same, which is locked: by a
        process that was killed, and comes when its lock ends; or by one that is alive, and is not waited for longer.
        """
        beyond = sum(message.sequence_number not in target for message in received)
        # Partitions take turns, so one message beyond the target shows nothing of the other partitions.
        is_end = beyond == len(received) or (beyond > 0 and not target.is_partitioned)
        self._is_past_target = is_end and beyond > 0
        if not is_end or self.is_drained:
            self._patient_until_s = None
        elif not self._settings.keeps or not await is_any_there(self._receiver, self._not_ours(target)):
            self._end()
        elif self._patient_until_s is None:
            _log.info("'%s' is read until the locks have ended of what others have received", self.path)
            self._patient_until_s = asyncio.get_running_loop().time() + self.lock_time.patient_s
        elif asyncio.get_running_loop().time() >= self._patient_until_s:
            self._end()
        if self._is_past_target:
            await asyncio.sleep(_MOMENT_S)  # else, what was received takes as long when there is nothing

    def _not_ours(self, target: SequenceMarks) -> SequenceRanges:
        """The numbers up to the target that we neither have nor have had."""
        ours = SequenceRanges.of((*self._fresh, *self._planned)) | self._held.numbers
        for portion in self.left.portions:
            ours |= portion.numbers
        return target.ranges - ours

    def _end(self) -> None:
        self.is_drained = True
        self._on_change()

    def _regain(self, claims: dict[int, Claim], claim: Claim) -> None:
        """Have a message that is locked for us now. One that was so before has lost its lock meanwhile."""
        before = claims.get(claim.number)
        if before is not None and before.enqueued_ms == claim.enqueued_ms:
            self.lock_time.was_lost(claim.locked_s - before.locked_s, claim.locked_s)
        claims[claim.number] = claim

    # What batches hold.

    def take(self, most: int) -> Portion:
        """Plan messages that were received, as many as there are or may be: they are held from now on."""
        numbers = sorted(self._fresh)[:most]
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
        for group in in_requests(claims):
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
            there = await still_there(self._receiver, portion)
            self.left = self.left.narrowed(portion.until_ms, portion.numbers - SequenceRanges.of(there))

    @property
    def _receiver(self) -> MessageReceiver:
        if self._desk is None:
            raise RuntimeError("it has not been started")
        return self._desk

    # Locks.

    def locked(self) -> list[Claim]:
        return [*self._planned.values(), *self._fresh.values(), *self._beyond.values()]

    def may_be_settled(self, claim: Claim) -> bool:
        """By the sink, which does that with what a batch holds."""
        return not (self._settings.keeps or claim.number in self._fresh or claim.number in self._beyond)

    def lose(self, lost: list[Claim]) -> None:
        """They come again, to somebody; a batch that holds them goes on holding them."""
        for claim in lost:
            for claims in (self._fresh, self._planned, self._beyond):
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
        planned = (
            [] if self._settings.keeps else [one for one in self._planned.values() if one.number not in self._fresh]
        )
        try:
            async with asyncio.timeout(_FAREWELL_S):
                for claims in (self._beyond.values(), self._fresh.values(), planned):
                    for group in in_requests(claims):
                        await _give_back(desk, group)
        except (MessagingError, TimeoutError) as error:
            _log.info("messages of '%s' come back when their locks end: %s", self.path, error)
        await desk.close()


def _explained(error: MessagingError) -> MessagingError:
    """Return an error with what the author of the query can do about it."""
    if not isinstance(error, InvalidRequestError) or _REQUIRES_SESSIONS not in error.message:
        return error
    explained = error.copy()
    explained.hint = "a stream cannot consume sessions: use browse, .option('mode', 'browse')"
    return explained


async def _give_back(receiver: MessageReceiver, claims: list[Claim]) -> None:
    """Abandon messages. One that the sink has settled keeps the namespace from giving back the others of its group, so
    it is looked for; where the first and the last are settled, all are taken to be.
    """
    if not claims or await _is_given_back(receiver, claims):
        return
    ends = [await _is_given_back(receiver, end) for end in (claims[:1], claims[1:][-1:]) if end]
    if any(ends):
        rest, half = claims[1:-1], len(claims) // 2
        await _give_back(receiver, rest[:half])
        await _give_back(receiver, rest[half:])


async def _is_given_back(receiver: MessageReceiver, claims: list[Claim]) -> bool:
    try:
        await receiver.abandon(claim.message() for claim in claims)
    except MessageLockLostError:
        return False
    return True
