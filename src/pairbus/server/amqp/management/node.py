"""The ``$management`` node: receives requests and sends responses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from pairbus.broker import Address, Right
from pairbus.dialect.management import Operation, Request, Response
from pairbus.dialect.paths import is_backlog_path
from pairbus.ledger.events import SUCCEEDED, OperationKey, OperationKind, Stage, units_of
from pairbus.server.amqp.management import operations
from pairbus.server.amqp.management.operations import ManagementCall
from pairbus.server.amqp.node import Need
from pairbus.server.amqp.requests import RequestNode
from pairbus.server.audit import Actor, AuditAction
from pairbus.server.errors import REFUSABLE, NotSupportedError, UnauthorizedError, refusal_of
from pairbus.server.host import NamespaceHost
from pairbus.server.metering import OperationMeter, path_of_address
from pairbus.store import DamagedRecordError, StoreError
from pairbus.wire import Array, Link

if TYPE_CHECKING:
    from pairbus.server.amqp.connection import ServerConnection

KINDS: Final[Mapping[str, OperationKind]] = {
    Operation.PEEK_MESSAGE: OperationKind.PEEK,
    Operation.SCHEDULE_MESSAGE: OperationKind.SCHEDULE,
    Operation.CANCEL_SCHEDULED_MESSAGE: OperationKind.CANCEL,
    Operation.RECEIVE_BY_SEQUENCE_NUMBER: OperationKind.RECEIVE,
    Operation.UPDATE_DISPOSITION: OperationKind.SETTLE,
    Operation.RENEW_LOCK: OperationKind.RENEW_LOCK,
    Operation.BATCH_DELETE_MESSAGES: OperationKind.PURGE,
    Operation.RENEW_SESSION_LOCK: OperationKind.RENEW_LOCK,
    Operation.GET_SESSION_STATE: OperationKind.SESSION_STATE,
    Operation.SET_SESSION_STATE: OperationKind.SESSION_STATE,
    Operation.GET_MESSAGE_SESSIONS: OperationKind.SESSION_STATE,
    Operation.ENUMERATE_RULES: OperationKind.RULES,
    Operation.ADD_RULE: OperationKind.RULES,
    Operation.REMOVE_RULE: OperationKind.RULES,
}

_LISTS: Final = {
    OperationKind.CANCEL: "sequence-numbers",
    OperationKind.SETTLE: "lock-tokens",
    OperationKind.RENEW_LOCK: "lock-tokens",
}
"""The operations that name messages without containing them."""

_REFUSED: Final = 400


def count_request(meter: OperationMeter, address: Address, who: str, request: Request, answer: Response) -> None:
    """Count an answered request."""
    kind = KINDS.get(request.operation)
    if kind is None:
        return  # not billable
    entity = path_of_address(address)
    stage = Stage.SYPHON if is_backlog_path(entity) else Stage.DIRECT
    is_refused = answer.status >= _REFUSED
    result = str(answer.condition or answer.status) if is_refused else SUCCEEDED
    sizes = [] if is_refused else _sizes(request if kind is OperationKind.SCHEDULE else answer)
    messages = len(sizes) or (0 if is_refused else _named(kind, request))
    account = meter.account(OperationKey(kind, stage, entity, result, who))
    account.add(messages, sum(sizes), sum(map(units_of, sizes)) or 1, units_of(sum(sizes)))


def _sizes(holder: Request | Response) -> list[int]:
    """Return the sizes of the messages in a request or a response."""
    body = holder.body
    items = body.get("messages") if isinstance(body, Mapping) else None
    payloads = [item.get("message") for item in items if isinstance(item, Mapping)] if isinstance(items, list) else []
    return [len(payload) for payload in payloads if isinstance(payload, bytes)]


def _named(kind: OperationKind, request: Request) -> int:
    name = _LISTS.get(kind)
    named = request.body.get(name) if name is not None and isinstance(request.body, Mapping) else None
    return len(named.items if isinstance(named, Array) else named) if isinstance(named, Array | list) else 0


class Service(NamedTuple):
    """An operation: the claim that it needs, and the function that executes it."""

    right: Right
    answer: Callable[[ManagementCall], Response]


OPERATIONS: Final[Mapping[str, Service]] = {
    Operation.PEEK_MESSAGE: Service(Right.LISTEN, operations.peek),
    Operation.SCHEDULE_MESSAGE: Service(Right.SEND, operations.schedule),
    Operation.CANCEL_SCHEDULED_MESSAGE: Service(Right.SEND, operations.cancel_scheduled),
    Operation.RECEIVE_BY_SEQUENCE_NUMBER: Service(Right.LISTEN, operations.receive_deferred),
    Operation.UPDATE_DISPOSITION: Service(Right.LISTEN, operations.update_disposition),
    Operation.RENEW_LOCK: Service(Right.LISTEN, operations.renew_locks),
    Operation.BATCH_DELETE_MESSAGES: Service(Right.LISTEN, operations.delete_messages),
    Operation.RENEW_SESSION_LOCK: Service(Right.LISTEN, operations.renew_lock),
    Operation.GET_SESSION_STATE: Service(Right.LISTEN, operations.state),
    Operation.SET_SESSION_STATE: Service(Right.LISTEN, operations.set_state),
    Operation.GET_MESSAGE_SESSIONS: Service(Right.LISTEN, operations.enumerate_sessions),
    Operation.ENUMERATE_RULES: Service(Right.LISTEN, operations.enumerate_rules),
    Operation.ADD_RULE: Service(Right.MANAGE, operations.add),
    Operation.REMOVE_RULE: Service(Right.MANAGE, operations.remove),
}


_AUDITED: Final[Mapping[str, AuditAction]] = {
    Operation.ADD_RULE: AuditAction.RULE_CREATED,
    Operation.REMOVE_RULE: AuditAction.RULE_DELETED,
    Operation.BATCH_DELETE_MESSAGES: AuditAction.MESSAGES_PURGED,
}
_PURGE_S: Final = 10.0


class PurgeRecords:
    """Records deleted messages: the first request at once, and later ones added up, since there may be thousands."""

    def __init__(self, host: NamespaceHost) -> None:
        self._host = host
        self._count = 0
        self._is_waiting = False

    def add(self, actor: Actor, entity: str, count: int, *, error: Exception | None) -> None:
        if error is not None or not self._is_waiting:
            self._host.audit.record(AuditAction.MESSAGES_PURGED, actor, entity=entity, error=error, messages=count)
            self._wait(actor, entity)
        else:
            self._count += count

    def _wait(self, actor: Actor, entity: str) -> None:
        self._is_waiting = True
        self._host.loop.call_later(_PURGE_S, self._record, actor, entity)

    def _record(self, actor: Actor, entity: str) -> None:
        self._is_waiting = False
        count, self._count = self._count, 0
        if count:
            self._host.audit.record(AuditAction.MESSAGES_PURGED, actor, entity=entity, messages=count)
            self._wait(actor, entity)


class ManagementNode(RequestNode):
    """Answers the management requests of one entity."""

    kind = "management"

    def __init__(
        self, connection: ServerConnection, link: Link, path: str, needs: tuple[Need, ...], address: Address
    ) -> None:
        super().__init__(connection, link, path, needs)
        self._address = address
        self._purges = PurgeRecords(connection.host)

    def on_request(self, request: Request) -> None:
        action = _AUDITED.get(request.operation)
        try:
            response = self._answer(request)
        except REFUSABLE as error:
            if action is not None:
                self._audit(action, request, error=error)
            response = self._refusal(error)
        else:
            if action is not None:
                self._audit_when_durable(action, request, response)
        if self._connection.host.is_stalled:  # it is refused: nothing was written
            self._reply(request, response)
        else:
            self._reply_when_durable(request, response)

    def _answer(self, request: Request) -> Response:
        try:
            service = OPERATIONS.get(request.operation)
            if service is None:
                raise NotSupportedError(f"unknown operation '{request.operation:.100}'")
            if not self._connection.allows(self.path, (service.right,)):
                raise UnauthorizedError(f"'{request.operation}' needs the claim {service.right.capitalize()}")
            self._connection.host.check_busy(request.operation, self._address)
            self._connection.host.check_stalled(self._address)
            return service.answer(ManagementCall(self._connection, self._address, request))
        except DamagedRecordError as error:
            self._connection.host.report_damage(entity=self._address, operation=request.operation, error=error)
            raise

    # The audit log.

    def _audit_when_durable(self, action: AuditAction, request: Request, response: Response) -> None:
        """Record a change once it is durable, even if the connection is lost meanwhile."""
        if action is AuditAction.MESSAGES_PURGED:
            if not isinstance(response.body, Mapping) or "message-count" not in response.body:
                return  # there was nothing to delete
            count = int(response.body["message-count"])
            done = partial(self._purges.add, self._connection.actor(self.path), str(self._address), count)
        else:
            done = partial(self._audit, action, request)
        self._connection.host.when_durable(lambda error: done(error=error))

    def _audit(self, action: AuditAction, request: Request, *, error: Exception | None) -> None:
        body = request.body if isinstance(request.body, Mapping) else {}
        audit, actor = self._connection.host.audit, self._connection.actor(self.path)
        audit.record(action, actor, entity=str(self._address), rule=str(body.get("rule-name", "")), error=error)

    def _reply_when_durable(self, request: Request, response: Response) -> None:
        def done(error: StoreError | None) -> None:
            self._reply(request, response if error is None else self._refusal(error))

        self._connection.answer_when_durable(done)

    def _reply(self, request: Request, answer: Response) -> None:
        """Count a request, and send the answer now, or after the delay of an injected fault."""
        operation = request.operation if request.operation in OPERATIONS else "other"
        self._connection.counters.requests[operation, answer.status] += 1
        if self._connection.meter is not None:
            who = self._connection.claims.who(self.path)
            count_request(self._connection.meter, self._address, who, request, answer)
        if delay_s := self._connection.host.delay_s(self._address):
            late = partial(self._send_late, request, answer)
            self._connection.host.loop.call_later(delay_s, self._connection.guard, late)
        else:
            self._send(request, answer)

    def _send(self, request: Request, answer: Response) -> None:
        if self.link.is_attached:
            self._connection.replies.send(self.link, self.path, request, answer)

    def _send_late(self, request: Request, answer: Response) -> None:
        self._send(request, answer)
        self._connection.flush()

    def _refusal(self, error: Exception) -> Response:
        refusal = refusal_of(error)
        self._connection.counters.refuse(refusal.condition, refusal.limit)
        return Response(status=refusal.status, description=refusal.description, condition=refusal.condition)
