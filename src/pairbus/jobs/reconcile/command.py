"""From the ledgers that somebody names to a report, on a Spark session for as long as that takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from pairbus.jobs.ledger import LedgerReadError, check_ledgers, read_lives
from pairbus.jobs.ledger.failure import FAILURES, failure_line
from pairbus.jobs.ledger.tables import plain_places
from pairbus.jobs.ledger.workload import session_config
from pairbus.jobs.reconcile.errors import LedgersMixedError, ReconcileError, ReconcileInputError
from pairbus.jobs.reconcile.reconciliation import read_since, reconcile
from pairbus.jobs.reconcile.report import Report, report
from pairbus.jobs.reconcile.session import SESSION
from pairbus.spark.java import JavaNotFoundError
from pairbus.spark.session import SparkStartError, ensured_session


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconcilable:
    """The ledgers of a pair, and which messages of them are of interest."""

    primary: Sequence[str]
    secondary: Sequence[str]
    start: datetime | None
    end: datetime | None
    name: str | None

    def report(self, master: str, listed: int) -> Report:
        """Raises ``ReconcileInputError`` if a ledger is no good, ``ReconcileError`` if Spark is not."""
        try:
            check_ledgers([*self.secondary, *self.primary])
            self._expect_two()
            config = session_config([*self.secondary, *self.primary], SESSION)
            with ensured_session(master, app_name="pairbus reconcile", config=config) as spark:
                # Of the secondary everything is read: what lay in the backlog at the start was diverted before it. And
                # it is read first: of what leaves the backlog meanwhile, only the arrival is seen then.
                secondary = read_lives(spark, self.secondary)
                primary = read_lives(spark, self.primary, read_since(self.start))
                earlier = partial(read_lives, spark, self.primary, end=read_since(self.start))
                found = reconcile(primary, secondary, self.start, self.end, self.name, earlier)
                try:
                    return report(found, listed)
                finally:
                    found.release()
        except LedgerReadError as error:
            raise ReconcileInputError(str(error)) from error
        except (SparkStartError, JavaNotFoundError) as error:
            raise ReconcileError(str(error)) from error
        except FAILURES as error:
            raise ReconcileError(f"Spark could not do it: {failure_line(error)}") from error

    def _expect_two(self) -> None:
        """Before Spark is started, which takes longer than to see this."""
        for place in plain_places(self.primary):
            if place in plain_places(self.secondary):
                raise LedgersMixedError(f"{place} is named as --primary and as --secondary; a pair has two namespaces")
