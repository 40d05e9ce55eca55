"""E3: links that hold a session, links that wait for one, and their errors when it ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pairbus.broker import Address
from pairbus.dialect.annotations import from_ticks
from pairbus.dialect.conditions import ServiceBusCondition
from pairbus.dialect.management import Operation
from pairbus.wire import (
    ACCEPTED,
    RECEIVER,
    Condition,
    Described,
    Link,
    Modified,
    Rejected,
    Source,
    Symbol,
    Target,
    UInt,
    ULong,
    decode_message,
    encode,
)
from tests.server.amqp.clocked_namespace import ClockedNamespace, clocked_namespace
from tests.server.amqp.wire_client import (
    LinkRefusedError,
    WireClient,
    body_of,
    failures,
    fresh_queue,
    messages_in,
    text_message,
)
from tests.waiting import eventually

FILTER = Symbol("com.microsoft:session-filter")
TIMEOUT = Symbol("com.microsoft:timeout")
LOCKED_UNTIL = Symbol("com.microsoft:locked-until-utc")


@pytest.fixture(scope="module")
def namespace() -> Iterator[ClockedNamespace]:
    with clocked_namespace() as served:
        yield served


@pytest.fixture(autouse=True)
def _no_failures(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert failures(caplog) == []


@pytest.fixture
def queue(namespace: ClockedNamespace) -> str:
    return fresh_queue(namespace, requires_session=True)


def send(client: WireClient, queue: str, session_id: str, *bodies: str) -> None:
    link = client.sender(queue)
    for body in bodies:
        assert client.send(link, text_message(body, group_id=session_id)) == ACCEPTED


def advance(namespace: ClockedNamespace, ms: int) -> None:
    """Advance the time, and let the server notice."""
    namespace.clock.advance(ms)
    namespace.call(lambda host: host.use_namespace().next_due_ms())


def granted(client: WireClient, link: Link) -> str:
    source = client.attach_of(link).attach.source
    assert isinstance(source, Source)
    session_id = (source.filter or {})[FILTER]
    assert isinstance(session_id, str)
    return session_id


def refused(client: WireClient, link: Link) -> str:
    with pytest.raises(LinkRefusedError) as caught:
        client.attached(link)
    assert caught.value.attach.source is None
    assert caught.value.attach.target is None
    return caught.value.error.condition


def links_counted(namespace: ClockedNamespace, kind: str) -> int:
    return namespace._running._running.services.counters.links[kind]


# The grant.


def test_grant_names_the_session_and_its_lock_expiry(
    namespace: ClockedNamespace, client: WireClient, queue: str
) -> None:
    send(client, queue, "a", "one")
    address = f"amqps://localhost:5671/{queue.upper()}"
    before_ms = namespace.clock()
    link = client.session_receiver(address, None)
    answer = client.attach_of(link).attach
    assert answer.source == Source(address=address, filter={FILTER: "a"})
    assert answer.target == Target(address="there")
    assert answer.initial_delivery_count == 0
    assert answer.properties is not None
    ticks = answer.properties[LOCKED_UNTIL]
    assert type(ticks) is int  # a long, in eight bytes
    assert encode(ticks)[0] == 0x81
    assert before_ms + 60_000 <= from_ticks(ticks) <= namespace.clock() + 60_000


@pytest.mark.parametrize("session_id", ["a", "", "ö", "x" * 128])
def test_session_without_messages_can_be_held(client: WireClient, queue: str, session_id: str) -> None:
    assert granted(client, client.session_receiver(queue, session_id)) == session_id


DESCRIPTORS = {"code": ULong(0x137000000C), "name": FILTER}
"""The SDK for Go describes the filter by the code; plain AMQP clients may use the name."""


@pytest.mark.parametrize("descriptor", DESCRIPTORS.values(), ids=DESCRIPTORS)
@pytest.mark.parametrize("session_id", ["a", None], ids=["named", "next"])
def test_described_filter_is_granted_described(
    client: WireClient, queue: str, descriptor: object, session_id: str | None
) -> None:
    send(client, queue, "a", "one")
    link = client.session_receiver(queue, Described(descriptor, session_id))
    answer = client.attach_of(link).attach.source
    assert answer == Source(address=queue, filter={FILTER: Described(descriptor, "a")})
    assert body_of(client.receive_one(link)) == b"one"


def test_described_filter_is_granted_described_after_waiting(client: WireClient, other: WireClient, queue: str) -> None:
    waiting = client.begin_session_receiver(queue, Described(DESCRIPTORS["code"], None))
    client.barrier()
    send(other, queue, "a", "one")
    answer = client.attach_of(client.attached(waiting)).attach.source
    assert answer == Source(address=queue, filter={FILTER: Described(DESCRIPTORS["code"], "a")})


def test_other_filters_are_left_out_of_the_grant(client: WireClient, queue: str) -> None:
    """Check that a filter that is not in the answer is not in force (part 3.5.3 of the standard)."""
    source = Source(address=queue, filter={FILTER: "a", Symbol("apache.org:selector"): "x = 1"})
    link = client.attach(RECEIVER, source=source, target=Target(address="there"))
    answer = client.attach_of(link).attach.source
    assert isinstance(answer, Source)
    assert answer.filter == {FILTER: "a"}


def test_only_messages_of_the_session_are_delivered_in_order(client: WireClient, queue: str) -> None:
    send(client, queue, "b", "other")
    send(client, queue, "a", *map(str, range(20)))
    link = client.session_receiver(queue, "a", credit=100)
    received = client.receive(link, 20)
    assert [body_of(each) for each in received] == [str(number).encode() for number in range(20)]
    client.barrier()
    assert len(client.deliveries(link)) == 20
    assert {decode_message(each.payload).properties.group_id for each in received} == {"a"}


def test_session_held_by_another_is_refused(client: WireClient, other: WireClient, queue: str) -> None:
    client.session_receiver(queue, "a")
    assert refused(other, other.begin_session_receiver(queue, "a")) == ServiceBusCondition.SESSION_CANNOT_BE_LOCKED
    assert refused(client, client.begin_session_receiver(queue, "a")) == ServiceBusCondition.SESSION_CANNOT_BE_LOCKED
    assert granted(other, other.session_receiver(queue, "b")) == "b"


def test_session_of_a_refused_link_is_not_held(client: WireClient, other: WireClient, queue: str) -> None:
    """Check that a refused receive-and-delete link with a maximum message size leaves its session to others."""
    odd = client.begin_session_receiver(queue, "a", deletes=True, max_message_size=1_000)
    assert refused(client, odd) == Condition.NOT_ALLOWED
    assert granted(other, other.session_receiver(queue, "a")) == "a"


# Waiting.


def test_waiter_gets_the_next_session(client: WireClient, other: WireClient, queue: str) -> None:
    waiting = client.begin_session_receiver(queue, None)
    client.barrier()
    assert waiting.peer is None
    send(other, queue, "a", "one")
    assert granted(client, client.attached(waiting)) == "a"
    assert body_of(client.receive_one(waiting)) == b"one"


def test_two_waiters_get_a_session_each_in_turn(client: WireClient, other: WireClient, queue: str) -> None:
    first = client.begin_session_receiver(queue, None)
    second = client.begin_session_receiver(queue, None)
    client.barrier()
    send(other, queue, "a", "one", "two")
    assert granted(client, client.attached(first)) == "a"
    client.barrier()
    assert second.peer is None
    send(other, queue, "b", "three")
    assert granted(client, client.attached(second)) == "b"


def test_waiter_gets_a_released_session(client: WireClient, other: WireClient, queue: str) -> None:
    send(client, queue, "a", "one")
    holding = client.session_receiver(queue, None)
    waiting = other.begin_session_receiver(queue, None)
    other.barrier()
    client.detach(holding)
    assert granted(other, other.attached(waiting)) == "a"


def test_waiter_gets_a_timeout_error(namespace: ClockedNamespace, client: WireClient, queue: str) -> None:
    waiting = client.begin_session_receiver(queue, None, properties={TIMEOUT: UInt(50)})
    assert refused(client, waiting) == ServiceBusCondition.TIMEOUT
    client.barrier()
    eventually(lambda: links_counted(namespace, "session-wait") == 0)
    # New sessions are for others now.
    send(client, queue, "a", "one")
    assert granted(client, client.session_receiver(queue, None)) == "a"


@pytest.mark.parametrize("wait", [None, "soon", UInt(2**32 - 1), -5, True, 2**62], ids=repr)
def test_unusual_timeouts_are_accepted(
    namespace: ClockedNamespace, client: WireClient, queue: str, wait: object
) -> None:
    waiting = client.begin_session_receiver(queue, None, properties={TIMEOUT: wait})
    client.barrier()
    if isinstance(wait, int) and wait <= 1:
        assert refused(client, waiting) == ServiceBusCondition.TIMEOUT
    else:
        send(client, queue, "a", "one")
        assert granted(client, client.attached(waiting)) == "a"


def test_session_for_a_refused_link_goes_to_the_next_waiter(client: WireClient, other: WireClient, queue: str) -> None:
    odd = client.begin_session_receiver(queue, None, deletes=True, max_message_size=1_000)
    client.barrier()
    waiting = other.begin_session_receiver(queue, None)
    other.barrier()
    send(other, queue, "a", "one")
    assert refused(client, odd) == Condition.NOT_ALLOWED
    assert granted(other, other.attached(waiting)) == "a"


def test_detached_waiter_takes_no_session(
    namespace: ClockedNamespace, client: WireClient, other: WireClient, queue: str
) -> None:
    waiting = client.begin_session_receiver(queue, None)
    client.barrier()
    assert links_counted(namespace, "session-wait") == 1
    waiting.detach()
    client.barrier()
    assert links_counted(namespace, "session-wait") == 0
    next_one = other.begin_session_receiver(queue, None)
    other.barrier()
    send(other, queue, "a", "one")
    assert granted(other, other.attached(next_one)) == "a"


@pytest.mark.parametrize("ending", ["end", "hang up"])
def test_disconnected_waiter_takes_no_session(
    namespace: ClockedNamespace, client: WireClient, other: WireClient, queue: str, ending: str
) -> None:
    client.begin_session_receiver(queue, None)
    client.barrier()
    if ending == "end":
        client.first_session.end()
        client.flush()
    else:
        client.hang_up()
    eventually(lambda: links_counted(namespace, "session-wait") == 0)
    send(other, queue, "a", "one")
    assert granted(other, other.session_receiver(queue, None)) == "a"


def test_waiter_gets_an_error_when_the_queue_is_deleted(
    namespace: ClockedNamespace, client: WireClient, queue: str
) -> None:
    waiting = client.begin_session_receiver(queue, None)
    client.barrier()
    namespace.call(lambda host: host.use_namespace().delete(Address.of(queue), host.now_ms()))
    assert refused(client, waiting) == Condition.NOT_FOUND
    client.barrier()


# End of sessions.


def test_messages_of_a_released_session_count_as_undelivered(
    namespace: ClockedNamespace, client: WireClient, other: WireClient, queue: str
) -> None:
    send(client, queue, "a", "one", "two")
    holding = client.session_receiver(queue, "a", credit=2)
    client.receive(holding, 2)
    client.detach(holding)
    assert messages_in(namespace, Address.of(queue)) == [(b"one", 0), (b"two", 0)]
    again = other.session_receiver(queue, "a", credit=2)
    assert [body_of(each) for each in other.receive(again, 2)] == [b"one", b"two"]


@pytest.mark.parametrize("ending", ["hang up", "close", "end"])
def test_session_is_released_when_its_connection_closes(
    namespace: ClockedNamespace, client: WireClient, other: WireClient, queue: str, ending: str
) -> None:
    send(client, queue, "a", "one")
    client.receive(client.session_receiver(queue, "a", credit=1))
    waiting = other.begin_session_receiver(queue, None)
    other.barrier()
    if ending == "hang up":
        client.hang_up()
    elif ending == "close":
        client.engine.close()
    else:
        client.first_session.end()
    client.flush()
    assert granted(other, other.attached(waiting)) == "a"
    assert decode_message(other.receive_one(waiting).payload).header.delivery_count == 0


def test_session_is_lost_when_its_lock_ends(
    namespace: ClockedNamespace, client: WireClient, other: WireClient, queue: str
) -> None:
    send(client, queue, "a", "one", "two")
    holding = client.session_receiver(queue, "a", credit=1)
    delivery = client.receive(holding)[0]
    advance(namespace, 60_001)
    error = client.detached(holding)
    assert error.condition == ServiceBusCondition.SESSION_LOCK_LOST
    assert not delivery.settled
    client.barrier()
    again = other.session_receiver(queue, "a", credit=2)
    counts = [decode_message(each.payload).header.delivery_count for each in other.receive(again, 2)]
    assert counts == [1, 0]


def test_settlement_in_a_lost_session_is_refused(namespace: ClockedNamespace, client: WireClient, queue: str) -> None:
    """Settle before the server has noticed that the lock has expired."""
    send(client, queue, "a", "one")
    holding = client.session_receiver(queue, "a", credit=1)
    delivery = client.receive(holding)[0]
    namespace.clock.advance(60_001)
    delivery.link.update(delivery, ACCEPTED)
    client.flush()
    assert client.detached(holding).condition == ServiceBusCondition.SESSION_LOCK_LOST
    if delivery.settled:
        assert isinstance(delivery.state, Rejected)
        assert delivery.state.error is not None
        assert delivery.state.error.condition in {
            ServiceBusCondition.SESSION_LOCK_LOST,
            ServiceBusCondition.MESSAGE_LOCK_LOST,
        }
    assert messages_in(namespace, Address.of(queue)) == [(b"one", 1)]


def test_session_that_is_renewed_is_not_lost(namespace: ClockedNamespace, client: WireClient, queue: str) -> None:
    send(client, queue, "a", "one")
    holding = client.session_receiver(queue, "a", credit=1)
    delivery = client.receive(holding)[0]
    node = client.requests(f"{queue}/$management")
    for _ in range(3):
        advance(namespace, 40_000)
        answer = node.call(Operation.RENEW_SESSION_LOCK, {"session-id": "a"}, link=holding.name)
        assert answer.status == 200
    assert client.settle(delivery, ACCEPTED) == ACCEPTED


def test_lost_session_goes_to_the_waiter(
    namespace: ClockedNamespace, client: WireClient, other: WireClient, queue: str
) -> None:
    send(client, queue, "a", "one")
    holding = client.session_receiver(queue, "a")
    waiting = other.begin_session_receiver(queue, None)
    other.barrier()
    advance(namespace, 60_001)
    assert granted(other, other.attached(waiting)) == "a"
    assert client.detached(holding).condition == ServiceBusCondition.SESSION_LOCK_LOST
    # The old holder's late detach takes nothing from the new one.
    client.barrier()
    assert body_of(other.receive_one(waiting)) == b"one"


def test_message_abandoned_in_a_session_is_delivered_next(client: WireClient, queue: str) -> None:
    send(client, queue, "a", "one", "two")
    link = client.session_receiver(queue, "a")
    first = client.receive_one(link)
    state: Any = Modified(delivery_failed=True, undeliverable_here=False)
    assert client.settle(first, state) == state
    again = client.receive_one(link)
    assert (body_of(again), decode_message(again.payload).header.delivery_count) == (b"one", 1)


def test_session_that_is_received_and_deleted(namespace: ClockedNamespace, client: WireClient, queue: str) -> None:
    send(client, queue, "a", "one", "two")
    link = client.session_receiver(queue, "a", credit=5, deletes=True)
    assert all(delivery.settled for delivery in client.receive(link, 2))
    assert messages_in(namespace, Address.of(queue)) == []


@pytest.mark.parametrize("session_id", ["a", None], ids=["named", "next"])
@pytest.mark.parametrize("waits", [False, True], ids=["at once", "after waiting"])
def test_session_that_is_received_and_deleted_is_held_as_long_as_its_link(
    namespace: ClockedNamespace,
    client: WireClient,
    other: WireClient,
    queue: str,
    session_id: str | None,
    waits: bool,
) -> None:
    """No SDK renews the lock on a session in that mode."""
    if not waits:
        send(other, queue, "a", "one")
    waiting = client.begin_session_receiver(queue, session_id, deletes=True)
    if waits:
        client.barrier()
        send(other, queue, "a", "one")
    link = client.attached(waiting)
    assert body_of(client.receive_one(link)) == b"one"
    node = client.requests(f"{queue}/$management")
    advance(namespace, 59_000)
    assert node.call(Operation.RENEW_SESSION_LOCK, {"session-id": "a"}, link=link.name).status == 200
    advance(namespace, 3_600_000)
    assert refused(other, other.begin_session_receiver(queue, "a")) == ServiceBusCondition.SESSION_CANNOT_BE_LOCKED
    send(other, queue, "a", "two")
    assert body_of(client.receive_one(link)) == b"two"
    client.detach(link)
    assert granted(other, other.session_receiver(queue, "a")) == "a"


def test_session_of_a_deleted_queue(namespace: ClockedNamespace, client: WireClient, queue: str) -> None:
    link = client.session_receiver(queue, "a")
    namespace.call(lambda host: host.use_namespace().delete(Address.of(queue), host.now_ms()))
    assert client.detached(link).condition == Condition.NOT_FOUND
    client.barrier()
