"""The session that the tests of bills share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from pairbus.jobs.ledger.workload import HANDFUL
from pairbus.spark.session import ensured_session


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with ensured_session("local[2]", config=HANDFUL) as session:
        yield session
