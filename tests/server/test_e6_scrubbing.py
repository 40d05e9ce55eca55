"""E6: scrubbing finds damage that nobody has met yet, and a damaged page costs only the messages on it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pairbus.broker import Address, QueueDescription, QueuePart
from pairbus.server import NamespaceServer
from pairbus.server.http.metrics import StorageMetrics
from pairbus.server.scrubbing import Scrubber, ScrubPace
from pairbus.server.server import _storage_reading
from pairbus.server.settings import Settings
from pairbus.store import keys
from pairbus.store.directory import DATA_FILE
from pairbus.store.page_guard import Leaf, PathReader
from pairbus.store.page_nodes import PageSource
from pairbus.store.pages import verify
from pairbus.store.scrubber import FIRST_KEY, scrub_slice
from pairbus.testing import running_namespace
from tests.broker.broker import letter
from tests.server.test_e6_damage import ask
from tests.waiting import eventually, eventually_async

ORDERS = Address.of("orders")
DEAD_LETTERS = ORDERS._replace(part=QueuePart.DEAD_LETTER)
COUNT = 500


def body_of(number: int) -> bytes:
    return b"body %d " % number * 30


def play(tmp_path: Path, scene: Callable[[NamespaceServer, Scrubber], Awaitable[None]]) -> None:
    """Play a scene with a server that has messages in two queues, and a scrubber that does not pause."""

    async def main() -> None:
        data = tmp_path / "data"
        settings = Settings(data=data, port=(0,), scrub_days=0)
        async with NamespaceServer(settings) as server:
            host = server.host
            for queue in ("orders", "others"):
                host.use_namespace().create_queue(queue, QueueDescription(), host.now_ms())
                messages = [letter(body_of(number).decode(), message_id=f"{number}") for number in range(COUNT)]
                host.use_namespace().send(Address.of(queue), messages, host.now_ms())
            await host.durable()
            await eventually_async(lambda: host.committer.is_at_rest)
            await scene(server, Scrubber(host, data / DATA_FILE, 0.000_001))

    asyncio.run(main())


def leaf_of(path: Path, key: bytes) -> Leaf:
    """Find the page of a key in a file that is in use and at rest."""
    with (path / "data" / DATA_FILE).open("rb") as file:
        meta = verify(path / "data" / DATA_FILE)
        leaf = PathReader(PageSource(file.fileno(), meta.page_bytes), meta.main).leaf(key)
    assert isinstance(leaf, Leaf)
    return leaf


def overwrite(path: Path, at: int, content: bytes) -> None:
    with (path / "data" / DATA_FILE).open("r+b") as file:
        file.seek(at)
        file.write(content)


def peeked(server: NamespaceServer, address: Address) -> list[int]:
    host = server.host
    found = host.use_namespace().peek(address, 0, 10_000, host.now_ms())
    return [each.record.original_sequence for each in found]


def test_e6_scrubbing_quarantines_a_damaged_body_that_nobody_reads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(server: NamespaceServer, scrubber: Scrubber) -> None:
        await scrubber.scrub()
        assert (scrubber.passes, server.host.quarantined_count) == (1, 0)
        assert scrubber.records > 2 * COUNT * 2
        assert scrubber.last_pass_ms > 0
        data = (tmp_path / "data" / DATA_FILE).read_bytes()
        at = data.index(b"body 333 ")
        overwrite(tmp_path, at, b"?")
        await scrubber.scrub()
        await server.host.durable()
        await asyncio.sleep(0)
        assert server.host.quarantined_count == 1
        assert peeked(server, DEAD_LETTERS) == [334]
        await scrubber.scrub()
        assert server.host.quarantined_count == 1
        (metric,) = [
            each
            for each in StorageMetrics(lambda: _storage_reading(server.host, scrubber)).collect()
            if each.name == "pairbus_scrub_passes"
        ]
        assert metric.samples[0].value == 3

    play(tmp_path, scene)
    (line,) = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    assert "entity=orders sequence=334 message_id=333 damaged=body key=42" in line


@pytest.mark.parametrize("kind", [keys.RECORD, keys.BODY], ids=["records", "bodies"])
def test_e6_zeroed_page_costs_only_the_messages_on_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: bytes
) -> None:
    damaged_pages = []

    async def scene(server: NamespaceServer, scrubber: Scrubber) -> None:
        key = keys.record_key(1, 0, 250) if kind == keys.RECORD else keys.body_key(250)
        leaf = leaf_of(tmp_path, key)
        damaged_pages.append(leaf.page)
        overwrite(tmp_path, leaf.page * len(leaf.data), bytes(len(leaf.data)))
        await scrubber.scrub()
        await server.host.durable()
        await asyncio.sleep(0)
        hit = peeked(server, DEAD_LETTERS)
        assert 250 in hit
        assert len(hit) == len(leaf.pointers)
        assert sorted([*hit, *peeked(server, ORDERS)]) == list(range(1, COUNT + 1))
        assert len(peeked(server, Address.of("others"))) == COUNT
        assert server.host.damaged_page_count == 1
        host = server.host
        host.use_namespace().send(ORDERS, [letter("new")], host.now_ms())
        deliveries = host.use_namespace().receive(ORDERS, 10_000, host.now_ms())
        assert len(deliveries) == COUNT - len(hit) + 1
        for delivery in deliveries:
            assert delivery.lock_token is not None
            host.use_namespace().settle(ORDERS, delivery.lock_token, host.now_ms())
        await host.durable()
        assert peeked(server, ORDERS) == []

    play(tmp_path, scene)
    (line,) = [line for line in caplog.messages if line.startswith("page damaged")]
    assert "run pairbus repair" in line
    assert f" page={damaged_pages[0]} " in line
    assert "referred_from" not in line
    assert (" entity=orders " in line) == (kind == keys.RECORD)


@pytest.mark.parametrize("page", ["meta", "root", "end"])
def test_b4_pages_on_which_all_others_depend_are_restored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, page: str
) -> None:
    async def scene(server: NamespaceServer, _scrubber: Scrubber) -> None:
        meta = verify(tmp_path / "data" / DATA_FILE)
        if page == "end":
            with (tmp_path / "data" / DATA_FILE).open("r+b") as file:
                file.truncate((meta.last_page + 1) * meta.page_bytes)
        else:
            at = meta.page if page == "meta" else meta.main.root
            overwrite(tmp_path, at * meta.page_bytes, bytes(100))
        host = server.host
        host.use_namespace().send(ORDERS, [letter("new")], host.now_ms())
        await host.durable()
        await asyncio.sleep(0)
        assert len(peeked(server, ORDERS)) == COUNT + 1

    play(tmp_path, scene)
    with running_namespace(data=tmp_path / "data") as namespace:
        assert len(namespace.call(lambda host: host.use_namespace().peek(ORDERS, 0, 1_000, host.now_ms()))) == COUNT + 1
    assert (page != "end") == any(line.startswith("page damaged, restored") for line in caplog.messages)


@pytest.mark.parametrize("body_bytes", [100, 1_000, 20_000])
@pytest.mark.parametrize("read_s", [0.0, 0.5], ids=["at once", "reading takes time"])
def test_e6_pass_of_several_slices_ends_within_the_period(tmp_path: Path, body_bytes: int, read_s: float) -> None:
    file = tmp_path / "data" / DATA_FILE
    with running_namespace(data=tmp_path / "data", queues=["orders"]) as namespace:
        for _ in range(400):
            namespace.call(lambda host: host.use_namespace().send(ORDERS, [letter("x" * body_bytes)], host.now_ms()))
        eventually(lambda: namespace.call(lambda host: host.committer.is_at_rest))
        used_bytes = namespace.call(lambda host: host.committer.used_bytes)
    period_s, now_s, slices, read_bytes = 100.0, 1_000.0, 0, 0
    pace = ScrubPace(period_s, now_s)
    position: bytes | None = FIRST_KEY
    while position is not None:
        found = scrub_slice(file, position, used_bytes // 20)
        position = found.next_key
        now_s += read_s
        slices += 1
        read_bytes += found.size_bytes
        if position is not None:
            now_s += pace.pause_s(found.size_bytes / used_bytes, now_s)
    assert slices > 5
    assert read_bytes <= used_bytes
    assert period_s / 2 < now_s - 1_000.0 <= period_s


def test_e6_scrubbing_after_an_interruption_does_not_make_up_for_all_of_it() -> None:
    pace = ScrubPace(1_000.0, 0.0)
    assert pace.pause_s(0.01, 2.0) == pytest.approx(8.0)
    assert [pace.pause_s(0.01, 500.0) for _ in range(8)] == pytest.approx([0, 0, 0, 0, 0, 0, 0, 10.0])


def test_e6_server_scrubs_in_the_background(tmp_path: Path) -> None:
    with running_namespace(data=tmp_path / "data", queues=["orders"], scrub_days=0.000_001) as namespace:
        eventually(lambda: "pairbus_scrub_passes_total 1.0" in ask(namespace, "/metrics")[1])
        assert '"status":"ok"' in ask(namespace, "/health")[1]
