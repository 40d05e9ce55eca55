"""The processor time that a message takes in the broker on its way through a topic with ten subscriptions.

The store is in memory, and every hundred messages are one batch. The message is an ordinary one, of 1 KB, with two
properties that the rules ask for; it is decoded as the server does.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from benchmarks.broker import NOW, make_namespace
from benchmarks.server import payload_of
from pairbus.broker import (
    Address,
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    SqlActionDescription,
    SqlFilterDescription,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
)
from pairbus.broker.descriptions import DEFAULT_RULE
from pairbus.server.messages import MessageView, received_message
from pairbus.store import GroupCommitter, MemoryStore

SUBSCRIPTIONS: Final = 10
MESSAGES: Final = 2_000
GROUP: Final = 100
ROUNDS: Final = 5
TOPIC: Final = Address.of("topic")

_PROPERTIES: Final = "number > {} AND kind = 'order'"
_ACTION: Final = SqlActionDescription("SET seen = 1")


def _sql(least: int) -> RuleDescription:
    return RuleDescription(name=DEFAULT_RULE, filter=SqlFilterDescription(_PROPERTIES.format(least)))


CASES: Final[dict[str, Sequence[RuleDescription]]] = {
    "one subscription, true filter": [RuleDescription(name=DEFAULT_RULE, filter=TrueFilter())],
    "true filters": [RuleDescription(name=DEFAULT_RULE, filter=TrueFilter())] * SUBSCRIPTIONS,
    "false filters": [RuleDescription(name=DEFAULT_RULE, filter=FalseFilter())] * SUBSCRIPTIONS,
    "SQL, all match": [_sql(5)] * SUBSCRIPTIONS,
    "SQL, one matches": [_sql(5), *[_sql(1_000_000)] * (SUBSCRIPTIONS - 1)],
    "SQL, none matches": [_sql(1_000_000)] * SUBSCRIPTIONS,
    "SQL with an action, all match": [replace(_sql(5), action=_ACTION)] * SUBSCRIPTIONS,
    "correlation, one matches": [
        RuleDescription(name=DEFAULT_RULE, filter=CorrelationFilter(properties={"kind": kind}))
        for kind in ["order", *map(str, range(SUBSCRIPTIONS - 1))]
    ],
}


def cost_us(rules: Sequence[RuleDescription]) -> float:
    """Return the processor time of a message, in microseconds."""
    committer = GroupCommitter(MemoryStore(), partial(make_namespace, view=MessageView), NOW)
    committer.namespace.create_topic("topic", TopicDescription(max_size_megabytes=1_000_000), NOW)
    for number, rule in enumerate(rules):
        committer.namespace.create_subscription("topic", f"sub-{number}", SubscriptionDescription(), NOW, rule)
    messages = [received_message(payload_of(number)) for number in range(10, 10 + MESSAGES)]
    rounds = []
    for _ in range(ROUNDS):
        spent = 0.0
        for first in range(0, MESSAGES, GROUP):
            start = time.process_time()
            for message in messages[first : first + GROUP]:
                committer.namespace.send(TOPIC, (message,), NOW)
            spent += time.process_time() - start
            committer.commit(NOW)
        rounds.append(spent / MESSAGES * 1e6)
    return statistics.median(rounds)


def report() -> None:
    print(f"A message through a topic with {SUBSCRIPTIONS} subscriptions: processor time in the broker (µs)")
    for name, rules in CASES.items():
        print(f"{name:40}{cost_us(rules):8.1f}")


if __name__ == "__main__":
    report()
