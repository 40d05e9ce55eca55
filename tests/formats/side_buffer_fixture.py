"""A side buffer with sends that were confirmed and are not merged, and the data directory that it belongs to.

The store is full: first of large messages, then of small ones. What was sent then lies in the buffer: also a send that
was moved to another file, since its queue was disabled when there was room, and one that was set aside.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from typing import Any, Final

from pairbus import (
    BrokeredMessage,
    EntityStatus,
    MessagingFactory,
    NamespaceManager,
    QueueDescription,
    ReceiveMode,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.server.side_buffer.archive import QUARANTINE_FILE as SET_ASIDE
from tests.formats.entity_status import set_status
from tests.formats.format_versions import parcels_in, records_in
from tests.formats.namespace_content import plain
from tests.server.side_buffer.small_server import Served, serving
from tests.server.side_buffer.test_server import metric
from tests.waiting import eventually_async

KIND: Final = "side-buffer"
_STORE_MB: Final = 32
_BUFFER_MB: Final = 2
"""So a file of the buffer is followed by another one after 256 KB."""

_LARGE: Final = 200_000
_SMALL: Final = 20_000
_LONG: Final = timedelta(days=36_500)
_QUEUES: Final = (
    QueueDescription("ballast"),
    QueueDescription("pebbles"),
    QueueDescription("visits", requires_session=True),
    QueueDescription(
        "once", requires_duplicate_detection=True, duplicate_detection_history_time_window=timedelta(days=7)
    ),
    QueueDescription("parts", enable_partitioning=True),
    QueueDescription("held"),
    QueueDescription("gone"),
)


class Stage:
    """A namespace whose store is soon full, as seen by its clients."""

    def __init__(self, served: Served, manager: NamespaceManager, factory: MessagingFactory) -> None:
        self._served = served
        self._manager = manager
        self._factory = factory
        self.expected: dict[str, list[dict[str, Any]]] = {}
        """The confirmed messages, by entity."""

    @property
    def connection(self) -> str:
        return self._served.connection_string

    @property
    def held(self) -> int:
        """Return the number of messages in the buffer."""
        return metric(self._served, "messages")

    @property
    def merged(self) -> int:
        """Return the number of messages that were merged into the store."""
        return metric(self._served, "merged_total")

    async def create(self) -> None:
        for queue in _QUEUES:
            await self._manager.create_queue(queue)
        await self._manager.create_topic(TopicDescription("news"))
        for name in ("first", "second"):
            await self._manager.create_subscription("news", SubscriptionDescription(name))

    async def send(self, path: str, *names: str, size: int = _SMALL, found: tuple[str, ...] = (), **given: Any) -> None:
        """Send messages in one send, and note where they must be found: there, unless other places are given."""
        messages = [BrokeredMessage(_body(name, size), message_id=name, **given) for name in names]
        async with await self._factory.create_message_sender(path) as sender:
            await sender.send_batch(messages)
        for place in found or (path,):
            for message in messages:
                self.expected.setdefault(place, []).append(_noted(message))

    async def repeat(self, path: str, name: str) -> None:
        """Send a message that is a duplicate."""
        async with await self._factory.create_message_sender(path) as sender:
            await sender.send(BrokeredMessage(_body(name, _SMALL), message_id=name))

    async def fill(self, prefix: str) -> None:
        """Send until the store takes nothing any more, neither large nor small."""
        for path, size in (("ballast", _LARGE), ("pebbles", _SMALL)):
            before, number = self.held, 0
            while self.held == before:
                await self.send(path, f"{prefix}-{number}", size=size)
                number += 1

    async def make_room(self, count: int) -> None:
        async with await self._factory.create_message_receiver("ballast", ReceiveMode.RECEIVE_AND_DELETE) as receiver:
            while count:
                taken = await receiver.receive(count, timedelta(seconds=30))
                count -= len(taken)
                del self.expected["ballast"][: len(taken)]

    async def delete(self, path: str) -> None:
        await self._manager.delete_queue(path)
        del self.expected[path]


def make(directory: Path) -> dict[str, Any]:
    """Fill a side buffer, and return what must be found when it was merged."""
    with serving(directory, _STORE_MB, _BUFFER_MB) as served:
        expected = asyncio.run(_fill(served, directory / "side"))
        served.kill()
    rmtree(directory / "ledger")
    heads = [_head(content) for content in parcels_in(directory)]
    assert any(len(head) > 3 for head in heads), "nothing was moved"
    _expect_some_merged(directory)
    return {"name": "contoso", "disabled": "held", **expected}


async def _fill(served: Served, side: Path) -> dict[str, Any]:
    connection = served.connection_string
    async with (
        NamespaceManager.from_connection_string(connection) as manager,
        MessagingFactory.from_connection_string(connection) as factory,
    ):
        stage = Stage(served, manager, factory)
        await stage.create()
        await _have_one_moved(stage, side)
        await _send_everything(stage)
        await stage.delete("gone")
        await eventually_async((side / SET_ASIDE).exists)
        await _have_some_merged(stage)
        return {"merged": stage.expected}


async def _have_one_moved(stage: Stage, side: Path) -> None:
    """Leave one send of a finished file that cannot be merged, so that it is moved behind all others."""
    await stage.send("orders", "orders-0")
    await stage.send("once", "once-0")
    await stage.fill("first")
    await stage.send("held", "held-0")
    first = _files(side)
    number = 0
    while _files(side) == first:  # until the file with it is finished
        await stage.send("pebbles", f"more-{number}")
        number += 1
    await set_status(stage.connection, "held", EntityStatus.SEND_DISABLED)
    await stage.make_room(20)
    await eventually_async(lambda: stage.held == 1)
    await eventually_async(lambda: not _files(side) & first)


async def _send_everything(stage: Stage) -> None:
    await stage.fill("second")
    await stage.send("orders", "orders-1", application_properties={"n": 1})
    await stage.send("orders", "orders-2", "orders-3", "orders-4")
    await stage.send("orders", "orders-5", time_to_live=_LONG)
    for number in range(4):
        await stage.send("visits", f"visits-{number}", session_id=f"s-{number % 2}")
        await stage.send("parts", f"parts-{number}", partition_key=f"key {number}")
    await stage.repeat("once", "once-0")
    await stage.send("once", "once-1")
    await stage.repeat("once", "once-1")
    subscriptions = "news/Subscriptions/first", "news/Subscriptions/second"
    await stage.send("news", "news-0", "news-1", found=subscriptions)
    await stage.send("gone", "gone-0")


async def _have_some_merged(stage: Stage) -> None:
    """Give the store room for some of what lies in the buffer; the files stay, for the others."""
    before = stage.merged
    await stage.make_room(1)
    await eventually_async(lambda: stage.merged > before)


def _noted(message: BrokeredMessage) -> dict[str, Any]:
    body: bytes = message.body
    noted = {
        "message_id": message.message_id,
        "session_id": message.session_id,
        "partition_key": message.partition_key,
        "time_to_live_ms": plain(message.time_to_live),
        "application_properties": message.application_properties,
        "body_sha256": sha256(body).hexdigest(),
    }
    return {name: value for name, value in noted.items() if value}


def _head(parcel: bytes) -> list[Any]:
    """Return the entity of a send, when it was accepted, its messages, and where it lay first if it was moved."""
    begin = 20
    head: list[Any] = json.loads(parcel[begin : begin + int.from_bytes(parcel[begin - 4 : begin], "little")])
    return head


def _expect_some_merged(directory: Path) -> None:
    """Check that in the files of the buffer something is merged, and something is not."""
    marks = {
        value[11:].decode(): int.from_bytes(value[1:9], "big")
        for key, value in records_in(directory / "data" / "data.mdb")
        if key[:1] == b"P"
    }
    merged = [position < marks.get(entity, 0) for position, entity in _places(directory / "side")]
    assert any(merged), "nothing is merged of what is there"
    assert not all(merged), "everything is merged"


def _places(side: Path) -> Iterator[tuple[int, str]]:
    """Yield where each send lies, or lay first, and its entity."""
    for path in sorted(side.glob("*.parcels")):
        position = int(path.stem)
        for content in parcels_in(path.parent, path.name):
            entity, _, _, *moved = _head(content)
            yield moved[0] if moved else position, entity
            position += 8 + len(content)


def _body(name: str, size: int) -> bytes:
    return f"body of {name} ".encode().ljust(size, b".")


def _files(side: Path) -> set[str]:
    return {path.name for path in side.glob("*.parcels")}
