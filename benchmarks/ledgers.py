"""Measures how `pairbus cost` and `pairbus reconcile` grow: ten times the rows should take eleven times as long.

Ledgers of a day with an outage of an hour are generated into a temporary directory; each job runs over each of them in
a process of its own, on two processors. DuckDB counts the same, if it is installed (the extra ``bench``). The command
reconciles a small ledger, and the last days of a year one after the other.

The exit code is 1 if a goal is missed, unless other processes kept the machine busy: then the figures say little.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.overload import verdict
from pairbus.ledger.events import (
    ALIVE_EVERY_MS,
    COLUMNS,
    LIVES,
    NUMBER,
    OPERATIONS,
    TEXT,
    TIME,
    LedgerEvent,
    OperationKind,
    Stage,
)

if TYPE_CHECKING:
    from pairbus.jobs.reconcile import ReconcileReport

ROWS: Final = (10_000_000, 100_000_000)
FEW_ROWS: Final = 3_000
YEAR: Final = 365
QUICK_ROWS: Final = (1_000_000, 3_000_000)
GOAL: Final = 1.1
"""The factor by which the time may grow faster than the rows."""

GOALS_S: Final = {10_000_000: 45.0, 100_000_000: 250.0}
"""Time for reconciling so many rows."""

FEW_GOAL_S: Final = 12.0
GOAL_GIB: Final = 5.0
"""Java's memory, whatever the rows: 4 GiB for data, and Java itself."""

DAY_GOAL: Final = 1.2
"""Time for a day of a year, relative to that for a day alone."""

DAY: Final = datetime(2026, 3, 1, tzinfo=UTC)
HOURS: Final = 24
OUTAGE: Final = 12
ENTITIES: Final = 40
SESSIONS: Final = 1_000
MASTER: Final = "local[2]"

_HOUR_MS: Final = 3_600_000
_BUSY_MS: Final = 3_500_000
"""The part of an hour in which messages are sent, and operations recorded; messages are received before it ends."""

_FETCH_MS: Final = 1_000
"""From the fetching of a message from the backlog to its acceptance at home, and to its removal, at most."""

_CHUNK: Final = 250_000
_PRIMARY: Final = "contoso"
_SECONDARY: Final = "fabrikam"
_TYPES: Final = {TIME: pa.timestamp("ms", tz="UTC"), TEXT: pa.string(), NUMBER: pa.int64()}


# Ledgers.


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Messages of one or more days, numbered from 0; those of an hour are sent at even distances."""

    messages: int
    hours: int = HOURS

    @property
    def an_hour(self) -> int:
        return self.messages // self.hours

    def chunks(self, hour: int) -> Iterator[Any]:
        first = hour * self.an_hour
        for start in range(first, first + self.an_hour, _CHUNK):
            yield np.arange(start, min(start + _CHUNK, first + self.an_hour), dtype=np.int64)

    def sent_ms(self, numbers: Any) -> Any:
        hour, within = np.divmod(numbers, self.an_hour)
        return _ms(DAY) + hour * _HOUR_MS + within * _BUSY_MS // self.an_hour

    def home_ms(self, numbers: Any) -> Any:
        """Return the time at which the primary accepts diverted messages: an hour later."""
        return self.sent_ms(numbers) + _HOUR_MS + _FETCH_MS


def generate(directory: Path, rows: int, days: int = 1) -> None:
    """Ledgers of a pair with about so many rows of operations, and so many of lives; each day has an outage."""
    # Of each message there are three events, and three more if it was diverted.
    traffic = Traffic(messages=round(rows / (3 + 3 / HOURS)), hours=HOURS * days)
    primary, secondary = Writer(directory / _PRIMARY), Writer(directory / _SECONDARY)
    for writer, namespace in ((primary, _PRIMARY), (secondary, _SECONDARY)):
        writer.write([_start(namespace)])
    for hour in range(traffic.hours):
        if hour % HOURS not in {OUTAGE, OUTAGE + 1}:
            secondary.write([_alive(_SECONDARY, hour)])
        for chunk in traffic.chunks(hour):
            if hour % HOURS == OUTAGE:
                secondary.write([_backlog(chunk, LedgerEvent.ACCEPTED, Stage.BACKLOG, traffic.sent_ms(chunk))])
            elif hour % HOURS == OUTAGE + 1:
                diverted = chunk - traffic.an_hour
                secondary.write(_fetched(traffic, diverted))
                primary.write([*_direct(traffic, chunk), *_returned(traffic, diverted)])
            else:
                primary.write(_direct(traffic, chunk))
        _write_operations(directory / _PRIMARY, hour, rows // traffic.hours)
    end_ms = np.array([_ms(DAY) + traffic.hours * _HOUR_MS - 1])
    for writer, namespace in ((primary, _PRIMARY), (secondary, _SECONDARY)):
        writer.write([_of_namespace(namespace, LedgerEvent.STOPPED, end_ms)])


def _start(namespace: str) -> Any:
    """The event that a ledger begins with."""
    return _of_namespace(namespace, LedgerEvent.STARTED, np.array([_ms(DAY)]))


def _alive(namespace: str, hour: int) -> Any:
    """The events of an hour in which nothing happens."""
    begin_ms = _ms(DAY) + hour * _HOUR_MS
    return _of_namespace(
        namespace, LedgerEvent.ALIVE, np.arange(begin_ms + 1, begin_ms + _HOUR_MS, ALIVE_EVERY_MS, dtype=np.int64)
    )


def _of_namespace(namespace: str, event: LedgerEvent, at_ms: Any) -> Any:
    return _table(
        LIVES,
        len(at_ms),
        at=at_ms,
        namespace=namespace,
        ordinal=0,
        event=str(event),
        stage=str(Stage.DIRECT),
        entity="",
        sequence=0,
        original_sequence=0,
        message_id="",
        session_id=None,
        destination=None,
        size=0,
    )


def _direct(traffic: Traffic, numbers: Any) -> list[Any]:
    sent_ms = traffic.sent_ms(numbers)
    steps = ((LedgerEvent.ACCEPTED, 0), (LedgerEvent.RECEIVED, 20), (LedgerEvent.COMPLETED, 50))
    return [_lives(numbers, event, Stage.DIRECT, sent_ms + later_ms) for event, later_ms in steps]


def _fetched(traffic: Traffic, numbers: Any) -> list[Any]:
    home_ms = traffic.home_ms(numbers)
    steps = ((LedgerEvent.RECEIVED, -5), (LedgerEvent.COMPLETED, 5))
    return [_backlog(numbers, event, Stage.SYPHON, home_ms + later_ms) for event, later_ms in steps]


def _returned(traffic: Traffic, numbers: Any) -> list[Any]:
    home_ms, returned = traffic.home_ms(numbers), traffic.messages // ENTITIES + 1
    steps = (
        (LedgerEvent.ACCEPTED, Stage.SYPHON, 0),
        (LedgerEvent.RECEIVED, Stage.RETURNED, 20),
        (LedgerEvent.COMPLETED, Stage.RETURNED, 50),
    )
    return [
        _lives(numbers, event, stage, home_ms + later_ms, sequence_from=returned) for event, stage, later_ms in steps
    ]


def _lives(numbers: Any, event: LedgerEvent, stage: Stage, at_ms: Any, sequence_from: int = 0) -> Any:
    entity = numbers % ENTITIES
    sequence = pa.array(numbers // ENTITIES + 1 + sequence_from)
    session = pc.if_else(pa.array(entity % 2 == 1), _text("session-", numbers % SESSIONS), pa.scalar(None, pa.string()))
    return _table(
        LIVES,
        len(numbers),
        at=at_ms,
        namespace=_PRIMARY,
        ordinal=0,
        event=str(event),
        stage=str(stage),
        entity=_text("orders-", entity),
        sequence=sequence,
        original_sequence=sequence,
        message_id=_text("message-", numbers),
        session_id=session,
        destination=None,
        size=1_024,
    )


def _backlog(numbers: Any, event: LedgerEvent, stage: Stage, at_ms: Any) -> Any:
    is_start = event is LedgerEvent.ACCEPTED
    entity = numbers % ENTITIES
    session = pc.if_else(pa.array(entity % 2 == 1), _text("session-", numbers % SESSIONS), pa.scalar(None, pa.string()))
    return _table(
        LIVES,
        len(numbers),
        at=at_ms,
        namespace=_SECONDARY,
        ordinal=0,
        event=str(event),
        stage=str(stage),
        entity=f"{_PRIMARY}/x-servicebus-transfer/0",
        sequence=numbers + 1,
        original_sequence=numbers + 1,
        message_id=_text("message-", numbers),
        session_id=session if is_start else None,
        destination=_text("orders-", entity) if is_start else None,
        size=1_024,
    )


def _write_operations(ledger: Path, hour: int, rows: int) -> None:
    kinds = pa.array(
        [
            str(OperationKind.SEND),
            str(OperationKind.RECEIVE),
            str(OperationKind.SETTLE),
            str(OperationKind.EMPTY_RECEIVE),
        ]
    )
    for number, start in enumerate(range(0, rows, 4 * _CHUNK)):
        numbers = np.arange(start, min(start + 4 * _CHUNK, rows), dtype=np.int64)
        at_ms = _ms(DAY) + hour * _HOUR_MS + numbers * _BUSY_MS // rows // 1_000 * 1_000
        table = _table(
            OPERATIONS,
            len(numbers),
            at=at_ms,
            namespace=_PRIMARY,
            kind=kinds.take(pa.array(numbers % 4)),
            stage=str(Stage.DIRECT),
            entity=_text("orders-", numbers // 4 % ENTITIES),
            result="ok",
            who="RootManageSharedAccessKey",
            operations=numbers % 7 + 1,
            messages=numbers % 7 + 1,
            bytes=(numbers % 7 + 1) * 1_024,
            units=numbers % 7 + 1,
            request_units=numbers % 7 + 1,
            connections=0,
        )
        place = ledger / OPERATIONS / _partition(DAY + timedelta(hours=hour))
        place.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, place / f"operations-{number}.parquet", compression="zstd", compression_level=1)


class Writer:
    """Writes lives, and counts them as a namespace does: in the order of time, without a hole."""

    def __init__(self, ledger: Path) -> None:
        self._ledger = ledger
        self._last = 0

    def write(self, tables: list[Any]) -> None:
        """Into the hour of the first of them."""
        table = pa.concat_tables(tables).sort_by("at")
        ordinals = np.arange(self._last + 1, self._last + 1 + len(table), dtype=np.int64)
        self._last += len(table)
        place = self._ledger / LIVES / _partition(table["at"][0].as_py())
        place.mkdir(parents=True, exist_ok=True)
        file = place / f"lives-{len(list(place.iterdir()))}.parquet"
        table = table.set_column(table.schema.get_field_index("ordinal"), "ordinal", pa.array(ordinals))
        pq.write_table(table, file, compression="zstd", compression_level=1)


def _table(name: str, rows: int, **values: Any) -> Any:
    columns = [_column(values[column], _TYPES[kind], rows) for column, kind in COLUMNS[name].items()]
    return pa.table(dict(zip(COLUMNS[name], columns, strict=True)))


def _column(value: Any, kind: Any, rows: int) -> Any:
    if isinstance(value, np.ndarray):
        return pa.array(value).cast(kind)
    if isinstance(value, (pa.Array, pa.ChunkedArray)):
        return value.cast(kind)
    return pa.repeat(pa.scalar(value, kind), rows)


def _text(prefix: str, numbers: Any) -> Any:
    return pc.binary_join_element_wise(prefix, pa.array(numbers).cast(pa.string()), "")


def _partition(time: datetime) -> str:
    return f"day={time:%Y-%m-%d}/hour={time:%H}"


def _ms(time: datetime) -> int:
    return round(time.timestamp() * 1_000)


# Jobs, each in a process of its own.


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The cost of a job."""

    seconds: float
    peak_bytes: int
    """Of Java's memory, at most."""

    answer: str


def _reconcile(directory: Path) -> str:
    from pairbus.jobs.reconcile import reconcile, report  # noqa: PLC0415 (the generator does without Spark)

    spark = _session()
    return _summary(report(reconcile(*(_read(spark, directory / name) for name in (_PRIMARY, _SECONDARY)))))


def _summary(found: ReconcileReport) -> str:
    total = found.total.counts
    return (
        f"{found.verdict}: {total['accepted']:,} accepted, {total['diverted']:,} diverted, "
        f"{total['received']:,} received, {total['missing']:,} missing, {total['out_of_order']:,} out of order, "
        f"{total['out_of_order_in_session']:,} within sessions"
    )


def _cost(directory: Path) -> str:
    from pairbus.jobs.cost.bill import statement  # noqa: PLC0415
    from pairbus.jobs.cost.rate_card import load_rate_card  # noqa: PLC0415
    from pairbus.jobs.ledger import read_operations  # noqa: PLC0415

    found = statement(read_operations(_session(), directory / _PRIMARY), load_rate_card("standard"))
    return f"{len(found.lines):,} lines"


def _an_hour(directory: Path) -> str:
    """Of the lives of one hour: which partitions Spark reads is in the plan."""
    from pairbus.jobs.ledger import read_lives  # noqa: PLC0415

    start = DAY + timedelta(hours=OUTAGE + 1)
    lives = read_lives(_session(), directory / _PRIMARY, start, start + timedelta(hours=1))
    rows = lives.count()
    plan: str = lives._jdf.queryExecution().executedPlan().toString()  # noqa: SLF001 (there is no other way to it)
    filters = next(line for line in plan.splitlines() if "PartitionFilters" in line)
    return f"{rows:,} rows; PartitionFilters{filters.partition('PartitionFilters')[2].partition(', PushedFilters')[0]}"


def _read(spark: Any, ledger: Path) -> Any:
    from pairbus.jobs.ledger import read_lives  # noqa: PLC0415

    return read_lives(spark, ledger)


def _session() -> Any:
    from pairbus.jobs.reconcile.command import SESSION  # noqa: PLC0415
    from pairbus.spark.session import spark_session  # noqa: PLC0415

    return spark_session(MASTER, config=SESSION)


def _a_day(directory: Path) -> str:
    """Reconcile the last day; that of a year after the day before it, which leaves its open messages."""
    from pairbus.jobs.reconcile.command import Outputs, Reconcilable  # noqa: PLC0415

    # The state is absent when the first of the two days is measured, and is its result when the second one is.
    state, days = directory / "state", len([*(directory / _PRIMARY / LIVES).iterdir()])
    start = DAY + timedelta(days=days - (1 if days == 1 or state.is_dir() else 2))
    pair = Reconcilable(
        primary=[str(directory / _PRIMARY)],
        secondary=[str(directory / _SECONDARY)],
        start=start,
        end=start + timedelta(days=1),
        name=None,
        outputs=Outputs(state=str(state)),
    )
    return _summary(pair.report(MASTER, 0))


def _few(directory: Path) -> str:
    """As a user runs it: with the start of Python and of Spark."""
    command = [sys.executable, "-m", "pairbus", "reconcile", "--master", MASTER]
    ledgers = ["--primary", str(directory / _PRIMARY), "--secondary", str(directory / _SECONDARY)]
    done = subprocess.run([*command, *ledgers], capture_output=True, text=True, check=False)
    return f"exit code {done.returncode}"


def _duckdb(directory: Path) -> str:
    """The same counts by DuckDB, an engine for one machine."""
    import duckdb  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415 (optional)

    with duckdb.connect() as database:
        database.execute(f"set threads to {_threads()}")
        for view, name in (("home", _PRIMARY), ("away", _SECONDARY)):
            files = directory / name / LIVES / "*" / "*" / "*.parquet"
            database.read_parquet(str(files)).create_view(view)
        ((accepted, diverted, received, missing, late, late_in_session),) = database.execute(_SQL).fetchall()
    return (
        f"{accepted:,} accepted, {diverted:,} diverted, {received:,} received, {missing:,} missing, "
        f"{late:,} out of order, {late_in_session:,} within sessions"
    )


def _threads() -> int:
    return int(MASTER.removeprefix("local[").removesuffix("]"))


_SQL: Final = """
with copies as materialized (
    select entity, sequence, any_value(message_id) as message_id, any_value(session_id) as session,
        max(stage = 'syphon') as is_restored, count(*) filter (event = 'accepted') as accepted,
        min(ordinal) filter (event = 'accepted') as ordinal, min("at") filter (event = 'accepted') as sent_at,
        min(ordinal) filter (event = 'received') as received_ordinal,
        min("at") filter (event = 'received') as received_at
    from home where sequence > 0 group by entity, sequence
), diverted as materialized (
    select any_value(destination) as entity, any_value(message_id) as message_id, min("at") as diverted_at,
        count(*) filter (event = 'completed') as completed
    from away where sequence > 0 group by entity, sequence
), sent as (
    select copies.entity, session, received_ordinal, received_at, coalesce(diverted_at, sent_at) as sent_at
    from copies left join diverted on is_restored and copies.entity = diverted.entity
        and copies.message_id = diverted.message_id
    where received_ordinal is not null
), late as (
    select session, max(sent_at) over (partition by entity order by received_at, received_ordinal
            rows between unbounded preceding and 1 preceding) > sent_at as is_late,
        max(sent_at) over (partition by entity, session order by received_at, received_ordinal
            rows between unbounded preceding and 1 preceding) > sent_at as is_late_in_session
    from sent
)
select (select count(*) from copies where accepted > 0 and not is_restored), (select count(*) from diverted),
    (select count(*) from copies where received_ordinal is not null),
    (select count(*) from diverted anti join copies using (entity, message_id) where completed > 0),
    (select count(*) from late where is_late),
    (select count(*) from late where is_late_in_session and session is not null)
"""


_JOBS: Final[dict[str, Callable[[Path], str]]] = {
    "cost": _cost,
    "reconcile": _reconcile,
    "an hour of lives": _an_hour,
    "DuckDB": _duckdb,
    "a day alone": _a_day,
    "a day of a year": _a_day,
    "a small ledger": _few,
}
LARGE: Final = ("cost", "reconcile", "an hour of lives")
WITHOUT_SESSION: Final = ("DuckDB", "a small ledger")


def _run_here(job: str, directory: Path) -> Result:
    from pairbus.spark.session import stop_session  # noqa: PLC0415

    session = None if job in WITHOUT_SESSION else _session()  # its start is not what is measured
    started_s = time.perf_counter()
    answer = _JOBS[job](directory)
    seconds = time.perf_counter() - started_s
    peak_bytes = _peak_bytes() if session is not None else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024
    if session is not None:
        stop_session(session)
    return Result(seconds=seconds, peak_bytes=peak_bytes, answer=answer)


def _peak_bytes() -> int:
    """The most memory that a child of this process has had: Java is the one."""
    peaks = [0]
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        except OSError:
            continue  # it has ended
        if int(fields["PPid"]) == os.getpid() and "VmHWM" in fields:
            peaks.append(int(fields["VmHWM"].split()[0]) * 1_024)
    return max(peaks)


def measure(job: str, directory: Path) -> Result:
    """Run a job in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.ledgers", "--job", job, "--directory", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{job} has failed: {done.stderr[-2_000:]}")
    return Result(**json.loads(done.stdout.splitlines()[-1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A figure, with the largest value that meets the goal."""

    name: str
    value: float
    limit: float
    unit: str

    @property
    def is_missed(self) -> bool:
        return self.value > self.limit

    def __str__(self) -> str:
        result = "missed" if self.is_missed else "met"
        return f"{self.name:44}{self.value:8,.1f} {self.unit:4} (goal: {self.limit:g} {self.unit}) {result}"


def report(rows: Sequence[int] = ROWS) -> int:
    """Print what each job took over each of the ledgers, how it grew, and the goals; return the exit code."""
    load = os.getloadavg()[0]
    print(f"Ledgers of a day, an hour of it an outage, on {MASTER}; {load:.1f} processes wanted a processor")
    goals = [*_report_few(), *_report_days(rows), *_report_year(rows[0])]
    for goal in goals:
        print(goal)
    return verdict([goal.name for goal in goals if goal.is_missed], load / (os.cpu_count() or 1))


def _report_few() -> Iterator[Goal]:
    print(f"{FEW_ROWS:,} rows, with the start of Python and of Spark")
    with _ledgers(FEW_ROWS) as directory:
        result = _print("a small ledger", measure("a small ledger", directory))
    yield Goal(name=f"{FEW_ROWS:,} rows, with the start of Spark", value=result.seconds, limit=FEW_GOAL_S, unit="s")


def _report_days(rows: Sequence[int]) -> Iterator[Goal]:
    took: dict[str, list[float]] = {job: [] for job in LARGE}
    for count in rows:
        with _ledgers(count) as directory:
            results = {job: _print(job, measure(job, directory)) for job in LARGE}
            if find_spec("duckdb") is None:
                print("  DuckDB            is not installed: it is in the extra bench")
            else:
                _print("DuckDB", measure("DuckDB", directory))
        for job, result in results.items():
            took[job].append(result.seconds)
        reconciled = results["reconcile"]
        if count in GOALS_S:
            yield Goal(name=f"{count:,} rows", value=reconciled.seconds, limit=GOALS_S[count], unit="s")
        yield Goal(name=f"{count:,} rows, memory", value=reconciled.peak_bytes / 2**30, limit=GOAL_GIB, unit="GiB")
    if len(rows) > 1:
        for job in ("cost", "reconcile"):
            growth = took[job][-1] / took[job][0] / (rows[-1] / rows[0])
            yield Goal(name=f"{job}, growth relative to the rows", value=growth, limit=GOAL, unit="x")


def _report_year(rows: int) -> Iterator[Goal]:
    print("A day alone, and the last days of a year; the first of these leaves its open messages to the second")
    with _ledgers(rows // YEAR) as directory:
        alone = _print("a day alone", measure("a day alone", directory))
    with _ledgers(rows, YEAR) as directory:
        for _ in range(2):
            last = _print("a day of a year", measure("a day of a year", directory))
    yield Goal(
        name="a day of a year, relative to a day alone", value=last.seconds / alone.seconds, limit=DAY_GOAL, unit="x"
    )


@contextmanager
def _ledgers(rows: int, days: int = 1) -> Iterator[Path]:
    with TemporaryDirectory(prefix="pairbus-bench-", dir=Path.cwd()) as directory:
        started_s = time.perf_counter()
        generate(Path(directory), rows, days)
        took_s = time.perf_counter() - started_s
        print(f"{rows:,} rows each of operations and lives, {days} days: generated in {took_s:,.0f} s")
        yield Path(directory)


def _print(job: str, result: Result) -> Result:
    print(f"  {job:18}{result.seconds:9,.1f} s{result.peak_bytes / 2**30:7.1f} GiB   {result.answer}", flush=True)
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="1 and 3 million rows instead of 10 and 100 million")
    parser.add_argument("--rows", type=int, nargs="+", help="the rows of the ledgers")
    parser.add_argument("--job", choices=[*_JOBS], help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job is None:
        sys.exit(report(options.rows or (QUICK_ROWS if options.quick else ROWS)))
    print(json.dumps(asdict(_run_here(options.job, options.directory))))
