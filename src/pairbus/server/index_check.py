"""Supervision of entities: the index of each is compared with the store, and loaded again if it is inconsistent.

Three passes run side by side, for two milliseconds in each turn. The counts of all entities are compared within
seconds, for any number of messages: they find a message that the index lacks, has twice, or does not deliver. Entities
with traffic are then compared with the store, message by message, and so are, slowly, all others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from pairbus.broker import Address, EntityNotFoundError, IndexAudit, IndexFault, Namespace
from pairbus.heartbeat import Heartbeat
from pairbus.server.host import NamespaceHost
from pairbus.server.supervision.supervisor import WINDOW_S, Component, Problem, SupervisedTask, Supervisor
from pairbus.store import StoreError
from pairbus.store.keys import record_key

INDEX: Final = "index"

EVERY_S: Final = 0.1
"""Time between two turns."""

_COUNTS_S: Final = 0.0003
_TOUCHED_S: Final = 0.0007
_TURN_S: Final = 0.001
"""Times of a turn at which the steps of each pass end. The last step of a turn may take half a millisecond longer."""

_COUNTS_EVERY_S: Final = 0.5
_EVERYTHING_EVERY_S: Final = 2.0


class _Pass:
    """A pass of an audit that is repeated, a few steps at a time."""

    def __init__(
        self, begin: Callable[[], Iterator[IndexFault | None]], every_s: float, stopwatch: Callable[[], float]
    ) -> None:
        self._begin = begin
        self._every_s = every_s
        self._stopwatch = stopwatch
        self._steps: Iterator[IndexFault | None] | None = None
        self._began_s = -every_s

    def run(self, until_s: float) -> Iterator[IndexFault]:
        """Take steps until a time, and at least one; yield the faults. A pass that has ended begins again later."""
        if self._steps is None:
            now_s = self._stopwatch()
            if now_s < self._began_s + self._every_s:
                return
            self._began_s = now_s
            self._steps = self._begin()
        for fault in self._steps:
            if fault is not None:
                yield fault
            if self._stopwatch() >= until_s:
                return
        self._steps = None


class _DamagedRanges:
    """The ranges of keys on damaged pages of the store."""

    def __init__(self, host: NamespaceHost) -> None:
        self.host = host
        self._page_count = 0
        self._ranges: list[tuple[bytes, bytes | None]] = []

    def holds(self, entity_id: int) -> bool:
        """Return whether messages of an entity are on a damaged page.

        Those are in the index alone until they are read and quarantined: a reload would forget them without a stub.
        """
        committer = self.host.committer
        pages = committer.damaged_pages[committer.replaced_pages :]
        if len(pages) != self._page_count:
            self._page_count = len(pages)
            self._ranges = [*{(page.low, page.high) for page in pages}]
        if not self._ranges:
            return False
        start, end = record_key(entity_id, 0, 0), record_key(entity_id + 1, 0, 0)
        return any(low < end and (high is None or start < high) for low, high in self._ranges)


class IndexCheck:
    """Audits all entities, a slice in each turn. An entity with a fault becomes a component of its own."""

    def __init__(
        self, host: NamespaceHost, supervisor: Supervisor, stopwatch: Callable[[], float] = time.perf_counter
    ) -> None:
        self.host = host
        self._supervisor = supervisor
        self._stopwatch = stopwatch
        self.heartbeat = Heartbeat()
        self._task = SupervisedTask("pairbus-index-check", self._run, self.heartbeat)
        self._damaged = _DamagedRanges(host)
        self._audited: Namespace | None = None
        self._passes: tuple[tuple[_Pass, float], ...] = ()
        """The passes, and the time of a turn at which each of them ends."""

        self._faults: dict[Address, str] = {}
        """Faults that are not repaired yet, by entity."""

        self._watched_s: dict[Address, float] = {}
        """Entities with a component, and the time of their last fault."""

        host.on_index_fault.add(self._note)
        host.on_rebuilt.add(self._forget_all)

    def start(self) -> None:
        self._restart()
        self._task.start()

    def problem(self) -> Problem | None:
        """Return why the check has ended; ``None`` while it goes on."""
        return self._task.problem()

    def stop(self) -> None:
        self._task.stop()

    async def close(self) -> None:
        await self._task.close()

    async def _run(self) -> None:
        while True:
            await self.heartbeat.sleep(EVERY_S)
            self.check()

    def check(self) -> None:
        """Audit a slice of the namespace; what is found is a problem of the entity."""
        self._unwatch_repaired()
        if self.host.is_paused:  # reading from a storage that does not answer would block the event loop
            return
        try:
            self._audit_slice()
        except StoreError:  # it cannot be read now, which the host reports
            self._restart()

    def _audit_slice(self) -> None:
        namespace = self.host.committer.use_namespace()
        if namespace is not self._audited:
            self._audited = namespace
            self._passes = self._passes_of(namespace.audit(self._damaged.holds))
        began_s = self._stopwatch()
        for each, until_s in self._passes:
            for fault in each.run(began_s + until_s):
                self._note(fault)

    def _passes_of(self, audit: IndexAudit) -> tuple[tuple[_Pass, float], ...]:
        return (
            (_Pass(audit.counts, _COUNTS_EVERY_S, self._stopwatch), _COUNTS_S),
            (_Pass(audit.touched, 0.0, self._stopwatch), _TOUCHED_S),
            (_Pass(audit.everything, _EVERYTHING_EVERY_S, self._stopwatch), _TURN_S),
        )

    def _restart(self) -> None:
        self._audited = None

    # Entities

    def _note(self, fault: IndexFault) -> None:
        address = Address(fault.address.entity, fault.address.subscription)
        self._faults[address] = fault.reason
        self._watched_s[address] = self._stopwatch()
        self._supervisor.add(
            Component(
                name=_name(address),
                kind=INDEX,
                check=lambda: self._problem_of(address),
                restart=lambda: self._reload(address),
                stop=lambda: self._suspend(address),
            )
        )

    def _problem_of(self, address: Address) -> Problem | None:
        reason = self._faults.get(address)
        if reason is None or self.host.is_paused or self._is_on_damaged_page(address):
            return None
        return Problem(reason=f"the index of '{address}' is inconsistent: {reason}")

    def _is_on_damaged_page(self, address: Address) -> bool:
        try:
            entity_id = self.host.committer.use_namespace().entity_id(address)
        except StoreError:  # it cannot be read now, which the host reports
            return True
        return entity_id is not None and self._damaged.holds(entity_id)

    def _reload(self, address: Address) -> None:
        self._faults.pop(address, None)
        try:
            self.host.use_namespace().reload(address, self.host.now_ms())
        except EntityNotFoundError:  # it was deleted meanwhile
            self._unwatch(address)

    def _suspend(self, address: Address) -> None:
        self.host.use_namespace().suspend(address, self.host.now_ms())

    def _unwatch_repaired(self) -> None:
        """Forget entities without a fault in the last minute, unless they were stopped."""
        now_s = self._stopwatch()
        for address, fault_s in [*self._watched_s.items()]:
            if address not in self._faults and now_s - fault_s > WINDOW_S:
                self._unwatch(address)

    def _unwatch(self, address: Address) -> None:
        self._watched_s.pop(address, None)
        self._supervisor.remove(_name(address))

    def _forget_all(self) -> None:
        """Forget all faults, because the whole namespace was read from the store again."""
        self._faults.clear()
        for address in [*self._watched_s]:
            self._unwatch(address)


def _name(address: Address) -> str:
    return f"{INDEX} of '{address}'"
