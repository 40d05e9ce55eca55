"""The Spark jobs of the demo: the syphon, the reconciliation of the ledgers, and the bill."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from pairbus.cli.demo.application import PLACES
from pairbus.cli.demo.outcome import Proof
from pairbus.jobs.cost.bill import statement
from pairbus.jobs.cost.month import beyond_allowances
from pairbus.jobs.cost.rate_card import load_rate_card
from pairbus.jobs.cost.statement import Statement
from pairbus.jobs.ledger.tables import FEW_ROWS, read_lives, read_operations
from pairbus.jobs.reconcile import reconcile
from pairbus.jobs.reconcile.reconciliation import MEASURES
from pairbus.jobs.reconcile.report import MissingMessage, waits_of
from pairbus.jobs.syphon.outcome import BatchReport
from pairbus.jobs.syphon.settings import SparkSyphonSettings
from pairbus.jobs.syphon.spark_syphon import SparkSyphon
from pairbus.pairing import Syphon, SyphonContext, SyphonEngine
from pairbus.spark.session import spark_session, stop_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MASTER: Final = "local[2]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledgers:
    """The directories of the ledgers of a pair."""

    primary: Path
    secondary: Path


class SparkWork:
    """Runs all Spark jobs of the demo in one session."""

    def __init__(self) -> None:
        self._session: SparkSession | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the session, which takes some seconds."""
        self._session = spark_session(_MASTER, app_name="pairbus demo", config=FEW_ROWS)

    def stop(self) -> None:
        """Stop the session and its Java process, even if jobs are running. Can be called more than once."""
        session, self._session = self._session, None
        if session is not None:
            stop_session(session)

    def engine(self, on_batch: Callable[[BatchReport], None]) -> SyphonEngine:
        """Return the engine of a syphon in this session, which calls ``on_batch`` after each batch."""

        def create(context: SyphonContext) -> Syphon:
            return SparkSyphon(context, SparkSyphonSettings(session=self._spark), on_batch)

        return create

    def prove(self, ledgers: Ledgers) -> Proof:
        """Reconcile the ledgers of both namespaces, and return the result."""
        # Read the secondary first: messages delivered after that are then not missing from it.
        secondary, primary = (read_lives(self._spark, path) for path in (ledgers.secondary, ledgers.primary))
        found = reconcile(primary, secondary)
        try:
            counts = {row["entity"]: {name: row[name] for name in MEASURES} for row in found.totals.collect()}
            missing = found.missing.collect() if any(one["missing"] for one in counts.values()) else ()
            return Proof(
                counts=counts,
                missing=tuple(MissingMessage(**row.asDict()) for row in missing),
                waits=waits_of(found.delivered.where(found.delivered["entity"].isin(*PLACES))),
                gaps=sum(side.gaps + side.absent for side in (found.primary, found.secondary)),
            )
        finally:
            found.release()

    def bill(self, ledgers: Ledgers, since: datetime) -> Statement:
        """Return the bill of both namespaces since that time, at the first price above the allowances."""
        start = since.replace(microsecond=0)  # a ledger counts operations by the second
        operations = read_operations(self._spark, (ledgers.primary, ledgers.secondary), start=start)
        return statement(operations, beyond_allowances(load_rate_card("standard")))

    @property
    def _spark(self) -> SparkSession:
        if self._session is None:
            raise RuntimeError("Spark is not running; call start() first")
        return self._session
