"""A2: a message is stored durably before its send is confirmed, and is kept until a receiver settles it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from queue import SimpleQueue

import pytest

from pairbus.broker.address import Address
from pairbus.broker.errors import EntityNotFoundError, LockLostError
from pairbus.broker.operations import Settle
from pairbus.store import MemoryStore, StoreError, StoreFailedError, StoreFullError
from pairbus.store.recovery import Recovery
from tests.broker.broker import START, Broker, letter, texts

BROKEN = StoreFailedError("the disk", "it is broken")


class Loop:
    """Stands for the thread that the keeper belongs to: what the commit thread hands over runs when told."""

    def __init__(self) -> None:
        self._handed: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def wake(self, call: Callable[[], None]) -> None:
        self._handed.put(call)

    def run_one(self) -> None:
        """Wait for the commit that runs, and hear how it ended."""
        self._handed.get(timeout=60)()


class Told(list[StoreError | None]):
    """Remembers what it was told."""

    def __call__(self, error: StoreError | None) -> None:
        self.append(error)


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def threaded(store: MemoryStore, loop: Loop) -> Broker:
    """A broker with a thread that commits, and an empty queue."""
    broker = Broker(store=store, wake=loop.wake)
    broker.queue()
    broker.commit()
    loop.run_one()
    return broker


QUEUE = Address.of("queue")


def stored(store: MemoryStore) -> list[str]:
    """What a process finds that begins now."""
    return texts(Broker(store=store).peek(QUEUE))


# A word on a send


def test_a2_a_send_is_confirmed_when_it_is_durable_and_not_before(store: MemoryStore) -> None:
    broker = Broker(store=store)
    broker.queue()
    broker.commit()
    told = Told()
    broker.send(QUEUE, "x")
    broker.keeper.when_durable(told)
    assert (told, stored(store)) == ([], [])
    broker.commit()
    assert (told, stored(store)) == ([None], ["x"])


def test_a2_what_is_durable_already_is_confirmed_at_once(store: MemoryStore) -> None:
    broker = Broker(store=store)
    told = Told()
    broker.keeper.when_durable(told)
    assert told == [None]


def test_a2_with_a_thread_a_send_is_confirmed_on_the_thread_it_came_from(store: MemoryStore, loop: Loop) -> None:
    broker = threaded(store, loop)
    told = Told()
    broker.send(QUEUE, "x")
    broker.keeper.when_durable(told)
    broker.commit()
    assert told == []
    loop.run_one()
    assert (told, stored(store)) == ([None], ["x"])
    broker.keeper.close()


def test_a2_what_is_written_during_a_commit_goes_into_the_next_together(store: MemoryStore, loop: Loop) -> None:
    broker = threaded(store, loop)
    first, second, third = Told(), Told(), Told()
    broker.send(QUEUE, "a")
    broker.keeper.when_durable(first)
    broker.commit()
    for content, told in (("b", second), ("c", third)):
        broker.send(QUEUE, content)
        broker.keeper.when_durable(told)
        broker.commit()
    loop.run_one()
    assert (first, second, third) == ([None], [], [])
    loop.run_one()
    assert (second, third) == ([None], [None])
    assert stored(store) == ["a", "b", "c"]
    broker.keeper.close()


def test_a2_who_asks_during_a_commit_is_told_after_it_although_nothing_was_added(
    store: MemoryStore, loop: Loop
) -> None:
    broker = threaded(store, loop)
    broker.send(QUEUE, "x")
    broker.commit()
    told = Told()
    broker.keeper.when_durable(told)
    assert told == []
    loop.run_one()
    if not told:  # in a commit of its own
        loop.run_one()
    assert told == [None]
    broker.keeper.close()


def test_a2_what_is_being_committed_can_be_received_at_once(store: MemoryStore, loop: Loop) -> None:
    broker = threaded(store, loop)
    broker.send(QUEUE, "x")
    broker.commit()
    delivery = broker.one(QUEUE)
    assert texts([delivery]) == ["x"]
    broker.complete(QUEUE, delivery)
    broker.commit()
    loop.run_one()
    loop.run_one()
    assert stored(store) == []
    broker.keeper.close()


def test_a2_without_a_commit_nothing_survives() -> None:
    broker = Broker()
    broker.queue()
    broker.commit()
    broker.send(QUEUE, "x")
    broker.crash()
    assert broker.peek(QUEUE) == []


# A commit that fails


@pytest.mark.parametrize("fail", [MemoryStore.fail_next_prepare, MemoryStore.fail_next_run], ids=["prepare", "run"])
def test_a2_a_commit_that_fails_undoes_everything_since_the_last(
    store: MemoryStore, fail: Callable[[MemoryStore, StoreError], None]
) -> None:
    broker = Broker(store=store)
    broker.queue()
    broker.send(QUEUE, "kept", "received")
    broker.commit()
    before = broker.info(QUEUE)
    kept, lost = broker.receive(QUEUE, 2)
    broker.complete(QUEUE, lost)
    broker.send(QUEUE, "sent")
    broker.queue("other")
    told = Told()
    broker.keeper.when_durable(told)
    fail(store, BROKEN)
    with pytest.raises(StoreError):
        broker.commit()
    assert told == [BROKEN]
    assert texts(broker.peek(QUEUE)) == ["kept", "received"]
    assert broker.info(QUEUE) == before
    with pytest.raises(EntityNotFoundError):
        broker.info(Address.of("other"))
    with pytest.raises(LockLostError):
        broker.complete(QUEUE, kept)


def test_a2_a_commit_that_fails_on_its_thread_tells_everyone_who_waits(store: MemoryStore, loop: Loop) -> None:
    broker = threaded(store, loop)
    store.fail_next_run(BROKEN)
    first, second = Told(), Told()
    broker.send(QUEUE, "a")
    broker.keeper.when_durable(first)
    broker.commit()
    broker.send(QUEUE, "b")
    broker.keeper.when_durable(second)
    loop.run_one()
    assert (first, second) == ([BROKEN], [BROKEN])
    assert broker.peek(QUEUE) == []
    broker.keeper.close()


def test_a2_after_a_commit_that_failed_the_next_succeeds(store: MemoryStore, loop: Loop) -> None:
    broker = threaded(store, loop)
    store.fail_next_run(BROKEN)
    broker.send(QUEUE, "a")
    broker.commit()
    loop.run_one()
    told = Told()
    broker.send(QUEUE, "b")
    broker.keeper.when_durable(told)
    broker.commit()
    loop.run_one()
    assert (told, stored(store)) == ([None], ["b"])
    broker.keeper.close()


def test_a2_whoever_keeps_the_server_is_told_that_the_namespace_was_read_anew(store: MemoryStore) -> None:
    broker = Broker(store=store)
    broker.queue()
    broker.send(QUEUE, "x")
    broker.commit()
    heard: list[Recovery] = []
    broker.keeper.rebuilt = heard.append
    broker.send(QUEUE, "y")
    store.fail_next_run(BROKEN)
    with pytest.raises(StoreError):
        broker.commit()
    (recovery,) = heard
    assert (recovery.entities, recovery.messages, recovery.damaged) == (1, 1, [])


def test_a2_a_send_that_the_store_has_no_room_for_is_refused_and_settling_goes_on() -> None:
    store = MemoryStore()
    broker = Broker(store=store)
    broker.queue()
    broker.send(QUEUE, "x")
    broker.commit()
    store.max_bytes = 1_000_000
    with pytest.raises(StoreFullError):
        broker.send(QUEUE, "y")
    assert texts(broker.peek(QUEUE)) == ["x"]
    broker.complete(QUEUE, broker.one(QUEUE))
    broker.commit()
    assert stored(store) == []


def test_a2_a_full_store_still_takes_whatever_removes_something() -> None:
    store = MemoryStore()
    broker = Broker(store=store)
    sessions = broker.queue("sessions", requires_session=True)
    broker.queue()
    broker.send(QUEUE, "x")
    token = broker.accept(sessions, "s")
    broker.namespace.set_session_state(sessions, token, b"state", START)
    broker.commit()
    store.max_bytes = 1_000_000
    delivery = broker.one(QUEUE)
    assert delivery.lock_token is not None
    broker.namespace.transact([Settle(QUEUE, delivery.lock_token)], START)
    broker.namespace.set_session_state(sessions, token, None, START)
    assert broker.info(QUEUE).message_count == 0


# The end


def test_a2_close_commits_the_rest_and_tells_everyone(store: MemoryStore, loop: Loop) -> None:
    broker = threaded(store, loop)
    first, second = Told(), Told()
    broker.send(QUEUE, "a")
    broker.keeper.when_durable(first)
    broker.commit()
    broker.send(QUEUE, "b")
    broker.keeper.when_durable(second)
    broker.keeper.close()
    assert (first, second) == ([None], [None])
    loop.run_one()  # comes late, and does no harm
    assert (first, second) == ([None], [None])


def test_a2_close_tells_of_a_failure_too(store: MemoryStore) -> None:
    broker = Broker(store=store)
    broker.queue()
    told = Told()
    broker.keeper.when_durable(told)
    store.fail_next_run(BROKEN)
    with pytest.raises(StoreError):
        broker.keeper.close()
    assert told == [BROKEN]


# Until a receiver settles it


def test_a2_senders_work_while_no_receiver_runs() -> None:
    broker = Broker()
    queue = broker.queue()
    for number in range(100):
        broker.send(queue, str(number))
    broker.restart()
    broker.now_ms += 365 * 24 * 3_600_000
    assert broker.take(queue) == [str(number) for number in range(100)]


def test_a2_a_message_is_kept_until_it_is_settled() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "x")
    broker.one(queue)
    broker.restart()
    delivery = broker.one(queue)
    assert texts([delivery]) == ["x"]
    broker.complete(queue, delivery)
    broker.restart()
    assert broker.peek(queue) == []


def test_a2_competing_consumers_never_get_the_same_message() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, *(str(number) for number in range(10)))
    consumers: tuple[list[str], list[str], list[str]] = ([], [], [])
    for turn in range(5):
        for consumer in consumers:
            consumer.extend(texts(broker.receive(queue, 1 + turn % 2)))
    assert sorted(chain(*consumers)) == [str(number) for number in range(10)]
    assert all(consumers)


def test_a2_a_batch_arrives_in_order() -> None:
    broker = Broker()
    queue = broker.queue()
    assert broker.send(queue, "a", "b", "c") == [1, 2, 3]
    assert broker.send(queue, letter("d")) == [4]
    assert broker.take(queue) == ["a", "b", "c", "d"]


def test_a2_receivers_are_woken_where_something_can_be_received() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.topic()
    subscription = broker.subscription()
    assert broker.namespace.take_woken() == []
    broker.send(queue, "x")
    broker.send(Address.of("topic"), "y")
    assert broker.namespace.take_woken() == [queue, subscription]
    assert broker.namespace.take_woken() == []
    broker.abandon(queue, broker.one(queue))
    assert broker.namespace.take_woken() == [queue]


def test_a2_time_does_not_run_backwards() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.wait(1_000)
    broker.namespace.send(queue, [letter("x")], START)
    assert broker.peek(queue)[0].record.enqueued_ms == START + 1_000
