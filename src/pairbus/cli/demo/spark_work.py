"""What Spark does in the demo: it brings the backlog home, compares the ledgers, and adds up the cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from pyspark.sql import SparkSession
from pyspark.sql.functions import col

from pairbus.cli.demo.application import PLACES
from pairbus.cli.demo.proof import Proof
from pairbus.jobs.cost.allowances import beyond_allowances
from pairbus.jobs.cost.bill import statement
from pairbus.jobs.cost.rate_card import load_rate_card
from pairbus.jobs.cost.statement import Statement
from pairbus.jobs.ledger.tables import read_lives, read_operations
from pairbus.jobs.ledger.workload import FEW_ROWS
from pairbus.jobs.reconcile import reconcile
from pairbus.jobs.reconcile.report import MissingMessage
from pairbus.jobs.reconcile.totals import MEASURES
from pairbus.jobs.reconcile.waits import waits_of
from pairbus.jobs.syphon.batch_report import BatchReport
from pairbus.jobs.syphon.settings import SparkSyphonSettings
from pairbus.jobs.syphon.spark_syphon import SparkSyphon
from pairbus.pairing import Syphon, SyphonContext, SyphonEngine
from pairbus.spark.session import spark_session, stop_session

_MASTER: Final = "local[2]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledgers:
    """Where the ledgers of a pair are."""

    primary: Path
    secondary: Path


class SparkWork:
    """Has one session for all of it."""

    def __init__(self) -> None:
        self._session: SparkSession | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Takes some seconds."""
        self._session = spark_session(_MASTER, app_name="pairbus demo", config=FEW_ROWS)

    def stop(self) -> None:
        """End the session and its Java, whatever is under way there. Twice is fine."""
        session, self._session = self._session, None
        if session is not None:
            stop_session(session)

    def engine(self, on_batch: Callable[[BatchReport], None]) -> SyphonEngine:
        """A syphon in this session, that tells of its batches."""

        def make(context: SyphonContext) -> Syphon:
            return SparkSyphon(context, SparkSyphonSettings(session=self._spark), on_batch)

        return make

    def prove(self, ledgers: Ledgers) -> Proof:
        """What became of every message, by the ledgers of both namespaces."""
        # The secondary first: what comes home after that is no riddle.
        secondary, primary = (read_lives(self._spark, path) for path in (ledgers.secondary, ledgers.primary))
        found = reconcile(primary, secondary)
        try:
            counts = {row["entity"]: {name: row[name] for name in MEASURES} for row in found.totals.collect()}
            missing = found.missing.collect() if any(one["missing"] for one in counts.values()) else ()
            return Proof(
                counts=counts,
                missing=tuple(MissingMessage(**row.asDict()) for row in missing),
                waits=waits_of(found.delivered.where(col("entity").isin(*PLACES))),
                gaps=sum(side.gaps + side.absent for side in (found.primary, found.secondary)),
            )
        finally:
            found.release()

    def bill(self, ledgers: Ledgers, since: datetime) -> Statement:
        """What both namespaces have done since then, at the first price above what is included."""
        start = since.replace(microsecond=0)  # a ledger counts operations by the second
        operations = read_operations(self._spark, (ledgers.primary, ledgers.secondary), start=start)
        return statement(operations, beyond_allowances(load_rate_card("standard")))

    @property
    def _spark(self) -> SparkSession:
        if self._session is None:
            raise RuntimeError("it has not been started")
        return self._session
