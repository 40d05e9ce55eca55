"""How many connections each address has (E5)."""

from __future__ import annotations

import asyncio
from collections import Counter


class AddressLimit:
    """Counts connections by the address that they come from."""

    def __init__(self, most: int = 0) -> None:
        """``most`` is how many connections one address may have; 0 for any number."""
        self.most = most
        self.refused_count = 0
        self._counts: Counter[str] = Counter()
        self._addresses: dict[asyncio.BaseTransport, str] = {}

    def add(self, transport: asyncio.BaseTransport) -> bool:
        """Count a connection; return ``False``, without counting it, if its address has too many."""
        address = address_of(transport)
        if self.most and self._counts[address] >= self.most:
            self.refused_count += 1
            return False
        self._addresses[transport] = address
        self._counts[address] += 1
        return True

    def discard(self, transport: asyncio.BaseTransport) -> None:
        """Forget a connection that is closed. To forget it twice is fine."""
        address = self._addresses.pop(transport, None)
        if address is not None:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]


def address_of(transport: asyncio.BaseTransport) -> str:
    """Return the address of the peer, without its port; empty where the transport does not know it."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple | list) and peer else ""
