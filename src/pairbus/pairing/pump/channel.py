"""The messages of one backlog queue for one destination, from the oldest on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Final, Protocol

from pairbus.client.errors import MessagingError
from pairbus.pairing.homecoming.bound import Line
from pairbus.pairing.homecoming.contact import Contact
from pairbus.pairing.homecoming.delivery import Delivery, Desk
from pairbus.pairing.homecoming.destination import Destination
from pairbus.pairing.pump.ahead import Ahead
from pairbus.pairing.pump.cargo import Cargo

_log = logging.getLogger(__name__)

_AT_ONCE: Final = 200
_FETCHED_AT_ONCE: Final = 50
_ANSWER_S: Final = 5.0
"""How long an answer of the primary counts."""

_RESTART_S: Final = 5.0
_UNTIDY: Final = 100


class Hands(Desk[Cargo], Protocol):
    """What a channel needs of the backlog queue."""

    ahead: Ahead

    @property
    def is_closing(self) -> bool: ...

    async def defer(self, cargoes: list[Cargo]) -> list[Cargo]:
        """Put them aside; gives those that are parked then."""

    async def abandon(self, cargoes: list[Cargo]) -> None: ...

    async def fetch(self, sequences: list[int], lines: list[Line | None]) -> list[Cargo]:
        """Have those in hand that were put aside."""

    def blocked(self) -> None:
        """Something waits for a message that somebody else has."""


class Channel:
    """Delivers in the order of the sequence numbers, whether a message is in hand or parked in the backlog.

    While the destination is down, everything is parked. What others have to deliver first is parked as well.
    """

    def __init__(self, hands: Hands, destination: Destination, contact: Contact) -> None:
        self.destination = destination
        self.parked: dict[int, Line | None] = {}
        """What is deferred in the backlog queue, by sequence number."""

        self.stuck: dict[Line, list[int]] = {}
        """Which of them wait for a message that somebody else has."""

        self._hands = hands
        self._contact = contact
        self._held: dict[int, Cargo] = {}
        self._order: list[int] = []
        """A heap of all that can be delivered, in hand or parked."""

        self._under_way: list[Cargo] = []
        self._delivery = Delivery(destination, contact, hands, self, self._landed)
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_empty(self) -> bool:
        return not self._held and not self.parked and not self._under_way

    @property
    def is_moving(self) -> bool:
        """Whether something can be delivered: it waits neither for the destination nor for what others have."""
        has_some = bool(self._order or self._held or self._under_way)
        return has_some and (not self.destination.is_down or self.destination.is_tried)

    # What comes in.

    def hold(self, cargo: Cargo) -> None:
        """Deliver a message that is in hand."""
        if cargo.sequence not in self._held:
            heappush(self._order, cargo.sequence)
        self._held[cargo.sequence] = cargo
        self.wake()

    def adopt(self, sequence: int, line: Line | None) -> None:
        """Deliver a message that lies parked in the queue."""
        if sequence not in self.parked and sequence not in self._held:
            self.parked[sequence] = line
            heappush(self._order, sequence)
            self._tidy()
            self.wake()

    def _tidy(self) -> None:
        """What is parked again and again is entered again and again."""
        if len(self._order) > 2 * (len(self._held) + len(self.parked)) + _UNTIDY:
            stuck = {sequence for numbers in self.stuck.values() for sequence in numbers}
            self._order = sorted({*self._held, *self.parked} - stuck)  # which is a heap

    def free(self, line: Line) -> None:
        """Nobody has a message of this line any more, or it is ours."""
        for sequence in self.stuck.pop(line, ()):
            if sequence in self.parked:
                heappush(self._order, sequence)
        self.wake()

    def wake(self) -> None:
        self._woken.set()
        if self._task is None and not self.is_empty and not self._hands.is_closing:
            self.destination.waiters.add(self)
            self._task = asyncio.get_running_loop().create_task(self._run())

    # What is done.

    async def _run(self) -> None:
        is_told = False
        try:
            while not self.is_empty and not self._hands.is_closing:
                try:
                    await self._turn()
                except MessagingError as error:
                    _log.log(
                        logging.DEBUG if is_told else logging.WARNING,
                        "delivering to '%s' goes on after: %s",
                        self.destination.path,
                        error,
                    )
                    is_told = True
                except Exception:  # noqa: BLE001 (whatever it is, the messages have to be delivered)
                    _log.exception("delivering to '%s' goes on after an unexpected error", self.destination.path)
                else:
                    is_told = False
                    continue
                self._return()
                await asyncio.sleep(_RESTART_S)
        finally:
            self._ended()

    def _ended(self) -> None:
        self._task = None
        self._return()
        destination = self.destination
        destination.leave(self)
        destination.waiters.discard(self)
        if not destination.waiters and not self._hands.is_closing and not self._contact.is_away:
            destination.forget()

    async def _turn(self) -> None:
        self._woken.clear()
        destination = self.destination
        if self._contact.is_away or await self._is_held_and_away():
            await self._give_back()
        elif not self._order:
            await self._sleep(None)
        elif destination.hold() or (destination.is_down and not destination.may_try(self)):
            await self._wait_for_destination()
        else:
            try:
                await self._deliver_next(1 if destination.is_down else _AT_ONCE)
            finally:
                destination.leave(self)

    async def _is_held_and_away(self) -> bool:
        """A destination may be held because the namespace is away: then more than its own messages have to wait."""
        if not self.destination.hold():
            return False
        since_s = asyncio.get_running_loop().time() - _ANSWER_S
        return await self._contact.doubt(self.destination.path, since_s)

    async def _give_back(self) -> None:
        cause = self._contact.cause
        if cause is not None:
            self.destination.suspend(cause)
        held = self._take_held()
        await self._hands.abandon([cargo for cargo in held if not cargo.is_deferred])
        self._landed([cargo for cargo in held if not cargo.is_deferred])
        await self._park([cargo for cargo in held if cargo.is_deferred])
        if self._contact.is_away:
            await self._sleep(None)

    async def _wait_for_destination(self) -> None:
        if self.destination.is_tried:
            await self._sleep(None)  # it is about to be known
            return
        await self._park(self._take_held())
        await self._sleep(self.destination.wait_s)

    async def _sleep(self, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s) as limit:
                await self._woken.wait()
        except TimeoutError:
            if not limit.expired():
                raise

    def _take_held(self) -> list[Cargo]:
        held = sorted(self._held.values(), key=lambda cargo: cargo.sequence)
        self._under_way += held
        self._held.clear()
        return held

    async def _park(self, cargoes: list[Cargo]) -> None:
        """Put messages aside in the queue."""
        if cargoes:
            parked = await self._hands.defer(cargoes)
            self._landed(cargoes)
            for cargo in parked:
                self.adopt(cargo.sequence, cargo.line)

    def _landed(self, cargoes: Iterable[Cargo]) -> None:
        gone = {cargo.sequence for cargo in cargoes}
        self._under_way = [cargo for cargo in self._under_way if cargo.sequence not in gone]

    def _return(self) -> None:
        """What was under way is in hand again."""
        under_way, self._under_way = self._under_way, []
        for cargo in under_way:
            if cargo.sequence not in self._held:  # else it came again meanwhile
                heappush(self._order, cargo.sequence)
                self._held[cargo.sequence] = cargo

    # Delivery.

    async def _deliver_next(self, most: int) -> None:
        """Deliver the oldest messages that can be delivered."""
        await self._fetch(most)
        batch, stuck = self._pick(most)
        if stuck:
            await self._park(stuck)
        if batch:
            try:
                await self._delivery.deliver(batch)
            finally:
                self._return()

    async def _fetch(self, most: int) -> None:
        """Have the oldest ones in hand, if they are parked."""
        wanted: list[int] = []
        lines: list[Line | None] = []
        while self._order and len(wanted) < min(most, _FETCHED_AT_ONCE):
            sequence = self._order[0]
            if sequence in self._held:
                break
            heappop(self._order)
            if sequence not in self.parked:
                continue  # it was entered twice, or is not ours any more
            line = self.parked[sequence]
            if self._hands.ahead.is_clear(sequence, line):
                del self.parked[sequence]  # before somebody says that it is parked again
                wanted.append(sequence)
                lines.append(line)
            else:
                self._stick(sequence, line)
        if not wanted:
            return
        try:
            fetched = await self._hands.fetch(wanted, lines)
        except BaseException:
            for sequence, line in zip(wanted, lines, strict=True):
                self.adopt(sequence, line)
            raise
        for cargo in fetched:
            self.hold(cargo)

    def _stick(self, sequence: int, line: Line | None) -> None:
        if line is not None:
            self.stuck.setdefault(line, []).append(sequence)
            self._hands.blocked()

    def _pick(self, most: int) -> tuple[list[Cargo], list[Cargo]]:
        """The oldest that are in hand; and those that must not go yet."""
        batch: list[Cargo] = []
        stuck: list[Cargo] = []
        while self._order and len(batch) < most:
            sequence = self._order[0]
            cargo = self._held.get(sequence)
            if cargo is None:
                if sequence in self.parked:
                    break
                heappop(self._order)
                continue
            heappop(self._order)
            del self._held[sequence]
            (batch if self._hands.ahead.is_clear(sequence, cargo.line) else stuck).append(cargo)
        self._under_way += batch
        self._under_way += stuck
        return batch, stuck

    async def close(self) -> None:
        """Stop at once; what is in hand stays so."""
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))

    async def finish(self) -> None:
        """Wait until nothing is under way."""
        self._woken.set()
        if self._task is not None:
            await asyncio.wait((self._task,))
