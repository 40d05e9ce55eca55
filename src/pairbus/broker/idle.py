"""Entities that delete themselves when nobody uses them."""

from __future__ import annotations

from collections.abc import Callable

from pairbus.broker.entity import Entity, TopicEntity


class Idle:
    """Watches one entity. What forwards, or has something scheduled, is never idle."""

    __slots__ = ("_delete", "_entity", "_in_use_ms", "_is_alive", "planned_ms")

    def __init__(self, entity: Entity, delete: Callable[[Entity], None], is_alive: Callable[[Entity], bool]) -> None:
        self._entity = entity
        self._delete = delete
        self._is_alive = is_alive
        self._in_use_ms = 0
        self.planned_ms: int | None = None

    def next_ms(self) -> int | None:
        idle_ms = self._entity.description.auto_delete_on_idle_ms
        return (
            None
            if idle_ms is None or not self._is_alive(self._entity)
            else max(self._entity.accessed_ms, self._in_use_ms) + idle_ms
        )

    def run(self, at_ms: int, _limit: int) -> int:
        due_ms = self.next_ms()
        if due_ms is not None and due_ms <= at_ms:
            if self._is_in_use():
                self._in_use_ms = at_ms
            else:
                self._delete(self._entity)
        return 1

    def _is_in_use(self) -> bool:
        if isinstance(self._entity, TopicEntity):
            return bool(self._entity.intake.scheduled)
        return self._entity.description.forward_to is not None or bool(self._entity.main.scheduled)
