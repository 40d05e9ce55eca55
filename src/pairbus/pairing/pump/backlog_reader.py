"""One backlog queue: its messages are received, handed to the channels of their destinations, and removed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from pairbus.client.chores import Chores
from pairbus.client.errors import InvalidMessageError, InvalidRequestError, MessageNotFoundError, MessagingError
from pairbus.client.received_message import MessageState, ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.dialect.transfer import TransferError, restore
from pairbus.pairing.events import Listener
from pairbus.pairing.homecoming.bound import Line, bound_for, key_of, line_of
from pairbus.pairing.homecoming.contact import Contact
from pairbus.pairing.homecoming.dead_letter_reason import DeadLetterReason, reason_of
from pairbus.pairing.homecoming.destination import Destination
from pairbus.pairing.pump.ahead import Ahead
from pairbus.pairing.pump.backlog_clock import BacklogClock
from pairbus.pairing.pump.cargo import Cargo
from pairbus.pairing.pump.channel import Channel
from pairbus.pairing.pump.dead_letters import DeadLetters
from pairbus.pairing.pump.hand import Hand
from pairbus.pairing.pump.survey import Survey
from pairbus.pairing.syphon import IDLE_POLLS_PER_PEEK, SyphonSettings, TimeToLive

_log = logging.getLogger(__name__)

_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0
_SLOW_S: Final = 0.1
_SLOWEST_S: Final = 2.0
_AHEAD: Final = 200


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
        self.path = receiver.path
        self.receives = 0
        self.syphoned = 0
        self.is_closing = False
        self.channels: dict[str, Channel] = {}
        self.ahead = Ahead()
        self._receiver = receiver
        self._settings = settings
        self._contact = contact
        self._reached = reached
        self._find_destination = find_destination
        self._clock = BacklogClock()
        self._chores = Chores(self.path)
        self._hand = Hand(receiver, self._chores, self._adopt_cargo)
        self._dead_letters = DeadLetters(receiver, self._hand, self._chores, tell)
        self._survey = Survey(receiver, self.ahead, self._hand.__contains__, self._adopt, self._free)
        self._missing: set[int] = set()
        """What was parked, and is with somebody else now."""

        self._reading: asyncio.Task[None] | None = None
        self._slow_s = _SLOW_S
        self._is_watching = False
        self._empty_polls = 0
        self._is_behind = False
        """Whether more may have come since everything was looked at."""

    @property
    def dead_lettered(self) -> int:
        return self._dead_letters.count

    def start(self) -> asyncio.Task[None]:
        """Begin to read; gives a first look at the queue, which tells whether it can be read at all."""
        looking = self._chores.start(self._first_look())
        self._reading = asyncio.get_running_loop().create_task(self._run())
        return looking

    def adopt(self, path: str, sequence: int, session_id: str | None) -> None:
        """Deliver a message that somebody else has parked."""
        key = key_of(path)
        self._channel(path).adopt(sequence, None if session_id is None else (key, session_id))

    async def touch(self) -> None:
        """See that the queue can be read; raises ``MessagingError``."""
        await self._receiver.peek(1, 0)

    async def look_ahead(self) -> None:
        """Look for what lies parked before all that could be received; raises ``MessagingError``.

        What is brought home goes from the front of the queue, so what was left on the way is in front.
        """
        cursor = 0
        while True:
            page = await self._receiver.peek(_AHEAD, cursor)
            parked = [message for message in page if message.state is MessageState.DEFERRED]
            for message in parked:
                if message.sequence_number not in self._hand:
                    self._adopt(message)
            if not parked:
                return
            cursor = page[-1].sequence_number + 1

    async def look(self) -> None:
        """Look for what lies parked; raises ``MessagingError``."""
        await self._survey.look_again()
        await self._survey.look()

    async def _first_look(self) -> None:
        try:
            await self._survey.look()
        except MessagingError:
            self._is_behind = True
            self._chores.start(self._look_when_quiet())
            raise

    # Receiving.

    async def _run(self) -> None:
        """Receive for ever; an outage is told once."""
        pause_s = _FIRST_PAUSE_S
        is_told = False
        while True:
            try:
                await self._turn()
            except MessagingError as error:
                level = logging.DEBUG if is_told else logging.WARNING
                _log.log(level, "'%s' is read again after: %s", self.path, error)
                is_told = True
            except Exception:  # noqa: BLE001 (whatever it is, the queue has to be read)
                _log.exception("'%s' is read again after an unexpected error", self.path)
            else:
                pause_s, is_told = _FIRST_PAUSE_S, False
                continue
            await asyncio.wait((self._reached(),), timeout=pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _turn(self) -> None:
        most = self._settings.max_messages
        await self._hand.wait_for_room(most // 2)  # a little room is not worth a receive
        await self._contact.wait()
        looking = self._chores.start(self._look_when_quiet()) if self._is_behind else None
        try:
            self.receives += 1
            messages = await self._receiver.receive(most - self._hand.fresh, self._settings.long_poll)
        finally:
            if looking is not None:
                looking.cancel()
        self._empty_polls = 0 if messages else self._empty_polls + 1
        if messages or self._empty_polls % IDLE_POLLS_PER_PEEK == 0:  # others may have parked something, and died
            self._is_behind = True
        if messages:
            self._survey.arrivals += 1
            cargoes = await self._admit(messages)
            await self._slow_down(cargoes)

    async def _slow_down(self, cargoes: list[Cargo]) -> None:
        """Where nothing may be delivered, because the pair holds it, there is no hurry to park all of it."""
        if cargoes and all(self._channel(cargo.transfer.path).destination.is_held for cargo in cargoes):
            await asyncio.sleep(self._slow_s)
            self._slow_s = min(2 * self._slow_s, _SLOWEST_S)
        else:
            self._slow_s = _SLOW_S

    async def _look_when_quiet(self) -> None:
        await self._survey.look_when_quiet()
        self._is_behind = False

    async def _admit(self, messages: list[ReceivedMessage]) -> list[Cargo]:
        """Take messages in hand. Before those of a session go on, what lies before them must be known."""
        cargoes = self._taken(messages, is_deferred=False)
        try:
            last = max((cargo.sequence for cargo in cargoes if cargo.line is not None), default=0)
            if last and self.ahead.first_unknown(last) is not None:
                await self._survey.look(last)
        except BaseException:
            self._chores.start(self.abandon(cargoes), is_due=True)
            raise
        for cargo in cargoes:  # what waits for one of them goes on when that is at hand, and not before
            self._channel(cargo.transfer.path).hold(cargo)
            self._received(cargo.sequence)
        return cargoes

    def _taken(self, messages: list[ReceivedMessage], *, is_deferred: bool) -> list[Cargo]:
        """What is to be delivered of what has been locked for us; what can go nowhere is dead-lettered."""
        now_s = asyncio.get_running_loop().time()
        cargoes: list[Cargo] = []
        for message in messages:
            try:
                cargo = Cargo(message, now_s, is_deferred=is_deferred)
                self._clock.note(message)
            except (TransferError, InvalidMessageError) as error:
                self._dead_letters.add_unreadable(message, error)
                continue
            if not is_deferred and self._is_made_anew(cargo):
                _log.info("the backlog queue '%s' was made anew", self.path)
                self._missing.clear()
                for line in self.ahead.forget():  # nobody has what these wait for any more
                    self._free(line)
            self.ahead.received(cargo.sequence)
            is_to_be_delivered = self._hand.take(cargo, self._clock.lock)
            if is_to_be_delivered:
                cargoes.append(cargo)
            if is_deferred or not is_to_be_delivered:
                self._received(cargo.sequence)
        return cargoes

    def _is_made_anew(self, cargo: Cargo) -> bool:
        """Whether a message has a number that was looked at before, and nobody had one then."""
        ahead, sequence = self.ahead, cargo.sequence
        return (
            cargo.message.delivery_count == 0
            and sequence not in ahead.others
            and sequence not in self._hand
            and not ahead.is_unknown(sequence)
        )

    def _received(self, sequence: int) -> None:
        self._missing.discard(sequence)
        if sequence in self.ahead.others:
            self._survey.gone(sequence)

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

    # What channels need.

    def restored(self, cargo: Cargo) -> bytes | None:
        transfer = cargo.transfer
        left_ms = transfer.time_to_live_ms
        if left_ms is not None and self._settings.time_to_live is TimeToLive.REMAINING:
            left_ms -= int(self._clock.age(cargo.message.enqueued_time).total_seconds() * 1_000)
            if left_ms <= 0:
                text = f"the message for '{transfer.path}' has outlived its time to live in the backlog"
                self._dead_letters.add([cargo], DeadLetterReason.EXPIRED, text)
                return None
        try:
            return restore(cargo.payload, transfer, time_to_live_ms=left_ms)
        except TransferError as error:
            self._dead_letters.add([cargo], reason_of(error), f"the message for '{transfer.path}': {error}")
            return None

    def delivered(self, cargoes: list[Cargo]) -> None:
        self.syphoned += len(cargoes)
        self._hand.complete(cargoes)

    def refuse(self, cargoes: list[Cargo], error: MessagingError) -> None:
        text = f"'{cargoes[0].transfer.path}' does not take the message: {error}"
        self._dead_letters.add(cargoes, reason_of(error), text)

    async def defer(self, cargoes: list[Cargo]) -> list[Cargo]:
        """Put messages aside; what was put aside before is so in any case, even if its lock is lost."""
        await self._hand.defer(cargoes)
        parked = [cargo for cargo in cargoes if cargo.message.is_settled or cargo.is_deferred]
        self._forsake([cargo for cargo in cargoes if not cargo.message.is_settled and not cargo.is_deferred])
        return parked

    async def abandon(self, cargoes: list[Cargo]) -> None:
        await self._hand.abandon(cargoes)
        self._forsake(cargoes)

    def _forsake(self, cargoes: list[Cargo]) -> None:
        """These are anybody's now."""
        for cargo in cargoes:
            if cargo.sequence not in self._hand:  # or it has come again already
                self.ahead.saw(cargo.sequence, cargo.line)

    async def fetch(self, sequences: list[int], lines: list[Line | None]) -> list[Cargo]:
        try:
            return self._taken(await self._receiver.receive_deferred(sequences), is_deferred=True)
        except (MessageNotFoundError, InvalidRequestError) as error:
            if len(sequences) > 1:  # somebody else has one of them, or they are too large to come together
                return await self._fetch_in_halves(sequences, lines)
            _log.debug("message %d of '%s' is not parked any more: %s", sequences[0], self.path, error)
            self._missing.add(sequences[0])
            self.ahead.saw(sequences[0], lines[0])
            self.blocked()
            return []

    async def _fetch_in_halves(self, sequences: list[int], lines: list[Line | None]) -> list[Cargo]:
        half = len(sequences) // 2
        first = await self.fetch(sequences[:half], lines[:half])
        try:
            return [*first, *await self.fetch(sequences[half:], lines[half:])]
        except BaseException:
            self._chores.start(self._hand.defer(first), is_due=True)
            raise

    # What others have.

    def blocked(self) -> None:
        if not self._is_watching and not self.is_closing:
            self._is_watching = True
            self._chores.start(self._watch())

    async def _watch(self) -> None:
        try:
            await self._survey.watch(self._is_awaiting)
        finally:
            self._is_watching = False

    def _is_awaiting(self) -> bool:
        self._missing &= self.ahead.others.keys()
        return bool(self._missing) or any(channel.stuck for channel in self.channels.values())

    def _adopt(self, message: ReceivedMessage) -> None:
        """A message was parked by somebody who may not be there any more."""
        try:
            transfer = bound_for(message.payload)
        except (TransferError, InvalidMessageError):
            self._chores.start(self._fetch_stray(message.sequence_number))
        else:
            self._channel(transfer.path).adopt(message.sequence_number, line_of(transfer))

    def _adopt_cargo(self, cargo: Cargo) -> None:
        self._channel(cargo.transfer.path).adopt(cargo.sequence, cargo.line)

    async def _fetch_stray(self, sequence: int) -> None:
        """Something was parked that can go nowhere: it is dead-lettered when it is in hand."""
        await self.fetch([sequence], [None])

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
                await self._chores.finish()
                left = self._hand.cargoes
                await self._hand.defer([cargo for cargo in left if cargo.is_deferred])
                await self._hand.abandon([cargo for cargo in left if not cargo.is_deferred])
        except (MessagingError, TimeoutError) as error:
            _log.info("what was in hand of '%s' comes back when its locks end: %s", self.path, error)
        await self._chores.close()
        await self._receiver.close()
