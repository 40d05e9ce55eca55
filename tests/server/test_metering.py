"""D3: the ledger records every billable operation and, if enabled, the lifecycle events of each message."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from pairbus import (
    BrokeredMessage,
    MessagingFactory,
    MessagingFactorySettings,
    NamespaceManager,
    QueueDescription,
    ReceiveMode,
    ServerBusyError,
)
from pairbus.broker import Address, NewMessage
from pairbus.client.entity_link import EntityLink, SendBatch
from pairbus.client.message import encode_brokered
from pairbus.dialect.annotations import PING_CONTENT_TYPE, SYPHON
from pairbus.dialect.paths import backlog_path
from pairbus.dialect.transfer import divert
from pairbus.ledger import LIVES, OPERATIONS
from pairbus.ledger.events import ALIVE_EVERY_MS
from pairbus.server.host import NamespaceHost
from pairbus.testing import RunningNamespace, running_namespace
from tests.server.amqp.clocked_namespace import clocked_namespace
from tests.server.ledger_rows import events_of, lifecycle_events_in, operations_in, rows_of
from tests.waiting import eventually

BACKLOG = backlog_path("contoso", 0)
SHORT = timedelta(milliseconds=300)
PATIENCE = timedelta(seconds=30)
KEY = "RootManageSharedAccessKey"


@contextmanager
def metered(tmp_path: Path, *, lives: bool = False, **settings: Any) -> Iterator[RunningNamespace]:
    options: dict[str, Any] = {"queues": ["orders", BACKLOG], "topics": {"news": ["all", "some"]}, **settings}
    with running_namespace("north", ledger=tmp_path / "ledger", ledger_lives=lives, **options) as namespace:
        yield namespace


def play(namespace: RunningNamespace, scene: Callable[[MessagingFactory], Awaitable[None]]) -> None:
    async def played() -> None:
        async with MessagingFactory.from_connection_string(namespace.connection_string) as factory:
            await scene(factory)

    asyncio.run(asyncio.wait_for(played(), 60.0))


def test_d3_sends_receives_and_settlements_are_counted_by_kind(tmp_path: Path) -> None:
    async def scene(factory: MessagingFactory) -> None:
        sender = await factory.create_message_sender("orders")
        await sender.send([BrokeredMessage(b"x", message_id=str(number)) for number in range(10)])
        await sender.send(BrokeredMessage(b"y" * 100_000))
        receiver = await factory.create_message_receiver("orders")
        await receiver.peek(3)
        received = await receiver.receive(11, PATIENCE)
        while len(received) < 11:
            received += await receiver.receive(11 - len(received), PATIENCE)
        await receiver.complete(received)
        assert await receiver.receive(1, SHORT) == []

    with metered(tmp_path) as namespace:
        play(namespace, scene)
    counted = operations_in(tmp_path / "ledger", "kind", "stage", "entity", "result", "who")
    ordinary = ("orders", "ok", KEY)
    assert counted["send", "direct", *ordinary] == 11
    assert counted["receive", "direct", *ordinary] == 11
    assert counted["settle", "direct", *ordinary] == 11
    assert counted["peek", "direct", *ordinary] == 3
    assert counted["empty receive", "direct", *ordinary] == 1
    rows = [row for row in rows_of(tmp_path / "ledger", OPERATIONS) if row["kind"] == "send"]
    assert sum(row["operations"] for row in rows) == 2
    assert sum(row["units"] for row in rows) == 12  # 100,000 bytes are two times 64 KB
    assert sum(row["request_units"] for row in rows) == 3
    assert sum(row["bytes"] for row in rows) > 100_000
    assert {row["namespace"] for row in rows} == {"north"}


def test_d3_diverted_messages_are_charged_four_times(tmp_path: Path) -> None:
    async def divert_one(factory: MessagingFactory) -> None:
        payload = divert(encode_brokered(BrokeredMessage(b"x", message_id="one")), "orders")
        await EntityLink(factory, BACKLOG).send(SendBatch([payload]))
        syphon = await factory.create_message_receiver(BACKLOG, receive_mode=ReceiveMode.RECEIVE_AND_DELETE)
        assert len(await syphon.receive(1, PATIENCE)) == 1
        assert await syphon.receive(1, SHORT) == []
        home = EntityLink(factory, "orders", {SYPHON: True})
        await home.send(SendBatch([encode_brokered(BrokeredMessage(b"x", message_id="one"))]))
        receiver = await factory.create_message_receiver("orders")
        await receiver.complete(await receiver.receive(1, PATIENCE))

    with metered(tmp_path) as namespace:
        play(namespace, divert_one)
    counted = operations_in(tmp_path / "ledger", "kind", "stage", "entity")
    assert counted["send", "backlog", BACKLOG] == 1
    assert counted["receive", "syphon", BACKLOG] == 1
    assert counted["send", "syphon", "orders"] == 1
    assert counted["receive", "returned", "orders"] == 1
    assert counted["empty receive", "idle", BACKLOG] == 1
    assert counted["send", "direct", "orders"] == counted["receive", "direct", "orders"] == 0


def test_d3_restored_messages_are_recognized_after_a_restart(tmp_path: Path) -> None:
    async def bring_home(factory: MessagingFactory) -> None:
        lane = EntityLink(factory, "news", {SYPHON: True})
        await lane.send(SendBatch([encode_brokered(BrokeredMessage(b"x"))]))

    async def receive(factory: MessagingFactory) -> None:
        receiver = await factory.create_message_receiver("news/Subscriptions/all")
        await receiver.complete(await receiver.receive(1, PATIENCE))

    with metered(tmp_path, data=tmp_path / "data") as namespace:
        play(namespace, bring_home)
        namespace.restart()
        play(namespace, receive)
    counted = operations_in(tmp_path / "ledger", "kind", "stage", "entity")
    assert counted["receive", "returned", "news/subscriptions/all"] == 1


def test_d3_pings_have_separate_rows(tmp_path: Path) -> None:
    async def ping(factory: MessagingFactory) -> None:
        sender = await factory.create_message_sender("orders")
        await sender.send(BrokeredMessage(b"", content_type=PING_CONTENT_TYPE, time_to_live=timedelta(seconds=1)))

    with metered(tmp_path, lives=True) as namespace:
        play(namespace, ping)
    assert operations_in(tmp_path / "ledger", "kind", "stage")["send", "ping"] == 1
    assert lifecycle_events_in(tmp_path / "ledger") == []


def test_d3_management_requests_and_rejections_are_counted(tmp_path: Path) -> None:
    async def scene(namespace: RunningNamespace) -> None:
        async with NamespaceManager.from_connection_string(namespace.connection_string) as manager:
            await manager.create_queue("more")
        hasty = MessagingFactorySettings(operation_timeout=timedelta(seconds=2))
        async with MessagingFactory.from_connection_string(namespace.connection_string, settings=hasty) as factory:
            sender = await factory.create_message_sender("more")
            await sender.send(BrokeredMessage(b"x"))
            namespace.server_busy = True
            with pytest.raises(ServerBusyError):
                await sender.send(BrokeredMessage(b"x"))
            namespace.server_busy = False

    with metered(tmp_path) as namespace:
        asyncio.run(asyncio.wait_for(scene(namespace), 120.0))
    counted = operations_in(tmp_path / "ledger", "kind", "stage", "entity", "result")
    assert counted["management", "management", "more", "ok"] >= 1
    assert counted["send", "direct", "more", "ok"] == 1
    assert counted["send", "direct", "more", "com.microsoft:server-busy"] >= 1
    connections = [
        row["connections"] for row in rows_of(tmp_path / "ledger", OPERATIONS) if row["kind"] == "connection"
    ]
    assert max(connections) >= 1


# Lifecycle events


def test_d4_lifecycle_of_a_message_is_recorded(tmp_path: Path) -> None:
    async def live(factory: MessagingFactory) -> None:
        sender = await factory.create_message_sender("orders")
        await sender.send([BrokeredMessage(b"x", message_id=f"m{number}") for number in range(4)])
        receiver = await factory.create_message_receiver("orders")
        one, two, three, four = await receiver.receive(4, PATIENCE)
        await receiver.complete(one)
        await receiver.abandon(two)
        await receiver.defer(three)
        await receiver.dead_letter(four, "poison", "it was")

    with metered(tmp_path, lives=True) as namespace:
        play(namespace, live)
    events = lifecycle_events_in(tmp_path / "ledger")
    assert events[:4] == [("accepted", "orders", number) for number in range(1, 5)]
    assert events[4:8] == [("received", "orders", number) for number in range(1, 5)]
    assert {*events[8:13]} == {
        ("completed", "orders", 1),
        ("abandoned", "orders", 2),
        ("deferred", "orders", 3),
        ("dead-lettered", "orders", 4),
        ("routed", "orders/$deadletterqueue", 1),
    }
    rows = events_of(tmp_path / "ledger")
    assert [row["message_id"] for row in rows[:4]] == ["m0", "m1", "m2", "m3"]
    assert {row["destination"] for row in rows} == {None}


def test_d4_copies_routed_by_a_topic_state_their_original_sequence(tmp_path: Path) -> None:
    async def publish(factory: MessagingFactory) -> None:
        await (await factory.create_message_sender("news")).send(BrokeredMessage(b"x", session_id="s"))

    with metered(tmp_path, lives=True) as namespace:
        play(namespace, publish)
    rows = events_of(tmp_path / "ledger")
    assert [(row["event"], row["entity"]) for row in rows] == [
        ("accepted", "news"),
        ("routed", "news/subscriptions/all"),
        ("routed", "news/subscriptions/some"),
    ]
    assert len({row["original_sequence"] for row in rows}) == 1
    assert {row["session_id"] for row in rows} == {"s"}


def test_d4_scheduled_message_is_moved_at_its_enqueue_time(tmp_path: Path) -> None:
    async def schedule(factory: MessagingFactory) -> None:
        sender = await factory.create_message_sender("orders")
        soon = datetime.now(UTC) + timedelta(seconds=1)
        await sender.send(BrokeredMessage(b"x", scheduled_enqueue_time=soon))
        receiver = await factory.create_message_receiver("orders")
        await receiver.complete(await receiver.receive(1, PATIENCE))

    with metered(tmp_path, lives=True) as namespace:
        play(namespace, schedule)
    assert lifecycle_events_in(tmp_path / "ledger") == [
        ("accepted", "orders", 1),
        ("scheduled", "orders", 1),
        ("moved", "orders", 1),
        ("routed", "orders", 2),
        ("received", "orders", 2),
        ("completed", "orders", 2),
    ]


def test_d4_diverted_message_states_its_destination(tmp_path: Path) -> None:
    async def scene(factory: MessagingFactory) -> None:
        message = BrokeredMessage(b"x", message_id="one", session_id="s")
        await EntityLink(factory, BACKLOG).send(SendBatch([divert(encode_brokered(message), "Orders")]))
        await EntityLink(factory, "orders", {SYPHON: True}).send(SendBatch([encode_brokered(message)]))

    with metered(tmp_path, lives=True) as namespace:
        play(namespace, scene)
    diverted, returned = events_of(tmp_path / "ledger")
    assert (diverted["stage"], diverted["entity"], diverted["destination"]) == ("backlog", BACKLOG, "orders")
    assert diverted["session_id"] == "s"
    assert (returned["stage"], returned["entity"], returned["destination"]) == ("syphon", "orders", None)
    assert (diverted["message_id"], returned["message_id"]) == ("one", "one")


def test_d4_duplicates_expiry_purges_and_deleted_entities_are_recorded(tmp_path: Path) -> None:
    async def scene(namespace: RunningNamespace) -> None:
        async with NamespaceManager.from_connection_string(namespace.connection_string) as manager:
            await manager.create_queue(QueueDescription("once", requires_duplicate_detection=True))
            async with MessagingFactory.from_connection_string(namespace.connection_string) as factory:
                once = await factory.create_message_sender("once")
                await once.send([BrokeredMessage(b"x", message_id="same"), BrokeredMessage(b"x", message_id="same")])
                orders = await factory.create_message_sender("orders")
                await orders.send(BrokeredMessage(b"x", time_to_live=timedelta(milliseconds=1)))
                receiver = await factory.create_message_receiver("orders")
                assert await receiver.receive(1, SHORT) == []
            await manager.delete_queue("once")

    with metered(tmp_path, lives=True) as namespace:
        asyncio.run(asyncio.wait_for(scene(namespace), 60.0))
        namespace.call(lambda host: host.use_namespace().delete_messages(Address.of("orders"), 10, host.now_ms()))
    assert lifecycle_events_in(tmp_path / "ledger") == [
        ("accepted", "once", 1),
        ("repeated", "once", 0),
        ("accepted", "orders", 1),
        ("expired", "orders", 1),
        ("removed", "once", 0),
    ]


def test_d4_lifecycle_events_are_off_by_default(tmp_path: Path) -> None:
    async def scene(factory: MessagingFactory) -> None:
        await (await factory.create_message_sender("orders")).send(BrokeredMessage(b"x"))

    with metered(tmp_path) as namespace:
        play(namespace, scene)
    assert events_of(tmp_path / "ledger") == []


def test_d4_ordinals_continue_after_a_restart(tmp_path: Path) -> None:
    async def scene(factory: MessagingFactory) -> None:
        await (await factory.create_message_sender("orders")).send(BrokeredMessage(b"x"))

    with metered(tmp_path, lives=True, data=tmp_path / "data") as namespace:
        play(namespace, scene)
        namespace.restart()
        play(namespace, scene)
    assert lifecycle_events_in(tmp_path / "ledger") == [
        ("accepted", "orders", 1),
        ("found", "orders", 1),
        ("accepted", "orders", 2),
    ]


def test_d4_present_messages_are_recorded_at_each_start(tmp_path: Path) -> None:
    async def scene(factory: MessagingFactory) -> None:
        message = BrokeredMessage(b"x", message_id="one", session_id="s")
        await EntityLink(factory, BACKLOG).send(SendBatch([divert(encode_brokered(message), "Orders")]))
        await (await factory.create_message_sender("news")).send(BrokeredMessage(b"x"))

    with metered(tmp_path, lives=True, data=tmp_path / "data") as namespace:
        play(namespace, scene)
        namespace.restart()
    rows = rows_of(tmp_path / "ledger", LIVES)
    assert [row["event"] for row in rows if row["event"] in {"started", "stopped"}] == ["started", "stopped"] * 2
    found = {row["entity"]: row for row in rows if row["event"] == "found"}
    assert found.keys() == {BACKLOG, "news/subscriptions/all", "news/subscriptions/some"}
    diverted = found[BACKLOG]
    assert (diverted["destination"], diverted["session_id"], diverted["stage"]) == ("orders", "s", "backlog")


def test_d4_idle_namespace_records_that_it_is_alive(tmp_path: Path) -> None:
    def recorded() -> list[str]:
        return [row["event"] for row in rows_of(tmp_path / "ledger", LIVES)]

    def is_recorded(times: int) -> bool:
        return recorded().count("alive") == times

    with clocked_namespace(ledger=tmp_path / "ledger", ledger_lives=True) as namespace:
        for minute in (1, 2):
            namespace.clock.advance(ALIVE_EVERY_MS)
            eventually(partial(is_recorded, minute))
    rows = rows_of(tmp_path / "ledger", LIVES)
    assert recorded() == ["started", "alive", "alive", "stopped"]
    assert [row["ordinal"] - rows[0]["ordinal"] for row in rows] == [0, 1, 2, 3]


def test_d4_more_messages_found_than_fit_in_memory_are_all_recorded(tmp_path: Path) -> None:
    many = 25_000

    def fill(host: NamespaceHost) -> None:
        for number in range(0, many, 500):
            messages = [NewMessage(b"x", str(each)) for each in range(number, number + 500)]
            host.use_namespace().send(Address.of("orders"), messages, host.now_ms())

    with metered(tmp_path, lives=True, data=tmp_path / "data") as namespace:
        namespace.call(fill)
        namespace.restart()
    assert [row["event"] for row in events_of(tmp_path / "ledger")].count("found") == many


@pytest.mark.parametrize(("size", "units"), [(1, 1), (65_400, 1), (66_000, 2)])
def test_d3_received_message_has_the_units_it_was_sent_with(tmp_path: Path, size: int, units: int) -> None:
    async def scene(factory: MessagingFactory) -> None:
        sender = await factory.create_message_sender("orders")
        await sender.send(BrokeredMessage(b"x" * size))
        receiver = await factory.create_message_receiver("orders")
        await receiver.complete(await receiver.receive())

    with metered(tmp_path) as namespace:
        play(namespace, scene)
    counted = {row["kind"]: row["units"] for row in rows_of(tmp_path / "ledger", OPERATIONS)}
    assert (counted["send"], counted["receive"]) == (units, units)


def test_d3_unauthenticated_peer_adds_no_names_to_the_ledger(tmp_path: Path) -> None:
    with metered(tmp_path) as namespace, pytest.raises(HTTPError, match="401"):
        urlopen(f"http://localhost:{namespace.port}/made-up?api-version=2021-05", timeout=60)
    rows = [row for row in rows_of(tmp_path / "ledger", OPERATIONS) if row["kind"] == "management"]
    assert [(row["entity"], row["result"]) for row in rows if row["result"] == "401"] == [("", "401")]
