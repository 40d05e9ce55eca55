"""A2: a restart restores everything except locks, and no sequence number is reused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pairbus.broker.descriptions import CorrelationFilter, RuleDescription
from pairbus.broker.entity import EntityInfo
from pairbus.broker.errors import LockLostError, SessionLockLostError
from pairbus.broker.message import Address
from pairbus.broker.transaction import SendOperation
from pairbus.store import MemoryStore, keys
from pairbus.store.keyvalue import apply
from tests.broker.broker import MINUTE, SECOND, Broker, dead, letter, numbers, sql, texts, transfers


def everything(broker: Broker) -> list[object]:
    """Return everything that can be seen of a namespace."""
    seen: list[object] = []
    addresses = [Address.of(info.path) for info in broker.namespace.queues(broker.now_ms)]
    for topic in broker.namespace.topics(broker.now_ms):
        seen += [seen_of(topic), broker.peek(Address.of(topic.path))]
        for info in broker.namespace.subscriptions(topic.path, broker.now_ms):
            addresses.append(Address.of(topic.path, info.path))
            rules = broker.namespace.rules(topic.path, info.path, broker.now_ms)
            seen.append([(rule.position, rule.description, rule.created_ms) for rule in rules])
    for address in addresses:
        seen.append(seen_of(broker.info(address)))
        seen += [broker.peek(part) for part in (address, dead(address), transfers(address))]
    return seen


def seen_of(info: EntityInfo) -> EntityInfo:
    """Return the info without locks, and without the last access time: after a restart no entity is idle."""
    return replace(info, accessed_ms=0, ready_count=info.active_count, locked_count=0, deferred_count=0)


def a_namespace_with_a_past() -> Broker:
    """Create every message state, every kind of rule, and every kind of queue."""
    broker = Broker()
    queue = broker.queue(user_metadata="größe")
    for content in ("ready", "locked", "deferred", "buried", "abandoned", "deferred and locked", "gone"):
        broker.send(queue, letter(content, message_id=content, time_to_live_ms=MINUTE))
    received = dict(zip(texts(found := broker.receive(queue)), found, strict=True))
    broker.release(queue, received["ready"])
    broker.defer(queue, received["deferred"], why="later")
    broker.dead_letter(queue, received["buried"], reason="r", description="d", properties={"n": 1.5})
    broker.abandon(queue, received["abandoned"], seen=True, no=None)
    broker.deferred(queue, broker.defer(queue, received["deferred and locked"]))
    broker.complete(queue, received["gone"])
    broker.schedule(queue, "scheduled", MINUTE)
    broker.namespace.transact([SendOperation(Address.of("nowhere"), [letter("transfer")], via=queue)], broker.now_ms)

    topic = broker.topic("Topic", requires_duplicate_detection=True)
    sub = broker.subscription("Sub", topic="Topic", rule=sql("n > @least", "Sql", "SET y = n * 2", {"@least": 0}))
    wanted = CorrelationFilter(label="l", properties={"n": 1})
    broker.add_rule(sub, RuleDescription(name="correlation", filter=wanted))
    broker.subscription("Other", topic="Topic")
    broker.send(topic, letter("both", user={"n": 1}, message_id="1"))
    broker.schedule(topic, "later", MINUTE, message_id="2")

    partitioned = broker.queue("partitioned", partitioned=True)
    broker.send(partitioned, *(letter(str(number), partition_key=str(number % 5)) for number in range(20)))
    sessions = broker.queue("sessions", requires_session=True)
    broker.send(sessions, letter("s", session_id="one"), letter("", session_id=""))
    broker.send(broker.queue("forwards", forward_to="queue"), "forwarded")
    return broker


def test_a2_restart_restores_long_queues_in_order_with_their_expiries() -> None:
    broker = Broker()
    queue = broker.queue("partitioned", partitioned=True)
    sessions = broker.queue("sessions", requires_session=True)
    count = 25_000  # more than are restored at once
    for number in range(count):
        ttl = MINUTE + number if number % 2 else None
        broker.send(queue, letter(str(number), partition_key=str(number % 7), time_to_live_ms=ttl))
        if number % 100 == 0:
            broker.send(sessions, letter(str(number), session_id=str(number % 300)))
    broker.commit()
    before = everything(broker)
    broker.restart()
    assert broker.keeper.recovery.messages == count + count // 100
    assert everything(broker) == before
    broker.wait(MINUTE + count // 2)
    broker.tidy()
    left = [number for number in range(count) if number % 2 == 0 or number > count // 2]
    assert sorted(int(each) for _ in range(3) for each in texts(broker.receive(queue, count))) == left


def test_a2_restart_restores_everything_except_locks() -> None:
    broker = a_namespace_with_a_past()
    before = everything(broker)
    broker.restart()
    assert everything(broker) == before
    broker.restart()
    assert everything(broker) == before


def test_a2_time_advances_after_a_restart_as_it_would_have() -> None:
    broker, restarted = a_namespace_with_a_past(), a_namespace_with_a_past()
    for each in (broker, restarted):  # locks expire, so that neither side has any
        each.wait(MINUTE - 1)
        each.restart()
    restarted.restart()
    for each in (broker, restarted):
        each.wait(1)
        each.wait(20 * MINUTE)
    assert everything(restarted) == everything(broker)


def test_a2_work_due_while_no_process_ran_is_done_at_the_start() -> None:
    broker = Broker()
    queue = broker.queue(dead_letter_on_expiration=True)
    broker.send(queue, letter("expires", time_to_live_ms=SECOND))
    broker.schedule(queue, "scheduled", SECOND)
    broker.commit()
    broker.now_ms += MINUTE
    broker.crash()
    assert broker.take(queue) == ["scheduled"]
    assert broker.take(dead(queue)) == ["expires"]


def test_a2_locks_do_not_survive_a_restart_and_the_message_is_available_at_once() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "x")
    before = broker.one(queue)
    broker.restart()
    with pytest.raises(LockLostError):
        broker.complete(queue, before)
    assert texts([broker.one(queue)]) == ["x"]


def test_a2_lock_on_a_session_does_not_survive_a_restart_but_its_state_does() -> None:
    broker = Broker()
    queue = broker.queue(requires_session=True)
    token = broker.accept(queue, "s")
    broker.namespace.set_session_state(queue, token, b"state", broker.now_ms)
    broker.restart()
    with pytest.raises(SessionLockLostError):
        broker.namespace.renew_session(queue, token, broker.now_ms)
    assert broker.namespace.session_state(queue, broker.accept(queue, "s"), broker.now_ms) == b"state"


# Sequence numbers


def test_a2_sequence_number_of_the_newest_message_is_not_reused_after_a_restart() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "a", "b")
    broker.take(queue)
    broker.restart()
    assert broker.send(queue, "c") == [3]


def test_a2_no_partition_reuses_a_sequence_number_after_a_restart() -> None:
    broker = Broker()
    queue = broker.queue(partitioned=True)
    given = broker.send(queue, *(letter(str(number), partition_key=str(number)) for number in range(40)))
    broker.take(queue)
    broker.restart()
    given += broker.send(queue, *(letter(str(number), partition_key=str(number)) for number in range(40)))
    assert len(set(given)) == 80


def test_a2_sequence_numbers_of_dead_letters_are_not_reused_after_a_restart() -> None:
    broker = Broker()
    queue = broker.queue()
    seen: list[int] = []
    for content in ("a", "b"):
        broker.send(queue, content)
        broker.dead_letter(queue, broker.one(queue))
        seen += numbers(broker.receive(dead(queue), delete=True))
        broker.restart()
    assert seen == [1, 2]


def test_a2_sequence_number_of_a_scheduled_message_is_not_reused_after_a_restart() -> None:
    broker = Broker()
    topic = broker.topic()
    sequence = broker.schedule(topic, "x", MINUTE)
    broker.namespace.cancel_scheduled(topic, [sequence], broker.now_ms)
    broker.restart()
    assert broker.schedule(topic, "y", MINUTE) == sequence + 1


def test_a2_id_of_a_deleted_entity_is_not_reused() -> None:
    broker = Broker()
    broker.queue("old")
    newest = broker.queue("newest")
    broker.delete(newest)
    broker.restart()
    broker.queue("new")
    assert entity_ids(broker) == [1, 3]


def test_a2_id_of_a_deleted_entity_is_not_reused_after_an_older_one_was_changed() -> None:
    broker = Broker()
    old = broker.queue("old")
    newest = broker.queue("newest")
    broker.delete(newest)
    broker.restart()
    broker.update(old, user_metadata="changed")
    broker.restart()
    broker.queue("new")
    assert entity_ids(broker) == [1, 3]


def entity_ids(broker: Broker) -> list[int]:
    broker.commit()
    return [keys.entity_of(key) for key, _ in broker.store.scan(keys.ENTITY, keys.after(keys.ENTITY))]


def test_a2_messages_of_a_new_entity_are_not_removed_with_those_of_a_deleted_one() -> None:
    broker = Broker()
    old, newest = broker.queue("old"), broker.queue("newest")
    broker.send(newest, "swept")
    broker.delete(newest)
    broker.restart()
    broker.update(old, user_metadata="changed")
    broker.restart()
    new = broker.queue("new")
    broker.send(new, "precious")
    broker.tidy()
    broker.restart()
    assert broker.take(new) == ["precious"]


def test_a2_new_entity_with_an_old_name_is_empty() -> None:
    broker = Broker()
    queue = broker.queue(requires_duplicate_detection=True, requires_session=True)
    broker.send(queue, letter("old", message_id="m", session_id="s"))
    token = broker.accept(queue, "s")
    broker.namespace.set_session_state(queue, token, b"old", broker.now_ms)
    broker.delete(queue)
    broker.restart()
    broker.queue(requires_duplicate_detection=True, requires_session=True)
    assert broker.send(queue, letter("new", message_id="m", session_id="s")) == [1]
    token = broker.accept(queue, "s")
    assert broker.namespace.session_state(queue, token, broker.now_ms) is None
    broker.tidy()
    broker.restart()
    assert texts(broker.peek(queue)) == ["new"]


# Deleted entities


def a_deleted_past(broker: Broker) -> None:
    queue = broker.queue(requires_session=True, requires_duplicate_detection=True)
    broker.topic()
    broker.subscription("a")
    broker.subscription("b")
    for number in range(10):
        broker.send(queue, letter("x", session_id="s", message_id=str(number)))
        broker.send(Address.of("topic"), "shared")
    broker.schedule(Address.of("topic"), "later", MINUTE)
    token = broker.accept(queue, "s")
    broker.dead_letter(queue, broker.one(queue, session_token=token))
    broker.namespace.set_session_state(queue, token, b"state", broker.now_ms)
    broker.delete(queue)
    broker.delete(Address.of("topic"))


def kinds_left(store: object) -> set[bytes]:
    assert isinstance(store, MemoryStore)
    return {key[:1] for key, _ in store.scan(b"\0", b"\xff")}


def test_a2_messages_of_a_deleted_entity_are_removed_step_by_step() -> None:
    broker = Broker()
    a_deleted_past(broker)
    assert broker.namespace.tidy(broker.now_ms, steps=5)
    broker.tidy()
    broker.commit()
    held = {keys.RECORD, keys.BODY, keys.SESSION, keys.DUPLICATE, keys.ENTITY, keys.RULE}
    assert not kinds_left(broker.store) & held


def test_a2_messages_of_a_deleted_entity_are_removed_across_a_restart() -> None:
    broker = Broker()
    a_deleted_past(broker)
    for _ in range(5):
        broker.namespace.tidy(broker.now_ms, steps=5)
        broker.restart()
    broker.tidy()
    broker.commit()
    held = {keys.RECORD, keys.BODY, keys.SESSION, keys.DUPLICATE, keys.ENTITY, keys.RULE}
    assert not kinds_left(broker.store) & held


def test_a2_no_record_of_a_deleted_entity_remains() -> None:
    broker = Broker()
    a_deleted_past(broker)
    broker.tidy()
    broker.restart()
    broker.tidy()
    broker.commit()
    assert kinds_left(broker.store) == {keys.COUNTER, keys.EPOCH}


def test_a2_shared_body_is_kept_until_its_last_copy_is_removed_across_restarts() -> None:
    broker = Broker()
    topic = broker.topic()
    subscriptions = [broker.subscription(name) for name in "abc"]
    broker.send(topic, "x")
    for subscription in subscriptions:
        broker.restart()
        assert broker.take(subscription) == ["x"]
    broker.commit()
    assert keys.BODY not in kinds_left(broker.store)


def test_a2_entities_of_an_earlier_version_work_under_any_name() -> None:
    broker = Broker()
    queue, topic = broker.queue("queue"), broker.topic("topic")
    subscription = broker.subscription("sub", topic="topic", rule=sql("1=1", "rule"))
    broker.commit()
    written = [
        *broker.store.scan(keys.ENTITY, keys.after(keys.ENTITY)),
        *broker.store.scan(keys.RULE, keys.after(keys.RULE)),
    ]
    for key, raw in written:
        found = json.loads(raw[1:])
        found.get("settings", {}).pop("express", None)  # a setting that it did not have
        for name in ("path", "name"):
            if name in found:
                found[name] = f"{found[name]} größe!"
        apply(broker.store, {key: raw[:1] + json.dumps(found).encode()})
    broker.crash()
    queue, topic = Address.of("queue größe!"), Address.of("topic größe!")
    subscription = Address.of(topic.entity, "sub größe!")
    broker.send(queue, "x")
    broker.send(topic, "y")
    broker.update(queue, max_delivery_count=3)
    broker.namespace.update_rule(topic.entity, "sub größe!", sql("2=2", "rule größe!"), broker.now_ms)
    broker.restart()
    assert (broker.take(queue), broker.take(subscription)) == (["x"], ["y"])
    broker.namespace.delete(queue, broker.now_ms)
    broker.namespace.delete(topic, broker.now_ms)
    assert broker.namespace.queues(broker.now_ms) == broker.namespace.topics(broker.now_ms) == []
