"""Faults for tests: a namespace that cannot be sent to, received from, managed or reached, on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Final, Protocol, TypeVar

from pairbus.fault_kinds import CrashComponent, FaultKind, FaultRequest
from pairbus.server.audit import Actor
from pairbus.server.errors import FaultNotFoundError, FaultsNotAllowedError
from pairbus.server.fault_injection import inject_fault
from pairbus.server.faults import Fault, Faults
from pairbus.server.host import NamespaceHost

T = TypeVar("T")

_ORIGIN: Final = Actor(key_name="pairbus.testing")
_MILLISECOND: Final = timedelta(milliseconds=1)


class HostExecutor(Protocol):
    """Calls a function in the thread of the server, and returns its result, once it is durable if that is wanted."""

    def __call__(self, function: Callable[[NamespaceHost], T], *, is_durable: bool) -> T: ...


class FaultControl:
    """Injects faults into a namespace of a test. ``docs/how-to/practise-an-outage.md`` describes each kind."""

    def __init__(self, execute: HostExecutor) -> None:
        self._execute = execute

    def engage(
        self,
        kind: FaultKind | str,
        entity: str | None = None,
        *,
        duration: timedelta | None = None,
        latency: timedelta | None = None,
        component: CrashComponent | str | None = None,
        sequence_number: int | None = None,
        drop_connections: bool = False,
    ) -> Fault:
        """Inject a fault at an entity, or at the namespace; without a duration it lasts until it is cleared.

        Raise ``ValueError`` for arguments that do not fit, ``BadRequestError`` or ``EntityNotFoundError`` if it cannot
        be injected there.
        """
        document: dict[str, Any] = {
            "kind": kind,
            "entity": entity,
            "duration_ms": None if duration is None else duration // _MILLISECOND,
            "latency_ms": None if latency is None else latency // _MILLISECOND,
            "component": component,
            "sequence_number": sequence_number,
            "drop_connections": drop_connections,
        }
        request = FaultRequest.of_document(document)
        is_durable = request.kind is FaultKind.QUARANTINE
        return self._execute(lambda host: inject_fault(host, request, _ORIGIN), is_durable=is_durable)

    @contextmanager
    def engaged(self, kind: FaultKind | str, entity: str | None = None, **arguments: Any) -> Iterator[Fault]:
        """Inject a fault with the arguments of ``engage``, and clear it at the end of the ``with`` block."""
        fault = self.engage(kind, entity, **arguments)
        try:
            yield fault
        finally:
            with suppress(FaultNotFoundError):  # it has ended already
                self.clear(fault)

    def list(self) -> list[Fault]:
        """Return the faults that are engaged, the oldest first."""
        return self._execute(lambda host: _faults(host).engaged(host.now_ms()), is_durable=False)

    def clear(self, fault: Fault | None = None) -> None:
        """Clear a fault, or all of them. Raise ``FaultNotFoundError`` if it has ended already."""

        def cleared(host: NamespaceHost) -> None:
            if fault is None:
                _faults(host).clear_all(host.now_ms(), _ORIGIN)
            else:
                _faults(host).clear(fault.id, host.now_ms(), _ORIGIN)

        self._execute(cleared, is_durable=False)


def _faults(host: NamespaceHost) -> Faults:
    if host.faults is None:
        raise FaultsNotAllowedError
    return host.faults
