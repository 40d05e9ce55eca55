"""The backlog queues of a primary namespace, found in the secondary one."""

from __future__ import annotations

from typing import Final

from pairbus.client.errors import EntityNotFoundError, UnauthorizedError
from pairbus.client.factory import MessagingFactory
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.dialect.backlog_path import backlog_path
from pairbus.pairing.backlog import backlog_queues_by_name, in_groups
from pairbus.pairing.primary_names import PrimaryNames

_MOST_NAMES: Final = 5


async def find_backlog_queues(
    manager: NamespaceManager, secondary: MessagingFactory, names: PrimaryNames, count: int | None
) -> tuple[str, ...]:
    """Return the paths of all backlog queues that there are under any name of the primary, or of ``count`` of each.

    Raises ``MessagingError``.
    """
    if count is not None:
        used = [name for name in names.names if len(names.names) == 1 or await _can_be_read(secondary, name)]
        return tuple(backlog_path(name, index) for name in used or names.names[:1] for index in range(count))
    try:
        found = await backlog_queues_by_name(manager)
    except UnauthorizedError as error:
        raise UnauthorizedError(
            f"{manager.endpoint} does not let the key of --secondary look for the backlog queues: {error.message}",
            entity=error.entity,
            condition=error.condition,
            hint="check that it is right; if it only lacks the claim Manage, say how many there are: --backlog-queues",
        ) from error
    queues = [sorted(found.get(name.lower(), ())) for name in names.names]
    if not any(queues):
        name = names.names[0]
        others = ", ".join(f"'{other}'" for other in sorted(found)[:_MOST_NAMES]) or "nobody"
        raise EntityNotFoundError(
            f"{manager.endpoint} has no backlog queues of '{name}'; it has those of {others}:"
            " --name has to be that of the pair, and --primary and --secondary must not be swapped; pairbus pair makes"
            " what is missing",
            entity=backlog_path(name, 0),
        )
    return tuple(path for indexes in queues for _, path in indexes)


async def _can_be_read(secondary: MessagingFactory, name: str) -> bool:
    """Return whether there are backlog queues of that name, which a key can find out that has no claim but Listen."""
    async with await secondary.create_message_receiver(backlog_path(name, 0)) as receiver:
        try:
            await receiver.peek(1, 0)
        except EntityNotFoundError:
            return False
    return True


class BacklogDepth:
    """How many messages lie in backlog queues, as far as the key may ask."""

    def __init__(self, manager: NamespaceManager, queues: tuple[str, ...]) -> None:
        self._manager = manager
        self._queues = queues
        self._may_ask = True

    async def ask(self) -> int | None:
        """``None`` if the key has not the claim to; raises ``MessagingError``."""
        if not self._may_ask:
            return None
        try:
            infos = await in_groups(self._manager.get_queue_runtime_info, self._queues)
        except UnauthorizedError:
            self._may_ask = False
            return None
        return sum(info.active_message_count + info.scheduled_message_count for info in infos)
