"""All messages of an entity removed, a few thousand at a time."""

from __future__ import annotations

from typing import Final

from pairbus.broker import Address
from pairbus.server.host import NamespaceHost

_AT_ONCE: Final = 1_000


async def purge(host: NamespaceHost, address: Address) -> int:
    """Remove the messages that came before now and that nobody has; how many. Raises ``BrokerError``, ``StoreError``.

    Locked, deferred and scheduled messages stay.
    """
    before_ms = host.now_ms() + 1
    removed = 0
    while count := host.namespace.delete_messages(address, _AT_ONCE, host.now_ms(), enqueued_before_ms=before_ms):
        removed += count
        await host.durable()
    return removed
