"""What lies in the entities of a capture, seen by peeking."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from pairbus.client.factory import MessagingFactory
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.client.received_message import MessageState
from pairbus.client.receiver import MessageReceiver
from pairbus.spark.entity_patterns import resolve_entities
from pairbus.spark.lookout import still_there
from pairbus.spark.numbers import last_number_of
from pairbus.spark.offset import Portion

_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """What was there at some time: the last sequence number of each entity."""

    last: Mapping[str, int]

    @classmethod
    async def take(cls, connection: str, entities: Iterable[str]) -> Self:
        """Raises ``MessagingError``, and ``EntityPatternError`` if a pattern fits nothing."""
        async with (
            NamespaceManager.from_connection_string(connection) as manager,
            MessagingFactory.from_connection_string(connection) as factory,
        ):
            paths = await resolve_entities(entities, manager)
            return cls(last={path: await last_number_of(factory, path) for path in paths})

    async def waiting(self, connection: str, most: int | None = None) -> dict[str, int]:
        """How many messages of it could still be received, or are locked; it stops to count at ``most``."""
        found: dict[str, int] = {}
        async with MessagingFactory.from_connection_string(connection) as factory:
            for path, last in self.last.items():
                async with await factory.create_message_receiver(path) as receiver:
                    if count := await _count(receiver, last, most):
                        found[path] = count
        return found


async def are_gone(connection: str, portions: Mapping[str, Portion]) -> bool:
    """Whether none of these messages is there any more."""
    async with MessagingFactory.from_connection_string(connection) as factory:
        for path, portion in portions.items():
            async with await factory.create_message_receiver(path) as receiver:
                if await still_there(receiver, portion):
                    return False
    return True


async def _count(receiver: MessageReceiver, last: int, most: int | None) -> int:
    count = cursor = 0
    while cursor <= last and (page := await receiver.peek(_AT_ONCE, cursor)):
        count += sum(one.state is MessageState.ACTIVE and one.sequence_number <= last for one in page)
        if most is not None and count >= most:
            break
        cursor = page[-1].sequence_number + 1
    return count
