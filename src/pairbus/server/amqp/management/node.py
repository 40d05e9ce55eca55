"""Requests to ``$management`` in, answers out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from pairbus.broker import Address, Right
from pairbus.dialect.management import Operation, Request, Response
from pairbus.server.amqp.management import messages, rules, sessions
from pairbus.server.amqp.management.call import Call
from pairbus.server.amqp.management.toll import count_request
from pairbus.server.amqp.node import Need
from pairbus.server.amqp.peer import Peer
from pairbus.server.amqp.requests import RequestNode
from pairbus.server.errors import REFUSABLE, NotSupportedError, UnauthorizedError, refusal_of
from pairbus.store import DamagedRecordError, StoreError
from pairbus.wire import Link


class Service(NamedTuple):
    """An operation: the claim that it needs, and what does it."""

    right: Right
    answer: Callable[[Call], Response]


OPERATIONS: Final[Mapping[str, Service]] = {
    Operation.PEEK_MESSAGE: Service(Right.LISTEN, messages.peek),
    Operation.SCHEDULE_MESSAGE: Service(Right.SEND, messages.schedule),
    Operation.CANCEL_SCHEDULED_MESSAGE: Service(Right.SEND, messages.cancel_scheduled),
    Operation.RECEIVE_BY_SEQUENCE_NUMBER: Service(Right.LISTEN, messages.receive_deferred),
    Operation.UPDATE_DISPOSITION: Service(Right.LISTEN, messages.update_disposition),
    Operation.RENEW_LOCK: Service(Right.LISTEN, messages.renew_locks),
    Operation.BATCH_DELETE_MESSAGES: Service(Right.LISTEN, messages.delete_messages),
    Operation.RENEW_SESSION_LOCK: Service(Right.LISTEN, sessions.renew_lock),
    Operation.GET_SESSION_STATE: Service(Right.LISTEN, sessions.state),
    Operation.SET_SESSION_STATE: Service(Right.LISTEN, sessions.set_state),
    Operation.GET_MESSAGE_SESSIONS: Service(Right.LISTEN, sessions.enumerate_sessions),
    Operation.ENUMERATE_RULES: Service(Right.LISTEN, rules.enumerate_rules),
    Operation.ADD_RULE: Service(Right.MANAGE, rules.add),
    Operation.REMOVE_RULE: Service(Right.MANAGE, rules.remove),
}


class ManagementNode(RequestNode):
    """Answers what is asked about one entity."""

    kind = "management"

    def __init__(self, peer: Peer, link: Link, path: str, needs: tuple[Need, ...], address: Address) -> None:
        super().__init__(peer, link, path, needs)
        self._address = address

    def on_request(self, request: Request) -> None:
        self._reply_when_durable(request, self._answer(request))

    def _answer(self, request: Request) -> Response:
        try:
            service = OPERATIONS.get(request.operation)
            if service is None:
                raise NotSupportedError(f"'{request.operation:.100}' is no operation that this server knows")
            if not self._peer.allows(self.path, (service.right,)):
                raise UnauthorizedError(f"'{request.operation}' needs the claim {service.right.capitalize()}")
            self._peer.host.check_busy(request.operation, self._address)
            return service.answer(Call(self._peer, self._address, request))
        except DamagedRecordError as error:
            self._peer.host.report_damage(f"entity='{self._address}' operation={request.operation} {error}")
            return _refusal(error)
        except REFUSABLE as error:
            return _refusal(error)

    def _reply_when_durable(self, request: Request, response: Response) -> None:
        def done(error: StoreError | None) -> None:
            answer = response if error is None else _refusal(error)
            operation = request.operation if request.operation in OPERATIONS else "other"
            self._peer.counters.requests[operation, answer.status] += 1
            if self._peer.meter is not None:
                who = self._peer.claims.who(self.path)
                count_request(self._peer.meter, self._address, who, request, answer)
            if self.link.is_attached:
                self._peer.replies.send(self.link, self.path, request, answer)

        self._peer.answer_when_durable(done)


def _refusal(error: Exception) -> Response:
    refusal = refusal_of(error)
    return Response(status=refusal.status, description=refusal.description, condition=refusal.condition)
