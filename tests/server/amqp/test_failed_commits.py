"""E1: nothing is confirmed before it is on disk, and a failed commit is reported to every peer that it affects.

All of it is real, down to the commit thread; only the byte stream and the store are in memory, so that a test can delay
a commit or make it fail.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from uuid import uuid4

import pytest

from pairbus.broker import STANDARD, Address, AuthorizationRule, Namespace, QueueDescription, Records, Right
from pairbus.dialect.conditions import ServiceBusCondition
from pairbus.dialect.management import Operation
from pairbus.server.access import Authorizer
from pairbus.server.amqp.connection import ServerConnection
from pairbus.server.amqp.services import AmqpServices
from pairbus.server.clock import SystemClock
from pairbus.server.counters import Counters
from pairbus.server.dispatcher import Dispatcher
from pairbus.server.host import NamespaceHost
from pairbus.server.messages import MessageView
from pairbus.store import DamageListener, GroupCommitter, StoreError
from pairbus.store.errors import StoreFailedError, StoreFullError
from pairbus.store.memory import MemoryCommit, MemoryStore
from pairbus.wire import (
    ACCEPTED,
    AMQP_VALUE,
    RECEIVER,
    SENDER,
    Condition,
    Configuration,
    Connection,
    Coordinator,
    Declare,
    Declared,
    Delivery,
    Discharge,
    Error,
    Event,
    Int,
    Link,
    LinkDetached,
    Message,
    Properties,
    ReceiverSettleMode,
    Rejected,
    SenderSettleMode,
    Session,
    Source,
    Symbol,
    Target,
    Timestamp,
    TransactionalState,
    decode_message,
    encode_message,
    plain,
)
from tests.server.amqp.wire_client import DEADLINE_S, body_of, failures, text_message
from tests.waiting import eventually_async

T = TypeVar("T")

KEY = AuthorizationRule(name="key", rights=(Right.MANAGE,), primary_key="one", secondary_key="two")
FAILURE = StoreFailedError("the store", "the test wants it so")
ORDERS = Address.of("orders")

LATER = encode_message(Message(message_annotations={"x-opt-scheduled-enqueue-time": Timestamp(2**42)}, body=(b"one",)))


class GatedStore(MemoryStore):
    """A store in memory whose commits wait while a gate is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()
        self.reads = threading.Event()
        """True if the namespace can be read on the commit thread."""
        self.reads.set()

    def scan(self, start: bytes, end: bytes, on_damage: DamageListener | None = None) -> Iterator[tuple[bytes, bytes]]:
        if threading.current_thread() is not threading.main_thread():
            assert self.reads.wait(DEADLINE_S)
        return super().scan(start, end, on_damage)

    def write(self, commit: MemoryCommit) -> None:
        self.waiting.set()
        assert self.gate.wait(DEADLINE_S)
        super().write(commit)


class MemoryTransport:
    """A byte stream to a peer that reads at once."""

    def __init__(self, lost: Callable[[], None]) -> None:
        self.written = bytearray()
        self.unsent_bytes = 0
        """The bytes that it reports as not sent yet."""
        self.is_closed = False
        self._lost = lost

    def write(self, data: bytes) -> None:
        if not self.is_closed:
            self.written += data

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            asyncio.get_running_loop().call_soon(self._lost)

    abort = close

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_write_buffer_limits(self, high: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes


class Peer:
    """A client on the same loop."""

    def __init__(self, services: AmqpServices) -> None:
        self.engine = Connection(Configuration(container_id="peer", strict=False), plain(KEY.name, KEY.primary_key))
        self.events: list[Event] = []
        self.transport = MemoryTransport(self._lost)
        self.connection = ServerConnection(services, self.transport)
        self.session: Session = self.engine.begin()
        self._number = 0

    def _lost(self) -> None:
        self.connection.connection_lost()

    def exchange(self) -> None:
        """Pass bytes both ways."""
        while True:
            data = self.engine.data_to_send()
            if data and not self.transport.is_closed:
                self.connection.data_received(data)
            answer = bytes(self.transport.written)
            self.transport.written.clear()
            if not answer:
                return
            self.events.extend(self.engine.receive_data(answer))

    async def until(self, condition: Callable[[], T | None]) -> T:
        def answered() -> T | None:
            self.exchange()
            return condition()

        return await eventually_async(answered, DEADLINE_S, every_s=0)

    async def attach(self, role: bool, source: Any, target: Any, **options: Any) -> Link:
        link = self.begin_attach(role, source, target, **options)
        await self.until(lambda: link.is_attached)
        return link

    def begin_attach(self, role: bool, source: Any, target: Any, **options: Any) -> Link:
        self._number += 1
        return self.session.attach(f"link-{self._number}", role, source=source, target=target, **options)

    async def sender(self, name: str = "orders", target: Any = None) -> Link:
        link = await self.attach(SENDER, Source(address="here"), target or Target(address=name))
        await self.until(lambda: link.credit)
        return link

    async def receiver(self, name: str = "orders", *, credit: int = 0, deletes: bool = False) -> Link:
        link = await self.attach(
            RECEIVER,
            Source(address=name),
            Target(address="there"),
            snd_settle_mode=SenderSettleMode.SETTLED if deletes else SenderSettleMode.UNSETTLED,
            rcv_settle_mode=ReceiverSettleMode.FIRST if deletes else ReceiverSettleMode.SECOND,
        )
        if credit:
            link.flow(credit)
            self.exchange()
        return link

    def begin_session(self, session_id: str | None) -> Link:
        source = Source(address="visits", filter={Symbol("com.microsoft:session-filter"): session_id})
        return self.begin_attach(RECEIVER, source, Target(address="there"))

    def begin_send(self, link: Link, payload: bytes, **options: Any) -> Delivery:
        self._number += 1
        delivery = link.send(payload, tag=self._number.to_bytes(4), **options)
        self.exchange()
        return delivery

    async def outcome(self, delivery: Delivery) -> object:
        await self.until(lambda: delivery.settled)
        return delivery.state

    async def send(self, link: Link, body: str, **properties: Any) -> object:
        return await self.outcome(self.begin_send(link, text_message(body, **properties)))

    def deliveries(self, link: Link) -> list[Delivery]:
        return [event for event in self.events if isinstance(event, Delivery) and event.link is link]

    async def receive(self, link: Link, number: int) -> list[Delivery]:
        await self.until(lambda: len(self.deliveries(link)) >= number)
        return self.deliveries(link)

    async def settle(self, delivery: Delivery, state: object) -> object:
        delivery.link.update(delivery, state)
        return await self.outcome(delivery)

    async def detached(self, link: Link) -> Error:
        def found() -> LinkDetached | None:
            return next((each for each in self.events if isinstance(each, LinkDetached) and each.link is link), None)

        event = await self.until(found)
        assert event.error is not None
        return event.error


class Stage:
    """A namespace with a store that the test controls."""

    def __init__(self) -> None:
        self.store = GatedStore()
        loop = asyncio.get_running_loop()
        keeper = GroupCommitter(self.store, self._make, SystemClock()(), wake=loop.call_soon_threadsafe)
        self.host = NamespaceHost("contoso", STANDARD, keeper, SystemClock(), loop)
        self.services = AmqpServices(
            self.host, Authorizer(self.host), Dispatcher(self.host), Counters(), idle_timeout_ms=240_000
        )

    @staticmethod
    def _make(records: Records) -> Namespace:
        return Namespace(records, limits=STANDARD, view=MessageView, fresh_id=uuid4, fresh_token=lambda: uuid4().bytes)

    async def furnish(self) -> None:
        namespace, now_ms = self.host.use_namespace(), self.host.now_ms()
        namespace.set_authorization_rules([KEY], now_ms)
        namespace.create_queue("orders", QueueDescription(), now_ms)
        namespace.create_queue("visits", QueueDescription(requires_session=True), now_ms)
        await self.host.durable()

    async def peer(self) -> Peer:
        peer = Peer(self.services)
        peer.engine.open()
        await peer.until(lambda: peer.session.is_mapped)
        return peer

    def kept(self, address: Address = ORDERS) -> list[bytes]:
        found = self.host.use_namespace().peek(address, 0, 10_000, self.host.now_ms())
        return [b"".join(decode_message(each.body).body) for each in found]

    async def held_up(self, *peers: Peer) -> None:
        """Wait until a commit waits at the gate, and everything independent of it was sent."""
        while not self.store.waiting.is_set():
            for peer in peers:
                peer.exchange()
            await asyncio.sleep(0)
        for _ in range(20):
            for peer in peers:
                peer.exchange()
            await asyncio.sleep(0)

    def shut(self) -> None:
        self.store.waiting.clear()
        self.store.gate.clear()


@asynccontextmanager
async def staged() -> AsyncIterator[Stage]:
    stage = Stage()
    try:
        await stage.furnish()
        yield stage
    finally:
        stage.store.gate.set()
        stage.store.reads.set()
        connections: list[Any] = [*stage.services.connections]
        for connection in connections:
            connection.connection_lost()
        stage.host.close()


def play(scene: Callable[[Stage], Awaitable[None]]) -> None:
    async def played() -> None:
        async with staged() as stage:
            await scene(stage)

    asyncio.run(played())


def condition_of(state: object) -> str:
    assert isinstance(state, Rejected)
    assert state.error is not None
    assert state.error.description
    return state.error.condition


# Nothing is confirmed too early.


def test_message_is_confirmed_after_the_commit() -> None:
    async def scene(stage: Stage) -> None:
        peer = await stage.peer()
        link = await peer.sender()
        stage.shut()
        sent = [peer.begin_send(link, text_message(str(number))) for number in range(3)]
        await stage.held_up(peer)
        assert [delivery.settled for delivery in sent] == [False] * 3
        stage.store.gate.set()
        assert [await peer.outcome(delivery) for delivery in sent] == [ACCEPTED] * 3

    play(scene)


def test_settlement_is_answered_after_the_commit() -> None:
    async def scene(stage: Stage) -> None:
        peer = await stage.peer()
        assert await peer.send(await peer.sender(), "one") == ACCEPTED
        (delivery,) = await peer.receive(await peer.receiver(credit=1), 1)
        stage.shut()
        delivery.link.update(delivery, ACCEPTED)
        await stage.held_up(peer)
        assert not delivery.settled
        stage.store.gate.set()
        assert await peer.outcome(delivery) == ACCEPTED

    play(scene)


def test_received_and_deleted_message_is_sent_after_the_commit() -> None:
    async def scene(stage: Stage) -> None:
        peer = await stage.peer()
        sender = await peer.sender()
        for number in range(3):
            assert await peer.send(sender, str(number)) == ACCEPTED
        stage.shut()
        link = await peer.receiver(deletes=True)
        link.flow(5, drain=True)
        await stage.held_up(peer)
        assert peer.deliveries(link) == []
        assert link.credit == 5  # and the drain waits for them
        stage.store.gate.set()
        assert [body_of(each) for each in await peer.receive(link, 3)] == [b"0", b"1", b"2"]
        await peer.until(lambda: link.delivery_count == 5)

    play(scene)


def test_request_is_answered_after_the_commit() -> None:
    async def scene(stage: Stage) -> None:
        peer = await stage.peer()
        replies = await peer.attach(RECEIVER, Source(address="orders/$management"), Target(address="here"))
        asking = await peer.sender("orders/$management")
        stage.shut()
        message = Message(
            properties=Properties(message_id="one", reply_to="here"),
            application_properties={"operation": Operation.SCHEDULE_MESSAGE.value},
            body=({"messages": [{"message": LATER}]},),
            body_kind=AMQP_VALUE,
        )
        asked = peer.begin_send(asking, encode_message(message))
        await stage.held_up(peer)
        assert await peer.outcome(asked) == ACCEPTED
        assert peer.deliveries(replies) == []
        stage.store.gate.set()
        await peer.receive(replies, 1)

    play(scene)


def test_transaction_is_confirmed_after_the_commit() -> None:
    async def scene(stage: Stage) -> None:
        peer = await stage.peer()
        coordinator = await peer.sender(target=Coordinator())
        txn_id = await declare(peer, coordinator)
        state = TransactionalState(txn_id=txn_id)
        await peer.outcome(peer.begin_send(await peer.sender(), text_message("one"), state=state))
        stage.shut()
        ending = peer.begin_send(coordinator, value(Discharge(txn_id=txn_id)))
        await stage.held_up(peer)
        assert not ending.settled
        stage.store.gate.set()
        assert await peer.outcome(ending) == ACCEPTED

    play(scene)


def value(command: object) -> bytes:
    return encode_message(Message(body=(command,), body_kind=AMQP_VALUE))


async def declare(peer: Peer, coordinator: Link) -> bytes:
    state = await peer.outcome(peer.begin_send(coordinator, value(Declare())))
    assert isinstance(state, Declared)
    return state.txn_id


# Failing commits.


@pytest.mark.parametrize(
    ("error", "condition"),
    [
        (FAILURE, Condition.INTERNAL_ERROR),
        (StoreFullError("the store", "the test wants it so"), Condition.RESOURCE_LIMIT_EXCEEDED),
    ],
    ids=["failed", "full"],
)
@pytest.mark.parametrize("step", ["prepare", "run"])
def test_message_whose_commit_fails_is_rejected(step: str, error: StoreError, condition: str) -> None:
    async def scene(stage: Stage) -> None:
        peer = await stage.peer()
        link = await peer.sender()
        assert await peer.send(link, "before") == ACCEPTED
        getattr(stage.store, f"fail_next_{step}")(error)
        sent = [peer.begin_send(link, text_message("rejected")) for _ in range(3)]
        assert [condition_of(await peer.outcome(delivery)) for delivery in sent] == [condition] * 3
        assert await peer.send(link, "after") == ACCEPTED
        assert stage.kept() == [b"before", b"after"]

    play(scene)


def test_all_sends_of_a_failed_commit_are_rejected_and_others_continue() -> None:
    async def scene(stage: Stage) -> None:
        peers = [await stage.peer() for _ in range(3)]
        links = [await peer.sender() for peer in peers]
        stage.shut()
        first = peers[0].begin_send(links[0], text_message("first"))
        await stage.held_up(*peers)
        stage.store.fail_next_run(FAILURE)
        later = [peer.begin_send(link, text_message("later")) for peer, link in zip(peers[1:], links[1:], strict=True)]
        stage.store.gate.set()
        assert condition_of(await peers[0].outcome(first)) == Condition.INTERNAL_ERROR
        states = [await peer.outcome(delivery) for peer, delivery in zip(peers[1:], later, strict=True)]
        # They depend on what was reverted.
        assert {condition_of(state) for state in states} == {Condition.INTERNAL_ERROR}
        for peer, link in zip(peers, links, strict=True):
            assert await peer.send(link, "again") == ACCEPTED
        assert stage.kept() == [b"again"] * 3

    play(scene)


def test_message_whose_settlement_fails_to_commit_is_redelivered() -> None:
    async def scene(stage: Stage) -> None:
        peer = await stage.peer()
        assert await peer.send(await peer.sender(), "one") == ACCEPTED
        link = await peer.receiver(credit=1)
        (delivery,) = await peer.receive(link, 1)
        stage.store.fail_next_run(FAILURE)
        assert condition_of(await peer.settle(delivery, ACCEPTED)) == Condition.INTERNAL_ERROR
        assert stage.kept() == [b"one"]
        link.flow(1)
        again = (await peer.receive(link, 2))[1]
        assert await peer.settle(again, ACCEPTED) == ACCEPTED
        assert stage.kept() == []

    play(scene)


def test_message_whose_removal_fails_is_delivered_once_it_is_removed() -> None:
    async def scene(stage: Stage) -> None:
        peer = await stage.peer()
        sender = await peer.sender()
        for number in range(3):
            assert await peer.send(sender, str(number)) == ACCEPTED
        link = await peer.receiver(deletes=True)
        stage.shut()
        link.flow(5)
        await stage.held_up(peer)
        stage.store.fail_next_run(FAILURE)
        stage.store.gate.set()
        received = await peer.receive(link, 3)
        assert [body_of(each) for each in received] == [b"0", b"1", b"2"]
        assert stage.kept() == []
        assert await peer.send(sender, "more") == ACCEPTED
        assert body_of((await peer.receive(link, 4))[3]) == b"more"
        assert link.credit == 1

    play(scene)


def test_transaction_whose_commit_fails_is_rolled_back() -> None:
    async def scene(stage: Stage) -> None:
        peer = await stage.peer()
        sender = await peer.sender()
        assert await peer.send(sender, "before") == ACCEPTED
        (delivery,) = await peer.receive(await peer.receiver(credit=1), 1)
        coordinator = await peer.sender(target=Coordinator())
        txn_id = await declare(peer, coordinator)
        state = TransactionalState(txn_id=txn_id)
        await peer.outcome(peer.begin_send(sender, text_message("inside"), state=state))
        await peer.settle(delivery, TransactionalState(txn_id=txn_id, outcome=ACCEPTED))
        stage.store.fail_next_run(FAILURE)
        ending = peer.begin_send(coordinator, value(Discharge(txn_id=txn_id)))
        assert condition_of(await peer.outcome(ending)) == Condition.INTERNAL_ERROR
        assert stage.kept() == [b"before"]

    play(scene)


def test_session_holder_is_detached_after_a_failed_commit() -> None:
    async def scene(stage: Stage) -> None:
        peer, other = await stage.peer(), await stage.peer()
        sender = await peer.sender("visits")
        assert await peer.send(sender, "one", group_id="a") == ACCEPTED
        holding = peer.begin_session("a")
        await peer.until(lambda: holding.is_attached)
        holding.flow(1)
        (delivery,) = await peer.receive(holding, 1)
        waiting = other.begin_session(None)
        other.exchange()
        stage.store.fail_next_run(FAILURE)
        assert condition_of(await peer.send(await peer.sender(), "lost")) == Condition.INTERNAL_ERROR
        assert (await peer.detached(holding)).condition == ServiceBusCondition.SESSION_LOCK_LOST
        assert not delivery.settled
        # The session is available, and goes to the waiter.
        await other.until(lambda: waiting.is_attached)
        waiting.flow(5)
        (again,) = await other.receive(waiting, 1)
        assert body_of(again) == b"one"
        assert await other.settle(again, ACCEPTED) == ACCEPTED
        assert stage.kept(Address.of("visits")) == []

    play(scene)


def test_session_granted_in_a_failed_commit_is_detached() -> None:
    async def scene(stage: Stage) -> None:
        peer, other = await stage.peer(), await stage.peer()
        sender = await peer.sender("visits")
        waiting = other.begin_session(None)
        other.exchange()
        stage.shut()
        stage.store.fail_next_run(FAILURE)
        sent = peer.begin_send(sender, text_message("lost", group_id="a"))
        await stage.held_up(peer, other)
        assert waiting.is_attached  # before the message is on disk, which is allowed
        stage.store.gate.set()
        assert condition_of(await peer.outcome(sent)) == Condition.INTERNAL_ERROR
        assert (await other.detached(waiting)).condition == ServiceBusCondition.SESSION_LOCK_LOST
        assert await peer.send(sender, "kept", group_id="a") == ACCEPTED
        again = other.begin_session(None)
        await other.until(lambda: again.is_attached)

    play(scene)


def test_lock_does_not_outlive_a_failed_commit_and_the_message_is_settled_once() -> None:
    async def scene(stage: Stage) -> None:
        peer = await stage.peer()
        sender = await peer.sender()
        assert await peer.send(sender, "one") == ACCEPTED
        link = await peer.receiver(credit=1)
        (delivery,) = await peer.receive(link, 1)
        stage.store.fail_next_run(FAILURE)
        assert condition_of(await peer.send(sender, "lost")) == Condition.INTERNAL_ERROR
        assert condition_of(await peer.settle(delivery, ACCEPTED)) == ServiceBusCondition.MESSAGE_LOCK_LOST
        link.flow(1)
        again = (await peer.receive(link, 2))[1]
        assert body_of(again) == b"one"
        assert await peer.settle(again, ACCEPTED) == ACCEPTED
        assert stage.kept() == []

    play(scene)


def test_waiting_credit_is_used_after_a_failed_commit() -> None:
    async def scene(stage: Stage) -> None:
        peer = await stage.peer()
        sender = await peer.sender()
        link = await peer.receiver(credit=10)
        stage.store.fail_next_run(FAILURE)
        assert condition_of(await peer.send(sender, "lost")) == Condition.INTERNAL_ERROR
        assert await peer.send(sender, "kept") == ACCEPTED
        await peer.until(lambda: any(body_of(each) == b"kept" for each in peer.deliveries(link)))
        for delivery in peer.deliveries(link):
            state = await peer.settle(delivery, ACCEPTED)
            # A delivery that was reverted cannot be settled; its sender was told.
            if body_of(delivery) == b"kept":
                assert state == ACCEPTED
            else:
                assert condition_of(state) == ServiceBusCondition.MESSAGE_LOCK_LOST
        assert stage.kept() == []

    play(scene)


def test_request_whose_commit_fails_returns_an_error() -> None:
    async def scene(stage: Stage) -> None:
        peer = await stage.peer()
        replies = await peer.attach(RECEIVER, Source(address="orders/$management"), Target(address="here"))
        asking = await peer.sender("orders/$management")
        stage.store.fail_next_run(FAILURE)
        message = Message(
            properties=Properties(message_id="one", reply_to="here"),
            application_properties={"operation": Operation.SCHEDULE_MESSAGE.value},
            body=({"messages": [{"message": LATER}]},),
            body_kind=AMQP_VALUE,
        )
        peer.begin_send(asking, encode_message(message))
        (answer,) = await peer.receive(replies, 1)
        words = decode_message(answer.payload).application_properties or {}
        assert (words["statusCode"], words["errorCondition"]) == (Int(500), Condition.INTERNAL_ERROR)
        assert stage.kept() == []

    play(scene)


def test_disconnect_during_a_commit_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(stage: Stage) -> None:
        peer, other = await stage.peer(), await stage.peer()
        sender = await peer.sender()
        deleting = await peer.receiver("orders", deletes=True)
        await peer.receiver("orders", credit=5)
        stage.shut()
        peer.begin_send(sender, text_message("one"))
        deleting.flow(5)
        await stage.held_up(peer)
        peer.transport.abort()
        stage.store.gate.set()
        await stage.host.durable()
        assert await other.send(await other.sender(), "two") == ACCEPTED
        assert stage.services.connections == {other.connection}

    play(scene)
    assert failures(caplog) == []


@pytest.mark.parametrize("seed", range(6))
def test_confirmed_messages_are_stored_and_rejected_ones_are_not(seed: int) -> None:
    """Send, settle and receive, with commits that fail repeatedly."""

    async def scene(stage: Stage) -> None:
        chance = random.Random(seed)  # noqa: S311 (a test's own)
        peer = await stage.peer()
        sender, link = await peer.sender(), await peer.receiver()
        sent: dict[str, Delivery] = {}
        settled: dict[bytes, list[Delivery]] = {}
        seen = 0
        for number in range(300):
            match chance.randrange(6):
                case 0:
                    stage.store.fail_next_run(FAILURE)
                case 1:
                    link.flow(chance.randint(0, 3))
                    peer.exchange()
                case 2:
                    await asyncio.sleep(0)
                case _:
                    sent[str(number)] = peer.begin_send(sender, text_message(str(number)))
            for delivery in peer.deliveries(link)[seen:]:
                seen += 1
                if chance.random() < 0.7:
                    settled.setdefault(body_of(delivery), []).append(delivery)
                    delivery.link.update(delivery, ACCEPTED)
            peer.exchange()
        stage.store.fail_next_run(FAILURE)
        sent["last"] = peer.begin_send(sender, text_message("last"))
        await peer.until(lambda: all(delivery.settled for delivery in sent.values()))
        await peer.until(lambda: all(each.settled for several in settled.values() for each in several))
        confirmed = {body.encode() for body, delivery in sent.items() if delivery.state == ACCEPTED}
        taken = [body for body, several in settled.items() for each in several if each.state == ACCEPTED]
        assert len(taken) == len(set(taken))  # each is completed once at the most
        kept = stage.kept()
        assert len(kept) == len(set(kept))
        assert {*kept} == confirmed - {*taken}
        assert {*taken} <= confirmed

    play(scene)
