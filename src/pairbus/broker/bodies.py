"""The encoded messages themselves, each kept once however many queues it lies in."""

from __future__ import annotations

from pairbus.broker.message import Record
from pairbus.broker.records import Records


class Bodies:
    """Numbers bodies, and removes each when its last record goes.

    Only bodies that a topic has shared out are counted; every other one belongs to the one record that names it.
    """

    __slots__ = ("_copies", "_last_id", "_records")

    def __init__(self, records: Records) -> None:
        self._records = records
        self._copies: dict[int, int] = {}
        self._last_id = 0

    def keep(self, body: bytes, copies: int) -> int:
        self._last_id += 1
        self._records.put_body(self._last_id, body)
        if copies > 1:
            self._copies[self._last_id] = copies
        return self._last_id

    def share(self, record: Record, copies: int) -> None:
        """One record is about to be replaced by that many."""
        if copies == 0:
            self.release(record)
        elif copies > 1:
            self._copies[record.body_id] = self._copies.get(record.body_id, 1) + copies - 1

    def release(self, record: Record) -> None:
        """A record of this body is gone."""
        left = self._copies.get(record.body_id, 1) - 1 if record.shared else 0
        if left:
            self._copies[record.body_id] = left
        else:
            self._copies.pop(record.body_id, None)
            self._records.remove_body(record.body_id)

    def restore_last_id(self, body_id: int) -> None:
        self._last_id = max(self._last_id, body_id)

    def restore(self, record: Record) -> None:
        self._last_id = max(self._last_id, record.body_id)
        if record.shared:
            self._copies[record.body_id] = self._copies.get(record.body_id, 0) + 1
