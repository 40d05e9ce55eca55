"""What every operation is counted as, and when it goes into the ledger: not before it is on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeAlias

from pairbus.broker import Address, Delivery, Message, Part
from pairbus.dialect.backlog_path import is_backlog_path
from pairbus.ledger.operation import SUCCEEDED, UNIT_BYTES, Kind, Sort, Stage, Tally, units_of
from pairbus.server.counters import Counters
from pairbus.server.host import NamespaceHost
from pairbus.server.outbox import Envelope, Outbox
from pairbus.store import StoreError
from pairbus.wire import Condition

_TICK_S: Final = 0.5
_POLL_S: Final = 0.01
_SECOND_MS: Final = 1_000
_CONNECTIONS_EVERY_MS: Final = 60_000
_CHANGING: Final = frozenset({Kind.SEND, Kind.SETTLE, Kind.SCHEDULE, Kind.CANCEL, Kind.PURGE, Kind.MANAGEMENT})
"""What has failed when it could not be written."""


class Book(Protocol):
    """Where it is written down: a ledger."""

    def write_operations(self, second_ms: int, rows: Sequence[tuple[Sort, Tally]], connections: int) -> None: ...


class Charge(NamedTuple):
    """What is counted of one operation."""

    messages: int
    size_bytes: int
    units: int
    request_units: int


Counted: TypeAlias = tuple[int, int, Tally | None]
"""Operations on one message of no more than one unit, their bytes, and all other operations. Most are of the first
kind, and two numbers say it all of them: this is done with every commit."""


class Account:
    """Operations of one sort, counted where they happen; the meter takes them from there."""

    __slots__ = ("_bytes", "_durable", "_durable_bytes", "_durable_small", "_others", "_small", "_touched", "sort")

    def __init__(self, sort: Sort, touched: list[Account]) -> None:
        self.sort = sort
        self._touched = touched
        self._small = self._bytes = 0
        self._others: Tally | None = None
        self._durable_small = self._durable_bytes = 0
        self._durable = Tally()
        """What is on disk of it, and not in the ledger yet."""

    def add(self, messages: int = 0, size_bytes: int = 0, units: int = 1, request_units: int = 1) -> None:
        if self._others is None:
            if not self._small:
                self._touched.append(self)
            self._others = Tally()
        self._others.add(messages, size_bytes, units, request_units)

    def add_one(self, size_bytes: int = 0) -> None:
        """Count an operation on one message of no more than one unit."""
        if not self._small and self._others is None:
            self._touched.append(self)
        self._small += 1
        self._bytes += size_bytes

    def add_many(self, small: int, size_bytes: int) -> None:
        """The same for several operations."""
        if not self._small and self._others is None:
            self._touched.append(self)
        self._small += small
        self._bytes += size_bytes

    def take(self) -> Counted:
        """What was counted so far; from now on it counts from nothing."""
        taken = self._small, self._bytes, self._others
        self._small = self._bytes = 0
        self._others = None
        return taken

    @property
    def is_waiting(self) -> bool:
        """Whether something of it is on disk, and not in the ledger."""
        return bool(self._durable_small or self._durable.operations)

    def keep(self, counted: Counted) -> None:
        """So much is on disk."""
        small, size_bytes, others = counted
        self._durable_small += small
        self._durable_bytes += size_bytes
        if others is not None:
            self._durable.merge(others)

    def take_durable(self) -> Tally:
        taken, small = self._durable, self._durable_small
        taken.operations += small
        taken.messages += small
        taken.bytes += self._durable_bytes
        taken.units += small
        taken.request_units += small
        self._durable = Tally()
        self._durable_small = self._durable_bytes = 0
        return taken


class Meter:
    """Counts for a ledger.

    What was counted is sealed with each commit, and written when that is done: what never became durable is counted as
    failed, and no message is said to have been accepted that a crash has taken back.
    """

    def __init__(
        self,
        book: Book,
        host: NamespaceHost,
        counters: Counters,
        outbox: Outbox | None = None,
    ) -> None:
        """``outbox`` is for the events of messages, where they are wanted."""
        self._book = book
        self._host = host
        self._counters = counters
        self._outbox = outbox
        self._totals: dict[tuple[Kind, Stage], Tally] = {}
        self._touched: list[Account] = []
        self._ready: list[Account] = []
        """Those that have something for the ledger."""

        self._connections = 0
        self._told = 0
        self._told_ms = 0
        self._timer: asyncio.TimerHandle | None = None
        host.on_commit = self.seal
        self._tick()

    def totals(self) -> dict[tuple[Kind, Stage], Tally]:
        """What was done since the start, by what it was and what for; what was refused is left out."""
        self.flush()
        return self._totals

    def account(self, sort: Sort) -> Account:
        """Where operations of one sort are counted; one for each link, and no more than that."""
        return Account(sort, self._touched)

    def add_durable(self, account: Account, charge: Charge) -> None:
        """Count what is on disk already, whatever becomes of the next commit."""
        tally = Tally()
        tally.add(*charge)
        self._keep(account, (0, 0, tally))

    def seal(self) -> None:
        """A commit begins: what was counted until now is known with it."""
        envelope = None if self._outbox is None else self._outbox.seal()
        if self._touched or envelope is not None:
            rows = [(account, account.take()) for account in self._touched]
            self._touched.clear()
            self._host.when_durable(partial(self._sealed, rows, envelope))

    def _sealed(self, rows: list[tuple[Account, Counted]], envelope: Envelope | None, error: StoreError | None) -> None:
        """This is done with every commit, so it looks nothing up."""
        for account, counted in rows:
            self._keep(account if error is None else self._failed(account), counted)
        if self._outbox is not None and envelope is not None:
            self._outbox.committed(envelope, error)

    def _keep(self, account: Account, counted: Counted) -> None:
        if not account.is_waiting:
            self._ready.append(account)
        account.keep(counted)

    def _failed(self, account: Account) -> Account:
        sort = account.sort
        if sort.kind not in _CHANGING or sort.result != SUCCEEDED:
            return account
        return self.account(sort._replace(result=Condition.INTERNAL_ERROR.value))

    def _tick(self) -> None:
        self._timer = self._host.loop.call_later(_TICK_S, self._tick)
        self.flush()

    def flush(self) -> None:
        """Hand over what is durable."""
        self.seal()
        now_ms = self._host.now_ms()
        rows = self._take_rows()
        connections = self._connections_to_tell(now_ms)
        if rows or connections:
            self._book.write_operations(now_ms // _SECOND_MS * _SECOND_MS, rows, connections)
        if self._outbox is not None:
            self._outbox.hand_over()

    def _take_rows(self) -> list[tuple[Sort, Tally]]:
        """What is durable, counted together: many links may do the same."""
        found: dict[Sort, Tally] = {}
        for account in self._ready:
            tally = account.take_durable()
            sort = account.sort
            if sort in found:
                found[sort].merge(tally)
            else:
                found[sort] = tally
            if sort.result == SUCCEEDED:
                self._totals.setdefault((sort.kind, sort.stage), Tally()).merge(tally)
        self._ready.clear()
        return [*found.items()]

    def _connections_to_tell(self, now_ms: int) -> int:
        """The most that were open, when that has changed, and every minute: a bill wants the peak of an hour."""
        peak = self._counters.take_peak()
        if peak == self._told and now_ms - self._told_ms < _CONNECTIONS_EVERY_MS:
            return 0
        self._told, self._told_ms = peak, now_ms
        return peak

    async def hand_over(self, within_s: float) -> None:
        """Hand over all there is, and wait until the ledger has it, so that the store need not keep it."""
        deadline = self._host.loop.time() + within_s
        self.flush()
        while self._outbox is not None and not self._outbox.is_empty and self._host.loop.time() < deadline:
            await asyncio.sleep(_POLL_S)
            self._outbox.hand_over()

    def close(self) -> None:
        """Hand over the rest, with the end of the events; the store is closed by now."""
        if self._timer is not None:
            self._timer.cancel()
        if self._outbox is not None:
            self._outbox.end()
        self.flush()


class SendToll:
    """What is counted of the messages that come over a link."""

    def __init__(self, meter: Meter, address: Address, who: str, *, from_syphon: bool) -> None:
        entity = path_of_address(address)
        stage = Stage.BACKLOG if is_backlog_path(entity) else Stage.SYPHON if from_syphon else Stage.DIRECT
        self._meter = meter
        self._sort = Sort(Kind.SEND, stage, entity, SUCCEEDED, who)
        self._sent = meter.account(self._sort)
        self._pings = meter.account(self._sort._replace(stage=Stage.PING))
        self._refused: dict[str, Account] = {}
        self.sent_small = self._sent.add_one
        """For one message that is no larger than a unit, and no ping."""

    def sent(self, messages: Sequence[Message], size_bytes: int) -> None:
        self._account_of(messages).add(*_charge_of(messages, size_bytes))

    def kept(self, messages: Sequence[Message], size_bytes: int) -> None:
        """They are on disk elsewhere than in the store."""
        self._meter.add_durable(self._account_of(messages), _charge_of(messages, size_bytes))

    def _account_of(self, messages: Sequence[Message]) -> Account:
        return self._pings if len(messages) == 1 and messages[0].ping else self._sent

    def refused(self, condition: str, size_bytes: int) -> None:
        account = self._refused.get(condition)
        if account is None:
            account = self._refused[condition] = self._meter.account(self._sort._replace(result=condition))
        account.add(1, size_bytes, units_of(size_bytes), units_of(size_bytes))


class ReceiveToll:
    """What is counted of the messages that go out over a link, and of what is said of them."""

    def __init__(self, meter: Meter, address: Address, who: str) -> None:
        entity = path_of_address(address)
        is_backlog = is_backlog_path(entity)
        sort = Sort(Kind.RECEIVE, Stage.SYPHON if is_backlog else Stage.DIRECT, entity, SUCCEEDED, who)
        self._given = meter.account(sort)
        self._returned = self._given if is_backlog else meter.account(sort._replace(stage=Stage.RETURNED))
        idle = Stage.IDLE if is_backlog else Stage.DIRECT
        self._empty = meter.account(sort._replace(kind=Kind.EMPTY_RECEIVE, stage=idle))
        self._settled = meter.account(sort._replace(kind=Kind.SETTLE))

        self.settled = self._settled.add_one

    def given(self, messages: Sequence[Delivery], sizes: Sequence[int]) -> None:
        """Messages that were given out, as far as there are sizes for them: of what went over the wire."""
        small = size_bytes = 0
        for message, size in zip(messages, sizes, strict=False):
            record = message.record
            if record.returned or record.size > UNIT_BYTES:
                units = units_of(record.size)  # of the message, without what the namespace says of it
                (self._returned if record.returned else self._given).add(1, size, units, units)
            else:
                small += 1
                size_bytes += size
        if small:
            self._given.add_many(small, size_bytes)

    def went_empty(self) -> None:
        """The receiver has waited for nothing."""
        self._empty.add()


def _charge_of(messages: Sequence[Message], size_bytes: int) -> Charge:
    count = len(messages)
    if size_bytes <= UNIT_BYTES:
        return Charge(count, size_bytes, count or 1, 1)
    units = sum(units_of(len(message.body)) for message in messages) or 1
    return Charge(count, size_bytes, units, units_of(size_bytes))


def path_of_address(address: Address) -> str:
    """The path of an entity or a part of one, in lower case, as the ledger has it."""
    path = address.entity if address.subscription is None else f"{address.entity}/subscriptions/{address.subscription}"
    return path + _ENDS[address.part]


_ENDS: Final = {
    Part.MAIN: "",
    Part.DEAD_LETTER: "/$deadletterqueue",
    Part.TRANSFER_DEAD_LETTER: "/$transfer/$deadletterqueue",
}
