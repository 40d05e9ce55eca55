"""The backlog queues of a primary namespace, found in the secondary one."""

from __future__ import annotations

from typing import Final

from pairbus.client.errors import EntityNotFoundError, UnauthorizedError
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.dialect.backlog_path import backlog_path
from pairbus.pairing.backlog import backlog_queues_by_name, in_groups

_MOST_NAMES: Final = 5


async def find_backlog_queues(manager: NamespaceManager, name: str, count: int | None) -> tuple[str, ...]:
    """The paths of all that there are, or of as many as there are said to be. Raises ``MessagingError``."""
    if count is not None:
        return tuple(backlog_path(name, index) for index in range(count))
    try:
        found = await backlog_queues_by_name(manager)
    except UnauthorizedError as error:
        raise UnauthorizedError(
            f"{manager.endpoint} does not let the key of --secondary look for the backlog queues: {error.message}",
            entity=error.entity,
            condition=error.condition,
            hint="check that it is right; if it only lacks the claim Manage, say how many there are: --backlog-queues",
        ) from error
    indexes = found.get(name.lower())
    if indexes is None:
        others = ", ".join(f"'{other}'" for other in sorted(found)[:_MOST_NAMES]) or "nobody"
        raise EntityNotFoundError(
            f"{manager.endpoint} has no backlog queues of '{name}'; it has those of {others}:"
            " --name has to be that of the pair, and --primary and --secondary must not be swapped; pairbus pair makes"
            " what is missing",
            entity=backlog_path(name, 0),
        )
    return tuple(path for _, path in sorted(indexes))


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
