"""The backlog queues of a primary namespace: which exist, how deep they are, and which messages are left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from pairbus.client.errors import EntityNotFoundError, InvalidMessageError, MessagingError, UnauthorizedError
from pairbus.client.factory import MessagingFactory
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.client.receiver import MessageReceiver
from pairbus.dialect.paths import backlog_path
from pairbus.dialect.transfer import TransferError
from pairbus.pairing.backlog import backlog_queues_by_name, in_groups
from pairbus.pairing.primary_names import PrimaryNames
from pairbus.pairing.syphon.interface import destination_key
from pairbus.pairing.syphon.message import read_diverted
from pairbus.spark.locks import messages
from pairbus.spark.sequences import SequenceMarks, last_numbers_of

_PAGE: Final = 500
_MAX_COUNTED: Final = 5_000
"""Maximum number of messages of a queue that are counted."""

_MAX_NAMED: Final = 5
_UNKNOWN: Final = "they were delivered again or are locked by another receiver; run the command again"


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogReport:
    """The messages that are left in the backlog."""

    counts: Mapping[str, int] = field(default_factory=dict)
    """Number of messages by destination."""

    causes: Mapping[str, str] = field(default_factory=dict)
    """The reasons why they were not delivered, by the key of the destination; the empty key is for all others."""

    has_more: bool = False
    """True if there are more messages than were counted."""

    def __bool__(self) -> bool:
        return bool(self.counts)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def cause_of(self, path: str) -> str:
        return self.causes.get(destination_key(path)) or self.causes.get("") or _UNKNOWN

    @property
    def summary(self) -> str:
        least = "at least " if self.has_more else ""
        named = ", ".join(f"'{path}'" for path in [*self.counts][:_MAX_NAMED])
        more = f" and {len(self.counts) - _MAX_NAMED} more" if len(self.counts) > _MAX_NAMED else ""
        return f"{least}{self.total:,} messages still wait in the backlog, for {named}{more}"


class BacklogSnapshot:
    """The messages that were in the backlog at a moment: in each queue, all up to some sequence numbers."""

    def __init__(self, factory: MessagingFactory, last: Mapping[str, SequenceMarks]) -> None:
        self._factory = factory
        self._last = last

    @classmethod
    async def take(cls, factory: MessagingFactory, queues: tuple[str, ...]) -> BacklogSnapshot:
        """Take a snapshot. Raise ``MessagingError``."""
        return cls(factory, {path: await last_numbers_of(factory, path) for path in queues})

    def __bool__(self) -> bool:
        return any(self._last.values())

    async def is_gone(self) -> bool:
        """Return whether no message of it is left. Raise ``MessagingError``."""
        for path, last in self._last.items():
            async with await self._factory.create_message_receiver(path) as receiver:
                if await _destinations(receiver, last, limit=1):
                    return False
        return True

    async def report(self, causes: Mapping[str, MessagingError]) -> BacklogReport:
        """Return which messages of it are left, with the known causes by path. Raise ``MessagingError``."""
        counts: Counter[str] = Counter()
        has_more = False
        for path, last in self._last.items():
            async with await self._factory.create_message_receiver(path) as receiver:
                found = await _destinations(receiver, last)
            counts.update(found)
            has_more |= len(found) >= _MAX_COUNTED
        known = {destination_key(path): " ".join(str(cause).split()) for path, cause in causes.items()}
        return BacklogReport(counts=counts, causes=known, has_more=has_more)


async def _destinations(receiver: MessageReceiver, last: SequenceMarks, limit: int = _MAX_COUNTED) -> list[str]:
    """Return the destination of each message that is left in a queue, up to ``limit``."""
    found: list[str] = []
    async with aclosing(messages(receiver, last.ranges, min(_PAGE, limit))) as left:
        async for message in left:
            found.append(_destination(message.payload))
            if len(found) >= limit:
                break
    return found


def _destination(payload: bytes) -> str:
    try:
        return read_diverted(payload).path
    except (TransferError, InvalidMessageError):
        return ""


async def find_backlog_queues(
    manager: NamespaceManager, secondary: MessagingFactory, names: PrimaryNames, count: int | None
) -> tuple[str, ...]:
    """Return the paths of all existing backlog queues of any name of the primary, or of ``count`` for each name.

    Raise ``MessagingError``.
    """
    if count is not None:
        used = [name for name in names.names if len(names.names) == 1 or await _can_be_read(secondary, name)]
        return tuple(backlog_path(name, index) for name in used or names.names[:1] for index in range(count))
    try:
        found = await backlog_queues_by_name(manager)
    except UnauthorizedError as error:
        raise UnauthorizedError(
            f"{manager.endpoint} does not let the key of --secondary list the backlog queues: {error.message}",
            entity=error.entity,
            condition=error.condition,
            hint="check the key; if it only lacks the claim Manage, set the number of queues with --backlog-queues",
        ) from error
    queues = [sorted(found.get(name.lower(), ())) for name in names.names]
    if not any(queues):
        name = names.names[0]
        others = ", ".join(f"'{other}'" for other in sorted(found)[:_MAX_NAMED]) or "no other name"
        raise EntityNotFoundError(
            f"{manager.endpoint} has no backlog queues of '{name}'; it has those of {others}:"
            " check that --name is that of the pair, and that --primary and --secondary are not swapped; `pairbus pair`"
            " creates missing queues",
            entity=backlog_path(name, 0),
        )
    return tuple(path for indexes in queues for _, path in indexes)


async def _can_be_read(secondary: MessagingFactory, name: str) -> bool:
    """Return whether there are backlog queues of that name; the claim Listen suffices to find out."""
    async with await secondary.create_message_receiver(backlog_path(name, 0)) as receiver:
        try:
            await receiver.peek(1, 0)
        except EntityNotFoundError:
            return False
    return True


class BacklogDepth:
    """The number of messages in backlog queues, if the key has the claim to read it."""

    def __init__(self, manager: NamespaceManager, queues: tuple[str, ...]) -> None:
        self._manager = manager
        self._queues = queues
        self._is_allowed = True

    async def read(self) -> int | None:
        """Return the depth; ``None`` if the key lacks the claim Manage. Raise ``MessagingError``."""
        if not self._is_allowed:
            return None
        try:
            infos = await in_groups(self._manager.get_queue_runtime_info, self._queues)
        except UnauthorizedError:
            self._is_allowed = False
            return None
        return sum(info.active_message_count + info.scheduled_message_count for info in infos)
