"""Queues, topics and subscriptions for tests, made in the broker itself: most tests are not about making them."""

from __future__ import annotations

import itertools
from typing import Any

from pairbus.broker import QueueDescription, RuleDescription, SubscriptionDescription, TopicDescription
from pairbus.testing import RunningNamespace
from tests.compatibility.values import Subscription


class Entities:
    """Makes entities; each has a name of its own."""

    _numbers = itertools.count(1)

    def __init__(self, namespace: RunningNamespace) -> None:
        self._namespace = namespace

    def name(self, kind: str) -> str:
        """A name that no other entity has."""
        return f"{kind}-{next(self._numbers)}"

    def queue(self, **settings: Any) -> str:
        name = self.name("queue")
        description = QueueDescription(**settings)
        self._namespace.call(lambda host: host.use_namespace().create_queue(name, description, host.now_ms()))
        return name

    def topic(self, **settings: Any) -> str:
        name = self.name("topic")
        description = TopicDescription(**settings)
        self._namespace.call(lambda host: host.use_namespace().create_topic(name, description, host.now_ms()))
        return name

    def subscription(self, topic: str, rule: RuleDescription | None = None, **settings: Any) -> Subscription:
        name = self.name("subscription")
        description = SubscriptionDescription(**settings)
        self._namespace.call(
            lambda host: host.use_namespace().create_subscription(topic, name, description, host.now_ms(), rule)
        )
        return Subscription(topic, name)
