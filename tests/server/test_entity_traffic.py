"""Counters of each entity on a real server, and the histogram of commits."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any
from urllib.request import Request, urlopen

import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from pairbus.broker import Address, MessageEvent, QueueDescription, QueuePart, Record
from pairbus.server.entity_traffic import EntityTraffic
from pairbus.testing import RunningNamespace, running_namespace
from pairbus.wire import ACCEPTED, Rejected, plain
from tests.server.amqp.wire_client import DEADLINE_S, WireClient, text_message
from tests.waiting import eventually

ROOT = "RootManageSharedAccessKey"


def families(namespace: RunningNamespace, *, has_key: bool = True) -> dict[str, Metric]:
    key = base64.b64encode(f"{ROOT}:{namespace.key}".encode()).decode()
    headers = {"Authorization": f"Basic {key}"} if has_key else {}
    request = Request(f"http://localhost:{namespace.port}/metrics", headers=headers)
    with urlopen(request, timeout=DEADLINE_S) as answer:  # noqa: S310 (our own)
        return {each.name: each for each in text_string_to_metric_families(answer.read().decode())}


def counts(namespace: RunningNamespace, entity: str) -> dict[str, float]:
    """Return the counters of an entity that are not zero, by the end of their names."""
    prefix = "pairbus_entity_"
    return {
        name.removeprefix(prefix): sample.value
        for name, family in families(namespace).items()
        if name.startswith(prefix) and family.type == "counter"
        for sample in family.samples
        if sample.labels["entity"] == entity and sample.value
    }


@pytest.fixture
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace(queues=["Orders"], topics={"news": ["all"]}) as running:
        yield running


def connect(namespace: RunningNamespace) -> WireClient:
    return WireClient(namespace.port, sasl=plain(ROOT, namespace.key)).open()


def test_sent_received_completed_and_dead_lettered_messages_are_counted(namespace: RunningNamespace) -> None:
    payload = text_message(b"x" * 1_000)
    with connect(namespace) as client:
        sender = client.sender("orders")
        for _ in range(3):
            client.send(sender, payload)
        receiver = client.receiver("orders")
        client.settle(client.receive_one(receiver), ACCEPTED)
        client.settle(client.receive_one(receiver), Rejected())
        dead = client.receiver("orders/$DeadLetterQueue")
        client.settle(client.receive_one(dead), ACCEPTED)
    size = len(payload)
    assert counts(namespace, "Orders") == {
        "messages_sent": 3,
        "messages_received": 2,
        "messages_completed": 1,
        "messages_dead_lettered": 1,
        "sent_bytes": 3 * size,
        "received_bytes": 2 * size,
    }
    assert counts(namespace, "Orders/$DeadLetterQueue")["messages_completed"] == 1
    labels = {
        tuple(sorted(each.labels.items())) for each in families(namespace)["pairbus_entity_messages_sent"].samples
    }
    assert (("entity", "Orders"), ("kind", "queue")) in labels


def test_messages_of_a_topic_are_counted_there_and_at_its_subscriptions(namespace: RunningNamespace) -> None:
    with connect(namespace) as client:
        client.send(client.sender("news"), text_message())
        client.settle(client.receive_one(client.receiver("news/Subscriptions/all")), ACCEPTED)
    assert counts(namespace, "news").keys() == {"messages_sent", "sent_bytes"}
    assert counts(namespace, "news/Subscriptions/all")["messages_completed"] == 1


def test_expired_messages_are_counted(namespace: RunningNamespace) -> None:
    short = QueueDescription(default_time_to_live_ms=1_000)
    kept = QueueDescription(default_time_to_live_ms=1_000, dead_letter_on_expiration=True)
    namespace.call(lambda host: host.use_namespace().create_queue("short", short, host.now_ms()))
    namespace.call(lambda host: host.use_namespace().create_queue("kept", kept, host.now_ms()))
    with connect(namespace) as client:
        for name in ("short", "kept"):
            client.send(client.sender(name), text_message())
    eventually(lambda: counts(namespace, "short").get("messages_expired") == 1)
    assert "messages_dead_lettered" not in counts(namespace, "short")
    eventually(lambda: counts(namespace, "kept").get("messages_expired") == 1)
    assert counts(namespace, "kept")["messages_dead_lettered"] == 1


def test_without_a_key_no_entity_is_named(namespace: RunningNamespace) -> None:
    assert not any(name.startswith("pairbus_entity_") for name in families(namespace, has_key=False))


def test_entities_beyond_the_limit_and_deleted_ones_are_counted_together() -> None:
    queues = [f"q{number}" for number in range(4)]
    with running_namespace(queues=queues, max_entity_metrics=2) as namespace:
        with connect(namespace) as client:
            for queue in queues:
                client.send(client.sender(queue), text_message())
        assert counts(namespace, "q0")["messages_sent"] == 1
        assert counts(namespace, "q3") == {}
        assert counts(namespace, "other")["messages_sent"] == 2
        found = families(namespace)
        sizes = {each.labels["entity"]: each.value for each in found["pairbus_entity_size_bytes"].samples}
        assert sizes.keys() == {"q0", "q1", "other"}
        assert sizes["other"] == 2 * sizes["q0"] > 0
        active = {
            each.labels["entity"]: each.value
            for each in found["pairbus_entity_messages"].samples
            if each.labels["state"] == "active"
        }
        assert active == {"q0": 1, "q1": 1, "other": 2}
        namespace.call(lambda host: host.use_namespace().delete(Address.of("q0"), host.now_ms()))
        assert counts(namespace, "q0") == {}
        assert counts(namespace, "other")["messages_sent"] == 3


def test_no_entity_has_its_own_counters_with_a_limit_of_zero() -> None:
    with running_namespace(queues=["orders"], max_entity_metrics=0) as namespace:
        with connect(namespace) as client:
            client.send(client.sender("orders"), text_message())
        assert counts(namespace, "other")["messages_sent"] == 1
        samples = families(namespace)["pairbus_entity_messages_sent"].samples
        assert [each.labels["entity"] for each in samples] == ["other"]


def test_commits_are_counted_by_duration(namespace: RunningNamespace) -> None:
    with connect(namespace) as client:
        client.send(client.sender("orders"), text_message())
    family = families(namespace)["pairbus_commit_seconds"]
    assert family.type == "histogram"
    values = {(each.name.rpartition("_")[2], each.labels.get("le")): each.value for each in family.samples}
    assert values["bucket", "+Inf"] == values["count", None] > 0
    buckets = [value for (name, _), value in values.items() if name == "bucket"]
    assert buckets == sorted(buckets)
    assert values["sum", None] > 0


class Noted:
    """Remembers the events that it gets."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def note(self, event: MessageEvent, address: Address, record: Record, body: bytes | None = None, /) -> None:
        self.events.append((event, address, record, body))

    def wants_found(self) -> bool:
        return True

    def wants_body(self, address: Address, /) -> bool:
        return address.entity == "backlog"

    def note_gone(self, address: Address, /) -> None:
        self.events.append(address)


def test_events_are_passed_on_to_the_next_sink() -> None:
    noted = Noted()
    traffic = EntityTraffic(then=noted)
    record = Record(0, 0, 0, 0, 0, "", None, None, None, None, 0)
    address = Address.of("orders")
    for event in MessageEvent:
        traffic.note(event, address, record, b"body")
    traffic.note_gone(address)
    assert noted.events == [*((event, address, record, b"body") for event in MessageEvent), address]
    assert traffic.wants_body(Address.of("backlog"))
    assert not traffic.wants_body(address)


def test_found_messages_of_a_start_take_no_counters() -> None:
    traffic = EntityTraffic()
    record = Record(0, 0, 0, 0, 0, "", None, None, None, None, 0)
    traffic.note(MessageEvent.FOUND, Address.of("orders", part=QueuePart.DEAD_LETTER), record)
    assert traffic.counts == {}
