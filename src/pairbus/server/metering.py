"""Counts operations for the ledger, which gets them once they are durable."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol

from pairbus.broker import Address, DeliveredMessage, NewMessage, QueuePart
from pairbus.dialect.paths import is_backlog_path
from pairbus.fault_kinds import CrashComponent
from pairbus.ledger.events import (
    SUCCEEDED,
    UNIT_BYTES,
    OperationCounts,
    OperationKey,
    OperationKind,
    Stage,
    units_of,
)
from pairbus.server.counters import Counters
from pairbus.server.host import NamespaceHost
from pairbus.server.outbox import Outbox, OutboxBatch
from pairbus.store import StoreError
from pairbus.wire import Condition

_TICK_S: Final = 0.5
_POLL_S: Final = 0.01
_SECOND_MS: Final = 1_000
_CONNECTIONS_EVERY_MS: Final = 60_000
_CHANGING: Final = frozenset(
    {
        OperationKind.SEND,
        OperationKind.SETTLE,
        OperationKind.SCHEDULE,
        OperationKind.CANCEL,
        OperationKind.PURGE,
        OperationKind.MANAGEMENT,
    }
)
"""Operations that count as failed if their commit fails."""


class OperationLedger(Protocol):
    """The part of a ledger that records operations."""

    def write_operations(
        self, second_ms: int, rows: Sequence[tuple[OperationKey, OperationCounts]], connections: int
    ) -> None: ...


class OperationAccount:
    """Counts of one key, added up where operations happen: those of the next commit, and those that are durable."""

    __slots__ = ("_durable", "_open", "_touched", "key")

    def __init__(self, key: OperationKey, touched: list[OperationAccount]) -> None:
        """``touched`` collects the accounts with counts for the next commit."""
        self.key = key
        self._touched = touched
        self._open: OperationCounts | None = None
        """Counts since the last commit began."""

        self._durable: OperationCounts | None = None
        """Durable counts that are not in the ledger yet."""

    def add(self, messages: int = 0, size_bytes: int = 0, units: int = 1, request_units: int = 1) -> None:
        """Count one operation."""
        (self._open or self._start()).add(messages, size_bytes, units, request_units)

    def add_small(self, size_bytes: int = 0, count: int = 1) -> None:
        """Count operations on one message each, none of which is larger than a unit. Most operations are such."""
        counts = self._open
        if counts is None:
            counts = self._start()
        counts.operations += count
        counts.messages += count
        counts.bytes += size_bytes
        counts.units += count
        counts.request_units += count

    def merge(self, counts: OperationCounts) -> None:
        (self._open or self._start()).merge(counts)

    def _start(self) -> OperationCounts:
        self._open = counts = OperationCounts()
        self._touched.append(self)
        return counts

    def take(self) -> OperationCounts:
        """Return the counts since the last commit, and start again from zero."""
        taken, self._open = self._open or OperationCounts(), None
        return taken

    def keep(self, counts: OperationCounts) -> bool:
        """Add durable counts, and return whether they are the first that the ledger does not have."""
        if self._durable is None:
            self._durable = counts
            return True
        self._durable.merge(counts)
        return False

    def take_durable(self) -> OperationCounts:
        """Return the durable counts, which the caller hands over to the ledger."""
        taken, self._durable = self._durable or OperationCounts(), None
        return taken


class OperationMeter:
    """Counts operations for a ledger.

    Counts are sealed with each commit, and written when it is done. So operations that never became durable count as
    failed, and the ledger reports no message as accepted that a crash has undone.
    """

    def __init__(
        self,
        ledger: OperationLedger,
        host: NamespaceHost,
        counters: Counters,
        outbox: Outbox | None = None,
    ) -> None:
        """``outbox`` is for the lifecycle events of messages, if these are recorded."""
        self._ledger = ledger
        self._host = host
        self._counters = counters
        self._outbox = outbox
        self._totals: dict[tuple[OperationKind, Stage], OperationCounts] = {}
        self._touched: list[OperationAccount] = []
        self._ready: list[OperationAccount] = []
        """Accounts with durable counts."""

        self._recorded_connections = 0
        self._recorded_ms = 0
        self._timer: asyncio.TimerHandle | None = None
        self.failure: Exception | None = None
        """A defect while operations were handed over, until the supervisor clears it."""

        host.on_commit.add(self.seal)
        self._tick()

    def totals(self) -> dict[tuple[OperationKind, Stage], OperationCounts]:
        """Return the successful operations since the start, by kind and stage."""
        self.flush()
        return self._totals

    def account(self, key: OperationKey) -> OperationAccount:
        """Return a new account for a key. Each link has its own, so that counting looks nothing up."""
        return OperationAccount(key, self._touched)

    def add_durable(self, account: OperationAccount, counts: OperationCounts) -> None:
        """Count operations that are durable already, regardless of the next commit."""
        self._keep(account, counts)

    def record_fault(self, scope: Address | None, change: str, key_name: str) -> None:
        """Record a change of an injected fault at an entity, or at the namespace, in a row without counts.

        It does not wait for a commit: the fault may be that commits fail.
        """
        entity = "" if scope is None else path_of_address(scope)
        key = OperationKey(OperationKind.FAULT, Stage.DIRECT, entity, change, key_name)
        self._ledger.write_operations(self._host.now_ms() // _SECOND_MS * _SECOND_MS, [(key, OperationCounts())], 0)

    def seal(self) -> None:
        """Tie all counts so far to the commit that begins."""
        batch = None if self._outbox is None else self._outbox.seal()
        if self._touched or batch is not None:
            counted = [(account, account.take()) for account in self._touched]
            self._touched.clear()
            self._host.when_durable(partial(self._committed, counted, batch))

    def _committed(
        self,
        counted: list[tuple[OperationAccount, OperationCounts]],
        batch: OutboxBatch | None,
        error: StoreError | None,
    ) -> None:
        """Keep the counts of a commit. This runs after every commit, so it looks nothing up."""
        for account, counts in counted:
            self._keep(account if error is None else self._failed(account), counts)
        if self._outbox is not None and batch is not None:
            self._outbox.committed(batch, error)

    def _keep(self, account: OperationAccount, counts: OperationCounts) -> None:
        if account.keep(counts):
            self._ready.append(account)

    def _failed(self, account: OperationAccount) -> OperationAccount:
        key = account.key
        if key.kind not in _CHANGING or key.result != SUCCEEDED:
            return account
        return self.account(key._replace(result=Condition.INTERNAL_ERROR.value))

    def _tick(self) -> None:
        self._timer = self._host.loop.call_later(_TICK_S, self._tick)
        try:
            if self._host.faults:
                self._host.faults.crash(CrashComponent.LEDGER)
            self.flush()
        except Exception as error:  # noqa: BLE001 (the supervisor reports it; the next turn hands over the rest)
            self.failure = error

    def flush(self) -> None:
        """Hand over everything durable to the ledger."""
        now_ms = self._host.now_ms()
        if self._outbox is not None:
            self._outbox.note_alive(now_ms)
        self.seal()
        counted = self._take_durable()
        connections = self._connections_to_record(now_ms)
        if counted or connections:
            self._ledger.write_operations(now_ms // _SECOND_MS * _SECOND_MS, [*counted.items()], connections)
        if self._outbox is not None:
            self._outbox.hand_over()

    def _take_durable(self) -> dict[OperationKey, OperationCounts]:
        """Return the durable counts, added up by key: many links may have the same one."""
        found: dict[OperationKey, OperationCounts] = {}
        for account in self._ready:
            counts = account.take_durable()
            key = account.key
            if key.result == SUCCEEDED:
                self._totals.setdefault((key.kind, key.stage), OperationCounts()).merge(counts)
            if key in found:
                found[key].merge(counts)
            else:
                found[key] = counts
        self._ready.clear()
        return found

    def _connections_to_record(self, now_ms: int) -> int:
        """Return the peak of open connections if it has changed, and every minute, since bills need that of an hour."""
        peak = self._counters.take_peak()
        if peak == self._recorded_connections and now_ms - self._recorded_ms < _CONNECTIONS_EVERY_MS:
            return 0
        self._recorded_connections, self._recorded_ms = peak, now_ms
        return peak

    async def hand_over(self, within_s: float) -> None:
        """Hand over everything, and wait until the ledger has written it, so that the store need not keep it."""
        deadline = self._host.loop.time() + within_s
        self.flush()
        while self._outbox is not None and not self._outbox.is_empty and self._host.loop.time() < deadline:
            await asyncio.sleep(_POLL_S)
            self._outbox.hand_over()

    def close(self) -> None:
        """Hand over the rest, with the last event; the store is closed by now."""
        if self._timer is not None:
            self._timer.cancel()
        if self._outbox is not None:
            self._outbox.end()
        self.flush()


class SendMeter:
    """Counts the messages that arrive on a link."""

    def __init__(self, meter: OperationMeter, address: Address, key_name: str, *, from_syphon: bool) -> None:
        entity = path_of_address(address)
        stage = Stage.BACKLOG if is_backlog_path(entity) else Stage.SYPHON if from_syphon else Stage.DIRECT
        self._meter = meter
        self._key = OperationKey(OperationKind.SEND, stage, entity, SUCCEEDED, key_name)
        self._sent = meter.account(self._key)
        self._pings = meter.account(self._key._replace(stage=Stage.PING))
        self._refused: dict[str, OperationAccount] = {}
        self.sent_small = self._sent.add_small
        """Count one message that is not larger than a unit, and no ping."""

    def sent(self, messages: Sequence[NewMessage], size_bytes: int) -> None:
        self._account_of(messages).merge(_counts_of(messages, size_bytes))

    def kept(self, messages: Sequence[NewMessage], size_bytes: int) -> None:
        """Count messages that are durable outside the store."""
        self._meter.add_durable(self._account_of(messages), _counts_of(messages, size_bytes))

    def _account_of(self, messages: Sequence[NewMessage]) -> OperationAccount:
        return self._pings if len(messages) == 1 and messages[0].ping else self._sent

    def refused(self, condition: str, size_bytes: int) -> None:
        account = self._refused.get(condition)
        if account is None:
            account = self._refused[condition] = self._meter.account(self._key._replace(result=condition))
        account.add(1, size_bytes, units_of(size_bytes), units_of(size_bytes))


class ReceiveMeter:
    """Counts the messages that are delivered on a link, and their settlements."""

    def __init__(self, meter: OperationMeter, address: Address, key_name: str) -> None:
        entity = path_of_address(address)
        is_backlog = is_backlog_path(entity)
        key = OperationKey(
            OperationKind.RECEIVE, Stage.SYPHON if is_backlog else Stage.DIRECT, entity, SUCCEEDED, key_name
        )
        self._given = meter.account(key)
        self._returned = self._given if is_backlog else meter.account(key._replace(stage=Stage.RETURNED))
        idle = Stage.IDLE if is_backlog else Stage.DIRECT
        self._empty = meter.account(key._replace(kind=OperationKind.EMPTY_RECEIVE, stage=idle))
        self._settled = meter.account(key._replace(kind=OperationKind.SETTLE))

        self.settled = self._settled.add_small

    def given(self, messages: Sequence[DeliveredMessage], sizes: Sequence[int]) -> None:
        """Count delivered messages, as many as there are sizes; a size is that on the wire."""
        small = size_bytes = 0
        for message, size in zip(messages, sizes, strict=False):
            record = message.record
            if record.returned or record.size > UNIT_BYTES:
                units = units_of(record.size)  # of the message, without the annotations of the namespace
                (self._returned if record.returned else self._given).add(1, size, units, units)
            else:
                small += 1
                size_bytes += size
        if small:
            self._given.add_small(size_bytes, small)

    def went_empty(self) -> None:
        """Count a receive that timed out without a message."""
        self._empty.add()


def _counts_of(messages: Sequence[NewMessage], size_bytes: int) -> OperationCounts:
    """Return the counts of one send."""
    counts, count = OperationCounts(), len(messages)
    if size_bytes <= UNIT_BYTES:
        counts.add(count, size_bytes, count or 1, 1)
    else:
        units = sum(units_of(len(message.body)) for message in messages) or 1
        counts.add(count, size_bytes, units, units_of(size_bytes))
    return counts


def path_of_address(address: Address) -> str:
    """Return the path of an entity, or of a part of one, in lower case, as the ledger stores it."""
    path = address.entity if address.subscription is None else f"{address.entity}/subscriptions/{address.subscription}"
    return path + _ENDS[address.part]


_ENDS: Final = {
    QueuePart.MAIN: "",
    QueuePart.DEAD_LETTER: "/$deadletterqueue",
    QueuePart.TRANSFER_DEAD_LETTER: "/$transfer/$deadletterqueue",
}
