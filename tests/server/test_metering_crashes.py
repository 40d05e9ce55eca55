"""D3: after a crash or a failed commit the ledger says nothing that is not so."""

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
from pairbus.broker import NO_PROPERTIES, STANDARD, Address, Message, Namespace, QueueDescription, Records
from pairbus.ledger import LIVES, OPERATIONS, SUCCEEDED, Kind, Life, Sort, Stage, Tally
from pairbus.server.clock import SystemClock
from pairbus.server.counters import Counters
from pairbus.server.host import NamespaceHost
from pairbus.server.lives import Lives
from pairbus.server.metering import Meter, SendToll, path_of_address
from pairbus.server.outbox import Outbox
from pairbus.store import Keeper, StoreError
from pairbus.store.errors import StoreFailedError
from pairbus.store.memory import MemoryStore
from pairbus.wire import ACCEPTED
from tests.durability.namespace import make_namespace
from tests.pairing.processes import NamespaceProcess
from tests.server.books import rows_of
from tests.server.side_buffer.stage import FAILED, BufferedStage, play

ORDERS = Address.of("orders")


class Notes:
    """A book that keeps what it is given."""

    def __init__(self) -> None:
        self.operations: list[tuple[Sort, Tally]] = []
        self.lives: list[Life] = []

    def write_operations(self, _second_ms: int, rows: Sequence[tuple[Sort, Tally]], _connections: int) -> None:
        self.operations += rows

    def write_lives(self, lives: Sequence[Life]) -> int:
        self.lives += lives
        return 1

    @property
    def hand_overs_written(self) -> int:
        return 1

    @property
    def lives_room(self) -> int:
        return 1_000

    def ordinals_from(self, _first: Life) -> AbstractSet[int]:
        return set()


def test_d3_what_never_became_durable_was_not_accepted() -> None:
    async def scene() -> None:
        loop, clock, store, notes = asyncio.get_running_loop(), SystemClock(), MemoryStore(), Notes()
        lives = Lives(path_of_address, clock())

        def make(records: Records) -> Namespace:
            return Namespace(
                records,
                view=lambda _body: NO_PROPERTIES,
                fresh_id=uuid4,
                fresh_token=partial(os.urandom, 16),
                chronicle=lives,
            )

        keeper = Keeper(store, make, clock(), wake=loop.call_soon_threadsafe)
        host = NamespaceHost("north", STANDARD, keeper, clock, loop)
        lives.now_ms = host.seen_ms
        meter = Meter(notes, host, Counters(), Outbox(lives, host, notes))
        toll = SendToll(meter, ORDERS, "key", from_syphon=False)
        host.namespace.create_queue("orders", QueueDescription(), host.now_ms())
        await host.durable()

        def send(message_id: str) -> None:
            message = Message(b"x", message_id)
            host.namespace.send(ORDERS, [message], host.now_ms())
            toll.sent([message], 1)

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
        assert [(life.event, life.message_id) for life in notes.lives] == [
            ("accepted", "kept"),
            ("found", "kept"),
            ("accepted", "kept, too"),
            ("stopped", ""),
        ]
        counted = {sort: tally.messages for sort, tally in notes.operations if sort.kind is Kind.SEND}
        sort = Sort(Kind.SEND, Stage.DIRECT, "orders", SUCCEEDED, "key")
        assert counted == {sort: 2, sort._replace(result="amqp:internal-error"): 1}

    asyncio.run(asyncio.wait_for(scene(), 60.0))


def test_d3_what_the_side_buffer_has_confirmed_was_accepted_whatever_becomes_of_the_next_commit(tmp_path: Path) -> None:
    notes = Notes()

    async def scene(stage: BufferedStage) -> None:
        meter = stage.services.meter = Meter(notes, stage.host, stage.services.counters)
        peer = await stage.peer()
        link = await peer.sender()
        assert await peer.send(link, "before") == ACCEPTED
        stage.store.trouble = FAILED
        for number in range(20):
            assert await peer.send(link, str(number)) == ACCEPTED
            stage.host.namespace.create_queue(f"never{number}", QueueDescription(), stage.host.now_ms())
            with pytest.raises(StoreError):
                await stage.host.durable()
        stage.store.trouble = None
        await stage.merged()
        meter.close()

    play(scene, tmp_path / "side")
    sends = [(sort.result, tally.messages) for sort, tally in notes.operations if sort.kind is Kind.SEND]
    assert sum(messages for result, messages in sends if result == SUCCEEDED) == 21
    assert sum(messages for result, messages in sends if result != SUCCEEDED) <= 1  # tried in the store first


def test_d3_a_book_that_fails_once_is_written_to_again() -> None:
    class Failing(Notes):
        def write_operations(self, second_ms: int, rows: Sequence[tuple[Sort, Tally]], connections: int) -> None:
            super().write_operations(second_ms, rows, connections)
            if len(self.operations) == 1:
                raise OSError("the test wants it so")

    async def scene() -> None:
        loop, clock, notes = asyncio.get_running_loop(), SystemClock(), Failing()
        told: list[object] = []
        loop.set_exception_handler(lambda _loop, context: told.append(context["exception"]))
        keeper = Keeper(MemoryStore(), make_namespace, clock(), wake=loop.call_soon_threadsafe)
        host = NamespaceHost("north", STANDARD, keeper, clock, loop)
        meter = Meter(notes, host, Counters())
        toll = SendToll(meter, ORDERS, "key", from_syphon=False)
        while len(notes.operations) < 2:
            toll.sent([Message(b"x", "a")], 1)
            await asyncio.sleep(0.1)
        assert len(told) == 1
        host.close()
        meter.close()

    asyncio.run(asyncio.wait_for(scene(), 60.0))


def confirmed_before_the_last(seconds: float, times_s: list[float]) -> list[float]:
    """What comes before the last seconds in which the server was at work; what holds it up holds up its clock, too."""
    worked_s = 0.0
    for index in range(len(times_s) - 1, 0, -1):
        worked_s += min(times_s[index] - times_s[index - 1], 0.1)
        if worked_s >= seconds:
            return times_s[:index]
    return []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_d3_after_a_kill_no_event_is_missing_and_counts_are_complete_up_to_the_last_second(
    tmp_path: Path, seed: int
) -> None:
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
            killed_s = loop.time() + Random(seed).uniform(1.5, 3.5)  # noqa: S311 (a test)
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
        namespace.start()  # it saves what is left, and is killed again while it does
        namespace.kill()
        namespace.start()
        namespace.stop()
        lives = rows_of(ledger, LIVES)
        sent = sum(row["messages"] for row in rows_of(ledger, OPERATIONS) if row["kind"] == "send")
    assert not holes(lives)
    known = {message_id for _, message_id in confirmed}
    for event, expected in (("accepted", known), ("completed", completed)):
        ids = [row["message_id"] for row in lives if row["event"] == event]
        assert len(ids) == len({*ids})
        assert expected <= {*ids}
        assert len({*ids} - expected) <= 1  # one may have been on disk, and its answer not
    assert sent <= len(known) + 1
    assert sent >= len(confirmed_before_the_last(2.0, [at_s for at_s, _ in confirmed]))


def holes(lives: Sequence[Mapping[str, Any]]) -> list[int]:
    """Ordinals before which others are not there, up to the one that a start names as the last that was confirmed."""
    ordered = sorted(lives, key=lambda row: row["ordinal"])
    expected = [row["sequence"] if row["event"] == "started" else row["ordinal"] - 1 for row in ordered[1:]]
    return [
        row["ordinal"]
        for row, last, before in zip(ordered[1:], expected, ordered, strict=False)
        if last > before["ordinal"]
    ]


def test_d3_a_ledger_that_cannot_be_written_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text("this is no directory")
    options = ["--data", tmp_path / "north", "--port", "0", "--ledger", tmp_path / "ledger"]
    command = [sys.executable, "-m", "pairbus.cli.main", "serve", *map(str, options)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert str(tmp_path / "ledger") in ended.stderr
    assert "Traceback" not in ended.stderr
