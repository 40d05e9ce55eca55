"""Injects faults into a namespace that is being served: what a fault does beyond denying requests."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

from pairbus.broker import Address
from pairbus.dialect.paths import split_entity_path
from pairbus.fault_kinds import CrashComponent, FaultKind, FaultRequest
from pairbus.server.amqp.services import AmqpServices
from pairbus.server.audit import NOBODY, Actor, AuditAction
from pairbus.server.errors import BadRequestError, FaultsNotAllowedError
from pairbus.server.faults import ComponentCrashError, Fault, FaultEvent, Faults
from pairbus.server.host import NamespaceHost
from pairbus.server.log_context import Facts
from pairbus.server.messages import address_of
from pairbus.store.faulty import FaultyStore, StoreTrouble

_log = logging.getLogger(__name__)

_TICK_S: Final = 1.0
"""Longest time between two checks for faults that are over: clocks may be set."""


def log_fault(event: FaultEvent, fault: Fault, origin: Actor, namespace: str) -> None:
    """Log a change of a fault, with the client that has caused it."""
    facts = Facts(
        namespace=namespace,
        id=fault.id,
        kind=fault.kind,
        entity=fault.scope,
        **fault.arguments(),
        key=origin.key_name,
        peer=origin.peer,
    )
    _log.warning("fault %s%s", event, facts)


def _ledger_text(event: FaultEvent, fault: Fault) -> str:
    """Return a change of a fault as the ledger stores it."""
    until = fault.document()["until"]
    return f"{fault.kind} {event} id={fault.id}" + ("" if until is None else f" until={until}")


def inject_fault(host: NamespaceHost, request: FaultRequest, origin: Actor = NOBODY) -> Fault:
    """Inject a fault into a namespace.

    Raises ``FaultsNotAllowedError``; ``BadRequestError`` if it cannot be injected there; ``EntityNotFoundError`` or
    ``MessageNotFoundError`` if there is no such entity or message.
    """
    if host.faults is None:
        raise FaultsNotAllowedError
    scope, now_ms = None if request.entity is None else _scope(request.entity), host.now_ms()
    if scope is not None:
        host.use_namespace().entity(scope, now_ms)
    return host.faults.engage(request, scope, now_ms, origin)


def _scope(entity: str) -> Address:
    path = split_entity_path(entity)
    if path is None or path.sub_queue is not None or path.management:
        raise BadRequestError(f"'{entity:.200}' is not a queue, a topic, or TOPIC/Subscriptions/NAME")
    return address_of(path)


class FaultEffects:
    """Carries out the changes of the table of faults, and ends faults whose time is over."""

    def __init__(self, faults: Faults, services: AmqpServices, store: FaultyStore) -> None:
        self._faults = faults
        self._services = services
        self._host = services.host
        self._store = store
        self._timer: asyncio.TimerHandle | None = None
        faults.on_engage.add(self._engage)
        faults.on_change.add(self._changed)
        self._host.on_commit.add(self._crash_commit_thread)
        if self._host.side_buffer is not None:
            self._host.side_buffer.replayer.crash_point = partial(faults.crash, CrashComponent.SIDE_BUFFER)

    def close(self) -> None:
        """End all faults, so that the server can stop."""
        self._faults.end_all(FaultEvent.STOPPED)
        if self._timer is not None:
            self._timer.cancel()

    def _engage(self, fault: Fault) -> None:
        """Do at once what a fault does at once, or raise the error that prevents it."""
        match fault.kind:
            case FaultKind.CANNOT_RECEIVE:
                self._services.dispatcher.end(fault.scope, fault.error())
            case FaultKind.CANNOT_CONNECT if fault.request.drop_connections:
                for connection in [*self._services.connections]:
                    connection.abort()
            case FaultKind.COMPONENT_CRASH:
                self._check_component(fault.request.component)
            case FaultKind.QUARANTINE if fault.scope is not None:
                self._host.check_stalled(fault.scope)
                namespace = self._host.use_namespace()
                namespace.quarantine(fault.scope, fault.request.sequence_number or 0, self._host.now_ms())

    def _check_component(self, component: CrashComponent | None) -> None:
        if component not in {status.name for status in self._services.supervisor.statuses()}:
            setting = str(component).replace("-", "_")
            raise BadRequestError(f"this server has no {component} that could crash: set {setting}")

    def _crash_commit_thread(self) -> None:
        """End the commit thread if a fault crashes it. The commit that begins is run by the next thread."""
        try:
            self._faults.crash(CrashComponent.COMMIT_THREAD)
        except ComponentCrashError:
            self._host.committer.end_thread()

    def _changed(self, event: FaultEvent, fault: Fault, origin: Actor) -> None:
        log_fault(event, fault, origin, self._host.name)
        self._host.audit.record(
            AuditAction.FAULT_ENGAGED if event is FaultEvent.ENGAGED else AuditAction.FAULT_CLEARED,
            origin,
            entity="" if fault.scope is None else str(fault.scope),
            event=str(event),
            fault=fault.id,
            kind=str(fault.kind),
            **fault.arguments(),
        )
        if self._services.meter is not None:
            self._services.meter.record_fault(fault.scope, _ledger_text(event, fault), origin.key_name)
        if self._faults.store_trouble(self._host.now_ms()) is not StoreTrouble.STALL:
            self._store.resume()
        self._plan()

    def _plan(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        end_ms = self._faults.next_end_ms()
        if end_ms is not None:
            pause_s = min(max(0, end_ms - self._host.now_ms()) / 1_000, _TICK_S)
            self._timer = self._host.loop.call_later(pause_s, self._tick)

    def _tick(self) -> None:
        try:
            self._faults.expire(self._host.now_ms())
        finally:  # an error must not keep other faults from ending
            self._plan()
