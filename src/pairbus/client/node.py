"""Requests to the management node of an entity."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, Protocol
from uuid import UUID

from pairbus.client.amqp.authorization import Reconnecting
from pairbus.client.amqp.conditions import error_from_status
from pairbus.client.amqp.link import RequestLink
from pairbus.client.errors import (
    ClosedError,
    InternalServerError,
    MessagingError,
    MessagingTimeoutError,
    UnauthorizedError,
)
from pairbus.client.message import BrokeredMessage, encode_brokered
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.retrying import retrying
from pairbus.client.settings import MessagingFactorySettings
from pairbus.client.validation import check_type, from_ms
from pairbus.dialect.management import ASSOCIATED_LINK, Operation, Response
from pairbus.dialect.paths import MANAGEMENT
from pairbus.wire import Array, Int, Timestamp, UInt

_SERVER_TIMEOUT: Final = "com.microsoft:server-timeout"
_NO_CONTENT: Final = 204
_PAGE: Final = 100
ACTIVE_SESSIONS_MS: Final = 253_402_300_800_000
"""The year 10000, which requests the sessions that have messages instead of those whose state has changed."""


class RequestLinkFactory(Protocol):
    """The interface of the factory that a management client uses."""

    @property
    def settings(self) -> MessagingFactorySettings: ...

    def check_open(self) -> None: ...

    def reached(self) -> asyncio.Future[None]: ...

    def forget_token(self, path: str) -> None:
        """Discard the rejected token of an entity, so that the next link requests a new one."""

    async def open_request_link(self, address: str, entity: str) -> RequestLink: ...


class ManagementClient:
    """Sends requests to the management node of an entity, and retries them after transient errors."""

    def __init__(self, factory: RequestLinkFactory, path: str) -> None:
        self._factory = factory
        self.path = path
        self._current = Reconnecting(lambda: factory.open_request_link(f"{path}/{MANAGEMENT}", path))
        self._is_closed = False

    async def close(self) -> None:
        self._is_closed = True
        link = await self._current.clear()
        if link is not None:
            await link.close()

    async def ask(
        self,
        operation: Operation,
        body: Mapping[str, Any],
        *,
        link_name: str | None = None,
        started_s: float | None = None,
        failure: MessagingError | None = None,
    ) -> Response | None:
        """Send a request; return the response, or ``None`` if it has no content. Raises ``MessagingError``.

        ``started_s`` is the start of the operation that this request belongs to, and ``failure`` its last error so far.
        """
        try:
            return await retrying(
                lambda: self._ask(operation, body, link_name),
                settings=self._factory.settings,
                entity=self.path,
                failure=failure,
                started_s=started_s,
                reconnected=self._factory.reached,
            )
        except ClosedError:
            self._factory.check_open()  # the factory may know the cause
            raise

    async def _ask(self, operation: Operation, body: Mapping[str, Any], link_name: str | None) -> Response | None:
        if self._is_closed:
            raise ClosedError("the link has been closed", entity=self.path)
        settings = self._factory.settings
        link = await self._current.get()
        properties: dict[str, Any] = {_SERVER_TIMEOUT: UInt(max(1, int(settings.attempt_s * 1_000)))}
        if link_name is not None:
            properties[ASSOCIATED_LINK] = link_name
        started_s = link.connection.loop.time()
        try:
            response = await link.ask(operation, dict(body), properties)
        except BaseException:
            # A caller that times out leaves a link behind that may be unusable.
            if link.connection.loop.time() - started_s >= 0.9 * settings.attempt_s:
                link.suspect(MessagingTimeoutError("no response in time", entity=self.path), started_s)
            raise
        if response.status == _NO_CONTENT:
            return None
        if not 200 <= response.status < 300:
            error = error_from_status(response.status, response.description, response.condition, self.path)
            if isinstance(error, UnauthorizedError):
                self._factory.forget_token(self.path)
            raise error
        return response

    # Requests of senders.

    async def schedule(
        self, messages: list[BrokeredMessage], at: datetime, trace_contexts: Iterable[Mapping[str, str] | None]
    ) -> list[int]:
        entries = []
        for message, context in zip(messages, trace_contexts, strict=False):  # without tracing there is no end of them
            payload = encode_brokered(message, at, context)
            entry: dict[str, Any] = {"message": payload, "message-id": str(message.message_id)}
            if message.session_id is not None:
                entry["session-id"] = message.session_id
            if message.partition_key is not None:
                entry["partition-key"] = message.partition_key
            if message.via_partition_key is not None:
                entry["via-partition-key"] = message.via_partition_key
            entries.append(entry)
        response = await self.ask(Operation.SCHEDULE_MESSAGE, {"messages": entries})
        with self._checking_response():
            return [int(number) for number in _items(response, "sequence-numbers", len(messages))]

    async def cancel_scheduled(self, sequence_numbers: list[int]) -> None:
        await self.ask(Operation.CANCEL_SCHEDULED_MESSAGE, {"sequence-numbers": Array(tuple(sequence_numbers))})

    # Requests of receivers.

    async def peek(
        self, count: int, from_sequence_number: int, session_id: str | None, link_name: str | None
    ) -> list[ReceivedMessage]:
        body: dict[str, Any] = {"from-sequence-number": from_sequence_number, "message-count": Int(count)}
        if session_id is not None:
            body["session-id"] = session_id
        response = await self.ask(Operation.PEEK_MESSAGE, body, link_name=link_name)
        with self._checking_response():
            return [ReceivedMessage(_bytes(entry["message"])) for entry in _items(response, "messages")]

    async def receive_deferred(
        self, sequence_numbers: list[int], *, peek_lock: bool, session_id: str | None, link_name: str | None
    ) -> list[ReceivedMessage]:
        body: dict[str, Any] = {
            "sequence-numbers": Array(tuple(sequence_numbers)),
            "receiver-settle-mode": UInt(1 if peek_lock else 0),
        }
        if session_id is not None:
            body["session-id"] = session_id
        response = await self.ask(Operation.RECEIVE_BY_SEQUENCE_NUMBER, body, link_name=link_name)
        with self._checking_response():
            return [
                ReceivedMessage(_bytes(entry["message"]), lock_token=entry.get("lock-token") if peek_lock else None)
                for entry in _items(response, "messages")
            ]

    async def settle(
        self,
        status: str,
        tokens: list[UUID],
        details: Mapping[str, Any],
        *,
        session_id: str | None,
        link_name: str | None,
        started_s: float,
        failure: MessagingError | None,
    ) -> None:
        body: dict[str, Any] = {"disposition-status": status, "lock-tokens": Array(tuple(tokens)), **details}
        if session_id is not None:
            body["session-id"] = session_id
        await self.ask(Operation.UPDATE_DISPOSITION, body, link_name=link_name, started_s=started_s, failure=failure)

    async def renew_locks(self, tokens: list[UUID], *, link_name: str | None) -> list[datetime]:
        response = await self.ask(Operation.RENEW_LOCK, {"lock-tokens": Array(tuple(tokens))}, link_name=link_name)
        with self._checking_response():
            return [from_ms(moment) for moment in _items(response, "expirations", len(tokens))]

    # Requests of sessions.

    async def renew_session_lock(self, session_id: str, link_name: str) -> datetime:
        response = await self.ask(Operation.RENEW_SESSION_LOCK, {"session-id": session_id}, link_name=link_name)
        with self._checking_response():
            return from_ms({} if response is None else response.body["expiration"])

    async def session_state(self, session_id: str, link_name: str) -> bytes | None:
        response = await self.ask(Operation.GET_SESSION_STATE, {"session-id": session_id}, link_name=link_name)
        state = None if response is None else response.body.get("session-state")
        with self._checking_response():
            return None if state is None else _bytes(state)

    async def set_session_state(self, session_id: str, state: bytes | None, link_name: str) -> None:
        body = {"session-id": session_id, "session-state": state}
        await self.ask(Operation.SET_SESSION_STATE, body, link_name=link_name)

    async def sessions(self, updated_since_ms: int) -> list[str]:
        found: list[str] = []
        while True:
            body = {
                "last-updated-time": Timestamp(updated_since_ms),
                "skip": Int(len(found)),
                "top": Int(_PAGE),
            }
            response = await self.ask(Operation.GET_MESSAGE_SESSIONS, body)
            page = [str(session_id) for session_id in _items(response, "sessions-ids")]
            found += page
            if len(page) < _PAGE:
                return found

    # Requests of subscriptions.

    async def rules(self) -> list[Any]:
        found: list[Any] = []
        while True:
            response = await self.ask(Operation.ENUMERATE_RULES, {"skip": Int(len(found)), "top": Int(_PAGE)})
            with self._checking_response():
                page = [entry["rule-description"] for entry in _items(response, "rules")]
            found += page
            if len(page) < _PAGE:
                return found

    @contextmanager
    def _checking_response(self) -> Iterator[None]:
        """Raise ``InternalServerError`` for a malformed response, which is the fault of the namespace."""
        try:
            yield
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InternalServerError(f"malformed response: {error!r}", entity=self.path) from error


def _items(response: Response | None, name: str, count: int | None = None) -> list[Any]:
    found = None if response is None else response.body.get(name)
    items = list(found.items) if isinstance(found, Array) else list(found or ())
    if count is not None and len(items) != count:
        raise ValueError(f"expected {count} {name}, got {len(items)}")
    return items


def sequence_numbers(numbers: int | Iterable[int]) -> list[int]:
    """Return a list of one or several sequence numbers; raises ``TypeError`` if one is not an int."""
    found = [numbers] if isinstance(numbers, int) or not isinstance(numbers, Iterable) else [*numbers]
    for number in found:
        check_type("sequence_number", number, (int,))
    return found


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError(f"expected bytes, got {value!r:.50}")
    return value
