"""The data source ``pairbus``."""

from __future__ import annotations

from pyspark import SparkContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pairbus.spark.connections import reached
from pairbus.spark.errors import reports_plainly
from pairbus.spark.options import ReadMode, SinkOptions, SourceOptions, schema_options
from pairbus.spark.reader import BrowsingStreamReader, ConsumingStreamReader, MessageReader
from pairbus.spark.schema import check_schema, schema_of
from pairbus.spark.session import prepare_workers
from pairbus.spark.sink import MessageStreamWriter, MessageWriter


@reports_plainly
class PairbusDataSource(DataSource):
    """Reads queues and subscriptions as tables and streams, and writes to queues and topics.

    ``spark.dataSource.register(PairbusDataSource)``, then ``spark.readStream.format("pairbus")``.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format.

        ``spark.dataSource.register`` calls this just before it decides which Python plans and runs the queries.
        """
        context = SparkContext._active_spark_context  # noqa: SLF001 (there is none in a worker, or with Spark Connect)
        if context is not None:
            prepare_workers(context)
        return "pairbus"

    def schema(self) -> StructType:
        columns, headers = schema_options(self.options)
        return schema_of(columns, include_headers=headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = SourceOptions.from_options(self.options, is_stream=False)
        return MessageReader(options, check_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        options = SourceOptions.from_options(self.options)
        kind = ConsumingStreamReader if options.mode is ReadMode.CONSUME else BrowsingStreamReader
        return kind(options, check_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        options = SinkOptions.from_options(self.options)
        writer = MessageWriter(options, schema, overwrite=overwrite)
        reached(options.connection, options.connect_timeout)  # fail here, rather than in each task
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return MessageStreamWriter(SinkOptions.from_options(self.options), schema, overwrite=overwrite)
