"""The Spark session of the tests of ledgers."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def spark(ledger_session: SparkSession) -> SparkSession:
    return ledger_session
