"""An archive of Spark's Java classes (class data sharing), with which a session starts in half of the time.

``python -m tests.spark.class_archive`` creates the file, which takes half a minute: worth it before many Spark tests.
If it is missing, or was created by another Java, Java loads the classes one by one without a message.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_ARCHIVE: Final = Path(__file__).parents[2] / "build" / "spark-classes.jsa"
_BRIEF: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_QUIET: Final = "-Xlog:disable"


def java_options() -> str:
    """Return Java options for tests: a short process needs neither the optimizing compiler nor parallel collection.

    That alone halves the time. Results are the same.
    """
    return f'{_BRIEF} {_QUIET} "-XX:SharedArchiveFile={_ARCHIVE}"' if _ARCHIVE.exists() else _BRIEF


def make() -> None:
    """Run some Spark work, and let Java archive the classes that it loaded."""
    import pyspark  # only Spark tests should wait for this import

    from pairbus.spark.java import java_home, packaged_java_home
    from pairbus.spark.session import session_environment

    java = java_home(os.environ, packaged_java_home())
    environment = session_environment("local[2]", os.environ, java, sys.executable)
    draft = _ARCHIVE.with_suffix(".draft")
    _ARCHIVE.parent.mkdir(exist_ok=True)
    subprocess.run(
        [
            Path(pyspark.__path__[0]) / "bin" / "spark-submit",
            *("--master", "local[2]", "--conf", "spark.ui.enabled=false"),
            *("--driver-java-options", f'{_BRIEF} {_QUIET} "-XX:ArchiveClassesAtExit={draft}"'),
            __file__,
        ],
        env={**os.environ, **{name: value for name, value in environment.items() if value is not None}},
        check=True,
        capture_output=True,
        text=True,
    )
    if draft.exists():  # not every Java supports it
        draft.replace(_ARCHIVE)


def _use(spark: SparkSession, directory: Path) -> None:
    _query(spark, directory)
    _stream(spark, directory)


def _query(spark: SparkSession, directory: Path) -> None:
    rows = spark.range(100).selectExpr("id", "id % 7 AS part", "CAST(id AS STRING) AS text", "now() AS at")
    table = str(directory / "table")
    rows.write.partitionBy("part").parquet(table)
    read = spark.read.parquet(table)
    read.createOrReplaceTempView("read")
    spark.sql(
        "SELECT part, count(*), collect_list(text), max(at), row_number() OVER (ORDER BY part) FROM read"
        " JOIN (SELECT id AS other FROM read) ON id = other WHERE part > 2 GROUP BY part ORDER BY part"
    ).collect()
    read.mapInArrow(_same, read.schema).groupBy("part").count().toArrow()


def _stream(spark: SparkSession, directory: Path) -> None:
    def into(batch: DataFrame, _number: int) -> None:
        batch.mapInArrow(_same, batch.schema).collect()

    rows = spark.readStream.schema("id LONG, text STRING").parquet(str(directory / "table"))
    writer = rows.writeStream.option("checkpointLocation", str(directory / "checkpoint")).foreachBatch(into)
    writer.trigger(availableNow=True).start().awaitTermination()


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


if __name__ == "__main__":
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        from pyspark.sql import SparkSession

        with tempfile.TemporaryDirectory() as directory:
            _use(SparkSession.builder.getOrCreate(), Path(directory))
    else:
        try:
            make()
        except subprocess.CalledProcessError as error:
            print(error.stderr[-2000:], file=sys.stderr)
        if not _ARCHIVE.exists():
            print(f"not made: {_ARCHIVE.name}; tests of Spark take longer without it", file=sys.stderr)
