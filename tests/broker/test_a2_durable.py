"""A2: a message is stored durably before its send is confirmed, and is kept until a receiver settles it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from queue import SimpleQueue

import pytest

from pairbus.broker.errors import EntityNotFoundError, LockLostError
from pairbus.broker.message import Address
from pairbus.broker.transaction import SettleOperation
from pairbus.store import MemoryStore, StoreError, StoreFailedError, StoreFullError
from pairbus.store.recovery import Recovery
from tests.broker.broker import START, Broker, letter, texts

BROKEN = StoreFailedError("the disk", "it is broken")


class Loop:
    """Stands for the committer's thread: calls from the commit thread run when the test runs them."""

    def __init__(self) -> None:
        self._handed: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def wake(self, call: Callable[[], None]) -> None:
        self._handed.put(call)

    def run_one(self) -> None:
        """Wait for the running commit, and process its outcome."""
        self._handed.get(timeout=60)()


class Reported(list[StoreError | None]):
    """A callback that records its calls."""

    def __call__(self, error: StoreError | None) -> None:
        self.append(error)


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def threaded(store: MemoryStore, loop: Loop) -> Broker:
    """Return a broker with a commit thread, and an empty queue."""
    broker = Broker(store=store, wake=loop.wake)
    broker.queue()
    broker.commit()
    loop.run_one()
    return broker


QUEUE = Address.of("queue")


def stored(store: MemoryStore) -> list[str]:
    """Return what a process finds that starts now."""
    return texts(Broker(store=store).peek(QUEUE))


# Confirmation of sends


def test_a2_send_is_confirmed_once_it_is_durable(store: MemoryStore) -> None:
    broker = Broker(store=store)
    broker.queue()
    broker.commit()
    reported = Reported()
    broker.send(QUEUE, "x")
    broker.keeper.when_durable(reported)
    assert (reported, stored(store)) == ([], [])
    broker.commit()
    assert (reported, stored(store)) == ([None], ["x"])


def test_a2_durable_writes_are_confirmed_at_once(store: MemoryStore) -> None:
    broker = Broker(store=store)
    reported = Reported()
    broker.keeper.when_durable(reported)
    assert reported == [None]


def test_a2_send_is_confirmed_on_the_calling_thread(store: MemoryStore, loop: Loop) -> None:
    broker = threaded(store, loop)
    reported = Reported()
    broker.send(QUEUE, "x")
    broker.keeper.when_durable(reported)
    broker.commit()
    assert reported == []
    loop.run_one()
    assert (reported, stored(store)) == ([None], ["x"])
    broker.keeper.close()


def test_a2_writes_during_a_commit_share_the_next_commit(store: MemoryStore, loop: Loop) -> None:
    broker = threaded(store, loop)
    first, second, third = Reported(), Reported(), Reported()
    broker.send(QUEUE, "a")
    broker.keeper.when_durable(first)
    broker.commit()
    for content, reported in (("b", second), ("c", third)):
        broker.send(QUEUE, content)
        broker.keeper.when_durable(reported)
        broker.commit()
    loop.run_one()
    assert (first, second, third) == ([None], [], [])
    loop.run_one()
    assert (second, third) == ([None], [None])
    assert stored(store) == ["a", "b", "c"]
    broker.keeper.close()


def test_a2_callback_registered_during_a_commit_is_called_after_it(store: MemoryStore, loop: Loop) -> None:
    broker = threaded(store, loop)
    broker.send(QUEUE, "x")
    broker.commit()
    reported = Reported()
    broker.keeper.when_durable(reported)
    assert reported == []
    loop.run_one()
    if not reported:  # in a separate commit
        loop.run_one()
    assert reported == [None]
    broker.keeper.close()


def test_a2_message_being_committed_can_be_received(store: MemoryStore, loop: Loop) -> None:
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


# Failing commits


@pytest.mark.parametrize("fail", [MemoryStore.fail_next_prepare, MemoryStore.fail_next_run], ids=["prepare", "run"])
def test_a2_failed_commit_reverts_everything_since_the_last(
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
    reported = Reported()
    broker.keeper.when_durable(reported)
    fail(store, BROKEN)
    with pytest.raises(StoreError):
        broker.commit()
    assert reported == [BROKEN]
    assert texts(broker.peek(QUEUE)) == ["kept", "received"]
    assert broker.info(QUEUE) == before
    with pytest.raises(EntityNotFoundError):
        broker.info(Address.of("other"))
    with pytest.raises(LockLostError):
        broker.complete(QUEUE, kept)


def test_a2_failed_commit_on_a_thread_calls_all_callbacks_with_the_error(store: MemoryStore, loop: Loop) -> None:
    broker = threaded(store, loop)
    store.fail_next_run(BROKEN)
    first, second = Reported(), Reported()
    broker.send(QUEUE, "a")
    broker.keeper.when_durable(first)
    broker.commit()
    broker.send(QUEUE, "b")
    broker.keeper.when_durable(second)
    loop.run_one()
    loop.run_one()  # the namespace is loaded again
    assert (first, second) == ([BROKEN], [BROKEN])
    assert broker.peek(QUEUE) == []
    broker.keeper.close()


def test_a2_commit_after_a_failed_one_succeeds(store: MemoryStore, loop: Loop) -> None:
    broker = threaded(store, loop)
    store.fail_next_run(BROKEN)
    broker.send(QUEUE, "a")
    broker.commit()
    loop.run_one()
    loop.run_one()  # the namespace is loaded again
    reported = Reported()
    broker.send(QUEUE, "b")
    broker.keeper.when_durable(reported)
    broker.commit()
    loop.run_one()
    assert (reported, stored(store)) == ([None], ["b"])
    broker.keeper.close()


def test_a2_rebuilt_is_called_when_the_namespace_was_reloaded(store: MemoryStore) -> None:
    broker = Broker(store=store)
    broker.queue()
    broker.send(QUEUE, "x")
    broker.commit()
    heard: list[Recovery] = []
    broker.keeper.rebuilt.add(heard.append)
    broker.send(QUEUE, "y")
    store.fail_next_run(BROKEN)
    with pytest.raises(StoreError):
        broker.commit()
    (recovery,) = heard
    assert (recovery.entities, recovery.messages, recovery.damaged) == (1, 1, [])


def test_a2_send_to_a_full_store_is_refused_and_settling_continues() -> None:
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


def test_a2_full_store_still_accepts_removals() -> None:
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
    broker.namespace.transact([SettleOperation(QUEUE, delivery.lock_token)], START)
    broker.namespace.set_session_state(sessions, token, None, START)
    assert broker.info(QUEUE).message_count == 0


# Close


def test_a2_close_commits_the_rest_and_calls_all_callbacks(store: MemoryStore, loop: Loop) -> None:
    broker = threaded(store, loop)
    first, second = Reported(), Reported()
    broker.send(QUEUE, "a")
    broker.keeper.when_durable(first)
    broker.commit()
    broker.send(QUEUE, "b")
    broker.keeper.when_durable(second)
    broker.keeper.close()
    assert (first, second) == ([None], [None])
    loop.run_one()  # late and harmless
    assert (first, second) == ([None], [None])


def test_a2_close_reports_a_failure(store: MemoryStore) -> None:
    broker = Broker(store=store)
    broker.queue()
    reported = Reported()
    broker.keeper.when_durable(reported)
    store.fail_next_run(BROKEN)
    with pytest.raises(StoreError):
        broker.keeper.close()
    assert reported == [BROKEN]


# Until a receiver settles it


def test_a2_senders_work_while_no_receiver_runs() -> None:
    broker = Broker()
    queue = broker.queue()
    for number in range(100):
        broker.send(queue, str(number))
    broker.restart()
    broker.now_ms += 365 * 24 * 3_600_000
    assert broker.take(queue) == [str(number) for number in range(100)]


def test_a2_message_is_kept_until_it_is_settled() -> None:
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


def test_a2_batch_arrives_in_order() -> None:
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
