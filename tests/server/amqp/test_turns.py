"""E5: what takes long is done in parts, on another thread, or with a rest after it: other connections have turns."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest

from pairbus.broker import STANDARD, Address
from pairbus.dialect.sent import BATCH_FORMAT, MAX_BATCH_MESSAGES, join_batch
from pairbus.testing import RunningNamespace, running_namespace
from pairbus.wire import ACCEPTED, Condition, Int, Rejected
from tests.server.amqp.wire_client import Requests, WireClient, connect, fresh_queue, messages_in, text_message
from tests.waiting import eventually

MESSAGES = 500
"""Several parts, and all of them in the bytes that are taken in at once."""


@pytest.fixture(scope="module")
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace() as served:
        served._running._running.services.stopwatch = count(0.0, 1.0).__next__  # every look says: the turn is over
        yield served


@pytest.fixture
def queue(namespace: RunningNamespace) -> str:
    return fresh_queue(namespace)


@contextmanager
def held(namespace: RunningNamespace) -> Iterator[None]:
    """Hold the server's loop: what is sent meanwhile is all there when it goes on."""
    is_held, may_go_on = threading.Event(), threading.Event()

    def hold() -> None:
        is_held.set()
        may_go_on.wait()

    namespace._loop.call_soon_threadsafe(hold)
    is_held.wait()
    try:
        yield
    finally:
        may_go_on.set()


def batch(last: bytes = b"last") -> bytes:
    return join_batch([*(text_message(b"%d" % number) for number in range(MESSAGES - 1)), last])


def test_message_of_another_connection_overtakes_a_large_batch(namespace: RunningNamespace) -> None:
    with connect(namespace) as large, connect(namespace) as small:
        for _ in range(10):  # which of the two is read first, the system decides
            queue = fresh_queue(namespace)
            large_link, small_link = large.sender(queue), small.sender(queue)
            with held(namespace):
                batched = large.begin_send(large_link, batch(text_message("last")), message_format=BATCH_FORMAT)
                alone = small.begin_send(small_link, text_message("alone"))
            assert small.outcome(alone) == ACCEPTED
            assert large.outcome(batched) == ACCEPTED
            bodies = [body for body, _ in messages_in(namespace, Address.of(queue))]
            assert bodies == [b"alone", *(b"%d" % number for number in range(MESSAGES - 1)), b"last"]


def test_batch_whose_sender_disconnects_at_once_is_taken_whole(namespace: RunningNamespace, queue: str) -> None:
    with connect(namespace) as client:
        link = client.sender(queue)
        with held(namespace):
            client.begin_send(link, batch(text_message("last")), message_format=BATCH_FORMAT)
            client.hang_up()
    eventually(lambda: len(messages_in(namespace, Address.of(queue))) == MESSAGES)


def test_batch_with_a_damaged_message_in_a_later_part_is_refused_whole(namespace: RunningNamespace, queue: str) -> None:
    with connect(namespace) as client:
        link = client.sender(queue)
        state = client.send(link, batch(b"no message"), message_format=BATCH_FORMAT)
        assert isinstance(state, Rejected)
        assert state.error is not None
        assert state.error.condition == Condition.DECODE_ERROR
        assert client.send(link, text_message("next")) == ACCEPTED
    assert [body for body, _ in messages_in(namespace, Address.of(queue))] == [b"next"]


@pytest.mark.parametrize(("too_many", "stored"), [(0, MAX_BATCH_MESSAGES), (1, 0)], ids=["at the limit", "beyond it"])
def test_batch_of_too_many_messages_is_rejected_whole(
    namespace: RunningNamespace, queue: str, too_many: int, stored: int
) -> None:
    assert STANDARD.messages_per_batch == MAX_BATCH_MESSAGES
    payload = join_batch([text_message("x")] * (MAX_BATCH_MESSAGES + too_many))
    with connect(namespace) as client:
        state = client.send(client.sender(queue), payload, message_format=BATCH_FORMAT)
    if too_many:
        assert isinstance(state, Rejected)
        assert state.error is not None
        assert state.error.condition == Condition.MESSAGE_SIZE_EXCEEDED
        assert f"more than {MAX_BATCH_MESSAGES} messages" in str(state.error.description)
    assert len(messages_in(namespace, Address.of(queue))) == stored


# Large requests are decoded on another thread.


def ask_much(client: WireClient, queue: str, message_id: str) -> Requests:
    node = client.requests(f"{queue}/$management")
    body = {"from-sequence-number": 0, "message-count": Int(1), "ignored": [[]] * 20_000}
    node.ask("com.microsoft:peek-message", body, message_id=message_id)
    return node


def test_large_request_is_decoded_while_other_connections_are_served(namespace: RunningNamespace, queue: str) -> None:
    may_go_on = threading.Event()
    with connect(namespace) as large, connect(namespace) as small:
        large_link, small_link = large.sender(queue), small.sender(queue)
        worker = namespace._running._running.services.worker
        worker.submit(may_go_on.wait)
        try:
            node = ask_much(large, queue, "much")
            behind = large.begin_send(large_link, text_message("behind"))
            assert small.send(small_link, text_message("alone")) == ACCEPTED
            assert [body for body, _ in messages_in(namespace, Address.of(queue))] == [b"alone"]
        finally:
            may_go_on.set()
        assert large.until(lambda: node.answer_to("much")).status == 200
        assert large.outcome(behind) == ACCEPTED


def test_connection_that_is_lost_while_its_request_is_decoded_leaves_nothing(
    namespace: RunningNamespace, queue: str
) -> None:
    may_go_on = threading.Event()
    services = namespace._running._running.services
    with connect(namespace) as other:
        before = len(services.connections)
        services.worker.submit(may_go_on.wait)
        try:
            with connect(namespace) as client:
                ask_much(client, queue, "much")
                eventually(lambda: services.worker._work_queue.qsize() == 1)
        finally:
            may_go_on.set()
        eventually(lambda: len(services.connections) == before)
        assert other.send(other.sender(queue), text_message("next")) == ACCEPTED


# A turn that was too long is followed by a rest.


class SteppedClock:
    """A clock that moves by ``step_s`` at each look."""

    now_s = 0.0
    step_s = 0.0

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


def test_connection_rests_after_a_turn_that_was_too_long(namespace: RunningNamespace) -> None:
    services = namespace._running._running.services
    before, clock = services.stopwatch, SteppedClock()
    try:
        services.stopwatch = clock
        with connect(namespace) as loud, connect(namespace) as quiet:
            queue = fresh_queue(namespace)
            loud_link, quiet_link = loud.sender(queue), quiet.sender(queue)
            clock.step_s = 1.0  # the turn of the next message is too long, and the time stands still after it
            assert loud.send(loud_link, text_message("long")) == ACCEPTED
            clock.step_s = 0.0
            with held(namespace):
                rested = loud.begin_send(loud_link, text_message("rested"))
                prompt = quiet.begin_send(quiet_link, text_message("prompt"))
            assert quiet.outcome(prompt) == ACCEPTED
            assert loud.outcome(rested) == ACCEPTED
            bodies = [body for body, _ in messages_in(namespace, Address.of(queue))]
            assert bodies == [b"long", b"prompt", b"rested"]
    finally:
        services.stopwatch = before
