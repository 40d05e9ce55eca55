"""What the tokens that a connection has put allow it."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from pairbus.broker import Right
from pairbus.server.access import NEVER_MS, Grant

_MOST_AUDIENCES: Final = 10_000
"""Every link may have a token of its own, and a connection does not have more links."""


class Claims:
    """The grants of one connection, by the path that each was put for; the newest counts.

    A grant covers its path and all below, so a path is looked up by its own beginnings: the cost does not grow with the
    number of tokens.
    """

    def __init__(self) -> None:
        self._grants: dict[str, Grant] = {}
        self._expiries: list[tuple[int, str]] = []
        """A heap; entries whose grant was replaced since are dropped when they come up."""

    def __bool__(self) -> bool:
        return bool(self._grants)

    def __len__(self) -> int:
        return len(self._grants)

    def put(self, path: str, grant: Grant) -> bool:
        """Add a grant; return ``False`` if there are too many."""
        if len(self._grants) >= _MOST_AUDIENCES and path not in self._grants:
            return False
        self._grants[path] = grant
        if grant.expires_ms < NEVER_MS:
            heapq.heappush(self._expiries, (grant.expires_ms, path))
            if len(self._expiries) > 2 * len(self._grants) + 16:
                self._expiries = [(each.expires_ms, name) for name, each in self._ending()]
                heapq.heapify(self._expiries)
        return True

    def allows(self, path: str, rights: Sequence[Right], now_ms: int) -> bool:
        """Return whether one of these rights is granted; if none is needed, always."""
        return not rights or any(
            grant.allows(path, right, now_ms) for grant in self._covering(path) for right in rights
        )

    def who(self, path: str) -> str:
        """Return the name of a key that opens this, or an empty text."""
        return next((grant.who for grant in self._covering(path)), "")

    def next_expiry_ms(self) -> int | None:
        """Return when the next grant ends, or has ended without having been dropped."""
        expiries = self._expiries
        while expiries and not self._is_current(*expiries[0]):
            heapq.heappop(expiries)
        return expiries[0][0] if expiries else None

    def drop_expired(self, now_ms: int) -> None:
        while (due_ms := self.next_expiry_ms()) is not None and due_ms <= now_ms:
            del self._grants[heapq.heappop(self._expiries)[1]]

    def drop_revoked(self, holds: Callable[[Grant], bool]) -> bool:
        """Drop the grants that no longer hold; return whether there were any."""
        revoked = [path for path, grant in self._grants.items() if not holds(grant)]
        for path in revoked:
            del self._grants[path]
        return bool(revoked)

    def _covering(self, path: str) -> Iterator[Grant]:
        """The grants of the namespace, and of each path that this one lies in."""
        for beginning in _beginnings(path):
            grant = self._grants.get(beginning)
            if grant is not None:
                yield grant

    def _ending(self) -> Iterator[tuple[str, Grant]]:
        return ((path, grant) for path, grant in self._grants.items() if grant.expires_ms < NEVER_MS)

    def _is_current(self, expires_ms: int, path: str) -> bool:
        grant = self._grants.get(path)
        return grant is not None and grant.expires_ms == expires_ms


def _beginnings(path: str) -> Iterator[str]:
    yield ""
    end = path.find("/")
    while end >= 0:
        yield path[:end]
        end = path.find("/", end + 1)
    if path:
        yield path
