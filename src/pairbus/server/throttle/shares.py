"""Fair shares: which entities a node that is short of time denies first."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pairbus.broker import NewMessage
from pairbus.broker.message import partition_key_of
from pairbus.broker.queue import partition_of

_WINDOW: Final = 5
"""Intervals over which the demand is averaged: as many as the readings of the event loop cover."""

SMALLEST_SHARE: Final = 1.0
"""Messages a second that a budget always has, however many others there are."""

_MOST_DEBT_S: Final = 10.0
"""Longest time for which a large batch is held against its sender: clients wait as long before they try again."""


def fair_level(demands: Iterable[float], supply: float) -> float:
    """Return the level at which demands are cut off, so that the rest is the supply; infinity if all are met.

    A demand below the level is met in full: what the small ones leave is divided among the large ones.
    """
    ordered = sorted(demands)
    left = supply
    for met, demand in enumerate(ordered):
        others = len(ordered) - met
        if demand * others > left:
            return left / others
        left -= demand
    return math.inf


class EntityBudgets:
    """The budgets of one entity: one for each of its partitions."""

    def __init__(self, entity: str, partitions: int = 1) -> None:
        self._names = (entity,) if partitions == 1 else tuple(f"{entity}|{number}" for number in range(partitions))

    def charge(self, messages: Sequence[NewMessage], shares: FairShares) -> Mapping[str, int]:
        """Return how many messages each budget has to pay for.

        A message without a partition key can go to any partition: the one with the most left pays for it.
        """
        names = self._names
        if len(names) == 1:
            return {names[0]: len(messages)}
        charged: Counter[str] = Counter()
        for message in messages:
            key = partition_key_of(message)
            if key is None:
                charged[min(names, key=lambda name: shares.used(name) + charged[name])] += 1
            else:
                charged[names[partition_of(key, len(names))]] += 1
        return charged


class FairShares:
    """Divides the messages that a node can take among the budgets from which they are sent.

    While the node is short of time, each budget has the same share, in messages a second. What it sends beyond that is
    denied; a budget that needs less than its share is not affected. Attempts count as demand, denied or not: they take
    time, too.
    """

    def __init__(self) -> None:
        self.share = math.inf
        """Messages a second that each budget may send; infinity while there is enough time for all."""

        self._since_s = -math.inf
        """The start of the current interval."""

        self._demand: Counter[str] = Counter()
        """Messages of the current interval."""

        self._past: deque[tuple[float, Counter[str]]] = deque(maxlen=_WINDOW)
        """The length of each recent interval in seconds, and its messages."""

        self._used_s: dict[str, float] = {}
        """The admitted demand of each budget, in seconds of its share, less the time that has passed.

        It is empty while shares are not limited."""

        self._denied: set[str] = set()
        self._newly_denied: list[str] = []

    def used(self, budget: str) -> float:
        """Return how many messages count against a budget now."""
        return self._demand[budget] if self.share == math.inf else self._used_s.get(budget, 0.0) * self.share

    def admit(self, charged: Mapping[str, int], now_s: float) -> bool:
        """Count the messages of a send; return whether all of its budgets are within their shares."""
        for budget, count in charged.items():
            self._demand[budget] += count
        if self.share == math.inf:
            return True
        limit_s = 1.0 + max(0.0, now_s - self._since_s)
        over = [budget for budget in charged if self._used_s.get(budget, 0.0) >= limit_s]
        for budget in over:
            if budget not in self._denied:
                self._denied.add(budget)
                self._newly_denied.append(budget)
        if over:
            return False
        for budget, count in charged.items():
            self._used_s[budget] = self._used_s.get(budget, 0.0) + count / self.share
        return True

    def divide(self, pressure: float | None, now_s: float) -> None:
        """Start an interval, with new shares. ``pressure`` is the load relative to what is wanted, ``None`` if all is
        well; it was caused by the demand of the same time.
        """
        elapsed_s = max(now_s - self._since_s, 0.001)
        if elapsed_s < math.inf:  # else it is the first one
            self._past.append((elapsed_s, self._demand))
        self._demand = Counter()
        self._since_s = now_s
        self.share = math.inf if pressure is None else self._fair_share(pressure)
        used = {} if self.share == math.inf else self._used_s
        self._used_s = {
            budget: min(used_s - elapsed_s, _MOST_DEBT_S) for budget, used_s in used.items() if used_s > elapsed_s
        }
        if pressure is None:
            self._denied.clear()

    def _fair_share(self, pressure: float) -> float:
        total: Counter[str] = Counter()
        for _, demand in self._past:
            total.update(demand)
        seconds = sum(elapsed_s for elapsed_s, _ in self._past) or 1.0
        demands = [count / seconds for count in total.values()]
        return max(SMALLEST_SHARE, fair_level(demands, sum(demands) / pressure))

    def take_newly_denied(self) -> list[str]:
        """Return the budgets that were denied for the first time since all was well, each once."""
        found, self._newly_denied = self._newly_denied, []
        return found
