"""Queues that take messages, and queues that do not."""

from __future__ import annotations

from dataclasses import replace

from pairbus import EntityStatus, NamespaceManager


async def set_status(connection: str, path: str, status: EntityStatus) -> None:
    async with NamespaceManager.from_connection_string(connection) as manager:
        await manager.update_queue(replace(await manager.get_queue(path), status=status))
