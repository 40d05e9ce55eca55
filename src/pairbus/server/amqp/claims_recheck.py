"""After a change of keys: checks the grants of all connections, some of them in each pass of the event loop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from typing import Final, Protocol

from pairbus.broker import Right
from pairbus.server.access import Grant
from pairbus.store import StoreError

PASS_COST: Final = 500
"""The cost of the grants and connections that one pass handles: some 3 ms at most."""

REVOCATION_COST: Final = 50
"""The cost of ending what a connection has opened; that of checking a grant is 1."""

FIRST_DUE_S: Final = 1.0
LAST_DUE_S: Final = 4.0
"""The deadlines of the first and the last connection: a pass also handles all overdue ones, whatever they cost."""

_RETRY_S: Final = 0.5

Holds = Callable[[Grant], bool]
"""Returns whether the key that proved a grant still gives all of its rights."""

_Proof = tuple[str, str | None, str, str, frozenset[Right]]


class Recheckable(Protocol):
    """A connection whose grants can be checked again."""

    def recheck_claims(self, holds: Holds) -> Generator[int, None, None]:
        """Check one grant at each step; at the last, end what revoked ones authorized. Yield the cost of each step."""

    def fail(self) -> None:
        """Log the error that is being handled, and end the connection."""


class ClaimsRecheck:
    """Checks the grants of all connections again after a change of keys.

    No pass of the loop takes more than its share, unless passes take so long that connections are due: the last one is
    due ``LAST_DUE_S`` after the change. A change during a check does not postpone those that wait.
    """

    def __init__(
        self,
        connections: Collection[Recheckable],
        holds: Holds,
        call_later: Callable[[float, Callable[[], object]], object],
        now_s: Callable[[], float],
    ) -> None:
        self._connections = connections
        self._holds = holds
        self._call_later = call_later
        self._now_s = now_s
        self._due: dict[Recheckable, float] = {}
        """The connections to check and when they are due, in this order."""
        self._steps: Generator[int, None, None] | None = None
        """The check of the first of them, if it has begun."""
        self._verdicts: dict[_Proof, bool] = {}
        """The outcomes since the last change: most grants of a namespace have the same few keys."""
        self._is_scheduled = False

    def __len__(self) -> int:
        return len(self._due)

    def start(self) -> None:
        """Check all connections, now or in later passes of the loop. Call this after each change of keys."""
        self._verdicts.clear()
        self._steps = None
        first_s = self._now_s() + FIRST_DUE_S
        added = [connection for connection in self._connections if connection not in self._due]
        for number, connection in enumerate(added, 1):
            self._due[connection] = first_s + (LAST_DUE_S - FIRST_DUE_S) * number / len(added)
        if not self._is_scheduled:
            self._pass()

    def _pass(self) -> None:
        self._is_scheduled = False
        now_s, cost = self._now_s(), 0
        try:
            while self._due:
                connection, due_s = next(iter(self._due.items()))
                if cost >= PASS_COST and due_s > now_s:
                    self._schedule(0)
                    return
                cost += self._step(connection)
        except StoreError:  # no key can be looked up, so no client can log in either until the store can be read
            self._steps = None
            self._schedule(_RETRY_S)
            return
        self._verdicts.clear()

    def _schedule(self, pause_s: float) -> None:
        self._is_scheduled = True
        self._call_later(pause_s, self._pass)

    def _step(self, connection: Recheckable) -> int:
        """Check the next grant of a connection; return the cost."""
        cost: int | None = None
        if connection in self._connections:
            if self._steps is None:
                self._steps = connection.recheck_claims(self._check)
            try:
                cost = next(self._steps, None)
            except StoreError:
                raise
            except Exception:  # noqa: BLE001 (a defect must not keep the keys of other connections valid)
                connection.fail()
        if cost is None:
            self._steps = None
            del self._due[connection]
            return 1
        return cost

    def _check(self, grant: Grant) -> bool:
        proof = (grant.who, grant.entity, grant.key, grant.signer, grant.rights)
        verdict = self._verdicts.get(proof)
        if verdict is None:
            verdict = self._verdicts[proof] = self._holds(grant)
        return verdict
