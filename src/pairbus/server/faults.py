"""The table of injected faults: which are engaged, and what they do to a request. Time is an argument."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from itertools import count
from typing import Any, Final

from pairbus.broker import Address
from pairbus.callbacks import Callbacks
from pairbus.dialect.management import Operation
from pairbus.fault_kinds import CrashComponent, FaultKind, FaultRequest, FaultScope, check_scope
from pairbus.server.audit import NOBODY, Actor
from pairbus.server.errors import BadRequestError, FaultNotFoundError, InjectedFaultError, ServerBusyError
from pairbus.store.faulty import StoreTrouble

FAULTS_PATH: Final = "/$faults"
"""The path of the HTTP API for faults."""

MAX_FAULTS: Final = 100

FAULT_OPERATIONS: Final = frozenset({"list-faults", "add-fault", "clear-fault", "clear-faults"})
"""No fault denies these: otherwise it could not be cleared."""

_SENDING: Final = frozenset({"send", Operation.SCHEDULE_MESSAGE, Operation.CANCEL_SCHEDULED_MESSAGE})
_RECEIVING: Final = frozenset(
    {
        "receive",
        "purge",
        Operation.PEEK_MESSAGE,
        Operation.RECEIVE_BY_SEQUENCE_NUMBER,
        Operation.UPDATE_DISPOSITION,
        Operation.RENEW_LOCK,
        Operation.BATCH_DELETE_MESSAGES,
        Operation.RENEW_SESSION_LOCK,
        Operation.GET_SESSION_STATE,
        Operation.SET_SESSION_STATE,
        Operation.GET_MESSAGE_SESSIONS,
    }
)
_ATTACH: Final = "attach"

_TROUBLES: Final = {
    FaultKind.STORAGE_ERROR: StoreTrouble.ERROR,
    FaultKind.STORAGE_STALL: StoreTrouble.STALL,
    FaultKind.STORAGE_FULL: StoreTrouble.FULL,
}


def denying_kind(operation: str) -> FaultKind | None:
    """Return the way of being unavailable in which an operation is denied; ``None`` if there is none.

    Links can be attached to an entity that cannot be sent to: senders get the error with the first message.
    """
    if operation in _SENDING:
        return FaultKind.CANNOT_SEND
    if operation in _RECEIVING:
        return FaultKind.CANNOT_RECEIVE
    return None if operation == _ATTACH or operation in FAULT_OPERATIONS else FaultKind.CANNOT_MANAGE


class ComponentCrashError(RuntimeError):
    """An injected fault crashes a component of the server."""

    def __init__(self, component: CrashComponent) -> None:
        super().__init__(f"an injected fault crashes the component '{component}'")
        self.component = component


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An injected fault."""

    id: int
    request: FaultRequest
    scope: Address | None
    """``None`` for the namespace."""

    engaged_ms: int
    until_ms: int | None
    """``None``: until it is cleared."""

    origin: Actor
    """The client that has injected it."""

    @property
    def kind(self) -> FaultKind:
        return self.request.kind

    @property
    def place(self) -> str:
        """Return what it applies to, for texts."""
        return "the namespace" if self.scope is None else f"'{self.scope}'"

    def is_over(self, now_ms: int) -> bool:
        return self.until_ms is not None and now_ms >= self.until_ms

    def applies_to(self, address: Address | None) -> bool:
        """Return whether a request at an address is affected; ``None`` is the namespace as a whole."""
        return self.scope is None or (address is not None and address.is_within(self.scope))

    def error(self) -> InjectedFaultError:
        return InjectedFaultError(
            f"fault {self.id} ({self.kind}) is injected at {self.place}: wait until it ends, or clear it with pairbus"
            " fault clear",
            None if self.scope is None else str(self.scope),
        )

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the request that are set, besides its kind and entity."""
        given = self.request.document().items()
        return {name: value for name, value in given if value not in {None, False} and name not in {"kind", "entity"}}

    def document(self) -> dict[str, Any]:
        """Return the JSON document of the fault."""
        return {
            "id": self.id,
            **self.request.document(),
            "engaged_at": _instant(self.engaged_ms),
            "until": None if self.until_ms is None else _instant(self.until_ms),
            "key": self.origin.key_name,
            "peer": self.origin.peer,
        }


class FaultEvent(StrEnum):
    """A change of a fault."""

    ENGAGED = "engaged"
    CLEARED = "cleared"
    EXPIRED = "expired"
    DONE = "done"
    """It has happened, and does not happen again."""

    STOPPED = "stopped"
    """The server stops."""


class Faults:
    """The injected faults of one namespace. They are in memory: a restart ends them."""

    def __init__(self) -> None:
        self._faults: dict[int, Fault] = {}
        self._ids = count(1)
        self.on_engage: Callbacks[[Fault]] = Callbacks()
        """Called before a fault is added; an error that one of them raises prevents that."""

        self.on_change: Callbacks[[FaultEvent, Fault, Actor]] = Callbacks()
        """Called after each change of the table, with the client that has caused it."""

    def __len__(self) -> int:
        return len(self._faults)

    def engaged(self, now_ms: int) -> list[Fault]:
        """Return the faults that are engaged, the oldest first."""
        self.expire(now_ms)
        return [*self._faults.values()]

    def counts(self, now_ms: int) -> Counter[FaultKind]:
        """Count the faults that are engaged by their kind. Ends none: a metric must not change what it measures."""
        return Counter(fault.kind for fault in self._faults.values() if not fault.is_over(now_ms))

    # Changes.

    def engage(self, request: FaultRequest, scope: Address | None, now_ms: int, origin: Actor = NOBODY) -> Fault:
        """Add a fault to the table and return it; raises ``BadRequestError`` if it cannot be injected there.

        A quarantine is over at once, and not kept in the table.
        """
        self.expire(now_ms)
        if len(self._faults) >= MAX_FAULTS:
            raise BadRequestError(f"{MAX_FAULTS} faults are engaged, the maximum; clear some of them first")
        try:
            check_scope(request.kind, _scope(scope))
        except ValueError as error:
            raise BadRequestError(str(error)) from error
        until_ms = None if request.duration_ms is None else now_ms + request.duration_ms
        fault = Fault(
            id=next(self._ids), request=request, scope=scope, engaged_ms=now_ms, until_ms=until_ms, origin=origin
        )
        self.on_engage(fault)
        if fault.kind is not FaultKind.QUARANTINE:
            self._faults[fault.id] = fault
        self.on_change(FaultEvent.ENGAGED, fault, origin)
        if fault.kind is FaultKind.QUARANTINE:
            self.on_change(FaultEvent.DONE, fault, origin)
        return fault

    def clear(self, fault_id: int, now_ms: int, origin: Actor = NOBODY) -> Fault:
        """Remove a fault and return it; raises ``FaultNotFoundError`` if there is none with this id."""
        self.expire(now_ms)
        if fault_id not in self._faults:
            raise FaultNotFoundError(f"there is no fault {fault_id}; pairbus fault list shows those that are engaged")
        return self._end(FaultEvent.CLEARED, fault_id, origin)

    def clear_all(self, now_ms: int, origin: Actor = NOBODY) -> list[Fault]:
        self.expire(now_ms)
        return self.end_all(FaultEvent.CLEARED, origin)

    def end_all(self, event: FaultEvent, origin: Actor = NOBODY) -> list[Fault]:
        return [self._end(event, fault_id, origin) for fault_id in [*self._faults]]

    def expire(self, now_ms: int) -> None:
        """Remove the faults whose time is over."""
        for fault in [fault for fault in self._faults.values() if fault.is_over(now_ms)]:
            self._end(FaultEvent.EXPIRED, fault.id, fault.origin)

    def next_end_ms(self) -> int | None:
        """Return the time at which ``expire`` should be called next."""
        return min((fault.until_ms for fault in self._faults.values() if fault.until_ms is not None), default=None)

    def _end(self, event: FaultEvent, fault_id: int, origin: Actor) -> Fault:
        fault = self._faults.pop(fault_id)
        self.on_change(event, fault, origin)
        return fault

    # Effects.

    def check(self, operation: str, address: Address | None, now_ms: int) -> None:
        """Raise ``InjectedFaultError`` or ``ServerBusyError`` if a fault denies an operation."""
        if operation in FAULT_OPERATIONS:
            return
        denying = denying_kind(operation)
        for fault in self._at(address, now_ms):
            if fault.kind is denying:
                raise fault.error()
            if fault.kind is FaultKind.SERVER_BUSY:
                raise ServerBusyError(
                    f"fault {fault.id} ({fault.kind}) is injected at {fault.place}; wait at least 10 seconds, then try"
                    " again",
                    None if address is None else str(address),
                )

    def delay_s(self, address: Address | None, now_ms: int) -> float:
        """Return by how much responses at an address are delayed."""
        delays = [fault.request.latency_ms or 0 for fault in self._at(address, now_ms) if fault.kind is FaultKind.SLOW]
        return max(delays, default=0) / 1_000

    def refuses_connections(self, now_ms: int) -> bool:
        return any(fault.kind is FaultKind.CANNOT_CONNECT for fault in self._at(None, now_ms))

    def store_trouble(self, now_ms: int) -> StoreTrouble | None:
        """Return the trouble of the storage; of several, the one that was injected last."""
        troubles = [_TROUBLES[fault.kind] for fault in self._at(None, now_ms) if fault.kind in _TROUBLES]
        return troubles[-1] if troubles else None

    def crash(self, component: CrashComponent) -> None:
        """Raise ``ComponentCrashError`` if a fault crashes this component; once for each fault."""
        for fault in [*self._faults.values()]:
            if fault.request.component is component:
                self._end(FaultEvent.DONE, fault.id, fault.origin)
                raise ComponentCrashError(component)

    def _at(self, address: Address | None, now_ms: int) -> Iterator[Fault]:
        for fault in [*self._faults.values()]:  # a copy: the commit thread asks for the trouble of the store
            if fault.applies_to(address) and not fault.is_over(now_ms):
                yield fault


def _scope(scope: Address | None) -> FaultScope:
    if scope is None:
        return FaultScope.NAMESPACE
    return FaultScope.ENTITY if scope.subscription is None else FaultScope.SUBSCRIPTION


def _instant(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
