"""The step that makes a message of the backlog what it was: an Arrow batch in, an Arrow batch out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa

from pairbus.dialect.transfer import Transfer, TransferError, restore
from pairbus.pairing.homecoming.bound import bound_for
from pairbus.pairing.homecoming.dead_letter_reason import DeadLetterReason, reason_of
from pairbus.pairing.syphon import TimeToLive

READ: Final = "entity string, sequence_number long, lock_token string, enqueued_time timestamp, payload binary"
"""What is read of the backlog."""

RESTORED: Final = (
    "queue string, number long, token string, destination string, session_id string, payload binary,"
    " reason string, description string"
)
"""What is made of it. ``payload`` is the message as it was sent; where that cannot be, ``reason`` and ``description``
say why, and it is the message as it was read."""

_ARROW: Final = pa.schema(
    [
        ("queue", pa.string()),
        ("number", pa.int64()),
        ("token", pa.string()),
        ("destination", pa.string()),
        ("session_id", pa.string()),
        ("payload", pa.binary()),
        ("reason", pa.string()),
        ("description", pa.string()),
    ]
)


class _Restored(NamedTuple):
    destination: str | None
    session_id: str | None
    payload: bytes
    reason: str | None = None
    description: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoration:
    """Made for ``mapInArrow``, so it is pickled with the plan."""

    time_to_live: TimeToLive

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield self._restored(batch)

    def _restored(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        now_ms = int(time.time() * 1_000)
        enqueued = batch.column("enqueued_time").cast(pa.int64()).to_pylist()
        payloads = batch.column("payload").to_pylist()
        rows = [
            self._restore(payload, now_ms - (0 if at_us is None else at_us // 1_000))
            for payload, at_us in zip(payloads, enqueued, strict=True)
        ]
        columns = [
            pa.array(column, field.type)
            for column, field in zip(zip(*rows, strict=True), list(_ARROW)[3:], strict=True)
        ]
        kept = [batch.column(name) for name in ("entity", "sequence_number", "lock_token")]
        return pa.RecordBatch.from_arrays([*kept, *columns], schema=_ARROW)

    def _restore(self, payload: bytes, age_ms: int) -> _Restored:
        transfer: Transfer | None = None
        try:
            transfer = bound_for(payload)
            left_ms = transfer.time_to_live_ms
            if left_ms is not None and self.time_to_live is TimeToLive.REMAINING:
                left_ms -= max(0, age_ms)
                if left_ms <= 0:
                    return _expired(payload, transfer)
            restored = restore(payload, transfer, time_to_live_ms=left_ms)
        except TransferError as error:
            where = "" if error.path is None else f"the message for '{error.path}': "
            return _Restored(error.path, None, payload, reason_of(error).value, f"{where}{error}")
        return _Restored(transfer.path, transfer.session_id, restored)


def _expired(payload: bytes, transfer: Transfer) -> _Restored:
    text = f"the message for '{transfer.path}' has outlived its time to live in the backlog"
    return _Restored(transfer.path, transfer.session_id, payload, DeadLetterReason.EXPIRED.value, text)
