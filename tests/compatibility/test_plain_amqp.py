"""A client that knows AMQP and nothing of Service Bus: Qpid Proton, with a key and its name as password and user."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from pairbus.testing import RunningNamespace
from tests.compatibility.entities import Entities
from tests.compatibility.waiting import BRIEF_MS
from tests.peers.proton_container import ProtonClient, is_open, proton, reactor
from tests.waiting import eventually

KEY = "RootManageSharedAccessKey"


@pytest.fixture
def namespace(relaxed: RunningNamespace) -> RunningNamespace:
    return relaxed


@pytest.fixture
def entities(namespace: RunningNamespace) -> Entities:
    return Entities(namespace)


@pytest.fixture
def queue(entities: Entities) -> str:
    return entities.queue()


@pytest.fixture
def client(namespace: RunningNamespace) -> Iterator[ProtonClient]:
    with connect(namespace, namespace.key) as client:
        yield client.opened()


def connect(namespace: RunningNamespace, password: str) -> ProtonClient:
    return ProtonClient(
        namespace.port, user=KEY, password=password, sasl_enabled=True, allowed_mechs="PLAIN", allow_insecure_mechs=True
    )


def test_valid_key_is_accepted(client: ProtonClient) -> None:
    assert is_open(client.connection)


def test_wrong_key_is_rejected(namespace: RunningNamespace) -> None:
    with connect(namespace, "wrong") as client:
        client.until(lambda: client.failure)
        assert client.failure.name == "amqp:unauthorized-access"


def test_send_receive_and_accept(client: ProtonClient, queue: str) -> None:
    sender = client.sender(queue)
    sent = proton.Message(id="the id", subject="the subject", body=b"hello", properties={"color": "red", "size": 3})
    assert client.send(sender, sent).remote_state == proton.Delivery.ACCEPTED
    receiver = client.receiver(queue, options=reactor.AtLeastOnce())
    receiver.flow(1)
    (arrival,) = client.receive(1)
    message = arrival.message
    assert (message.id, message.subject, bytes(message.body)) == ("the id", "the subject", b"hello")
    assert message.properties == {"color": "red", "size": 3}
    assert message.annotations["x-opt-sequence-number"] == 1
    assert message.delivery_count == 0
    arrival.delivery.update(proton.Delivery.ACCEPTED)
    arrival.delivery.settle()
    browser = client.receiver(queue, options=reactor.AtLeastOnce())
    browser.drain(1)
    eventually(lambda: browser.credit == 0, step=client.step)
    assert len(client.arrivals) == 1


def test_release_gives_back_and_modified_counts(client: ProtonClient, queue: str) -> None:
    client.send(client.sender(queue), proton.Message(body="hello"))
    receiver = client.receiver(queue, options=reactor.AtLeastOnce())
    counts = []
    for number, outcome in enumerate(
        (proton.Delivery.RELEASED, proton.Delivery.MODIFIED, proton.Delivery.ACCEPTED), start=1
    ):
        receiver.flow(1)
        arrival = client.receive(number)[-1]
        counts.append(arrival.message.delivery_count)
        if outcome == proton.Delivery.MODIFIED:
            arrival.delivery.local.failed = True
        arrival.delivery.update(outcome)
        arrival.delivery.settle()
    assert counts == [0, 0, 1]


def test_rejected_is_dead_lettered(client: ProtonClient, queue: str) -> None:
    client.send(client.sender(queue), proton.Message(body="hello"))
    receiver = client.receiver(queue, options=reactor.AtLeastOnce())
    receiver.flow(1)
    (arrival,) = client.receive(1)
    arrival.delivery.update(proton.Delivery.REJECTED)
    arrival.delivery.settle()
    client.receiver(f"{queue}/$DeadLetterQueue").flow(1)
    assert client.receive(2)[1].message.body == "hello"


def test_settled_when_sent(client: ProtonClient, queue: str) -> None:
    sender = client.sender(queue, options=reactor.AtMostOnce())
    sender.send(proton.Message(body="hello")).settle()
    client.receiver(queue, options=reactor.AtMostOnce()).flow(1)
    (arrival,) = client.receive(1)
    assert arrival.message.body == "hello"
    assert arrival.delivery.settled


def test_every_type_of_property(client: ProtonClient, queue: str) -> None:
    properties: dict[str, Any] = {
        "null": None,
        "bool": True,
        "ubyte": proton.ubyte(255),
        "ushort": proton.ushort(65535),
        "uint": proton.uint(2**32 - 1),
        "ulong": proton.ulong(2**64 - 1),
        "byte": proton.byte(-128),
        "short": proton.short(-32768),
        "int": proton.int32(-(2**31)),
        "long": -(2**63),
        "float": proton.float32(1.5),
        "double": 1.25,
        "char": proton.char("ß"),
        "timestamp": proton.timestamp(1_794_700_000_000),
        "uuid": UUID("12345678-1234-5678-1234-567812345678"),
        "binary": b"\xff\xfe",
        "symbol": proton.symbol("symbolic"),
        "string": "Grüße",
    }
    client.send(client.sender(queue), proton.Message(body="hello", properties=properties))
    client.receiver(queue).flow(1)
    found = client.receive(1)[0].message.properties
    assert {name: type(value) for name, value in found.items() if name != "binary"} == {
        name: type(value) for name, value in properties.items() if name != "binary"
    }
    assert {**found, "binary": bytes(found["binary"])} == properties


def test_missing_address(client: ProtonClient) -> None:
    sender = client.container.create_sender(client.connection, "missing")
    client.until(lambda: sender.remote_condition)
    assert sender.remote_condition.name == "amqp:not-found"


class Witness:
    """Keeps what became of a transaction."""

    def __init__(self) -> None:
        self.happened: list[str] = []

    def on_transaction_declared(self, _event: Any) -> None:
        self.happened.append("declared")

    def on_transaction_committed(self, _event: Any) -> None:
        self.happened.append("committed")

    def on_transaction_aborted(self, _event: Any) -> None:
        self.happened.append("aborted")

    def on_transaction_declare_failed(self, event: Any) -> None:
        self.happened.append(f"not declared: {event.delivery.remote.condition}")

    def on_transaction_commit_failed(self, event: Any) -> None:
        self.happened.append(f"not committed: {event.delivery.remote.condition}")


def declare(client: ProtonClient, witness: Witness) -> Any:
    transaction = client.container.declare_transaction(client.connection, handler=witness)
    client.until(lambda: witness.happened)
    assert witness.happened == ["declared"]
    return transaction


@pytest.mark.parametrize("outcome", ["committed", "aborted"])
def test_transaction(client: ProtonClient, entities: Entities, outcome: str) -> None:
    source = entities.queue(lock_duration_ms=BRIEF_MS if outcome == "aborted" else 60_000)
    target = entities.queue()
    client.send(client.sender(source), proton.Message(body="order"))
    client.receiver(source, options=reactor.AtLeastOnce()).flow(1)
    (arrival,) = client.receive(1)
    witness = Witness()
    transaction = declare(client, witness)
    transaction.send(client.sender(target), proton.Message(body="invoice"))
    transaction.accept(arrival.delivery)
    if outcome == "committed":
        transaction.commit()
    else:
        transaction.abort()
    client.until(lambda: len(witness.happened) > 1)
    assert witness.happened == ["declared", outcome]
    for queue in (source, target):
        client.receiver(queue, name=f"after {queue}").flow(1)
    (found,) = client.receive(2)[1:]  # when it was undone: as soon as the lock has expired
    assert found.message.body == ("invoice" if outcome == "committed" else "order")
