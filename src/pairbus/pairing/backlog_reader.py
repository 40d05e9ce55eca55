"""One backlog queue: its messages are received, handed to the channels of their destinations, and removed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from pairbus.client.errors import (
    InvalidMessageError,
    InvalidRequestError,
    MessageLockLostError,
    MessageNotFoundError,
    MessagingError,
)
from pairbus.client.received_message import MessageState, ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.dialect.entity_path import split_entity_path
from pairbus.dialect.transfer import Transfer, TransferError, read_transfer, restore
from pairbus.pairing.ahead import Ahead, Line
from pairbus.pairing.backlog_clock import BacklogClock
from pairbus.pairing.cargo import Cargo, key_of, payload_of
from pairbus.pairing.channel import Channel
from pairbus.pairing.contact import Contact
from pairbus.pairing.dead_letter_reason import DeadLetterReason, reason_of
from pairbus.pairing.destination import Destination
from pairbus.pairing.events import Listener, MessageDeadLettered
from pairbus.pairing.syphon import SyphonSettings, TimeToLive

_log = logging.getLogger(__name__)
T = TypeVar("T")

_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0
_QUIET_S: Final = 1.0
"""How long nothing has to come before all that was there has been received."""

_MOMENT_S: Final = 0.001
_PAGE: Final = 100
_LOOK_AGAIN_S: Final = 2.0
_RENEW_AT: Final = 0.5
"""How much of a lock's time may pass before it is renewed."""

_PARTITIONED: Final = 1 << 48
"""The upper bits of a sequence number are the partition of the queue that gave it."""

_MOST_UNREMOVED: Final = 10_000
_RENEWED_AT_ONCE: Final = 10
_LONGEST_DESCRIPTION: Final = 2_000


class BacklogReader:
    """Receives as long as there is room in hand; a message leaves the queue only when its destination has it."""

    def __init__(
        self,
        receiver: MessageReceiver,
        settings: SyphonSettings,
        contact: Contact,
        reached: Callable[[], asyncio.Future[None]],
        find_destination: Callable[[str], Destination],
        tell: Listener,
    ) -> None:
        self.ahead = Ahead()
        self.receives = 0
        self.syphoned = 0
        self.dead_lettered = 0
        self.is_closing = False
        self.channels: dict[str, Channel] = {}
        self._receiver = receiver
        self._settings = settings
        self._contact = contact
        self._reached = reached
        self._find_destination = find_destination
        self._tell = tell
        self._clock = BacklogClock()
        self._in_hand: dict[int, Cargo] = {}
        self._fresh = 0
        """How many of them were received; the others were fetched from where they were parked."""

        self._arrivals = 0
        """How often messages have come."""

        self._room = asyncio.Event()
        self._missing: set[int] = set()
        """What was parked, and is with somebody else now."""

        self._done: list[Cargo] = []
        self._unremoved: dict[int, None] = {}
        """What has been delivered, and is still in the queue."""

        self._looking = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._burying: set[asyncio.Task[None]] = set()
        self._completing: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._is_behind = False
        """Whether more may have come since everything was looked at."""

    @property
    def path(self) -> str:
        return self._receiver.path

    # Beginning.

    def start(self) -> asyncio.Task[None]:
        """Begin to read; gives a first look at the queue, which tells whether it can be read at all."""
        loop = asyncio.get_running_loop()
        looking = self._spawn(self._first_look())
        self._reading = loop.create_task(self._run())
        return looking

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, MessagingError):
            _log.error("something unexpected has happened to '%s'", self.path, exc_info=error)

    async def _first_look(self) -> None:
        try:
            await self._look()
        except MessagingError:
            self._is_behind = True
            self._spawn(self._look_when_quiet())
            raise

    # Receiving.

    async def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        is_told = False
        while True:
            try:
                await self._turn()
            except MessagingError as error:
                _log.log(
                    logging.DEBUG if is_told else logging.WARNING, "'%s' is read again after: %s", self.path, error
                )
                is_told = True
            except Exception:  # noqa: BLE001 (whatever it is, the queue has to be read)
                _log.exception("'%s' is read again after an unexpected error", self.path)
            else:
                pause_s, is_told = _FIRST_PAUSE_S, False
                continue
            await asyncio.wait((self._reached(),), timeout=pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _turn(self) -> None:
        await self._contact.wait()
        await self._wait_for_room()
        if self._contact.is_away:
            return
        looking = self._spawn(self._look_when_quiet()) if self._is_behind else None
        try:
            self.receives += 1
            count = self._settings.max_messages - self._fresh
            messages = await self._receiver.receive(count, self._settings.long_poll)
        finally:
            if looking is not None:
                looking.cancel()
        self._is_behind = True
        if messages:
            self._arrivals += 1
            await self._admit(messages)

    async def _wait_for_room(self) -> None:
        """A little room is not worth a receive, while there is something else to do."""
        most = self._settings.max_messages
        while self._fresh > most // 2:
            self._room.clear()
            await self._room.wait()

    async def _admit(self, messages: list[ReceivedMessage]) -> None:
        """Take messages in hand. Before those of a session go on, what lies before them must be known."""
        cargoes = self._taken(messages, is_deferred=False)
        last = max((cargo.sequence for cargo in cargoes if cargo.line is not None), default=0)
        if last and self.ahead.first_unknown(last) is not None:
            try:
                await self._look(last)
            except BaseException:
                self._spawn(self.abandon(cargoes))
                raise
        for cargo in cargoes:
            self._channel(cargo.transfer.path).hold(cargo)

    def _taken(self, messages: list[ReceivedMessage], *, is_deferred: bool) -> list[Cargo]:
        """What can be delivered of what has been locked for us; the rest is dead-lettered."""
        now_s = asyncio.get_running_loop().time()
        cargoes: list[Cargo] = []
        for message in messages:
            try:
                payload = payload_of(message)
                transfer = read_transfer(payload)
                _check_path(transfer)
                cargo = Cargo(message, payload, transfer, now_s, is_deferred=is_deferred)
                self._clock.note(message)
            except (TransferError, InvalidMessageError) as error:
                self._dead_letter_unreadable(message, error)
                continue
            self._received(cargo.sequence)
            before = self._in_hand.get(cargo.sequence)
            if before is not None:  # its lock has ended, and it came again
                self._drop([before])
            self._in_hand[cargo.sequence] = cargo
            self._fresh += not is_deferred
            if cargo.sequence in self._unremoved:
                self._finish([cargo])
            else:
                cargoes.append(cargo)
        if cargoes and self._renewing is None:
            self._renewing = self._spawn(self._renew())
        return cargoes

    def _received(self, sequence: int) -> None:
        line = self.ahead.others.get(sequence)
        self.ahead.received(sequence)
        self._missing.discard(sequence)
        if line is not None:
            self._free(line)

    def _free(self, line: Line) -> None:
        channel = self.channels.get(line[0])
        if channel is not None:
            channel.free(line)

    def _channel(self, path: str) -> Channel:
        key = key_of(path)
        channel = self.channels.get(key)
        destination = self._find_destination(path)
        if channel is None or channel.destination is not destination:
            channel = self.channels[key] = Channel(self, destination, self._contact)
        return channel

    def _drop(self, cargoes: list[Cargo]) -> None:
        """These are not in hand any more."""
        for cargo in cargoes:
            if self._in_hand.get(cargo.sequence) is cargo:
                del self._in_hand[cargo.sequence]
                self._fresh -= not cargo.is_deferred
        self._room.set()

    # What channels need.

    def restored(self, cargo: Cargo) -> bytes | None:
        transfer = cargo.transfer
        left_ms = transfer.time_to_live_ms
        if left_ms is not None and self._settings.time_to_live is TimeToLive.REMAINING:
            left_ms -= int(self._clock.age(cargo.message.enqueued_time).total_seconds() * 1_000)
            if left_ms <= 0:
                text = f"the message for '{transfer.path}' has outlived its time to live in the backlog"
                self._dead_letter([cargo], DeadLetterReason.EXPIRED, text)
                return None
        try:
            return restore(cargo.payload, transfer, time_to_live_ms=left_ms)
        except TransferError as error:
            self._dead_letter([cargo], reason_of(error), f"the message for '{transfer.path}': {error}")
            return None

    def delivered(self, cargoes: list[Cargo]) -> None:
        self.syphoned += len(cargoes)
        self._finish(cargoes)

    def _finish(self, cargoes: list[Cargo]) -> None:
        self._done += cargoes
        if self._completing is None:
            self._completing = self._spawn(self._complete())

    async def _complete(self) -> None:
        """Remove what has been delivered, all that has been by now in one go."""
        try:
            while self._done:
                done, self._done = self._done, []
                for group in ([one for one in done if not one.is_deferred], [one for one in done if one.is_deferred]):
                    await self._settle(group, self._receiver.complete)
                self._note_unremoved(done)
                self._drop(done)
        finally:
            self._completing = None

    def _note_unremoved(self, cargoes: list[Cargo]) -> None:
        """What could not be removed comes again; then it need not be sent again."""
        for cargo in cargoes:
            if cargo.message.is_settled:
                self._unremoved.pop(cargo.sequence, None)
            else:
                self._unremoved[cargo.sequence] = None
        while len(self._unremoved) > _MOST_UNREMOVED:
            self._unremoved.pop(next(iter(self._unremoved)))

    async def _settle(self, cargoes: list[Cargo], settle: Callable[[list[ReceivedMessage]], Awaitable[None]]) -> None:
        """Settle messages, as far as that can be done. The others are delivered again, to somebody."""
        for _ in range(2):  # one whose lock is lost may have kept others
            rest = [cargo.message for cargo in cargoes if not cargo.message.is_settled]
            if not rest:
                break
            try:
                await settle(rest)
            except MessageLockLostError as error:
                _log.info("messages of '%s' are delivered again: %s", self.path, error)
            except MessagingError as error:
                _log.warning("messages of '%s' are delivered again: %s", self.path, error)
                break

    def refuse(self, cargoes: list[Cargo], error: MessagingError) -> None:
        self._dead_letter(cargoes, reason_of(error), f"'{cargoes[0].transfer.path}' does not take the message: {error}")

    def _dead_letter(self, cargoes: list[Cargo], reason: DeadLetterReason, description: str) -> None:
        self._settling(self._bury(cargoes, reason, description[:_LONGEST_DESCRIPTION]))

    def _settling(self, work: Coroutine[Any, Any, None]) -> None:
        """Do what has to be finished before the end."""
        task = self._spawn(work)
        self._burying.add(task)
        task.add_done_callback(self._burying.discard)

    async def _bury(self, cargoes: list[Cargo], reason: DeadLetterReason, description: str) -> None:
        async def settle(messages: list[ReceivedMessage]) -> None:
            await self._receiver.dead_letter(messages, reason.value, description)

        await self._settle(cargoes, settle)
        for cargo in cargoes:
            if cargo.message.is_settled:
                self._tell_dead_letter(cargo.message, cargo.transfer.path, reason, description)
        self._drop(cargoes)

    def _dead_letter_unreadable(self, message: ReceivedMessage, error: TransferError | InvalidMessageError) -> None:
        path = error.path if isinstance(error, TransferError) else None
        reason = DeadLetterReason.UNREADABLE
        if isinstance(error, _InvalidPathError):
            reason = DeadLetterReason.INVALID_DESTINATION
        elif isinstance(error, TransferError):
            reason = reason_of(error)
        where = "" if path is None else f"the message for '{path}': "
        self._settling(self._bury_unreadable(message, path, reason, f"{where}{error}"[:_LONGEST_DESCRIPTION]))

    async def _bury_unreadable(
        self, message: ReceivedMessage, path: str | None, reason: DeadLetterReason, description: str
    ) -> None:
        try:
            await self._receiver.dead_letter(message, reason.value, description)
        except MessagingError as failure:
            _log.warning("a message of '%s' could not be dead-lettered yet: %s", self.path, failure)
        else:
            self._tell_dead_letter(message, path, reason, description)

    def _tell_dead_letter(
        self, message: ReceivedMessage, path: str | None, reason: DeadLetterReason, description: str
    ) -> None:
        self.dead_lettered += 1
        try:
            message_id = str(message.message_id)
        except InvalidMessageError:
            message_id = ""
        _log.warning("a message of '%s' was dead-lettered: %s", self.path, description)
        self._tell(
            MessageDeadLettered(
                at=datetime.now(UTC),
                backlog_queue=self.path,
                message_id=message_id,
                path=path,
                reason=reason.value,
                description=description,
            )
        )

    async def defer(self, cargoes: list[Cargo]) -> list[Cargo]:
        """Put messages aside; what was put aside before is so in any case, even if its lock is lost."""
        await self._settle(cargoes, self._receiver.defer)
        self._forsake([cargo for cargo in cargoes if not cargo.message.is_settled and not cargo.is_deferred])
        self._drop(cargoes)
        return [cargo for cargo in cargoes if cargo.message.is_settled or cargo.is_deferred]

    async def abandon(self, cargoes: list[Cargo]) -> None:
        """Give messages back."""
        if cargoes:
            await self._settle(cargoes, self._receiver.abandon)
            self._forsake(cargoes)
            self._drop(cargoes)

    def _forsake(self, cargoes: list[Cargo]) -> None:
        """These are anybody's now."""
        for cargo in cargoes:
            self.ahead.saw(cargo.sequence, cargo.line)

    async def fetch(self, sequences: list[int], lines: list[Line | None]) -> list[Cargo]:
        try:
            return self._taken(await self._receiver.receive_deferred(sequences), is_deferred=True)
        except (MessageNotFoundError, InvalidRequestError) as error:
            if len(sequences) > 1:  # somebody else has one of them, or they are too large to come together
                half = len(sequences) // 2
                return [
                    *await self.fetch(sequences[:half], lines[:half]),
                    *await self.fetch(sequences[half:], lines[half:]),
                ]
            _log.debug("message %d of '%s' is not parked any more: %s", sequences[0], self.path, error)
            self._missing.add(sequences[0])
            self.ahead.saw(sequences[0], lines[0])
            self.blocked()
            return []

    def blocked(self) -> None:
        if self._watching is None and not self.is_closing:
            self._watching = self._spawn(self._watch())

    # Looking at what others have.

    async def _watch(self) -> None:
        """While something waits for what somebody else has, look what has become of that."""
        pause_s = _LOOK_AGAIN_S
        try:
            while self._missing or any(channel.stuck for channel in self.channels.values()):
                await asyncio.sleep(pause_s)
                before = len(self.ahead.others)
                try:
                    await self._look_again()
                except MessagingError as error:
                    _log.debug("'%s' could not be looked at: %s", self.path, error)
                pause_s = _LOOK_AGAIN_S if len(self.ahead.others) < before else min(2 * pause_s, _LONGEST_PAUSE_S)
        finally:
            self._watching = None

    async def _look_again(self) -> None:
        async with self._looking:
            waiting = sorted(self.ahead.others)
            while waiting:
                page = await self._receiver.peek(_PAGE, waiting[0])
                last = page[-1].sequence_number if page else waiting[-1]
                found = {message.sequence_number: message for message in page}
                for sequence in waiting:
                    if sequence > last:
                        break
                    if sequence not in found:
                        self._gone(sequence)
                    elif found[sequence].state is MessageState.DEFERRED:
                        self._adopt(found[sequence])
                waiting = [sequence for sequence in waiting if sequence > last]

    def _gone(self, sequence: int) -> None:
        self._missing.discard(sequence)
        line = self.ahead.gone(sequence)
        if line is not None:
            self._free(line)

    async def _look_when_quiet(self) -> None:
        """When everything has been received, see what others have left behind."""
        while self._is_behind:
            await asyncio.sleep(_QUIET_S)
            try:
                await self._look_again()
                if self.ahead.frontier >= _PARTITIONED:  # what is new may have a lower number than what is old
                    self.ahead.start_over()
                await self._look()
            except MessagingError as error:
                _log.debug("'%s' could not be looked at: %s", self.path, error)
            else:
                self._is_behind = False

    async def _look(self, below: int | None = None) -> None:
        """Look at what is not known yet, all of it or what lies below a number."""
        async with self._looking:
            arrivals = self._arrivals
            while True:
                first = self.ahead.first_unknown() if below is None else self.ahead.first_unknown(below)
                if first is None:
                    return
                page = await self._receiver.peek(_PAGE, first)
                for message in page:
                    self._saw(message)
                self.ahead.looked(page[-1].sequence_number if page else None)
                if not page or (below is None and self._arrivals > arrivals):
                    return  # that is all; or so much comes that it is better to receive it

    def _saw(self, message: ReceivedMessage) -> None:
        sequence = message.sequence_number
        if sequence in self._in_hand or not self.ahead.is_unknown(sequence):
            return
        if message.state is MessageState.DEFERRED:
            self._adopt(message)
        elif message.state is MessageState.ACTIVE:
            self.ahead.saw(sequence, _line_of(message))

    def _adopt(self, message: ReceivedMessage) -> None:
        """A message was parked by somebody who may not be there any more."""
        sequence = message.sequence_number
        if sequence in self._in_hand:
            return
        self._gone(sequence)
        try:
            transfer = read_transfer(payload_of(message))
            _check_path(transfer)
        except (TransferError, InvalidMessageError):
            self._spawn(self._fetch_stray(sequence))
            return
        line = None if transfer.session_id is None else (key_of(transfer.path), transfer.session_id)
        self._channel(transfer.path).adopt(sequence, line)

    async def _fetch_stray(self, sequence: int) -> None:
        """Something was parked that can go nowhere: it is dead-lettered when it is in hand."""
        try:
            await self.fetch([sequence], [None])
        except MessagingError as error:
            _log.debug("message %d of '%s' is left for later: %s", sequence, self.path, error)

    # Locks.

    async def _renew(self) -> None:
        """Keep what is in hand for longer than usual."""
        loop = asyncio.get_running_loop()
        try:
            while self._in_hand:
                patience_s = self._clock.lock.total_seconds() * _RENEW_AT
                oldest_s = min(cargo.locked_s for cargo in self._in_hand.values())
                if oldest_s + patience_s > loop.time():
                    await asyncio.sleep(max(_MOMENT_S, oldest_s + patience_s - loop.time()))
                    continue
                await self._renew_all(
                    [cargo for cargo in self._in_hand.values() if cargo.locked_s + patience_s <= loop.time()]
                )
        finally:
            self._renewing = None

    async def _renew_all(self, cargoes: list[Cargo]) -> None:
        """Renew locks; if the namespace is away there is no use in asking it for each of them."""
        now_s = asyncio.get_running_loop().time()
        for cargo in cargoes:
            cargo.locked_s = now_s
        is_there = True
        while cargoes and is_there:
            group, cargoes = cargoes[:_RENEWED_AT_ONCE], cargoes[_RENEWED_AT_ONCE:]
            is_there = all(await asyncio.gather(*(self._renew_one(cargo) for cargo in group)))

    async def _renew_one(self, cargo: Cargo) -> bool:
        """Whether the namespace has said something."""
        if cargo.message.is_settled:
            return True
        try:
            await self._receiver.renew_lock(cargo.message)
        except MessagingError as error:  # who settles it hears of it
            _log.info("the lock of a message of '%s' could not be renewed: %s", self.path, error)
            return not error.is_transient
        return True

    # The end.

    async def stop(self, patience_s: float) -> None:
        """Receive nothing more, and let what is under way be finished."""
        self.is_closing = True
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait((self._reading,), timeout=patience_s)
        finishing = [asyncio.ensure_future(channel.finish()) for channel in self.channels.values()]
        if finishing:
            await asyncio.wait(finishing, timeout=patience_s)
        for task in finishing:
            task.cancel()
        await asyncio.gather(*(channel.close() for channel in self.channels.values()))

    async def close(self, patience_s: float) -> None:
        """Give back what is in hand, as far as that can be done."""
        try:
            async with asyncio.timeout(patience_s):
                while settling := {task for task in (self._completing, *self._burying) if task is not None}:
                    await asyncio.wait(settling)
                left = [*self._in_hand.values()]
                await self.defer([cargo for cargo in left if cargo.is_deferred])
                await self.abandon([cargo for cargo in left if not cargo.is_deferred])
        except (MessagingError, TimeoutError) as error:
            _log.info("what was in hand of '%s' comes back when its locks end: %s", self.path, error)
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._receiver.close()


class _InvalidPathError(TransferError):
    """Where a message goes can be no queue and no topic."""


def _check_path(transfer: Transfer) -> None:
    found = split_entity_path(transfer.path)
    if (
        found is None
        or found.subscription is not None
        or found.sub_queue is not None
        or found.management
        or any(segment.startswith("$") for segment in found.entity.split("/"))
    ):
        raise _InvalidPathError("that is no path of a queue or topic", transfer.path)


def _line_of(message: ReceivedMessage) -> Line | None:
    try:
        transfer = read_transfer(payload_of(message))
    except (TransferError, InvalidMessageError):
        return None
    return None if transfer.session_id is None else (key_of(transfer.path), transfer.session_id)
