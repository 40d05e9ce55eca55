"""What the broker needs to have kept for it: the seam to the store.

The broker holds a compact index in memory and writes every fact that must survive through this port. All that one
operation writes belongs together: the store makes it durable as a whole or not at all. What was written can be read
back at once, durable or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from pairbus.broker.address import Place
from pairbus.broker.descriptions import AuthorizationRule, EntityRecord, RuleDescription
from pairbus.broker.message import Record


class Records(Protocol):
    """Reads give ``None`` for what is damaged or not there."""

    def admit(self, size_bytes: int, records: int = 1) -> None:
        """Raise an error of the store's own if there is no room for that many bytes of bodies, and records."""

    def record(self, place: Place, sequence: int) -> Record | None: ...

    def put_record(self, place: Place, record: Record) -> None: ...

    def remove_record(self, place: Place, sequence: int) -> None: ...

    def set_aside(self, place: Place, sequence: int) -> None:
        """Take a record that cannot be read out of service, without throwing it away."""

    def set_aside_body(self, body_id: int) -> None:
        """Keep a copy of a body that cannot be read; the body itself is removed with its last record."""

    def body(self, body_id: int) -> bytes | None: ...

    def put_body(self, body_id: int, body: bytes) -> None: ...

    def remove_body(self, body_id: int) -> None: ...

    def put_last_sequence(self, place: Place, partition: int, sequence: int) -> None: ...

    def remove_last_sequence(self, place: Place, partition: int) -> None: ...

    def put_last_entity_id(self, entity_id: int) -> None: ...

    def put_entity(self, entity: EntityRecord) -> None: ...

    def remove_entity(self, entity_id: int) -> None: ...

    def put_access(self, rules: tuple[AuthorizationRule, ...]) -> None: ...

    def put_rule(self, entity_id: int, position: int, rule: RuleDescription, created_ms: int) -> None: ...

    def remove_rule(self, entity_id: int, position: int) -> None: ...

    def session_state(self, entity_id: int, session_id: str) -> bytes | None: ...

    def put_session_state(self, entity_id: int, session_id: str, state: bytes | None, updated_ms: int) -> None: ...

    def duplicate(self, entity_id: int, key: str) -> tuple[int, int] | None:
        """Return when an id was seen first, and the number of the message that had it."""

    def duplicates(self, entity_id: int) -> Iterator[tuple[str, int]]:
        """Go through the ids of an entity, each with when it was seen first.

        What is written meanwhile may be among them or not, and the same id twice; what was written before is.
        """

    def put_duplicate(self, entity_id: int, key: str, first_ms: int, sequence: int) -> None: ...

    def remove_duplicate(self, entity_id: int, key: str) -> None: ...
