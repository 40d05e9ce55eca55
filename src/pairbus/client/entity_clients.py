"""Clients of queues, topics and subscriptions."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Final, Protocol, overload

from pairbus.client.client_resource import ResourceFactory
from pairbus.client.errors import InternalServerError, InvalidRequestError
from pairbus.client.management.rules import (
    CorrelationFilter,
    FalseFilter,
    FilterValue,
    RuleDescription,
    RuleFilter,
    SqlFilter,
    SqlRuleAction,
    TrueFilter,
)
from pairbus.client.message import BrokeredMessage
from pairbus.client.node import ACTIVE_SESSIONS_MS
from pairbus.client.receiver import MessageReceiver
from pairbus.client.sender import MessageSender
from pairbus.client.session import MessageSession
from pairbus.client.settings import ReceiveMode
from pairbus.client.validation import from_ms, to_ms
from pairbus.dialect.management import (
    CORRELATED,
    CORRELATION_FILTER,
    FALSE_FILTER,
    SQL_ACTION,
    SQL_FILTER,
    TRUE_FILTER,
    Operation,
)
from pairbus.dialect.paths import EntityPath
from pairbus.wire import Described, Timestamp

_ALWAYS: Final = "1=1"
_NEVER: Final = "1=0"


def write_rule(rule: RuleDescription, entity: str) -> dict[str, Any]:
    """Return the body of the request that adds a rule."""
    described: dict[str, Any] = _written_filter(rule.filter, entity)
    if rule.action is not None:
        _check_parameters(rule.action, entity)
        described["sql-rule-action"] = {"expression": rule.action.expression}
    return described


def _written_filter(rule_filter: RuleFilter, entity: str) -> dict[str, Any]:
    match rule_filter:
        case TrueFilter():
            return {"sql-filter": {"expression": _ALWAYS}}
        case FalseFilter():
            return {"sql-filter": {"expression": _NEVER}}
        case SqlFilter():
            _check_parameters(rule_filter, entity)
            return {"sql-filter": {"expression": rule_filter.expression}}
        case CorrelationFilter():
            fields = {name.replace("_", "-"): getattr(rule_filter, name) for name in CORRELATED}
            given: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
            if rule_filter.properties:
                given["properties"] = {name: _written(value) for name, value in rule_filter.properties.items()}
            return {"correlation-filter": given}


def _written(value: FilterValue) -> Any:
    return Timestamp(to_ms(value)) if isinstance(value, datetime) else value


def _check_parameters(part: SqlFilter | SqlRuleAction, entity: str) -> None:
    if part.parameters:
        raise InvalidRequestError(
            "rules with parameters cannot be added over AMQP; use NamespaceManager.create_rule", entity=entity
        )


def read_rule(described: Any, entity: str) -> RuleDescription:
    """Return the rule that a described AMQP value represents."""
    try:
        rule_filter, action, name, created = described.value[:4]
        return RuleDescription(
            str(name),
            filter=_read_filter(rule_filter),
            action=SqlRuleAction(str(action.value[0])) if action.descriptor == SQL_ACTION else None,
            created_at=from_ms(created),
        )
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise InternalServerError(f"malformed rule in the response: {error}", entity=entity) from error


def _read_filter(described: Described) -> RuleFilter:
    values: Any = described.value
    if described.descriptor == TRUE_FILTER:
        return TrueFilter()
    if described.descriptor == FALSE_FILTER:
        return FalseFilter()
    if described.descriptor == SQL_FILTER:
        return SqlFilter(str(values[0]))
    if described.descriptor == CORRELATION_FILTER:
        fields = {name: None if value is None else str(value) for name, value in zip(CORRELATED, values, strict=False)}
        properties = values[len(CORRELATED)] if len(values) > len(CORRELATED) else None
        read = {
            name: from_ms(value) if type(value) is Timestamp else value for name, value in (properties or {}).items()
        }
        return CorrelationFilter(**fields, properties=read)
    raise ValueError(f"{described.descriptor!r} is not a filter")


_NO_TIME = timedelta()


class SessionFactory(ResourceFactory, Protocol):
    """A factory that can also lock sessions."""

    async def accept_message_session(
        self,
        path: str,
        session_id: str | None = None,
        receive_mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        *,
        server_wait_time: timedelta | None = None,
        prefetch_count: int = 0,
        max_auto_lock_renewal: timedelta = _NO_TIME,
    ) -> MessageSession: ...


class EntityClient(MessageReceiver):
    """Receives messages and accepts sessions."""

    def __init__(
        self,
        factory: SessionFactory,
        path: str,
        receive_mode: ReceiveMode,
        *,
        prefetch_count: int = 0,
        max_auto_lock_renewal: timedelta = _NO_TIME,
    ) -> None:
        super().__init__(
            factory, path, receive_mode, prefetch_count=prefetch_count, max_auto_lock_renewal=max_auto_lock_renewal
        )
        self._sessions = factory
        self._max_auto_lock_renewal = max_auto_lock_renewal

    async def accept_message_session(
        self, session_id: str | None = None, *, server_wait_time: timedelta | None = None
    ) -> MessageSession:
        """Lock a session: the one with this id, or the next unlocked one that has messages."""
        self._check_open()
        return await self._sessions.accept_message_session(
            self._path,
            session_id,
            self._mode,
            server_wait_time=server_wait_time,
            prefetch_count=self._prefetch_count,
            max_auto_lock_renewal=self._max_auto_lock_renewal,
        )

    async def get_message_sessions(self, updated_since: datetime | None = None) -> list[str]:
        """Return the ids of the sessions that have messages, or of those whose state was set since a time."""
        self._check_open()
        return await self._node.sessions(ACTIVE_SESSIONS_MS if updated_since is None else to_ms(updated_since))


class QueueClient(EntityClient):
    """Sends to a queue and receives from it."""

    def __init__(
        self,
        factory: SessionFactory,
        path: str,
        receive_mode: ReceiveMode,
        *,
        prefetch_count: int = 0,
        max_auto_lock_renewal: timedelta = _NO_TIME,
    ) -> None:
        super().__init__(
            factory, path, receive_mode, prefetch_count=prefetch_count, max_auto_lock_renewal=max_auto_lock_renewal
        )
        self._sender = MessageSender(factory, path)

    async def send(self, message: BrokeredMessage | Iterable[BrokeredMessage]) -> None:
        """Send one message, or several, as ``MessageSender.send`` does."""
        self._check_open()
        await self._sender.send(message)

    async def send_batch(self, messages: Iterable[BrokeredMessage]) -> None:
        """Send messages as one batch, as ``MessageSender.send_batch`` does."""
        self._check_open()
        await self._sender.send_batch(messages)

    @overload
    async def schedule(self, message: BrokeredMessage, at: datetime) -> int: ...

    @overload
    async def schedule(self, message: Iterable[BrokeredMessage], at: datetime) -> list[int]: ...

    async def schedule(self, message: BrokeredMessage | Iterable[BrokeredMessage], at: datetime) -> int | list[int]:
        """Schedule messages for a time, as ``MessageSender.schedule`` does."""
        self._check_open()
        return await self._sender.schedule(message, at)

    async def cancel_scheduled(self, sequence_number: int | Iterable[int]) -> None:
        """Cancel scheduled messages."""
        self._check_open()
        await self._sender.cancel_scheduled(sequence_number)

    async def _close_links(self) -> None:
        await self._sender.close()
        await super()._close_links()


class TopicClient(MessageSender):
    """Sends to a topic; each subscription gets its own copy."""


class SubscriptionClient(EntityClient):
    """Receives from a subscription, and manages its rules."""

    def __init__(
        self,
        factory: SessionFactory,
        topic_path: str,
        name: str,
        receive_mode: ReceiveMode,
        *,
        prefetch_count: int = 0,
        max_auto_lock_renewal: timedelta = _NO_TIME,
    ) -> None:
        super().__init__(
            factory,
            str(EntityPath(topic_path, name)),
            receive_mode,
            prefetch_count=prefetch_count,
            max_auto_lock_renewal=max_auto_lock_renewal,
        )
        self._topic_path = topic_path
        self._name = name

    @property
    def topic_path(self) -> str:
        return self._topic_path

    @property
    def name(self) -> str:
        return self._name

    async def add_rule(self, rule: RuleDescription) -> None:
        """Add a rule; raises ``EntityAlreadyExistsError`` if a rule with this name exists."""
        self._check_open()
        await self._node.ask(
            Operation.ADD_RULE, {"rule-name": rule.name, "rule-description": write_rule(rule, self._path)}
        )

    async def remove_rule(self, name: str) -> None:
        """Remove a rule; raises ``EntityNotFoundError`` if no rule with this name exists."""
        self._check_open()
        await self._node.ask(Operation.REMOVE_RULE, {"rule-name": name})

    async def get_rules(self) -> list[RuleDescription]:
        """Return the rules in the order of their creation."""
        self._check_open()
        return [read_rule(described, self._path) for described in await self._node.rules()]
