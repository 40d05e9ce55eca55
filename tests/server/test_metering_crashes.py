"""D3: after a crash or a failed commit, the ledger records nothing that has not happened."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pytest

from pairbus import BrokeredMessage, MessagingError, MessagingFactory, NamespaceManager
from pairbus.broker import NO_PROPERTIES, STANDARD, Address, Namespace, NewMessage, QueueDescription, Records
from pairbus.ledger import (
    LIVES,
    OPERATIONS,
    SUCCEEDED,
    LifecycleEvent,
    OperationCounts,
    OperationKey,
    OperationKind,
    Stage,
)
from pairbus.server.clock import SystemClock
from pairbus.server.counters import Counters
from pairbus.server.event_recorder import EventRecorder
from pairbus.server.host import NamespaceHost
from pairbus.server.metering import OperationMeter, SendMeter, path_of_address
from pairbus.server.outbox import Outbox
from pairbus.store import GroupCommitter, StoreError
from pairbus.store.errors import StoreFailedError
from pairbus.store.memory import MemoryStore
from pairbus.wire import ACCEPTED
from tests.durability.namespace import make_namespace
from tests.pairing.processes import NamespaceProcess
from tests.server.ledger_rows import rows_of
from tests.server.side_buffer.stage import FAILED, BufferedStage, play

ORDERS = Address.of("orders")


class Notes:
    """A ledger that keeps its rows in memory."""

    def __init__(self) -> None:
        self.operations: list[tuple[OperationKey, OperationCounts]] = []
        self.events: list[LifecycleEvent] = []

    def write_operations(
        self, _second_ms: int, rows: Sequence[tuple[OperationKey, OperationCounts]], _connections: int
    ) -> None:
        self.operations += rows

    def write_events(self, events: Sequence[LifecycleEvent]) -> int:
        self.events += events
        return 1

    @property
    def hand_overs_written(self) -> int:
        return 1

    @property
    def event_room(self) -> int:
        return 1_000

    def ordinals_from(self, _first: LifecycleEvent) -> AbstractSet[int]:
        return set()


def test_d3_send_that_never_became_durable_is_not_accepted() -> None:
    async def scene() -> None:
        loop, clock, store, notes = asyncio.get_running_loop(), SystemClock(), MemoryStore(), Notes()
        events = EventRecorder(path_of_address, clock())

        def make(records: Records) -> Namespace:
            return Namespace(
                records,
                view=lambda _body: NO_PROPERTIES,
                fresh_id=uuid4,
                fresh_token=partial(os.urandom, 16),
                event_sink=events,
            )

        keeper = GroupCommitter(store, make, clock(), wake=loop.call_soon_threadsafe)
        host = NamespaceHost("north", STANDARD, keeper, clock, loop)
        events.now_ms = host.seen_ms
        meter = OperationMeter(notes, host, Counters(), Outbox(events, host, notes))
        meter_of_sends = SendMeter(meter, ORDERS, "key", from_syphon=False)
        host.use_namespace().create_queue("orders", QueueDescription(), host.now_ms())
        await host.durable()

        def send(message_id: str) -> None:
            message = NewMessage(b"x", message_id)
            host.use_namespace().send(ORDERS, [message], host.now_ms())
            meter_of_sends.sent([message], 1)

        send("kept")
        await host.durable()
        store.fail_next_run(StoreFailedError("the store", "the test wants it so"))
        send("lost")
        with pytest.raises(StoreError):
            await host.durable()
        send("kept, too")
        await host.durable()
        host.close()
        meter.close()
        assert [(event.event, event.message_id) for event in notes.events] == [
            ("accepted", "kept"),
            ("found", "kept"),
            ("accepted", "kept, too"),
            ("stopped", ""),
        ]
        counted = {sort: tally.messages for sort, tally in notes.operations if sort.kind is OperationKind.SEND}
        sort = OperationKey(OperationKind.SEND, Stage.DIRECT, "orders", SUCCEEDED, "key")
        assert counted == {sort: 2, sort._replace(result="amqp:internal-error"): 1}

    asyncio.run(asyncio.wait_for(scene(), 60.0))


def test_d3_buffered_send_is_accepted_even_if_the_next_commit_fails(tmp_path: Path) -> None:
    notes = Notes()

    async def scene(stage: BufferedStage) -> None:
        meter = stage.services.meter = OperationMeter(notes, stage.host, stage.services.counters)
        peer = await stage.peer()
        link = await peer.sender()
        assert await peer.send(link, "before") == ACCEPTED
        stage.store.trouble = FAILED
        for number in range(20):
            assert await peer.send(link, str(number)) == ACCEPTED
            stage.host.use_namespace().create_queue(f"never{number}", QueueDescription(), stage.host.now_ms())
            with pytest.raises(StoreError):
                await stage.host.durable()
        stage.store.trouble = None
        await stage.merged()
        meter.close()

    play(scene, tmp_path / "side")
    sends = [(sort.result, tally.messages) for sort, tally in notes.operations if sort.kind is OperationKind.SEND]
    assert sum(messages for result, messages in sends if result == SUCCEEDED) == 21
    assert sum(messages for result, messages in sends if result != SUCCEEDED) <= 1  # sent to the store first


def test_d3_ledger_that_fails_once_is_written_again() -> None:
    class Failing(Notes):
        def write_operations(
            self, second_ms: int, rows: Sequence[tuple[OperationKey, OperationCounts]], connections: int
        ) -> None:
            super().write_operations(second_ms, rows, connections)
            if len(self.operations) == 1:
                raise OSError("the test wants it so")

    async def scene() -> None:
        loop, clock, notes = asyncio.get_running_loop(), SystemClock(), Failing()
        keeper = GroupCommitter(MemoryStore(), make_namespace, clock(), wake=loop.call_soon_threadsafe)
        host = NamespaceHost("north", STANDARD, keeper, clock, loop)
        meter = OperationMeter(notes, host, Counters())
        meter_of_sends = SendMeter(meter, ORDERS, "key", from_syphon=False)
        while len(notes.operations) < 2:
            meter_of_sends.sent([NewMessage(b"x", "a")], 1)
            await asyncio.sleep(0.1)
        assert isinstance(meter.failure, OSError)  # for the supervisor
        host.close()
        meter.close()

    asyncio.run(asyncio.wait_for(scene(), 60.0))


def confirmed_before_the_last(seconds: float, times_s: list[float]) -> list[float]:
    """Return the time before the last seconds in which the server ran; a delay of the server delays its clock, too."""
    worked_s = 0.0
    for index in range(len(times_s) - 1, 0, -1):
        worked_s += min(times_s[index] - times_s[index - 1], 0.1)
        if worked_s >= seconds:
            return times_s[:index]
    return []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_d3_kill_loses_no_event_and_at_most_the_last_second_of_counts(tmp_path: Path, seed: int) -> None:
    ledger = tmp_path / "ledger"
    confirmed: list[tuple[float, str]] = []
    completed: set[str] = set()

    async def receive(factory: MessagingFactory) -> None:
        receiver = await factory.create_message_receiver("orders")
        while True:
            for message in await receiver.receive():
                await receiver.complete(message)
                completed.add(str(message.message_id))

    async def send_until_it_is_killed(namespace: NamespaceProcess) -> None:
        async with NamespaceManager.from_connection_string(namespace.connection_string) as manager:
            await manager.create_queue("orders")
        loop = asyncio.get_running_loop()
        async with MessagingFactory.from_connection_string(namespace.connection_string) as factory:
            sender = await factory.create_message_sender("orders")
            receiving = asyncio.create_task(receive(factory))
            killed_s = loop.time() + Random(seed).uniform(1.5, 3.5)  # noqa: S311 (not for security)
            while loop.time() < killed_s or not completed:
                message_id = str(len(confirmed))
                await sender.send(BrokeredMessage(b"x", message_id=message_id))
                confirmed.append((loop.time(), message_id))
            namespace.kill()
            receiving.cancel()
            with suppress(asyncio.CancelledError, MessagingError):
                await receiving

    namespace = NamespaceProcess(tmp_path / "north", "--ledger", str(ledger), "--ledger-lives")
    with namespace:
        asyncio.run(asyncio.wait_for(send_until_it_is_killed(namespace), 60.0))
        namespace.start()  # killed again while it replays the rest
        namespace.kill()
        namespace.start()
        namespace.stop()
        events = rows_of(ledger, LIVES)
        sent = sum(row["messages"] for row in rows_of(ledger, OPERATIONS) if row["kind"] == "send")
    assert not holes(events)
    known = {message_id for _, message_id in confirmed}
    for event, expected in (("accepted", known), ("completed", completed)):
        ids = [row["message_id"] for row in events if row["event"] == event]
        assert len(ids) == len({*ids})
        assert expected <= {*ids}
        assert len({*ids} - expected) <= 1  # one may be durable without having been confirmed
    assert sent <= len(known) + 1
    assert sent >= len(confirmed_before_the_last(2.0, [at_s for at_s, _ in confirmed]))


def holes(events: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the ordinals with a hole before them, up to the last confirmed one that a start states."""
    ordered = sorted(events, key=lambda row: row["ordinal"])
    expected = [row["sequence"] if row["event"] == "started" else row["ordinal"] - 1 for row in ordered[1:]]
    return [
        row["ordinal"]
        for row, last, before in zip(ordered[1:], expected, ordered, strict=False)
        if last > before["ordinal"]
    ]


def test_d3_ledger_that_cannot_be_written_is_an_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text("this is no directory")
    options = ["--data", tmp_path / "north", "--port", "0", "--ledger", tmp_path / "ledger"]
    command = [sys.executable, "-m", "pairbus.cli.main", "serve", *map(str, options)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert str(tmp_path / "ledger") in ended.stderr
    assert "Traceback" not in ended.stderr
