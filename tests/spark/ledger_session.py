"""One Spark session for all tests that read small ledgers: several modules have such tests, and a start takes long."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class LedgerSession:
    """Starts the session when a test needs it, and keeps it until it is closed."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._session: SparkSession | None = None

    def get(self) -> SparkSession:
        from pairbus.jobs.ledger.tables import HANDFUL  # only Spark tests should wait for these imports
        from pairbus.spark.session import ensured_session

        if self._session is None:
            self._session = self._stack.enter_context(ensured_session("local[2]", config=HANDFUL))
        return self._session

    def close(self) -> None:
        self._session = None
        self._stack.close()
