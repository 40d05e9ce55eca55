"""A namespace on disk, as the tests of what survives use it."""

from __future__ import annotations

from pathlib import Path
from random import Random
from uuid import UUID

from pairbus.broker.limits import RELAXED
from pairbus.broker.message import NO_PROPERTIES, Address, DeliveredMessage, QueuePart
from pairbus.broker.namespace import Namespace
from pairbus.broker.ports import Records
from pairbus.store.group_committer import GroupCommitter

NOW = 1_000_000
QUEUE = Address.of("orders")
DEAD_LETTERS = Address.of("orders", part=QueuePart.DEAD_LETTER)
ALL = 1_000_000


def make_namespace(records: Records) -> Namespace:
    random = Random()  # noqa: S311 (tokens of a test)
    return Namespace(
        records,
        limits=RELAXED,
        view=lambda _: NO_PROPERTIES,
        fresh_id=lambda: UUID(int=random.getrandbits(128)),
        fresh_token=lambda: random.randbytes(16),
    )


def open_keeper(path: Path) -> GroupCommitter:
    """A keeper without a thread: its ``commit`` waits."""
    return GroupCommitter.open(path, make_namespace, NOW)


def contents(namespace: Namespace) -> list[DeliveredMessage]:
    """Every message of the queue and of its dead letters."""
    return [found for address in (QUEUE, DEAD_LETTERS) for found in namespace.peek(address, 0, ALL, NOW)]
