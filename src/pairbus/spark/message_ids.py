"""The ids of messages that are given none, made so that a task that is run again sends the same ones.

A task that fails is run again from its first row, and so is a batch whose query was killed before it was committed.
Where the entity detects duplicates, that does no harm if a row has the same id each time. Spark gives a row no identity
of its own, so one is made of four things.

* The **scope**: the query's id, which is kept in its checkpoint, and the batch's number; for a write that is no stream,
  what the user calls it (``messageIdPrefix``) or else something random that is drawn once, on the driver.
* The **partition**: a task that is run again has the same one.
* The **content**. The place of a row within its partition would not do: behind a shuffle the rows may come in another
  order the next time, and a message under the id of another one that has been sent would be dropped as its duplicate.
* Its **occurrence**: the second row of the same content within a partition is a message of its own.

So an id may come out differently, where a query computes other rows the second time or has other partitions, and then
a message arrives twice. It never comes out the same for two messages of one write, so none is lost.

To count occurrences takes memory for each row, so it is done for so many. From there on the place in the partition
takes their part: those that come in another order the next time arrive twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from pyspark import TaskContext

_DIGEST_BYTES: Final = 16
_MOST_COUNTED: Final = 200_000
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What the ids of one task's messages have in common."""

    prefix: str | None = None
    """How the ids begin."""

    nonce: str
    """What tells a write from all others that have no name."""

    query: str | None = None
    batch: str | None = None
    partition: int = 0

    @classmethod
    def of_this_task(cls, prefix: str | None, nonce: str, *, is_stream: bool) -> Scope:
        """The scope of the task that runs here; a stream is known by its query, wherever it is started again."""
        task = TaskContext.get()
        query = None if task is None else task.getLocalProperty(_QUERY)
        # A write within foreachBatch is one of many that the batch may do, so it needs a name to be known again.
        is_known = prefix is not None or (is_stream and query is not None)
        return cls(
            prefix=prefix,
            nonce="" if is_known else nonce,
            query=query,
            batch=None if task is None else task.getLocalProperty(_BATCH),
            partition=0 if task is None else task.partitionId(),
        )


class MessageIds:
    """Makes the ids of one task's messages."""

    def __init__(self, scope: Scope, most_counted: int = _MOST_COUNTED) -> None:
        self._start = "" if scope.prefix is None else f"{scope.prefix}-"
        self._seed = blake2b(repr(scope).encode(), digest_size=_DIGEST_BYTES)
        self._most_counted = most_counted
        self._occurrences: dict[bytes, int] = {}
        self._place = 0

    def next_id(self, content: bytes, rest: Sequence[object]) -> str:
        """The id of the next message, which is made of this content and of what else it has."""
        content_hash = self._seed.copy()
        content_hash.update(repr((len(content), rest)).encode("utf-8", "surrogatepass"))
        content_hash.update(content)
        digest = content_hash.digest()
        self._place += 1
        occurrence = self._occurrences.get(digest, 0)
        if occurrence:
            content_hash.update(b"#%d" % occurrence)
        elif len(self._occurrences) >= self._most_counted:
            content_hash.update(b"@%d" % self._place)
            return self._start + content_hash.hexdigest()
        self._occurrences[digest] = occurrence + 1
        return self._start + content_hash.hexdigest()
