"""Rows as messages that can be sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyspark.sql.types import StructType

from pairbus.client.errors import InvalidMessageError
from pairbus.client.message import BrokeredMessage, encode_brokered
from pairbus.client.validation import shown
from pairbus.dialect.entity_path import takes_messages
from pairbus.dialect.forwarded import forwarded
from pairbus.spark.message_ids import MessageIds
from pairbus.spark.sink_columns import WRITTEN, check_columns, converter, same
from pairbus.wire import ProtocolError

_ROWS_AT_ONCE: Final = 500
_BYTES_AT_ONCE: Final = 1 << 20
"""How many rows become Python's at a time, and how much of them; a batch of Spark's may hold far more."""

Message: TypeAlias = tuple[str, bytes]
"""Where it goes, and its bytes."""

_ATTRIBUTES: Final = {"time_to_live_ms": "time_to_live"}
"""What a message calls a column, where that is something else."""


class OutgoingMessages:
    """Makes messages of the rows of one schema; raises ``SchemaError`` if that cannot be done.

    The option ``entity`` goes before the column. A row with a ``payload`` is that message, and what the other columns
    tell of it does not matter; else it is made of ``body`` and the rest.
    """

    def __init__(self, schema: StructType, entity: str | None) -> None:
        check_columns(schema, entity)
        self._entity = entity
        self._schema = schema
        self._indexes = {name: index for index, name in enumerate(schema.names) if name in WRITTEN}
        given = [name for name in self._indexes if name not in {"entity", "payload", "body"}]
        self._names = tuple(_ATTRIBUTES.get(name, name) for name in given)
        self._columns = tuple(given)
        self._destinations: set[str] = set()

    def of(self, batch: pa.RecordBatch, ids: MessageIds) -> Iterator[Message]:
        """The messages of a batch, in the order of the rows. Raises ``InvalidMessageError`` where one is none."""
        rows = self._forwarded if "payload" in self._indexes else self._made
        at_once = _rows_at_once(batch)
        for start in range(0, batch.num_rows, at_once):
            yield from rows(batch.slice(start, at_once), ids)

    def _forwarded(self, batch: pa.RecordBatch, ids: MessageIds) -> Iterator[Message]:
        for entity, payload in zip(self._entities(batch), self._values(batch, "payload"), strict=False):
            destination = self._destination(entity)
            if payload is None:
                raise InvalidMessageError("its payload is null", entity=destination)
            try:
                yield destination, forwarded(payload, lambda: ids.next_id(payload, (destination,)))  # noqa: B023
            except ProtocolError as error:
                reason = f"its payload is no AMQP message: {error.description}"
                raise InvalidMessageError(reason, entity=destination) from error

    def _made(self, batch: pa.RecordBatch, ids: MessageIds) -> Iterator[Message]:
        columns = [self._values(batch, name) for name in self._columns]
        rows: Iterable[tuple[Any, ...]] = zip(*columns, strict=True) if columns else repeat(())
        bodies = self._values(batch, "body")
        for entity, body, values in zip(self._entities(batch), bodies, rows, strict=False):
            destination = self._destination(entity)
            properties = dict(zip(self._names, values, strict=True))
            content = b"" if body is None else body
            if properties.get("message_id") is None:
                properties["message_id"] = ids.next_id(content, (destination, *values))
            try:
                yield destination, encode_brokered(BrokeredMessage(content, **properties))
            except InvalidMessageError as error:
                raise error.at(destination) from error

    def _entities(self, batch: pa.RecordBatch) -> Iterable[str | None]:
        return self._values(batch, "entity") if self._entity is None else repeat(self._entity)

    def _destination(self, entity: str | None) -> str:
        """Where a row goes; each is looked at once."""
        if entity in self._destinations:
            return entity
        if entity is None:
            raise InvalidMessageError("its entity is null, and there is no option 'entity'")
        if not takes_messages(entity):
            raise InvalidMessageError(f"its entity is {shown(entity)}; it has to be the name of a queue or topic")
        self._destinations.add(entity)
        return entity

    def _values(self, batch: pa.RecordBatch, name: str) -> Iterator[Any]:
        """A column's values; each is made when its row's turn has come, so that it is known which one is wrong."""
        index = self._indexes[name]
        values = _as_numbers(batch.column(index)).to_pylist()
        convert = converter(name, self._schema[index].dataType)
        if convert is same:
            return iter(values)
        return (None if value is None else convert(value) for value in values)


def _rows_at_once(batch: pa.RecordBatch) -> int:
    fitting: int = _BYTES_AT_ONCE * batch.num_rows // max(1, batch.nbytes)
    return max(1, min(_ROWS_AT_ONCE, fitting))


def _as_numbers(column: pa.Array) -> pa.Array:
    """Points in time as the numbers that they are: they need no zone then, which not every machine knows."""
    kind = _without_times(column.type)
    return column if kind == column.type else column.cast(kind)


def _without_times(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_map(kind):
        item = _without_times(kind.item_type)
        return kind if item == kind.item_type else pa.map_(kind.key_type, item)
    if pa.types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return pa.struct([field.with_type(_without_times(field.type)) for field in fields])
    return kind
