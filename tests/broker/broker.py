"""A namespace for tests: on a store in memory, with a clock that only tests move, and nothing random."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Final
from uuid import UUID

from pairbus.broker import SettlementKind, SettlementRequest
from pairbus.broker.descriptions import (
    QueueDescription,
    RuleDescription,
    SqlActionDescription,
    SqlFilterDescription,
    SubscriptionDescription,
    TopicDescription,
    Value,
)
from pairbus.broker.entity import EntityInfo
from pairbus.broker.limits import STANDARD, Limits
from pairbus.broker.message import Address, DeliveredMessage, NewMessage, QueuePart
from pairbus.broker.namespace import Namespace
from pairbus.broker.ports import Records
from pairbus.broker.sql import MISSING, Missing
from pairbus.store import KeyValueStore, MemoryStore
from pairbus.store.group_committer import GroupCommitter, Wake

START: Final = 1_700_000_000_000
"""Start time of every test."""

SECOND: Final = 1_000
MINUTE: Final = 60 * SECOND
LOCK: Final = MINUTE
"""Default lock duration."""

UNKNOWN_TOKEN: Final = b"a token that was never given"


def letter(
    text: str = "",
    *,
    user: Mapping[str, Value] | None = None,
    system: Mapping[str, Value] | None = None,
    **fields: Any,
) -> NewMessage:
    """Return a message with a text. ``user`` and ``system`` are the properties that rules find in it."""
    body = json.dumps({"text": text, "user": dict(user or {}), "system": dict(system or {})}).encode()
    return NewMessage(body, **fields)


def blob(size: int, **fields: Any) -> NewMessage:
    """Return a message of exactly that many bytes."""
    return NewMessage(bytes(size), **fields)


def ping(**fields: Any) -> NewMessage:
    """Return the message that a client sends to check whether an entity works (C13)."""
    return NewMessage(b"content-type: application/vnd.ms-servicebus-ping", time_to_live_ms=SECOND, ping=True, **fields)


def sql(
    expression: str,
    name: str = "rule",
    action: str | None = None,
    parameters: Mapping[str, Value] | None = None,
) -> RuleDescription:
    """Return a rule with an SQL filter, and an optional action."""
    return RuleDescription(
        name=name,
        filter=SqlFilterDescription(expression, parameters or {}),
        action=None if action is None else SqlActionDescription(action),
    )


def text(delivery: DeliveredMessage) -> str:
    return str(json.loads(delivery.body)["text"])


def texts(deliveries: Sequence[DeliveredMessage]) -> list[str]:
    return [text(delivery) for delivery in deliveries]


def numbers(deliveries: Sequence[DeliveredMessage]) -> list[int]:
    return [delivery.record.sequence for delivery in deliveries]


def amended(delivery: DeliveredMessage) -> dict[str, Value | Missing]:
    """Return the application properties that were set since the message was sent."""
    amendments = delivery.record.amendments
    return {} if amendments is None else dict(amendments.user)


def reason(delivery: DeliveredMessage) -> Value | Missing:
    return amended(delivery).get("DeadLetterReason")


def dead(address: Address) -> Address:
    return address._replace(part=QueuePart.DEAD_LETTER)


def transfers(address: Address) -> Address:
    return address._replace(part=QueuePart.TRANSFER_DEAD_LETTER)


class View:
    """The properties that ``letter`` has written into a body."""

    def __init__(self, body: bytes) -> None:
        try:
            found = json.loads(body)
        except ValueError:
            found = {"user": {}, "system": {}}
        self._user: dict[str, Value] = {name.lower(): value for name, value in found["user"].items()}
        self._system: dict[str, Value] = found["system"]

    def user(self, name: str) -> Value | Missing:
        return self._user.get(name.lower(), MISSING)

    def system(self, name: str) -> Value:
        return self._system.get(name)


class Broker:
    """A namespace with its committer. Each method is one operation at the time of ``now_ms``."""

    def __init__(self, limits: Limits = STANDARD, store: KeyValueStore | None = None, wake: Wake | None = None) -> None:
        self.now_ms = START
        self.limits = limits
        self.store = MemoryStore() if store is None else store
        self._wake = wake
        self._tokens = count(1)
        self._ids = count(1)
        self.keeper = GroupCommitter(self.store, self._make, self.now_ms, wake)

    def _make(self, records: Records) -> Namespace:
        return Namespace(records, limits=self.limits, view=View, fresh_id=self._fresh_id, fresh_token=self._fresh_token)

    def _fresh_id(self) -> UUID:
        return UUID(int=next(self._ids))

    def _fresh_token(self) -> bytes:
        return next(self._tokens).to_bytes(16, "big")

    @property
    def namespace(self) -> Namespace:
        return self.keeper.use_namespace()

    # Time, and the end of the process

    def wait(self, ms: int) -> None:
        """Advance the time. Due work is done now, not only at the next operation."""
        self.now_ms += ms
        self.namespace.advance(self.now_ms)

    def tidy(self) -> None:
        while self.namespace.tidy(self.now_ms):
            pass

    def commit(self) -> None:
        self.keeper.commit(self.now_ms)

    def restart(self) -> None:
        """End the process when everything is durable, and start a new one."""
        self.commit()
        self.crash()

    def crash(self) -> None:
        """Kill the process, and start a new one: what was not committed is lost."""
        self.keeper = GroupCommitter(self.store, self._make, self.now_ms, self._wake)

    # Entities

    def queue(self, path: str = "queue", **settings: Any) -> Address:
        self.namespace.create_queue(path, QueueDescription(**settings), self.now_ms)
        return Address.of(path)

    def topic(self, path: str = "topic", **settings: Any) -> Address:
        self.namespace.create_topic(path, TopicDescription(**settings), self.now_ms)
        return Address.of(path)

    def subscription(
        self, name: str = "sub", *, topic: str = "topic", rule: RuleDescription | None = None, **settings: Any
    ) -> Address:
        description = SubscriptionDescription(**settings)
        self.namespace.create_subscription(topic, name, description, self.now_ms, rule)
        return Address.of(topic, name)

    def bare_subscription(self, name: str = "sub", *, topic: str = "topic", **settings: Any) -> Address:
        """Create a subscription without any rule."""
        address = self.subscription(name, topic=topic, **settings)
        self.namespace.remove_rule(topic, name, "$Default", self.now_ms)
        return address

    def add_rule(self, subscription: Address, rule: RuleDescription) -> None:
        self.namespace.add_rule(subscription.entity, subscription.subscription or "", rule, self.now_ms)

    def update(self, address: Address, **settings: Any) -> EntityInfo:
        """Change these settings and keep the others."""
        description = self.info(address).description
        kept = {name: getattr(description, name) for name in description.__slots__}
        return self.namespace.update(address, type(description)(**{**kept, **settings}), self.now_ms)

    def delete(self, address: Address) -> None:
        self.namespace.delete(address, self.now_ms)

    def info(self, address: Address) -> EntityInfo:
        return self.namespace.entity(address, self.now_ms)

    # Messages

    def send(self, address: Address, *messages: NewMessage | str) -> list[int | None]:
        letters = [letter(message) if isinstance(message, str) else message for message in messages]
        return self.namespace.send(address, letters, self.now_ms)

    def schedule(self, address: Address, content: str, delay_ms: int, **fields: Any) -> int:
        (sequence,) = self.send(address, letter(content, scheduled_ms=self.now_ms + delay_ms, **fields))
        assert sequence is not None
        return sequence

    def receive(self, address: Address, count: int = 100, **options: Any) -> list[DeliveredMessage]:
        return self.namespace.receive(address, count, self.now_ms, **options)

    def one(self, address: Address, **options: Any) -> DeliveredMessage:
        """Return the next message, which must exist."""
        (delivery,) = self.receive(address, 1, **options)
        return delivery

    def take(self, address: Address, count: int = 100, **options: Any) -> list[str]:
        """Return the texts of messages, received and deleted."""
        return texts(self.receive(address, count, delete=True, **options))

    def peek(
        self, address: Address, from_sequence: int = 0, count: int = 100, **options: Any
    ) -> list[DeliveredMessage]:
        return self.namespace.peek(address, from_sequence, count, self.now_ms, **options)

    def deferred(self, address: Address, *sequences: int, **options: Any) -> list[DeliveredMessage]:
        return self.namespace.receive_deferred(address, sequences, self.now_ms, **options)

    # Settling

    def settle(self, address: Address, delivery: DeliveredMessage, disposition: SettlementKind, **words: Any) -> None:
        assert delivery.lock_token is not None
        verdict = SettlementRequest(disposition=disposition, **words)
        self.namespace.settle(address, delivery.lock_token, self.now_ms, verdict)

    def complete(self, address: Address, delivery: DeliveredMessage) -> None:
        self.settle(address, delivery, SettlementKind.COMPLETE)

    def abandon(self, address: Address, delivery: DeliveredMessage, **properties: Value) -> None:
        self.settle(address, delivery, SettlementKind.ABANDON, properties=properties)

    def defer(self, address: Address, delivery: DeliveredMessage, **properties: Value) -> int:
        """Defer a message; return its sequence number."""
        self.settle(address, delivery, SettlementKind.DEFER, properties=properties)
        return delivery.record.sequence

    def dead_letter(self, address: Address, delivery: DeliveredMessage, **words: Any) -> None:
        self.settle(address, delivery, SettlementKind.DEAD_LETTER, **words)

    def release(self, address: Address, delivery: DeliveredMessage) -> None:
        self.settle(address, delivery, SettlementKind.RELEASE)

    def renew(self, address: Address, delivery: DeliveredMessage) -> int:
        assert delivery.lock_token is not None
        return self.namespace.renew_lock(address, delivery.lock_token, self.now_ms)

    # Sessions

    def accept(self, address: Address, session_id: str | None = None) -> bytes:
        """Return the token of a session, which must be available."""
        grant = self.namespace.accept_session(address, session_id, self.now_ms)
        assert grant is not None
        return grant.session_token

    def let_go(self, address: Address, token: bytes) -> None:
        self.namespace.release_session(address, token, self.now_ms)
