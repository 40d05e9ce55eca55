"""Ledgers for tests: message events as rows, tables and files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from pairbus.jobs.ledger.tables import table_schema
from pairbus.ledger.events import COLUMNS, LIVES, NUMBER, TEXT, TIME, LedgerEvent, LifecycleEvent, Stage

BEGIN: Final = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

_TYPES: Final = {TIME: pa.timestamp("ms", tz="UTC"), TEXT: pa.string(), NUMBER: pa.int64()}
_SCHEMA: Final = pa.schema([(name, _TYPES[kind]) for name, kind in COLUMNS[LIVES].items()])


class Clock:
    """A clock shared by all namespaces, which always advances."""

    def __init__(self) -> None:
        self.now_ms = round(BEGIN.timestamp() * 1000)

    def tick(self, ms: int = 1) -> int:
        self.now_ms += ms
        return self.now_ms


class RecordedNamespace:
    """The recorded events of one namespace."""

    def __init__(self, namespace: str, clock: Clock, ahead: timedelta = timedelta()) -> None:
        self.namespace = namespace
        self.lives: list[LifecycleEvent] = []
        self._clock = clock
        self._ahead_ms = ahead // timedelta(milliseconds=1)
        self._ordinal = 0

    def note(
        self,
        event: LedgerEvent,
        stage: Stage,
        entity: str,
        sequence: int,
        original: int | None = None,
        message_id: str = "",
        session_id: str | None = None,
        destination: str | None = None,
    ) -> LifecycleEvent:
        self._ordinal += 1
        life = LifecycleEvent(
            self._clock.tick() + self._ahead_ms,
            self._ordinal,
            event,
            stage,
            entity,
            sequence,
            sequence if original is None else original,
            message_id,
            session_id,
            destination,
            1_024,
        )
        self.lives.append(life)
        return life

    def start(self) -> LifecycleEvent:
        """Start the namespace: a new process counts from its time on, and names the last recorded event."""
        last = self.lives[-1].ordinal if self.lives else 0
        self._ordinal = self._clock.now_ms << 22
        return self.note(LedgerEvent.STARTED, Stage.DIRECT, "", last)

    def reload(self, undone: int) -> LifecycleEvent:
        """Load the namespace again in the same process, after a failed commit that has undone some events."""
        last = self.lives[-1].ordinal
        self._ordinal = last + undone
        return self.note(LedgerEvent.STARTED, Stage.DIRECT, "", last)

    def stop(self) -> LifecycleEvent:
        return self.note(LedgerEvent.STOPPED, Stage.DIRECT, "", 0)

    def alive(self) -> LifecycleEvent:
        return self.note(LedgerEvent.ALIVE, Stage.DIRECT, "", 0)

    def undo(self, is_undone: Callable[[LifecycleEvent], bool]) -> int:
        """Remove some events of the first process, and return their number."""
        kept = [life for life in self.lives if not is_undone(life)]
        undone, first = len(self.lives) - len(kept), self.lives[0].ordinal
        self.lives = [life._replace(ordinal=first + number) for number, life in enumerate(kept)]
        self._ordinal -= undone
        return undone

    def same_time(self, life: LifecycleEvent) -> None:
        """Set the time of the last event to that of another."""
        self.lives[-1] = self.lives[-1]._replace(at_ms=life.at_ms)

    def frame(self, spark: SparkSession) -> DataFrame:
        return lives_frame(spark, self.namespace, self.lives)

    def write(self, directory: Path) -> Path:
        """Write the events to the files of a ledger."""
        write_events(directory, self.namespace, self.lives)
        return directory


SCHEMA: Final = table_schema(LIVES)


def lives_frame(spark: SparkSession, namespace: str, lives: Iterable[LifecycleEvent]) -> DataFrame:
    table = arrow_table(namespace, lives)
    return spark.createDataFrame(table.set_column(0, "at", table["at"].cast(pa.timestamp("us", "UTC"))), SCHEMA)


def arrow_table(namespace: str, lives: Iterable[LifecycleEvent]) -> Any:
    rows = [(life.at_ms, namespace, *map(_plain, life[1:])) for life in lives]
    columns: Sequence[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * len(_SCHEMA)
    return pa.table(
        [pa.array(list(values), field.type) for values, field in zip(columns, _SCHEMA, strict=True)], schema=_SCHEMA
    )


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, (LedgerEvent, Stage)) else value


def write_events(directory: Path, namespace: str, lives: Iterable[LifecycleEvent]) -> None:
    by_hour: dict[str, list[LifecycleEvent]] = defaultdict(list)
    for life in lives:
        at = datetime.fromtimestamp(life.at_ms / 1000, UTC)
        by_hour[f"day={at:%Y-%m-%d}/hour={at:%H}"].append(life)
    (directory / LIVES).mkdir(parents=True, exist_ok=True)
    for hour, those in by_hour.items():
        place = directory / LIVES / hour
        place.mkdir(parents=True, exist_ok=True)
        pq.write_table(arrow_table(namespace, those), place / "lives-1.parquet")
