"""The driver of a consuming stream keeps a record of each locked message, and no bodies."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from pairbus.blocking import BrokeredMessage, MessagingFactory
from pairbus.spark.data_source import PairbusDataSource
from pairbus.spark.reader import ConsumingStreamReader
from pairbus.spark.schema import MESSAGE_SCHEMA
from tests.server.served_process import served_process
from tests.waiting import eventually

MESSAGES: Final = 20_000
BATCH: Final = MESSAGES // 2
RECORD_BYTES: Final = 1_000
"""Maximum for a locked message: its numbers, its token, the group that renews its lock, and its entry in a batch."""

WINDOW_BYTES: Final = 32 << 20
"""Maximum for the messages on their way, whatever their number: those of a receive, and of the link that has them."""


@pytest.fixture(scope="module")
def _tracing() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def send(connection_string: str, body_bytes: int) -> None:
    with (
        MessagingFactory.from_connection_string(connection_string) as factory,
        factory.create_message_sender("orders") as sender,
    ):
        for _ in range(0, MESSAGES, 1_000):
            sender.send([BrokeredMessage(bytes(body_bytes)) for _ in range(1_000)])


def has_locked(reader: ConsumingStreamReader, count: int) -> bool:
    found: int = reader.reportLatestOffset()["locked"]
    return found >= count


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("_tracing")
@pytest.mark.parametrize("body_bytes", [100, 10_000])
def test_e3_memory_of_the_driver_does_not_grow_with_bodies(tmp_path: Path, body_bytes: int) -> None:
    with served_process(tmp_path, "--data", tmp_path / "data") as served:
        send(served.connection_string, body_bytes)
        given = {"connection": served.connection_string, "path": "orders", "maxMessagesPerTrigger": str(BATCH)}
        reader = PairbusDataSource(given).streamReader(MESSAGE_SCHEMA)
        assert isinstance(reader, ConsumingStreamReader)
        gc.collect()
        tracemalloc.reset_peak()
        before_bytes, _ = tracemalloc.get_traced_memory()
        offset: dict[str, Any] = reader.initialOffset()
        try:
            for count in (BATCH, 3 * BATCH // 2):  # the first batch has only the messages that were there at once
                offset = reader.latestOffset(offset, ReadMaxRows(BATCH))
                reader.partitions({}, offset)
                eventually(partial(has_locked, reader, count))
            gc.collect()
            now_bytes, most_bytes = tracemalloc.get_traced_memory()
        finally:
            reader.stop()
    assert now_bytes - before_bytes < MESSAGES * RECORD_BYTES + WINDOW_BYTES
    assert most_bytes - before_bytes < MESSAGES * RECORD_BYTES + WINDOW_BYTES
