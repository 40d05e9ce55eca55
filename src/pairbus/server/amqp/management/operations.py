"""Operations of an entity's management node: messages, rules and sessions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

from pairbus.broker import (
    Address,
    CorrelationFilter,
    DeliveredMessage,
    FalseFilter,
    FilterDescription,
    InvalidOperationError,
    Namespace,
    Rule,
    RuleDescription,
    SessionLockLostError,
    SettlementKind,
    SettlementRequest,
    SettleOperation,
    SqlActionDescription,
    SqlFilterDescription,
    TrueFilter,
)
from pairbus.dialect.annotations import SCHEDULED_ENQUEUE_TIME
from pairbus.dialect.conditions import ServiceBusCondition
from pairbus.dialect.management import (
    ASSOCIATED_LINK,
    CORRELATED,
    CORRELATION_FILTER,
    EMPTY_ACTION,
    FALSE_FILTER,
    RULE,
    SQL_ACTION,
    SQL_FILTER,
    TRUE_FILTER,
    Request,
    Response,
)
from pairbus.server.errors import BadRequestError
from pairbus.server.messages import delivered_payload, received_message, to_wire, values_from_wire
from pairbus.wire import Array, Described, Int, Timestamp, ULong

if TYPE_CHECKING:
    from pairbus.server.amqp.connection import ServerConnection

T = TypeVar("T")


class ManagementCall:
    """The arguments of an operation."""

    def __init__(self, connection: ServerConnection, address: Address, request: Request) -> None:
        self.peer = connection
        self.address = address
        self._request = request
        self._body = request.body if isinstance(request.body, Mapping) else {}

    @property
    def namespace(self) -> Namespace:
        return self.peer.host.use_namespace()

    @property
    def now_ms(self) -> int:
        return self.peer.host.now_ms()

    def session_token(self) -> bytes | None:
        """Return the token of the session held by the link that the request names."""
        return self.peer.session_token(
            self._request.properties.get(ASSOCIATED_LINK), self.address, self._body.get("session-id")
        )

    # Fields. Errors name the field that is missing or of the wrong type.

    def text(self, name: str) -> str:
        return _expect(self._body.get(name), str, name, "text")

    def optional_text(self, name: str) -> str | None:
        return None if self._body.get(name) is None else self.text(name)

    def number(self, name: str, default: int | None = None) -> int:
        value = self._body.get(name, default)
        if isinstance(value, bool):
            raise BadRequestError(f"'{name}' must be a number, got {value}")
        return int(_expect(value, int, name, "a number"))

    def optional_bytes(self, name: str) -> bytes | None:
        value = self._body.get(name)
        return None if value is None else _expect(value, bytes, name, "binary")

    def mapping(self, name: str) -> Mapping[Any, Any]:
        return _expect(self._body.get(name) or {}, Mapping, name, "a map")  # type: ignore[type-abstract]

    def numbers(self, name: str) -> list[int]:
        return [int(_expect(item, int, name, "a list of numbers")) for item in self.items(name)]

    def lock_tokens(self, name: str) -> list[bytes]:
        return [_expect(item, UUID, name, "a list of UUIDs").bytes_le for item in self.items(name)]

    def items(self, name: str) -> list[Any]:
        """Return the items of a list or an array; at least one."""
        value = self._body.get(name)
        items = list(value.items) if isinstance(value, Array) else value
        if not isinstance(items, list) or not items:
            raise BadRequestError(f"'{name}' must be a non-empty list")
        return items


def _expect(value: object, kind: type[T], name: str, what: str) -> T:
    if not isinstance(value, kind):
        raise BadRequestError(f"'{name}' must be {what}, got {value!r:.100}")
    return value


_LOOKED_AT_BYTES: Final = 1024 * 1024
"""Most bytes of peeked messages in one response; the client asks again for the rest."""

_DEFERRED_BYTES: Final = 16 * 1024 * 1024
"""Most bytes of deferred messages in one response; the client has to ask for more in parts."""

NO_MESSAGES: Final = Response(
    status=204, description="No messages", condition=ServiceBusCondition.MESSAGE_NOT_FOUND, body={}
)

_DISPOSITIONS: Final = {
    "completed": SettlementKind.COMPLETE,
    "abandoned": SettlementKind.ABANDON,
    "defered": SettlementKind.DEFER,  # the protocol's spelling
    "suspended": SettlementKind.DEAD_LETTER,
}


def peek(call: ManagementCall) -> Response:
    found = call.namespace.peek(
        call.address,
        call.number("from-sequence-number", 0),
        call.number("message-count", 1),
        call.now_ms,
        call.optional_text("session-id"),
        max_bytes=_LOOKED_AT_BYTES,
    )
    messages = [{"message": delivered_payload(each, call.address)} for each in found]
    return Response(body={"messages": messages}) if messages else NO_MESSAGES


def schedule(call: ManagementCall) -> Response:
    messages = [received_message(_encoded(item)) for item in call.items("messages")]
    if any(message.scheduled_ms is None for message in messages):
        raise BadRequestError(f"each message needs its scheduled time, as {SCHEDULED_ENQUEUE_TIME}")
    host = call.peer.host
    if host.throttle.counts_sends:
        host.check_share(host.budgets(call.address), call.address, messages)
    numbers = call.namespace.send(call.address, messages, call.now_ms)
    return Response(body={"sequence-numbers": _longs(number or 0 for number in numbers)})


def _encoded(item: object) -> bytes:
    payload = item.get("message") if isinstance(item, dict) else None
    if not isinstance(payload, bytes):
        raise BadRequestError("each of 'messages' must be a map with the encoded message as 'message'")
    return payload


def cancel_scheduled(call: ManagementCall) -> Response:
    call.namespace.cancel_scheduled(call.address, call.numbers("sequence-numbers"), call.now_ms)
    return Response()


def receive_deferred(call: ManagementCall) -> Response:
    found = call.namespace.receive_deferred(
        call.address,
        call.numbers("sequence-numbers"),
        call.now_ms,
        delete=call.number("receiver-settle-mode", 1) == 0,
        session_token=call.session_token(),
        max_bytes=_DEFERRED_BYTES,
    )
    messages = [_deferred(delivery, call.address) for delivery in found]
    counters = call.peer.counters
    counters.messages_delivered += len(messages)
    counters.bytes_delivered += sum(len(message["message"]) for message in messages)
    return Response(body={"messages": messages}) if messages else NO_MESSAGES


def _deferred(delivery: DeliveredMessage, address: Address) -> dict[str, Any]:
    token = delivery.lock_token or bytes(16)
    return {"lock-token": UUID(bytes_le=token), "message": delivered_payload(delivery, address)}


def update_disposition(call: ManagementCall) -> Response:
    """Settle messages by their lock tokens, all or none as far as a transaction goes."""
    status = call.text("disposition-status")
    disposition = _DISPOSITIONS.get(status)
    if disposition is None:
        raise BadRequestError(f"the disposition must be one of {', '.join(_DISPOSITIONS)}, got '{status}'")
    verdict = SettlementRequest(
        disposition=disposition,
        properties=values_from_wire(call.mapping("properties-to-modify")),
        reason=call.optional_text("deadletter-reason"),
        description=call.optional_text("deadletter-description"),
    )
    settlements = [SettleOperation(call.address, token, verdict) for token in call.lock_tokens("lock-tokens")]
    max_count = call.peer.host.limits.messages_per_transaction
    for start in range(0, len(settlements), max_count):
        call.namespace.transact(settlements[start : start + max_count], call.now_ms)
    call.peer.counters.settled[disposition.name.lower()] += len(settlements)
    return Response()


def renew_locks(call: ManagementCall) -> Response:
    namespace, now_ms = call.namespace, call.now_ms
    ends = [namespace.renew_lock(call.address, token, now_ms) for token in call.lock_tokens("lock-tokens")]
    return Response(body={"expirations": Array(tuple(Timestamp(end_ms) for end_ms in ends))})


def delete_messages(call: ManagementCall) -> Response:
    count = call.namespace.delete_messages(
        call.address,
        call.number("message-count"),
        call.now_ms,
        enqueued_before_ms=call.number("enqueued-time-utc"),
        session_token=call.session_token(),
    )
    return Response(body={"message-count": Int(count)}) if count else NO_MESSAGES


def _longs(numbers: Iterable[int]) -> Array:
    """Return numbers of eight bytes each: the SDK for JavaScript reads no others."""
    return Array(tuple(numbers), b"\x81")


_COMPATIBILITY: Final = Int(20)


def add(call: ManagementCall) -> Response:
    name = call.text("rule-name")
    described = call.mapping("rule-description")
    action = described.get("sql-rule-action")
    rule = RuleDescription(
        name=name,
        filter=_filter(described),
        action=SqlActionDescription(_expression(action, "sql-rule-action")) if action else None,
    )
    call.namespace.add_rule(*_subscription(call), rule, call.now_ms)
    return Response()


def remove(call: ManagementCall) -> Response:
    call.namespace.remove_rule(*_subscription(call), call.text("rule-name"), call.now_ms)
    return Response()


def enumerate_rules(call: ManagementCall) -> Response:
    rules = call.namespace.rules(*_subscription(call), call.now_ms)
    skip = max(0, call.number("skip", 0))
    page = rules[skip : skip + max(0, call.number("top", 100))]
    if not page:
        return Response(status=204, description="No rules")
    return Response(body={"rules": [{"rule-description": _described(rule)} for rule in page]})


def _subscription(call: ManagementCall) -> tuple[str, str]:
    if call.address.subscription is None:
        raise InvalidOperationError("only a subscription has rules", str(call.address))
    return call.address.entity, call.address.subscription


def _filter(described: Mapping[Any, Any]) -> FilterDescription:
    sql, correlation = described.get("sql-filter"), described.get("correlation-filter")
    if sql is not None:
        return SqlFilterDescription(_expression(sql, "sql-filter"))
    if isinstance(correlation, Mapping):
        return CorrelationFilter(
            properties=values_from_wire(correlation.get("properties") or {}),
            **{field: _text(correlation.get(field.replace("_", "-"))) for field in CORRELATED},
        )
    return TrueFilter()


def _expression(described: object, name: str) -> str:
    expression = described.get("expression") if isinstance(described, Mapping) else None
    if not isinstance(expression, str):
        raise BadRequestError(f"'{name}' must be a map with the text as 'expression'")
    return expression


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _described(rule: Rule) -> Described:
    action = rule.description.action
    return Described(
        RULE,
        [
            _described_filter(rule.description.filter),
            Described(EMPTY_ACTION, []) if action is None else _sql(SQL_ACTION, action.expression),
            rule.description.name,
            Timestamp(rule.created_ms),
        ],
    )


def _described_filter(described: FilterDescription) -> Described:
    match described:
        case TrueFilter():
            return Described(TRUE_FILTER, [])
        case FalseFilter():
            return Described(FALSE_FILTER, [])
        case SqlFilterDescription():
            return _sql(SQL_FILTER, described.expression)
        case CorrelationFilter():
            fields: list[Any] = [getattr(described, field) for field in CORRELATED]
            properties = {name: to_wire(value) for name, value in described.properties.items()}
            return Described(CORRELATION_FILTER, [*fields, properties])


def _sql(descriptor: ULong, expression: str) -> Described:
    return Described(descriptor, [expression, _COMPATIBILITY])


_EVERY_MS: Final = 253_402_300_800_000
"""The first moment of the year 10000: a request for states set after it means all sessions."""


def _token(call: ManagementCall) -> bytes:
    token = call.session_token()
    if token is None:
        raise SessionLockLostError("the request names no link that holds a session", str(call.address))
    return token


def renew_lock(call: ManagementCall) -> Response:
    until_ms = call.namespace.renew_session(call.address, _token(call), call.now_ms)
    return Response(body={"expiration": Timestamp(until_ms)})


def state(call: ManagementCall) -> Response:
    return Response(body={"session-state": call.namespace.session_state(call.address, _token(call), call.now_ms)})


def set_state(call: ManagementCall) -> Response:
    call.namespace.set_session_state(call.address, _token(call), call.optional_bytes("session-state"), call.now_ms)
    return Response()


def enumerate_sessions(call: ManagementCall) -> Response:
    updated_ms = call.number("last-updated-time", _EVERY_MS)
    after_ms = None if updated_ms >= _EVERY_MS else updated_ms
    found = call.namespace.sessions(call.address, call.now_ms, after_ms)
    if after_ms is None:  # not only those with messages: a state keeps a session, too
        found = sorted({*found, *call.namespace.sessions(call.address, call.now_ms, 0)})
    skip = max(0, call.number("skip", 0))
    page = found[skip : skip + max(0, call.number("top", 100))]
    if not page:
        return Response(status=204, description="No sessions", condition=ServiceBusCondition.SESSION_NOT_FOUND)
    return Response(body={"skip": Int(skip + len(page)), "sessions-ids": Array(tuple(page))})
