"""Reconciliation as a command: from directories of ledgers to a report, on a temporary Spark session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

from pairbus.jobs.ledger import LedgerReadError, check_ledgers, read_lives
from pairbus.jobs.ledger.tables import FAILURES, failure_line, plain_places, session_config
from pairbus.jobs.reconcile.injected_faults import fault_note
from pairbus.jobs.reconcile.reconciliation import (
    LedgersMixedError,
    ReconcileError,
    ReconcileInputError,
    read_since,
    reconcile,
)
from pairbus.jobs.reconcile.report import ReconcileReport, report
from pairbus.spark.java import JavaNotFoundError
from pairbus.spark.session import SparkStartError, ensured_session

SESSION: Final = {
    "spark.sql.shuffle.partitions": "64",  # Spark combines small partitions; large ones fit into memory
    "spark.driver.memory": "4g",  # a maximum: it takes what it needs
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconcilable:
    """The ledgers of a pair, and the selection of messages."""

    primary: Sequence[str]
    secondary: Sequence[str]
    start: datetime | None
    end: datetime | None
    name: str | None

    def report(self, master: str, listed: int) -> ReconcileReport:
        """Return the report. Raise ``ReconcileInputError`` for an invalid ledger, ``ReconcileError`` if Spark fails."""
        try:
            check_ledgers([*self.secondary, *self.primary])
            self._expect_two()
            config = session_config([*self.secondary, *self.primary], SESSION)
            with ensured_session(master, app_name="pairbus reconcile", config=config) as spark:
                # The secondary is read completely: messages in the backlog at the start were diverted before it. It is
                # read first, so that of a message that leaves the backlog meanwhile, only the arrival is seen.
                secondary = read_lives(spark, self.secondary)
                primary = read_lives(spark, self.primary, read_since(self.start))
                earlier = partial(read_lives, spark, self.primary, end=read_since(self.start))
                found = reconcile(primary, secondary, self.start, self.end, self.name, earlier)
                try:
                    note = fault_note(spark, [*self.primary, *self.secondary], read_since(self.start), self.end)
                    return report(found, listed, [] if note is None else [note])
                finally:
                    found.release()
        except LedgerReadError as error:
            raise ReconcileInputError(str(error)) from error
        except (SparkStartError, JavaNotFoundError) as error:
            raise ReconcileError(str(error)) from error
        except FAILURES as error:
            raise ReconcileError(f"the Spark job failed: {failure_line(error)}") from error

    def _expect_two(self) -> None:
        """Raise ``LedgersMixedError`` before Spark is started, which takes longer than this check."""
        for place in plain_places(self.primary):
            if place in plain_places(self.secondary):
                raise LedgersMixedError(f"{place} is given as --primary and as --secondary; a pair has two namespaces")
