"""What the tokens that a connection has put allow it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pairbus.broker import Right
from pairbus.server.access import NEVER_MS, Grant, covers

_MOST_AUDIENCES: Final = 10_000
"""Every link may have a token of its own, and a connection does not have more links."""


class Claims:
    """The grants of one connection, by the address that each was put for; the newest counts."""

    def __init__(self) -> None:
        self._grants: dict[str, Grant] = {}

    def __bool__(self) -> bool:
        return bool(self._grants)

    def put(self, audience: str, grant: Grant) -> bool:
        """Take a grant in; ``False`` when there are too many."""
        if len(self._grants) >= _MOST_AUDIENCES and audience not in self._grants:
            return False
        self._grants[audience] = grant
        return True

    def allows(self, path: str, rights: Sequence[Right], now_ms: int) -> bool:
        """Whether one of these rights holds; where none is needed, always."""
        return not rights or any(
            grant.allows(path, right, now_ms) for grant in self._grants.values() for right in rights
        )

    def who(self, path: str) -> str:
        """The name of a key that opens this, for the books; empty where there is none."""
        return next((grant.who for grant in self._grants.values() if covers(grant.path, path)), "")

    def next_expiry_ms(self) -> int | None:
        """When the next grant ends, or has ended without having been dropped."""
        return min((grant.expires_ms for grant in self._grants.values() if grant.expires_ms < NEVER_MS), default=None)

    def drop_expired(self, now_ms: int) -> None:
        self._grants = {name: grant for name, grant in self._grants.items() if now_ms < grant.expires_ms}
