"""Checkpoints of a stream that consumes and of one that browses, killed while each was in its second batch.

Run as ``python -m tests.formats.streams_fixture CONNECTION CHECKPOINTS`` it runs the streams, and says a line about
each batch; the second one never ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Final

from pairbus import BrokeredMessage, MessagingFactory, NamespaceManager, QueueDescription, TopicDescription
from tests.formats.format_versions import offsets_in
from tests.formats.killed_program import lines_until
from tests.pairing.processes import NamespaceProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

KIND: Final = "streams"
NAME: Final = "contoso"
CHECKPOINTS: Final = "checkpoints"
_STREAMS: Final = {
    "consuming": {"mode": "consume", "entities": "orders,news/Subscriptions/audit"},
    "browsing": {"mode": "browse", "entities": "parts,visits"},
}
_EACH: Final = 12
_BATCH: Final = 6
_LAST: Final = 1
"""The number of the batch in which the streams are killed."""

Rows = list[list[str]]
"""The entity, id and body of each message of a batch."""


def start(
    spark: SparkSession,
    connection: Path,
    stream: dict[str, str],
    checkpoint: Path,
    on_batch: Callable[[int, Rows], None],
    *,
    once: bool,
) -> StreamingQuery:
    """Start a stream, or go on with it. The connection string is in a file."""
    from pairbus.spark.data_source import PairbusDataSource

    def take(batch: DataFrame, number: int) -> None:
        rows = batch.selectExpr("entity", "message_id", "cast(body as string) as text").collect()
        on_batch(number, [[*row] for row in rows])

    spark.dataSource.register(PairbusDataSource)
    reader = spark.readStream.format("pairbus").option("connection", f"file:{connection}").options(**stream)
    limits = {} if once else {"maxMessagesPerTrigger": str(_BATCH)}
    messages = reader.options(longPoll="1s", connectTimeout="2m", **limits).load()
    writer = messages.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    return (writer.trigger(availableNow=True) if once else writer).start()


def make(directory: Path) -> dict[str, Any]:
    """Write checkpoints, and return which messages were done with and which are still to be read."""
    connection = directory.with_name("connection")
    with NamespaceProcess(directory / NAME) as served:
        sent = asyncio.run(_fill(served.connection_string))
        connection.write_text(served.connection_string, encoding="utf-8")
        done = _run_and_kill(connection, directory / CHECKPOINTS)
        served.kill()
    last = [offset for offsets in offsets_in(directory / CHECKPOINTS / "consuming") for offset in offsets][-1]
    assert last["left"], "the stream knew that the messages of its first batch were removed"
    return {"name": NAME, "streams": {name: _expected(name, sent, done[name]) for name in _STREAMS}}


def _expected(name: str, sent: dict[str, Rows], done: Rows) -> dict[str, Any]:
    rows = [row for path in _STREAMS[name]["entities"].split(",") for row in sent[path]]
    left = [row for row in rows if row not in done]
    assert len(done) + len(left) == len(rows)
    assert len(left) > _BATCH, "nothing comes behind the batch that is repeated"
    return {**_STREAMS[name], "done": sorted(done), "left": sorted(left)}


async def _fill(connection: str) -> dict[str, Rows]:
    async with (
        NamespaceManager.from_connection_string(connection) as manager,
        MessagingFactory.from_connection_string(connection) as factory,
    ):
        await manager.create_queue("orders")
        await manager.create_queue(QueueDescription("parts", enable_partitioning=True))
        await manager.create_queue(QueueDescription("visits", requires_session=True))
        await manager.create_topic(TopicDescription("news"))
        await manager.create_subscription("news", "audit")
        sent: dict[str, Rows] = {}
        for path in ("orders", "news", "parts", "visits"):
            found = "news/Subscriptions/audit" if path == "news" else path
            async with await factory.create_message_sender(path) as sender:
                for number in range(_EACH):
                    await sender.send(_message(path, number))
            sent[found] = [[found, f"{path}-{number}", f"body {number}"] for number in range(_EACH)]
        return sent


def _message(path: str, number: int) -> BrokeredMessage:
    key: dict[str, Any] = {
        "parts": {"partition_key": f"key {number % 4}"},
        "visits": {"session_id": f"s-{number % 4}"},
    }.get(path, {})
    return BrokeredMessage(f"body {number}", message_id=f"{path}-{number}", **key)


def _run_and_kill(connection: Path, checkpoints: Path) -> dict[str, Rows]:
    """Return what the streams have done with: what their batches held before the last one."""

    def are_in_last(said: list[Any]) -> bool:
        return {name for name, number, _ in said if number == _LAST} == _STREAMS.keys()

    done: dict[str, Rows] = {name: [] for name in _STREAMS}
    for name, number, rows in lines_until(are_in_last, __name__, connection, checkpoints):
        if number != _LAST:
            done[name] += rows
    return done


def _run(connection: Path, checkpoints: Path) -> None:
    from pairbus.spark.session import spark_session

    spark = spark_session("local[2]")
    for name, stream in _STREAMS.items():

        def say(number: int, rows: Rows, name: str = name) -> None:
            print(json.dumps([name, number, rows]), flush=True)
            if number == _LAST:
                Event().wait()  # until the kill

        start(spark, connection, stream, checkpoints / name, say, once=False)
    spark.streams.awaitAnyTermination()  # none of them is to end by itself: then this raises why


if __name__ == "__main__":
    _run(*map(Path, sys.argv[1:]))
