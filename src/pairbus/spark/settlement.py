"""Settlement of rows: for queries that decide message by message, in ``foreachBatch`` or in a task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructField, StructType

from pairbus.client.errors import MessageLockLostError
from pairbus.client.factory import MessagingFactory
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.client.validation import shown
from pairbus.spark.connections import CONNECT_TIMEOUT, ConnectionReference, on_loop, reached
from pairbus.spark.errors import SchemaError, SparkOptionError, plain_errors
from pairbus.spark.schema import arrow_schema

_MAX_REQUEST: Final = 1_000
_COLUMNS: Final = ("entity", "lock_token")
_RESULT: Final = StructType([StructField("settled", LongType()), StructField("lost", LongType())])


class Outcome(Enum):
    """An outcome of a message."""

    COMPLETE = "complete"
    """It is removed."""

    ABANDON = "abandon"
    """It is delivered again at once, and its delivery count increases."""

    DEAD_LETTER = "dead-letter"
    """It is moved to the dead-letter queue."""

    DEFER = "defer"
    """It can be received by its sequence number only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementCounts:
    """The result of ``settle``."""

    settled: int = 0
    lost: int = 0
    """Messages whose locks were lost before: they were settled already, or are delivered again."""

    def __add__(self, other: SettlementCounts) -> SettlementCounts:
        return SettlementCounts(settled=self.settled + other.settled, lost=self.lost + other.lost)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementTask:
    """Settles the messages of rows; also a function for ``mapInArrow``, which returns the counts."""

    connection: ConnectionReference
    outcome: Outcome
    connect_timeout: timedelta = CONNECT_TIMEOUT
    """Time within which each process must reach the namespace before it settles its first messages."""

    reason: str | None = None
    description: str | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with plain_errors():
            rows = (row for batch in batches for row in zip(*(batch.column(name) for name in _COLUMNS), strict=True))
            counts = self.settle((entity.as_py(), token.as_py()) for entity, token in rows)
        values = [[counts.settled], [counts.lost]]
        yield pa.RecordBatch.from_arrays([pa.array(one, pa.int64()) for one in values], schema=arrow_schema(_RESULT))

    def settle(self, rows: Iterable[tuple[str | None, str | None]]) -> SettlementCounts:
        """Settle messages, given by entity and lock token."""
        tokens: defaultdict[str, list[UUID]] = defaultdict(list)
        total = SettlementCounts()
        for entity, token in rows:
            if entity is None or token is None:
                raise SchemaError(
                    "a row without entity or lock token cannot be settled; read the messages in a stream with"
                    " .option('settle', 'sink') and the column lock_token"
                )
            tokens[entity].append(UUID(token))
            if len(tokens[entity]) >= _MAX_REQUEST:
                total += self._settle(entity, tokens.pop(entity))
        return sum((self._settle(entity, rest) for entity, rest in tokens.items()), total)

    def _settle(self, entity: str, tokens: list[UUID]) -> SettlementCounts:
        factory = reached(self.connection, self.connect_timeout, once=True)
        return on_loop(self._settle_over, factory, entity, tokens)

    async def _settle_over(self, factory: MessagingFactory, entity: str, tokens: list[UUID]) -> SettlementCounts:
        messages = [ReceivedMessage(b"", lock_token=token) for token in tokens]
        receiver = await factory.create_message_receiver(entity)
        try:
            await self._apply(receiver, messages)
        except MessageLockLostError:
            pass  # those of the others are settled
        finally:
            await receiver.close()
        settled = sum(message.is_settled for message in messages)
        return SettlementCounts(settled=settled, lost=len(messages) - settled)

    async def _apply(self, receiver: MessageReceiver, messages: list[ReceivedMessage]) -> None:
        match self.outcome:
            case Outcome.COMPLETE:
                await receiver.complete(messages)
            case Outcome.ABANDON:
                await receiver.abandon(messages)
            case Outcome.DEFER:
                await receiver.defer(messages)
            case Outcome.DEAD_LETTER:
                await receiver.dead_letter(messages, self.reason, self.description)


def settle(
    rows: DataFrame | Iterable[Mapping[str, Any] | Any],
    outcome: Outcome | str,
    *,
    connection: str,
    connect_timeout: timedelta = CONNECT_TIMEOUT,
    reason: str | None = None,
    description: str | None = None,
) -> SettlementCounts:
    """Settle the messages of rows with the columns ``entity`` and ``lock_token``, and return how many.

    The rows are those of a stream with the option ``settle`` = ``sink``: a DataFrame, whose tasks settle them, or
    collected rows. ``connection`` is the same as in the options of the stream. A process that has not reached the
    namespace before fails if it cannot within ``connect_timeout``. ``reason`` and ``description`` are those of a dead
    letter. A message that is not settled is delivered again when its lock expires.

    Raise ``SparkOptionError``, ``SchemaError``, or ``MessagingError``.
    """
    task = SettlementTask(
        connection=ConnectionReference.parse(connection),
        outcome=_outcome(outcome, reason or description),
        connect_timeout=connect_timeout,
        reason=reason,
        description=description,
    )
    if not isinstance(rows, DataFrame):
        return task.settle(_reference(row) for row in rows)
    missing = [name for name in _COLUMNS if name not in rows.columns]
    if missing:
        raise SchemaError(f"the rows have no column {missing[0]}, which is needed to settle their messages")
    found = rows.select(*_COLUMNS).mapInArrow(task, _RESULT).collect()
    return SettlementCounts(settled=sum(row["settled"] for row in found), lost=sum(row["lost"] for row in found))


def _outcome(outcome: Outcome | str, reason: str | None) -> Outcome:
    try:
        found = Outcome(outcome.lower() if isinstance(outcome, str) else outcome)
    except ValueError:
        names = ", ".join(one.value for one in Outcome)
        raise SparkOptionError(f"the outcome must be one of {names}, got {shown(outcome)}") from None
    if reason is not None and found is not Outcome.DEAD_LETTER:
        raise SparkOptionError(f"a reason or description requires the outcome dead-letter, got {found.value}")
    return found


def _reference(row: Any) -> tuple[str | None, str | None]:
    try:
        return row["entity"], row["lock_token"]
    except (KeyError, ValueError):
        raise SchemaError("the rows have no column lock_token, which is needed to settle their messages") from None
