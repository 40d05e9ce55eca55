"""A ledger with Parquet files and open journals, and a data directory whose outbox was not handed over to it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from pairbus import (
    BrokeredMessage,
    MessagingFactory,
    NamespaceManager,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.ledger import LIVES, OPERATIONS, LifecycleEvent
from pairbus.ledger.events import unpack_events
from tests.formats.format_versions import records_in
from tests.pairing.processes import NamespaceProcess
from tests.server.ledger_rows import operations_in, rows_of
from tests.waiting import eventually_async

KIND: Final = "ledger"
NAME: Final = "contoso"
LEDGER: Final = "ledger"
_ATTEMPTS: Final = 20
_OUTBOX: Final = b"O"

LIFE: Final = ("ordinal", "event", "stage", "entity", "sequence", "message_id", "session_id", "size")
"""The columns of an event in the manifest."""

SORT: Final = ("kind", "stage", "entity", "result")
"""The columns of operations in the manifest."""


def make(directory: Path) -> dict[str, Any]:
    """Write a ledger, and return what must be found in it when the outbox was handed over."""
    data, ledger = directory / NAME, directory / LEDGER
    with NamespaceProcess(data, "--ledger", str(ledger), "--ledger-lives") as served:
        asyncio.run(_begin(served.connection_string))
        served.stop()
        assert [*ledger.rglob("*.parquet")]
        for attempt in range(_ATTEMPTS):
            served.start()
            asyncio.run(_go_on(served.connection_string, ledger, attempt))
            served.kill()
            if missing := _unwritten(data, ledger):
                return _expected(ledger, missing)
    raise RuntimeError(f"each of {_ATTEMPTS} times the ledger was written before the kill")


async def _begin(connection: str) -> None:
    """Create events of all kinds: accepted, routed, received, settled and scheduled."""
    async with (
        NamespaceManager.from_connection_string(connection) as manager,
        MessagingFactory.from_connection_string(connection) as factory,
    ):
        await manager.create_queue("orders")
        await manager.create_queue(QueueDescription("visits", requires_session=True))
        await manager.create_topic(TopicDescription("news"))
        await manager.create_subscription("news", SubscriptionDescription("all"))
        await _send(factory, "orders", _messages("begun", range(6)))
        await _send(factory, "visits", _messages("visit", range(2), session_id="s-1"))
        await _send(factory, "news", _messages("news", range(2)))
        async with await factory.create_message_receiver("orders") as receiver:
            first, second, third, fourth = await receiver.receive(4, timedelta(seconds=30))
            await receiver.complete(first)
            await receiver.abandon(second)
            await receiver.defer(third)
            await receiver.dead_letter(fourth, "no good")


async def _go_on(connection: str, ledger: Path, attempt: int) -> None:
    """Leave some events in a journal, and others only in the outbox: the caller kills the namespace."""
    written = [f"written-{attempt}-{number}" for number in range(3)]
    async with MessagingFactory.from_connection_string(connection) as factory:
        await _send(factory, "orders", [BrokeredMessage("body", message_id=name) for name in written])
        await eventually_async(lambda: {*written} <= {row["message_id"] for row in rows_of(ledger, LIVES)})
        await eventually_async(
            lambda: operations_in(ledger, "kind", "entity")["send", "orders"] >= 6 + 3 * (attempt + 1)
        )
        async with await factory.create_message_sender("orders") as sender:
            await sender.send(_messages(f"unwritten-{attempt}", range(3)))


def _messages(name: str, numbers: Iterable[int], **given: Any) -> list[BrokeredMessage]:
    return [BrokeredMessage("body", message_id=f"{name}-{number}", **given) for number in numbers]


async def _send(factory: MessagingFactory, path: str, messages: Iterable[BrokeredMessage]) -> None:
    async with await factory.create_message_sender(path) as sender:
        for message in messages:
            await sender.send(message)


def _unwritten(data: Path, ledger: Path) -> list[LifecycleEvent]:
    """Return what is in the outbox and not in the ledger."""
    known = {row["ordinal"] for row in rows_of(ledger, LIVES)}
    packed = [value for key, value in records_in(data / "data.mdb") if key.startswith(_OUTBOX)]
    return [life for content in packed for life in unpack_events(content) if life.ordinal not in known]


def _expected(ledger: Path, missing: list[LifecycleEvent]) -> dict[str, Any]:
    rows = [*rows_of(ledger, LIVES), *(life._asdict() for life in missing)]
    assert [*(ledger / "open").glob(f"{LIVES}-*.journal")]
    assert [*(ledger / "open").glob(f"{OPERATIONS}-*.journal")]
    assert {life.message_id.rpartition("-")[0] for life in missing} <= {f"unwritten-{n}" for n in range(_ATTEMPTS)}
    return {
        "name": NAME,
        "lives": sorted([row[name] for name in LIFE] for row in rows),
        "unwritten": sorted(life.ordinal for life in missing),
        "operations": [[*sort, count] for sort, count in sorted(operations_in(ledger, *SORT).items())],
    }
