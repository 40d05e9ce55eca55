"""Which message ids an entity has seen lately."""

from __future__ import annotations

from collections import deque

from pairbus.broker.records import Records


class Duplicates:
    """The history of one queue or topic: each id counts from the first message that had it, for the window's length."""

    __slots__ = ("_entity_id", "_history", "_order", "_records", "planned_ms", "window_ms")

    def __init__(self, entity_id: int, window_ms: int, records: Records) -> None:
        self._entity_id = entity_id
        self._records = records
        self._history: dict[str, tuple[int, int]] = {}
        self._order: deque[tuple[int, str]] = deque()
        self.window_ms = window_ms
        self.planned_ms: int | None = None

    def __len__(self) -> int:
        return len(self._history)

    def seen(self, key: str, now_ms: int) -> bool:
        """Whether a message with that id came within the window; what is longer ago may wait to be forgotten."""
        first = self._history.get(key)
        return first is not None and first[0] + self.window_ms > now_ms

    def is_first(self, key: str, sequence: int) -> bool:
        """Whether it is the very message that is remembered, which has come round to where it was."""
        first = self._history.get(key)
        return first is not None and first[1] == sequence

    def remember(self, key: str, now_ms: int, sequence: int) -> None:
        """Note an id, with the number that the message was given first."""
        self._history[key] = (now_ms, sequence)
        self._order.append((now_ms, key))
        self._records.put_duplicate(self._entity_id, key, now_ms, sequence)

    def restore(self, key: str, first_ms: int, sequence: int) -> None:
        """Take in what was remembered before a restart; in the order of time."""
        self._history[key] = (first_ms, sequence)
        self._order.append((first_ms, key))

    def next_ms(self) -> int | None:
        return self._order[0][0] + self.window_ms if self._order else None

    def run(self, at_ms: int, limit: int) -> int:
        """Forget what the window no longer covers."""
        done = 0
        while self._order and self._order[0][0] + self.window_ms <= at_ms and done < limit:
            self._forget(*self._order.popleft())
            done += 1
        return done

    def step(self, _now_ms: int) -> bool:
        """Forget one id, because the entity itself is gone; whether there are more."""
        if self._order:
            self._forget(*self._order.popleft())
        return bool(self._order)

    def _forget(self, first_ms: int, key: str) -> None:
        first = self._history.get(key)
        if first is not None and first[0] == first_ms:  # else it was seen again, and that counts now
            del self._history[key]
            self._records.remove_duplicate(self._entity_id, key)
