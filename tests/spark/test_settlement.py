"""Settlement of rows by their lock tokens."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from pairbus.blocking import BrokeredMessage, MessagingFactory
from pairbus.client.errors import MessagingTimeoutError
from pairbus.spark import Outcome, SettlementCounts, settle
from pairbus.spark.connections import ConnectionReference
from pairbus.spark.errors import SchemaError, SparkOptionError
from pairbus.spark.settlement import SettlementTask
from pairbus.testing import RunningNamespace, running_namespace
from tests.client.stage import make_queue
from tests.spark.scenes import NOWHERE


@pytest.fixture(scope="module")
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace() as namespace:
        yield namespace


def received(namespace: RunningNamespace, queue: str, count: int) -> tuple[MessagingFactory, list[dict[str, Any]]]:
    """Send messages and receive them; return their rows, and the factory that holds the locks."""
    factory = MessagingFactory.from_connection_string(namespace.connection_string)
    with factory.create_message_sender(queue) as sender:
        sender.send([BrokeredMessage(f"{number}") for number in range(count)])
    receiver = factory.create_message_receiver(queue)
    messages: list[Any] = []
    while len(messages) < count:
        messages += receiver.receive(count, timedelta(seconds=5))
    return factory, [{"entity": queue, "lock_token": str(one.lock_token), "body": one.text()} for one in messages]


def left(namespace: RunningNamespace, path: str) -> list[Any]:
    with (
        MessagingFactory.from_connection_string(namespace.connection_string) as factory,
        factory.create_message_receiver(path) as receiver,
    ):
        return receiver.peek(100)


def test_d2_rows_are_settled_by_outcome(namespace: RunningNamespace) -> None:
    queue = make_queue(namespace)
    factory, rows = received(namespace, queue, 4)
    connection = namespace.connection_string
    with factory:
        assert settle(rows[:1], "complete", connection=connection) == SettlementCounts(settled=1)
        assert settle(rows[1:2], Outcome.DEFER, connection=connection).settled == 1
        assert settle(rows[2:3], "abandon", connection=connection).settled == 1
        dead = settle(rows[3:], "dead-letter", connection=connection, reason="price", description="it is negative")
        assert dead.settled == 1
    assert [(one.text(), one.state.name, one.delivery_count) for one in left(namespace, queue)] == [
        ("1", "DEFERRED", 0),
        ("2", "ACTIVE", 1),
    ]
    [dead_letter] = left(namespace, f"{queue}/$DeadLetterQueue")
    assert (dead_letter.text(), dead_letter.dead_letter_reason) == ("3", "price")
    assert dead_letter.dead_letter_error_description == "it is negative"


def test_lost_locks_are_counted_and_do_not_affect_others(namespace: RunningNamespace) -> None:
    queue = make_queue(namespace)
    factory, rows = received(namespace, queue, 5)
    with factory:
        rows[2]["lock_token"] = str(uuid4())
        found = settle(rows, "complete", connection=namespace.connection_string)
        assert found == SettlementCounts(settled=4, lost=1)
        assert settle(rows[:1], "complete", connection=namespace.connection_string) == SettlementCounts(lost=1)
    assert [one.text() for one in left(namespace, queue)] == ["2"]


def test_d2_task_settles_batches_of_several_entities(namespace: RunningNamespace) -> None:
    queues = [make_queue(namespace) for _ in range(2)]
    taken = [received(namespace, queue, 3) for queue in queues]
    task = SettlementTask(connection=ConnectionReference.parse(namespace.connection_string), outcome=Outcome.COMPLETE)
    batches = [pa.RecordBatch.from_pylist(rows) for _, rows in taken]
    assert [batch.to_pylist() for batch in task(iter(batches))] == [[{"settled": 6, "lost": 0}]]
    assert [left(namespace, queue) for queue in queues] == [[], []]
    for factory, _ in taken:
        factory.close()


def test_e4_unreachable_namespace_is_an_error_after_connect_timeout() -> None:
    row = {"entity": "orders", "lock_token": str(uuid4())}
    with pytest.raises(MessagingTimeoutError, match=r"cannot be reached: Connection refused; tried for 0.2 s"):
        settle([row], "complete", connection=NOWHERE, connect_timeout=timedelta(seconds=0.2))


@pytest.mark.parametrize(
    ("outcome", "given", "reason"),
    [
        ("delete", {}, "the outcome must be one of complete, abandon, dead-letter, defer, got 'delete'"),
        ("complete", {"reason": "x"}, "a reason or description requires the outcome dead-letter, got complete"),
        ("abandon", {"connection": "env:"}, "option 'connection'"),
    ],
)
def test_e4_invalid_arguments_are_rejected(outcome: str, given: dict[str, Any], reason: str) -> None:
    with pytest.raises(SparkOptionError, match=reason):
        settle([], outcome, **{"connection": "env:CONTOSO", **given})


@pytest.mark.parametrize("row", [{"entity": "orders"}, {"entity": "orders", "lock_token": None}])
def test_e4_row_without_lock_token_is_rejected(row: dict[str, Any]) -> None:
    with pytest.raises(SchemaError, match=r"lock.token"):
        settle([row], "complete", connection="env:CONTOSO")
