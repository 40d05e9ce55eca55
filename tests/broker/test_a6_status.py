"""A6: entity status: active, disabled, send-disabled, receive-disabled."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from pairbus.broker.descriptions import EntityStatus
from pairbus.broker.errors import EntityDisabledError
from pairbus.broker.message import Address, DeliveredMessage
from pairbus.broker.transaction import SendOperation
from tests.broker.broker import LOCK, MINUTE, Broker, dead, letter

ACTIVE, DISABLED = EntityStatus.ACTIVE, EntityStatus.DISABLED
SEND_DISABLED, RECEIVE_DISABLED = EntityStatus.SEND_DISABLED, EntityStatus.RECEIVE_DISABLED


class Setting(NamedTuple):
    """A queue with a locked, a deferred, a ready and a dead-lettered message."""

    broker: Broker
    queue: Address
    locked: DeliveredMessage


def setting(status: EntityStatus) -> Setting:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "locked", "deferred", "buried", "ready")
    locked, deferred, buried = broker.receive(queue, 3)
    broker.defer(queue, deferred)
    broker.dead_letter(queue, buried)
    broker.update(queue, status=status)
    return Setting(broker, queue, locked)


Request = Callable[[Setting], object]

SENDS: dict[str, Request] = {
    "send": lambda at: at.broker.send(at.queue, "x"),
    "schedule": lambda at: at.broker.schedule(at.queue, "x", MINUTE),
    "transact": lambda at: at.broker.namespace.transact([SendOperation(at.queue, [letter("x")])], at.broker.now_ms),
}
RECEIVES: dict[str, Request] = {
    "receive": lambda at: at.broker.one(at.queue),
    "receive and delete": lambda at: at.broker.one(at.queue, delete=True),
    "receive deferred": lambda at: at.broker.deferred(at.queue, 2),
    "receive a dead letter": lambda at: at.broker.one(dead(at.queue)),
    "delete messages": lambda at: at.broker.namespace.delete_messages(at.queue, 1, at.broker.now_ms),
}
OTHERS: dict[str, Request] = {
    "peek": lambda at: at.broker.peek(at.queue)[2],
    "complete": lambda at: at.broker.complete(at.queue, at.locked),
    "abandon": lambda at: at.broker.abandon(at.queue, at.locked),
    "dead-letter": lambda at: at.broker.dead_letter(at.queue, at.locked),
    "defer": lambda at: at.broker.defer(at.queue, at.locked),
    "renew": lambda at: at.broker.renew(at.queue, at.locked),
    "read": lambda at: at.broker.info(at.queue),
    "update": lambda at: at.broker.update(at.queue, user_metadata="x"),
    "list": lambda at: at.broker.namespace.queues(at.broker.now_ms)[0],
    "delete": lambda at: at.broker.delete(at.queue),
    "touch": lambda at: at.broker.namespace.touch(at.queue, at.broker.now_ms),
}


@pytest.mark.parametrize("status", list(EntityStatus))
@pytest.mark.parametrize("request_", SENDS)
def test_a6_status_and_sending(status: EntityStatus, request_: str) -> None:
    at = setting(status)
    before = at.broker.info(at.queue)
    if status in {ACTIVE, RECEIVE_DISABLED}:
        SENDS[request_](at)
        assert at.broker.info(at.queue).message_count == before.message_count + 1
    else:
        with pytest.raises(EntityDisabledError, match=str(status)):
            SENDS[request_](at)
        assert at.broker.info(at.queue) == before


@pytest.mark.parametrize("status", list(EntityStatus))
@pytest.mark.parametrize("request_", RECEIVES)
def test_a6_status_and_receiving(status: EntityStatus, request_: str) -> None:
    at = setting(status)
    before = at.broker.info(at.queue)
    if status in {ACTIVE, SEND_DISABLED}:
        RECEIVES[request_](at)
    else:
        with pytest.raises(EntityDisabledError, match=str(status)):
            RECEIVES[request_](at)
        assert at.broker.info(at.queue) == before


@pytest.mark.parametrize("status", list(EntityStatus))
@pytest.mark.parametrize("request_", OTHERS)
def test_a6_peek_settle_and_manage_work_in_every_status(status: EntityStatus, request_: str) -> None:
    OTHERS[request_](setting(status))


def test_a6_locks_expire_in_a_disabled_entity() -> None:
    at = setting(DISABLED)
    at.broker.wait(LOCK)
    at.broker.update(at.queue, status=ACTIVE)
    assert at.broker.one(at.queue).record.delivery_count == 1


def test_a6_status_survives_a_restart() -> None:
    at = setting(SEND_DISABLED)
    at.broker.restart()
    with pytest.raises(EntityDisabledError):
        at.broker.send(at.queue, "x")


@pytest.mark.parametrize("status", [DISABLED, SEND_DISABLED])
def test_a6_disabled_topic_rejects_sends_and_its_subscriptions_still_deliver(status: EntityStatus) -> None:
    broker = Broker()
    topic, subscription = broker.topic(), broker.subscription()
    broker.send(topic, "before")
    broker.update(topic, status=status)
    with pytest.raises(EntityDisabledError):
        broker.send(topic, "after")
    assert broker.take(subscription) == ["before"]


def test_a6_receive_disabled_subscription_delivers_nothing_and_keeps_messages() -> None:
    broker = Broker()
    topic, subscription = broker.topic(), broker.subscription(status=RECEIVE_DISABLED)
    broker.send(topic, "x")
    with pytest.raises(EntityDisabledError):
        broker.receive(subscription)
    broker.update(subscription, status=ACTIVE)
    assert broker.take(subscription) == ["x"]
