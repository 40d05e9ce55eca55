"""B4, E6: damage in the file of a running namespace costs the messages that it hits, and no others."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from random import Random
from threading import Event, Lock, Thread
from typing import NamedTuple, Self, TypeVar

import pytest

from pairbus.blocking import (
    BrokeredMessage,
    MessageReceiver,
    MessagingError,
    MessagingFactory,
    NamespaceManager,
    ReceivedMessage,
)
from pairbus.broker import Address, QueueDescription, QueuePart
from pairbus.broker.errors import DAMAGED
from pairbus.broker.message import DeliveredMessage, NewMessage
from pairbus.broker.namespace import Namespace
from pairbus.store import keys
from pairbus.store.directory import DATA_FILE
from pairbus.store.errors import UnconfinedDamageError
from pairbus.store.group_committer import GroupCommitter
from pairbus.store.lmdb import CHECKED_S
from pairbus.store.page_nodes import PageNode, PageSource, child_page, leaf_nodes, linked_pages, sound_pointers
from pairbus.store.pages import BRANCH, LEAF, META_BYTES, Meta, read_meta, verify
from pairbus.store.records import decode_record
from pairbus.store.repair import repair
from pairbus.wire import ACCEPTED
from tests.durability.namespace import ALL, NOW, open_keeper
from tests.durability.test_rebuild import strike_branches
from tests.server.amqp.wire_client import WireClient, text_message
from tests.server.served_process import PATIENCE_S, served_process
from tests.waiting import eventually

PAGE = 4096

T = TypeVar("T")


def body_of(number: int) -> bytes:
    """Return a body of one of many sizes, some of which need pages of their own."""
    return bytes((number % 251,)) * (61 * number % 700 if number % 7 else 37 * number % 9_001)


QUEUES = ("orders", "letters", "parcels")
MESSAGES = {f"{queue} {number}": body_of(number) for number in range(400) for queue in QUEUES}


def address_of(message_id: str) -> Address:
    return Address.of(message_id.split(maxsplit=1)[0])


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory of three queues with messages of many sizes, three levels of pages, and free pages."""
    path = tmp_path_factory.mktemp("healthy") / "data"
    with open_keeper(path) as keeper:
        namespace = keeper.use_namespace()
        for queue in QUEUES:
            namespace.create_queue(queue, QueueDescription(), NOW)
        for number, (message_id, body) in enumerate(MESSAGES.items()):
            namespace.send(address_of(message_id), [NewMessage(body, message_id), NewMessage(bytes(300), "gone")], NOW)
            if number % 50 == 0:
                keeper.commit(NOW)
        keeper.commit(NOW)
        for queue in QUEUES:
            for delivery in namespace.receive(Address.of(queue), ALL, NOW):
                assert delivery.lock_token is not None
                if delivery.record.message_id == "gone":
                    namespace.settle(Address.of(queue), delivery.lock_token, NOW)
        keeper.commit(NOW)
    os.truncate(path / DATA_FILE, used_bytes(path))  # less to copy
    return path


def used_bytes(path: Path) -> int:
    return (verify(path / DATA_FILE).last_page + 1) * PAGE


# Damage


def flip(random: Random, data: bytes) -> tuple[int, bytes]:
    at = random.randrange(len(data))
    return at, bytes((data[at] ^ random.randrange(1, 256),))


def overwrite(random: Random, data: bytes) -> tuple[int, bytes]:
    at = random.randrange(len(data))
    return at, random.randbytes(min(random.randrange(1, 64), len(data) - at))


def strike_structure(random: Random, data: bytes) -> tuple[int, bytes]:
    """Change one of the first bytes of a page, where LMDB has its header and its pointers."""
    at = random.randrange(len(data) // PAGE) * PAGE + random.randrange(40)
    return at, bytes((data[at] ^ random.randrange(1, 256),))


def zero_page(random: Random, data: bytes) -> tuple[int, bytes]:
    return random.randrange(len(data) // PAGE) * PAGE, bytes(PAGE)


def damage(path: Path, random: Random, count: int) -> list[range]:
    """Damage a file in some places, and return these."""
    data = (path / DATA_FILE).read_bytes()[: used_bytes(path)]
    kinds = [flip, flip, overwrite, strike_structure, zero_page if random.random() < 0.2 else flip]
    changes = [random.choice(kinds)(random, data) for _ in range(count)]
    descriptor = os.open(path / DATA_FILE, os.O_WRONLY)
    for at, content in changes:
        os.pwrite(descriptor, content, at)
    os.close(descriptor)
    return [range(at, at + len(content)) for at, content in changes]


class Undamaged(NamedTuple):
    """Ids of messages none of whose own bytes are damaged."""

    all: set[str]
    reachable: set[str]
    """Ids of messages that the page numbers above still lead to, whatever else of those pages is damaged."""

    damaged: set[str]
    """Ids of the other messages."""


def undamaged(file: Path, places: Sequence[range]) -> Undamaged:
    """Return the messages of a data file that damage in these places does not affect.

    What is damaged in the file already is left out, with everything that its tree does not lead to.
    """
    touched = {at // 2 for place in places for at in place}  # nodes begin at even positions
    extents = _extents(file)
    intact = {key for key, extent in extents.items() if touched.isdisjoint(extent.own)}
    reachable = {key for key in intact if touched.isdisjoint(extents[key].above)}
    found = Undamaged(set(), set(), set())
    for key, extent in extents.items():
        message = keys.split_record(key)
        if message is not None:
            record = decode_record(message[1], extent.value)
            needed = {key, keys.body_key(record.body_id)}
            (found.all if needed <= intact else found.damaged).add(record.message_id)
            if needed <= reachable:
                found.reachable.add(record.message_id)
    return found


class Extent(NamedTuple):
    """The value of a record, and the halves of the positions of its own bytes, and of the numbers that lead to it."""

    value: bytes
    own: set[int]
    above: set[int]


def _extents(path: Path) -> dict[bytes, Extent]:
    """Return all records of a file that can be read."""
    found = {}
    with path.open("rb") as file:
        pages = PageSource(file.fileno(), PAGE)
        pending: list[tuple[int, set[int]]] = [(last_meta(path).main.root, set())]
        while pending:
            number, above = pending.pop()
            page = pages.read(number)
            branch = sound_pointers(number, page, BRANCH)
            if branch is not None:
                for at in branch:
                    own = {(number * PAGE + at + each) // 2 for each in range(6)}
                    pending.append((child_page(page, at), above | own))
                continue
            if sound_pointers(number, page, LEAF) is None:
                continue
            for node in leaf_nodes(pages, number, page):
                if node.value is not None:
                    found[node.key] = Extent(node.value, _own_bytes(node, page), above)
    return found


def _own_bytes(node: PageNode, page: bytes) -> set[int]:
    begin = node.page * PAGE + node.offset
    is_big = len(node.raw) > PAGE // 2 - 50
    own = set(range(begin // 2, (begin + 8 + len(node.key) + (8 if is_big else len(node.raw)) + 1) // 2))
    if is_big:
        start = int.from_bytes(page[node.offset + 8 + len(node.key) :][:8], "little")
        own |= set(range(start * PAGE // 2, (start * PAGE + 16 + len(node.raw) + 1) // 2))
    return own


# What becomes of the messages


def dead_letters(namespace: Namespace, queue: str) -> list[DeliveredMessage]:
    return namespace.peek(Address.of(queue, part=QueuePart.DEAD_LETTER), 0, ALL, NOW)


def is_stub(message: DeliveredMessage) -> bool:
    amendments = message.record.amendments
    return amendments is not None and amendments.user.get("DeadLetterReason") == DAMAGED


def retried(keeper: GroupCommitter, do: Callable[[], T]) -> T:
    """Return the result of a call; if it finds damage for which the file is rebuilt, that of a second call."""
    try:
        return do()
    except UnconfinedDamageError:
        with suppress(UnconfinedDamageError):
            keeper.commit(NOW)
        return do()


def receive_all(keeper: GroupCommitter) -> set[str]:
    """Receive and complete every message of all queues; return their ids."""
    received: set[str] = set()
    for queue in QUEUES:
        while found := retried(keeper, partial(receive_some, keeper, queue)):
            assert received.isdisjoint(found)
            received |= found
    return received


def receive_some(keeper: GroupCommitter, queue: str) -> set[str]:
    received = set()
    for delivery in keeper.use_namespace().receive(Address.of(queue), 100, NOW):
        message_id = delivery.record.message_id
        assert MESSAGES[message_id] == delivery.body, f"wrong body of {message_id}"
        assert message_id not in received
        received.add(message_id)
        assert delivery.lock_token is not None
        keeper.use_namespace().settle(Address.of(queue), delivery.lock_token, NOW)
    keeper.commit(NOW)
    return received


def peek_all(keeper: GroupCommitter) -> set[str]:
    """Return the ids of all messages. A repair gives an entity whose own record is damaged another name."""
    found = [retried(keeper, partial(peek_queue, keeper, queue.path)) for queue in keeper.use_namespace().queues(NOW)]
    return set().union(*found)


def peek_queue(keeper: GroupCommitter, queue: str) -> set[str]:
    peeked = set()
    for found in keeper.use_namespace().peek(Address.of(queue), 0, ALL, NOW):
        if found.record.message_id == "gone":
            continue  # a repair that finds both pages of a message lost cannot know that it was completed
        assert MESSAGES[found.record.message_id] == found.body, f"wrong body of {found.record.message_id}"
        peeked.add(found.record.message_id)
    keeper.commit(NOW)
    return peeked


def send_more(keeper: GroupCommitter) -> None:
    """Send to every queue, and receive that: new messages are not affected by the damage."""
    retried(keeper, partial(send_new, keeper))
    retried(keeper, partial(receive_new, keeper))


def send_new(keeper: GroupCommitter) -> None:
    for queue in QUEUES:
        keeper.use_namespace().send(Address.of(queue), [NewMessage(b"new" * 1_000, f"new {n}") for n in range(20)], NOW)
    keeper.commit(NOW)


def receive_new(keeper: GroupCommitter) -> None:
    for queue in QUEUES:
        received = keeper.use_namespace().receive(Address.of(queue), ALL, NOW)
        new = [each for each in received if each.record.message_id.startswith("new")]
        assert [each.body for each in new] == [b"new" * 1_000] * 20
        for delivery in new:
            assert delivery.lock_token is not None
            keeper.use_namespace().settle(Address.of(queue), delivery.lock_token, NOW)
    keeper.commit(NOW)


def strike(healthy: Path, scratch: Path, seed: int, rounds: int, count: int) -> None:
    """In a process of its own, so that a crash of the library would show as one."""
    for number in range(rounds):
        random = Random(f"{seed} {number}")  # noqa: S311 (which bytes)
        path, repaired = scratch / "data", scratch / "repaired"
        shutil.copytree(healthy, path)
        keeper = open_keeper(path)
        time.sleep(CHECKED_S)  # damage within this time of a check is not noticed
        places = damage(path, random, count)
        intact = undamaged(healthy / DATA_FILE, places)
        is_consumed = random.random() < 0.5
        delivered: set[str] = set()
        delivered = receive_all(keeper) if is_consumed else peek_all(keeper)
        send_more(keeper)
        keeper.use_namespace().tidy(NOW, ALL)  # after a rebuild, stubs are left in the background
        stubs = [each for queue in QUEUES for each in dead_letters(keeper.use_namespace(), queue) if is_stub(each)]
        assert len(delivered) + len(stubs) == len(MESSAGES), f"round {number}: {len(delivered)} and {len(stubs)}"
        missing = intact.all - delivered
        assert not missing, f"round {number}: not delivered: {sorted(missing)[:5]}"
        keeper.close()
        if keeper.rebuilds and len(keeper.damaged_pages) == keeper.replaced_pages:
            verify(path / DATA_FILE)
        repair(path, repaired, NOW)
        with open_keeper(repaired) as keeper:
            left = peek_all(keeper)
        expected = intact.all - delivered if is_consumed else intact.all
        assert expected <= left, f"round {number}: repair lost {sorted(expected - left)[:5]}"
        shutil.rmtree(path)
        shutil.rmtree(repaired)


def in_a_process(target: Callable[..., None], *arguments: object) -> None:
    process = get_context("spawn").Process(target=target, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_e6_thousand_damaged_places_of_a_running_namespace(healthy: Path, tmp_path: Path, seed: int) -> None:
    """In all seeds together: 20 files with 50 damaged places each."""
    in_a_process(strike, healthy, tmp_path, seed, 2, 50)


def test_e6_damaged_places_of_a_running_namespace(healthy: Path, tmp_path: Path) -> None:
    in_a_process(strike, healthy, tmp_path, "few", 1, 20)


# A real server


SENT = 1_500
PLACES = 200


def damage_served(path: Path, healthy: Path, random: Random) -> list[range]:
    """Damage many places of a file that is in use, and return these.

    Branches are spared, because they would cut off undamaged messages, and so are the leaves at the end of the tree,
    which receive the new values of damaged pages.
    """
    spared = spared_pages(healthy)
    data = healthy.read_bytes()
    places: list[range] = []
    with path.open("r+b", buffering=0) as file:
        while len(places) < PLACES:
            at, content = random.choice([flip, flip, overwrite, strike_structure])(random, data)
            if spared.isdisjoint({at // PAGE, (at + len(content) - 1) // PAGE}):
                os.pwrite(file.fileno(), content, at)
                places.append(range(at, at + len(content)))
    return places


def spared_pages(path: Path) -> set[int]:
    branches: set[int] = set()
    leaves: dict[bytes, int] = {}
    with path.open("rb") as file:
        pages = PageSource(file.fileno(), PAGE)
        pending = [verify(path).main.root]
        while pending:
            number = pending.pop()
            page = pages.read(number)
            if sound_pointers(number, page, BRANCH) is not None:
                branches.add(number)
                pending += linked_pages(number, page)
            else:
                leaves[leaf_nodes(pages, number, page)[-1].key] = number
    return branches | {leaves[key] for key in sorted(leaves)[-5:]}


def drain(factory: MessagingFactory, path: str) -> list[ReceivedMessage]:
    """Receive and complete all messages of an entity. If the file is rebuilt meanwhile, locks end: begin again."""
    found: dict[int, ReceivedMessage] = {}

    def is_empty() -> bool:
        with suppress(MessagingError), factory.create_message_receiver(path) as receiver:
            while batch := receiver.receive(200, timedelta(seconds=1)):
                found.update((message.sequence_number, message) for message in batch)
                receiver.complete(batch)
            return True
        return False

    eventually(is_empty)
    return [*found.values()]


def number_of(stub: ReceivedMessage) -> int:
    """Return the number of the message that a stub stands for: sequence numbers begin at 1."""
    found = re.match(r"message (\d+) of 'orders' is lost", stub.dead_letter_error_description or "")
    assert found is not None, stub.dead_letter_error_description
    return int(found[1]) - 1


def browse(factory: MessagingFactory, path: str) -> list[ReceivedMessage]:
    """Return all messages of an entity, which stay there."""
    found: list[ReceivedMessage] = []
    with factory.create_message_receiver(path) as receiver:
        while page := receiver.peek(200, from_sequence_number=found[-1].sequence_number + 1 if found else 0):
            found += page
    return found


def check_repaired(path: Path, repaired: Path, intact: set[str]) -> None:
    """Check that a repair of a directory brings back all undamaged messages, and serves them."""
    command = [sys.executable, "-m", "pairbus.cli.main", "repair", "--data", path, "--to", repaired]
    done = subprocess.run([*map(str, command)], capture_output=True, check=False)
    assert done.returncode in {0, 3}  # 0 if everything that is lost was quarantined before
    with (
        served_process(path.parent, "--data", repaired) as served,
        MessagingFactory.from_connection_string(served.connection_string) as factory,
    ):
        left = drain(factory, "orders")
    assert intact <= {message.message_id for message in left}
    assert all(message.body == body_of(int(message.message_id)) for message in left if message.message_id != "new")


@pytest.mark.slow
@pytest.mark.parametrize("take", [drain, browse], ids=["drained", "browsed"])
def test_e6_damaged_places_of_a_running_server_cost_only_the_messages_that_they_hit(
    tmp_path: Path, take: Callable[[MessagingFactory, str], list[ReceivedMessage]]
) -> None:
    path, healthy = tmp_path / "data" / DATA_FILE, tmp_path / "healthy.mdb"
    with (
        served_process(tmp_path, "--data", tmp_path / "data") as served,
        MessagingFactory.from_connection_string(served.connection_string) as factory,
    ):
        with factory.create_message_sender("orders") as sender:
            for first in range(0, SENT, 100):
                sender.send([BrokeredMessage(body_of(n), message_id=f"{n}") for n in range(first, first + 100)])
        time.sleep(CHECKED_S)  # damage within this time of a check is not noticed
        with healthy.open("wb") as copy:
            copy.write(path.read_bytes()[: (verify(path).last_page + 1) * PAGE])
        places = damage_served(path, healthy, Random(20))  # noqa: S311 (which bytes)
        intact = undamaged(healthy, places).all
        assert SENT // 2 < len(intact) < SENT
        received = take(factory, "orders")
        delivered = [int(message.message_id) for message in received]
        assert all(message.body == body_of(number) for message, number in zip(received, delivered, strict=True))
        stubs = take(factory, "orders/$DeadLetterQueue")
        assert {message.dead_letter_reason for message in stubs} == {DAMAGED}
        lost = [number_of(stub) for stub in stubs]
        assert sorted([*delivered, *lost]) == [*range(SENT)], "each once"
        assert all(stub.message_id in {"", str(number)} for stub, number in zip(stubs, lost, strict=True))
        assert intact <= {*map(str, delivered)}
        status, state, problems = served.health()
        assert (status, state) == (200, "degraded")
        assert problems.startswith(f"damaged records were quarantined: {len(stubs)} damaged pages of the store: ")
        assert f"pairbus_records_quarantined_total {len(stubs)}.0" in served.get("/metrics")[1]
        with factory.create_message_sender("orders") as sender:
            sender.send(BrokeredMessage(b"new", message_id="new"))
        left = received if take is browse else []
        assert [each.message_id for each in take(factory, "orders")] == [*(each.message_id for each in left), "new"]
        served.process.terminate()
        assert served.process.wait(PATIENCE_S) == 0
    check_repaired(tmp_path / "data", tmp_path / "repaired", {*intact, "new"} if take is browse else set())


# A real server with traffic

ROUNDS = 3
PLACES_A_ROUND = 334
BACKLOG = 1_500
SENT_A_ROUND = 200


class Traffic:
    """A client that sends, and one that receives and completes, until they are stopped."""

    def __init__(self, connection_string: str) -> None:
        self._connection_string = connection_string
        self._stop = Event()
        self.pause = Lock()
        """Held by who wants both to wait."""

        self.confirmed: list[int] = []
        self.sequences: dict[int, int] = {}
        """The sequence numbers of the messages that were received."""

        self.completed: list[int] = []
        self._number = 0
        self._threads = [Thread(target=self._repeat, args=(each,)) for each in (self._send, self._receive)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _repeat(self, step: Callable[[MessagingFactory], None]) -> None:
        with MessagingFactory.from_connection_string(self._connection_string) as factory:
            while not self._stop.is_set():
                with suppress(MessagingError):  # what has failed is not confirmed, or received again
                    step(factory)

    def _send(self, factory: MessagingFactory) -> None:
        with factory.create_message_sender("orders") as sender:
            while not self._stop.is_set():
                numbers = range(self._number, self._number + 10)
                self._number += 10  # a number whose send has failed is not used again
                with self.pause:
                    sender.send([BrokeredMessage(body_of(number), message_id=f"{number}") for number in numbers])
                self.confirmed += numbers

    def _receive(self, factory: MessagingFactory) -> None:
        with factory.create_message_receiver("orders") as receiver:
            while not self._stop.is_set():
                if len(self.confirmed) - len(self.completed) < BACKLOG:
                    time.sleep(0.01)
                    continue
                with self.pause:
                    self.take(receiver)

    def take(self, receiver: MessageReceiver) -> int:
        """Receive and complete some messages; return their number."""
        batch = receiver.receive(20, timedelta(seconds=1))
        for message in batch:
            number = int(message.message_id)
            assert message.body == body_of(number)
            self.sequences[number] = message.sequence_number
        receiver.complete(batch)
        self.completed += [int(message.message_id) for message in batch]
        return len(batch)

    def drain(self) -> None:
        with MessagingFactory.from_connection_string(self._connection_string) as factory:
            eventually(lambda: self._is_empty(factory))

    def _is_empty(self, factory: MessagingFactory) -> bool:
        with suppress(MessagingError), factory.create_message_receiver("orders") as receiver:
            while self.take(receiver):
                pass
            return True
        return False


def damage_anywhere(path: Path, copy: Path, random: Random) -> list[range]:
    """Damage many places of a file that is in use, and return these: the meta pages, branches and free pages, too.

    Keep a copy of the file as it was before.
    """
    places = []
    with path.open("r+b", buffering=0) as file:
        data = file.read()[: used_bytes_of(path)]
        for _ in range(PLACES_A_ROUND):
            at, content = random.choice([flip, flip, overwrite, strike_structure])(random, data)
            os.pwrite(file.fileno(), content, at)
            places.append(range(at, at + len(content)))
    copy.write_bytes(data)
    return places


def used_bytes_of(path: Path) -> int:
    """Return the length of the pages in use."""
    return (last_meta(path).last_page + 1) * PAGE


def last_meta(path: Path) -> Meta:
    """Return the newer meta page of a file whose meta pages are sound."""
    with path.open("rb") as file:
        return max(
            (read_meta(os.pread(file.fileno(), META_BYTES, at)) for at in (0, PAGE)), key=lambda each: each.transaction
        )


@pytest.mark.slow
def test_e6_thousand_damaged_places_of_a_running_server_with_traffic(tmp_path: Path) -> None:
    """Every confirmed message is delivered, or has a stub, and none that was completed comes again.

    Those whose bytes are undamaged in each round are delivered.
    """
    path, copy = tmp_path / "data" / DATA_FILE, tmp_path / "copy.mdb"
    intact: set[str] = set()
    damaged: set[str] = set()
    random = Random(1)  # noqa: S311 (which bytes)
    with served_process(tmp_path, "--data", tmp_path / "data") as served:
        with Traffic(served.connection_string) as traffic:
            eventually(lambda: len(traffic.completed) >= SENT_A_ROUND)
            for _ in range(ROUNDS):
                with traffic.pause:
                    time.sleep(CHECKED_S)  # damage within this time of a check is not noticed
                    places = damage_anywhere(path, copy, random)
                messages = undamaged(copy, places)
                intact |= messages.all
                damaged |= messages.damaged
                confirmed, completed = len(traffic.confirmed), len(traffic.completed)
                eventually(lambda: len(traffic.confirmed) >= confirmed + SENT_A_ROUND)  # noqa: B023 (called at once)
                eventually(lambda: len(traffic.completed) >= completed + SENT_A_ROUND)  # noqa: B023 (called at once)
                assert served.process.poll() is None
        traffic.drain()
        stubs = drain_stubs(served.connection_string)
        # A stub is a message, too: if the next round hits it, there is a stub of it, which names the dead-letter queue.
        own = [stub for stub in stubs if "'orders'" in (stub.dead_letter_error_description or "")]
        lost = {number_of(stub) + 1 for stub in own}
        named = {int(stub.message_id) for stub in stubs if stub.message_id}
        missing = {*traffic.confirmed} - {*traffic.sequences} - named
        assert len(missing) <= sum(not stub.message_id for stub in stubs), "each has a stub, some of which name no id"
        assert len(intact - damaged) > BACKLOG
        whole = intact - damaged - {""}  # stubs may have no id
        assert whole <= {*map(str, traffic.sequences)}, "undamaged messages are delivered"
        assert len({*traffic.completed}) == len(traffic.completed), "none was completed twice"
        assert lost.isdisjoint({traffic.sequences[number] for number in traffic.completed})
        assert served.health()[:2] == (200, "degraded")
        assert 1 <= len(served.lines("store rebuilt namespace=")) <= ROUNDS
        assert served.process.poll() is None


def drain_stubs(connection_string: str) -> list[ReceivedMessage]:
    with MessagingFactory.from_connection_string(connection_string) as factory:
        stubs = drain(factory, "orders/$DeadLetterQueue")
    assert {stub.dead_letter_reason for stub in stubs} == {DAMAGED}
    return stubs


# Other queues, while the file is rebuilt

LARGE_BACKLOG = 20_000
LONGEST_GAP_S = 30.0
"""Generous: a quiet machine takes a fraction of a second for each ten megabytes."""


def longest_gap_s(client: WireClient, is_over: Callable[[], bool]) -> float:
    """Send one message after the other to a queue; return the longest time between two confirmations."""
    link = client.sender("letters")
    longest_s, last_s = 0.0, time.monotonic()
    while not is_over() or longest_s == 0.0:
        if client.send(link, text_message(b"letter")) == ACCEPTED:
            now_s = time.monotonic()
            longest_s, last_s = max(longest_s, now_s - last_s), now_s
    return longest_s


@pytest.mark.slow
def test_e6_sends_to_another_queue_go_on_soon_after_a_rebuild(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The gap between two confirmations, which is printed, is published in ADR 25."""
    path = tmp_path / "data"
    with (
        served_process(tmp_path, "--data", path) as served,
        MessagingFactory.from_connection_string(served.connection_string) as factory,
        NamespaceManager.from_connection_string(served.connection_string) as manager,
        served.connect() as client,
    ):
        manager.create_queue("letters")
        with factory.create_message_sender("orders") as sender:
            for first in range(0, LARGE_BACKLOG, 200):
                sender.send([BrokeredMessage(bytes(1_000), message_id=f"{n}") for n in range(first, first + 200)])
        megabytes = used_bytes_of(path / DATA_FILE) / 1e6
        calm_until_s = time.monotonic() + CHECKED_S  # damage within this time of a check is not noticed
        longest_gap_s(client, lambda: time.monotonic() > calm_until_s)
        strike_branches(path)
        gap_s = longest_gap_s(client, lambda: bool(served.lines("store rebuilt, namespace reloaded")))
        with capsys.disabled():
            print(f"\nlongest gap of another queue during a rebuild of {megabytes:.0f} MB: {gap_s:.1f} s")
        assert gap_s < LONGEST_GAP_S
        assert len(drain(factory, "orders")) == LARGE_BACKLOG
