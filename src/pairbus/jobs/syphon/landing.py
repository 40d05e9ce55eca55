"""The step that brings messages home: each is sent to its destination, and only then removed from the backlog."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import pyarrow as pa

from pairbus.client.errors import InvalidMessageError, MessagingError
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.jobs.syphon.outcome import Kind, Outcome, record_batch
from pairbus.jobs.syphon.quay import Quay, quay_of
from pairbus.pairing.homecoming.bound import key_of
from pairbus.pairing.homecoming.dead_letter_reason import one_line, reason_of
from pairbus.pairing.homecoming.delivery import Delivery
from pairbus.pairing.syphon import Held
from pairbus.spark.connection_reference import ConnectionReference
from pairbus.spark.connections import on_loop
from pairbus.spark.sequence_ranges import SequenceRanges

_log = logging.getLogger(__name__)

_SETTLED_AT_ONCE: Final = 1_000

Settle = Callable[[MessageReceiver, list[ReceivedMessage]], Awaitable[None]]


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A message that was restored, in the order of the columns."""

    queue: str
    number: int
    token: str
    destination: str | None
    session_id: str | None
    payload: bytes
    reason: str | None
    description: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    """Made for ``mapInArrow``, so it is pickled with the plan."""

    primary: ConnectionReference
    secondary: ConnectionReference
    held: Held
    """What the pair sends nothing to."""

    busy: frozenset[tuple[str, str]]
    """The backlog queues and destinations between which messages are parked: others have to wait behind them."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = [Row(*values) for values in zip(*(column.to_pylist() for column in batch.columns), strict=True)]
            if rows:
                task = _Task(quay_of(self.primary, self.secondary), self._must_wait)
                yield record_batch(on_loop(task.run, rows))

    def _must_wait(self, row: Row) -> bool:
        path = row.destination or ""
        return self.held.holds(path) or (row.queue, key_of(path)) in self.busy


class _Task:
    """What is done with the rows of one Arrow batch: all destinations at once, each in the order of the rows."""

    def __init__(self, quay: Quay, must_wait: Callable[[Row], bool]) -> None:
        self._quay = quay
        self._must_wait = must_wait
        self._outcomes: list[Outcome] = []
        self._settling: set[asyncio.Task[None]] = set()

    async def run(self, rows: list[Row]) -> list[Outcome]:
        groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
        for row in rows:
            if row.reason is not None:
                self._dead_letter([row], row.reason, row.description or "")
            elif row.destination is not None:
                groups[row.queue, key_of(row.destination)].append(row)
        await asyncio.gather(
            *(_Group(self._quay, self, group).land(self._must_wait(group[0])) for group in groups.values())
        )
        while self._settling:
            await asyncio.wait([*self._settling])
        return self._outcomes

    # What becomes of rows. Each is settled at once, beside what is still being sent.

    def delivered(self, rows: list[Row]) -> None:
        self._start(self._settle_all(rows, _complete, Kind.DELIVERED, Kind.UNREMOVED))

    def park(self, rows: list[Row], cause: str) -> None:
        self._start(self._settle_all(rows, _defer, Kind.PARKED, Kind.GIVEN_BACK, cause))

    def give_back(self, rows: list[Row], cause: str) -> None:
        self._start(self._settle_all(rows, _abandon, Kind.GIVEN_BACK, Kind.GIVEN_BACK, cause))

    def refuse(self, rows: list[Row], error: MessagingError) -> None:
        text = f"'{rows[0].destination}' does not take the message: {error}"
        self._dead_letter(rows, reason_of(error).value, text)

    def _dead_letter(self, rows: list[Row], reason: str, description: str) -> None:
        self._start(self._move(rows, reason, one_line(description)))

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _move(self, rows: list[Row], reason: str, description: str) -> None:
        async def move(desk: MessageReceiver, messages: list[ReceivedMessage]) -> None:
            await desk.dead_letter(messages, reason, description)

        settled, _ = await self._settle(rows, move)
        for row in settled:
            self._outcomes.append(
                Outcome(
                    kind=Kind.DEAD_LETTERED,
                    queue=row.queue,
                    destination=row.destination,
                    numbers=SequenceRanges.of([row.number]),
                    reason=reason,
                    description=description,
                    message_id=_id_of(row.payload),
                )
            )

    async def _settle_all(self, rows: list[Row], settle: Settle, done: Kind, undone: Kind, cause: str = "") -> None:
        settled, unsettled = await self._settle(rows, settle)
        for kind, found in ((done, settled), (undone, unsettled)):
            by_session: dict[str | None, list[int]] = defaultdict(list)
            for row in found:
                by_session[row.session_id if kind is Kind.PARKED else None].append(row.number)
            self._outcomes += [
                Outcome(
                    kind=kind,
                    queue=rows[0].queue,
                    destination=rows[0].destination,
                    session_id=session_id,
                    numbers=SequenceRanges.of(numbers),
                    cause=cause or None,
                )
                for session_id, numbers in by_session.items()
            ]

    async def _settle(self, rows: list[Row], settle: Settle) -> tuple[list[Row], list[Row]]:
        """Settle in the backlog what can be; the rest comes again when its locks end."""
        messages = [ReceivedMessage(b"", lock_token=UUID(row.token)) for row in rows]
        try:
            desk = await self._quay.desk(rows[0].queue)
            for start in range(0, len(messages), _SETTLED_AT_ONCE):
                await settle(desk, messages[start : start + _SETTLED_AT_ONCE])
        except MessagingError as error:
            _log.warning("messages of '%s' come again: %s", rows[0].queue, error)
        settled = [row for row, message in zip(rows, messages, strict=True) if message.is_settled]
        return settled, [row for row, message in zip(rows, messages, strict=True) if not message.is_settled]


class _Group:
    """Rows of one backlog queue for one destination, in order."""

    def __init__(self, quay: Quay, task: _Task, rows: list[Row]) -> None:
        self._task = task
        self._rest = rows
        self._contact = quay.contact
        self._destination = quay.destination(rows[0].destination or "")
        self._delivery: Delivery[Row] = Delivery(self._destination, quay.contact, self, self, self._landed)

    async def land(self, must_wait: bool) -> None:
        if must_wait:
            self._task.park(self._rest, "messages before them are parked, or the pair sends nothing to it")
            return
        if not self._contact.is_away:
            await self._try()
        if not self._rest:
            return
        away, down = self._contact.cause, self._destination.cause
        if away is not None:
            self._task.give_back(self._rest, str(away))
        else:
            self._task.park(self._rest, str(down or "it is not reached"))

    async def _try(self) -> None:
        """Deliver as far as that goes; one that was down is tried with one message, if it is time to."""
        destination = self._destination
        try:
            if destination.is_down:
                if not destination.may_try(self):
                    return
                await self._delivery.deliver(self._rest[:1])
            if not destination.is_down:
                await self._delivery.deliver(self._rest)
        finally:
            destination.leave(self)

    def _landed(self, rows: Iterable[Row]) -> None:
        gone = {row.number for row in rows}
        self._rest = [row for row in self._rest if row.number not in gone]

    def wake(self) -> None:
        """Nothing waits here: what cannot be delivered is parked."""

    # What the delivery asks and tells.

    def restored(self, row: Row) -> bytes | None:
        return row.payload

    def delivered(self, rows: list[Row]) -> None:
        self._task.delivered(rows)

    def refuse(self, rows: list[Row], error: MessagingError) -> None:
        self._task.refuse(rows, error)


async def _complete(desk: MessageReceiver, messages: list[ReceivedMessage]) -> None:
    await desk.complete(messages)


async def _defer(desk: MessageReceiver, messages: list[ReceivedMessage]) -> None:
    await desk.defer(messages)


async def _abandon(desk: MessageReceiver, messages: list[ReceivedMessage]) -> None:
    await desk.abandon(messages)


def _id_of(payload: bytes) -> str:
    try:
        return str(ReceivedMessage(payload).message_id)
    except InvalidMessageError:
        return ""
