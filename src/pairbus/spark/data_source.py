"""The data source ``pairbus``."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pairbus.spark.options import ReadMode, SinkOptions, SourceOptions
from pairbus.spark.reader import BrowsingStreamReader, ConsumingStreamReader, MessageReader
from pairbus.spark.schema import MESSAGE_SCHEMA, check_schema
from pairbus.spark.writer import MessageStreamWriter, MessageWriter


class PairbusDataSource(DataSource):
    """Queues and subscriptions as tables and streams; queues and topics as what they are written to.

    ``spark.dataSource.register(PairbusDataSource)``, then ``spark.readStream.format("pairbus")``.
    """

    @classmethod
    def name(cls) -> str:
        return "pairbus"

    def schema(self) -> StructType:
        return MESSAGE_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        options = SourceOptions.from_options(self.options, is_stream=False)
        return MessageReader(options, check_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        options = SourceOptions.from_options(self.options)
        kind = ConsumingStreamReader if options.mode is ReadMode.CONSUME else BrowsingStreamReader
        return kind(options, check_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return MessageWriter(SinkOptions.from_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return MessageStreamWriter(SinkOptions.from_options(self.options), schema, overwrite=overwrite)
