"""What lies in the entities of a capture, seen by peeking."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Final, Self

from pairbus.client.amqp.receiving_link import Wish
from pairbus.client.errors import InvalidRequestError, UnauthorizedError
from pairbus.client.factory import MessagingFactory
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.client.receiver import MessageReceiver
from pairbus.dialect.entity_path import split_entity_path
from pairbus.jobs.capture.errors import UncapturableError
from pairbus.spark.entity_patterns import resolve_entities
from pairbus.spark.lookout import active_messages, still_there
from pairbus.spark.numbers import last_numbers_of
from pairbus.spark.offset import Portion
from pairbus.spark.sequence_marks import SequenceMarks

_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """What was there at some time: the last sequence numbers of each entity."""

    last: Mapping[str, SequenceMarks]

    @classmethod
    async def take(cls, connection: str, entities: Iterable[str], *, keep: bool) -> Self:
        """Raises ``MessagingError``, ``EntityPatternError`` if a pattern fits nothing, and ``UncapturableError``."""
        async with (
            NamespaceManager.from_connection_string(connection) as manager,
            MessagingFactory.from_connection_string(connection) as factory,
        ):
            paths = await resolve_entities(entities, manager)
            for path in paths:
                await _expect_no_topic(manager, path)
                if not keep:
                    await _expect_receivable(factory, path)
            return cls(last={path: await last_numbers_of(factory, path) for path in paths})

    async def waiting(self, connection: str, most: int | None = None) -> dict[str, int]:
        """How many messages of it could still be received, or are locked; it stops to count at ``most``."""
        found: dict[str, int] = {}
        async with MessagingFactory.from_connection_string(connection) as factory:
            for path, last in self.last.items():
                async with await factory.create_message_receiver(path) as receiver:
                    if count := await _count(receiver, last, most):
                        found[path] = count
        return found


async def _expect_no_topic(manager: NamespaceManager, path: str) -> None:
    """A topic has no messages of its own, which looks like an empty queue."""
    found = split_entity_path(path)
    with suppress(UnauthorizedError):  # only who may manage the namespace can ask
        is_queue_name = found is not None and found.subscription is None and found.sub_queue is None
        if is_queue_name and await manager.topic_exists(path):
            raise UncapturableError(f"'{path}' is a topic: capture one of its subscriptions, {path}/Subscriptions/NAME")


async def _expect_receivable(factory: MessagingFactory, path: str) -> None:
    """Attach as the query will, and ask for nothing."""
    try:
        link = await factory.open_receiving_link(path, Wish())
    except InvalidRequestError as error:
        raise UncapturableError(
            f"'{path}' cannot be captured: {error}; what requires sessions can be copied, with --keep"
        ) from error
    await link.close()


async def are_gone(connection: str, portions: Mapping[str, Portion]) -> bool:
    """Whether none of these messages is there any more."""
    async with MessagingFactory.from_connection_string(connection) as factory:
        for path, portion in portions.items():
            async with await factory.create_message_receiver(path) as receiver:
                if await still_there(receiver, portion):
                    return False
    return True


async def _count(receiver: MessageReceiver, last: SequenceMarks, most: int | None) -> int:
    count = 0
    async with aclosing(active_messages(receiver, last.ranges, _AT_ONCE)) as found:
        async for _ in found:
            count += 1
            if count == most:
                break
    return count
