"""One Spark session for all that needs one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest
from pyspark.sql import SparkSession

from pairbus.spark.session import ensured_session

QUICK: Final = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""For a few rows, to plan and to compile takes longer than the work. The command is tested as users run it."""


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with ensured_session("local[2]", config=QUICK) as session:
        yield session
