"""azure-servicebus as a client of the suite: written once for its synchronous and its asynchronous half."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final

import azure.core.exceptions as core
import azure.servicebus.exceptions as errors
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode, ServiceBusSubQueue, TransportType

from tests.compatibility.client import (
    Ability,
    Client,
    Endpoint,
    Receiver,
    RuleManager,
    Sender,
    SessionReceiver,
    Transport,
)
from tests.compatibility.python_messages import incoming, outgoing
from tests.compatibility.values import (
    Entity,
    Message,
    Mode,
    Reason,
    Received,
    SdkError,
    SubQueue,
    Subscription,
    Value,
)
from tests.compatibility.waiting import PATIENCE

ABILITIES: Final = frozenset(
    {
        Ability.AMQP_USER_ID,
        Ability.DATA_SECTIONS,
        Ability.BINARY_BODIES,
        Ability.ID_BYTES,
        Ability.ID_UUID,
        Ability.LIST_SESSIONS,
        Ability.NULL_BODIES,
        Ability.NULL_PROPERTIES,
        Ability.PREFETCH,
        Ability.SEQUENCE_SECTIONS,
        Ability.UUID_PROPERTIES,
    }
)

_MODES: Final = {
    Mode.PEEK_LOCK: ServiceBusReceiveMode.PEEK_LOCK,
    Mode.RECEIVE_AND_DELETE: ServiceBusReceiveMode.RECEIVE_AND_DELETE,
}
_SUB_QUEUES: Final = {
    None: None,
    SubQueue.DEAD_LETTER: ServiceBusSubQueue.DEAD_LETTER,
    SubQueue.TRANSFER_DEAD_LETTER: ServiceBusSubQueue.TRANSFER_DEAD_LETTER,
}

_REASONS: Final[dict[type[Exception], Reason]] = {
    errors.MessageAlreadySettled: Reason.ALREADY_SETTLED,
    errors.MessageLockLostError: Reason.LOCK_LOST,
    errors.MessageNotFoundError: Reason.MESSAGE_NOT_FOUND,
    errors.MessageSizeExceededError: Reason.SIZE_EXCEEDED,
    errors.MessagingEntityAlreadyExistsError: Reason.ALREADY_EXISTS,
    errors.MessagingEntityDisabledError: Reason.DISABLED,
    errors.MessagingEntityNotFoundError: Reason.NOT_FOUND,
    errors.OperationTimeoutError: Reason.TIMEOUT,
    errors.ServiceBusAuthenticationError: Reason.UNAUTHORIZED,
    errors.ServiceBusAuthorizationError: Reason.UNAUTHORIZED,
    errors.ServiceBusCommunicationError: Reason.CONNECTION,
    errors.ServiceBusConnectionError: Reason.CONNECTION,
    errors.ServiceBusQuotaExceededError: Reason.QUOTA_EXCEEDED,
    errors.ServiceBusServerBusyError: Reason.BUSY,
    errors.SessionCannotBeLockedError: Reason.SESSION_CANNOT_BE_LOCKED,
    errors.SessionLockLostError: Reason.SESSION_LOCK_LOST,
    errors.ServiceBusError: Reason.GENERAL,
    core.ClientAuthenticationError: Reason.UNAUTHORIZED,
    core.ResourceExistsError: Reason.ALREADY_EXISTS,
    core.ResourceNotFoundError: Reason.NOT_FOUND,
    core.HttpResponseError: Reason.GENERAL,
    core.ServiceRequestError: Reason.CONNECTION,
    core.ServiceResponseError: Reason.CONNECTION,
    ValueError: Reason.INVALID,
}


@contextmanager
def translated() -> Iterator[None]:
    """Raise the SDK's errors as the suite's."""
    try:
        yield
    except tuple(_REASONS) as error:
        reason = next(_REASONS[kind] for kind in type(error).__mro__ if kind in _REASONS)
        raise SdkError(reason, f"{type(error).__name__}: {error}") from error


class Half(ABC):
    """The differences between the synchronous and the asynchronous SDK."""

    client: Callable[..., Any]
    """``ServiceBusClient.from_connection_string``"""
    administration: Callable[..., Any]
    renewer: Callable[..., Any]

    @abstractmethod
    async def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a function of the SDK without blocking the event loop."""

    @abstractmethod
    async def open(self, receiver: Any) -> None:
        """Do what ``with`` does at its beginning."""

    @abstractmethod
    async def collect(self, pages: Any) -> list[Any]:
        """Read an iterator of the SDK to its end."""

    @abstractmethod
    async def stream(self, receiver: Any, count: int) -> list[Any]:
        """Iterate over a receiver for so many messages, completing each."""

    async def do(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        with translated():
            return await self.call(function, *args, **options)


class PythonSender(Sender):
    """A ``ServiceBusSender``."""

    def __init__(self, half: Half, sender: Any) -> None:
        self._half = half
        self._sender = sender

    async def send(self, message: Message) -> None:
        await self._half.do(self._sender.send_messages, outgoing(message))

    async def send_all(self, messages: Sequence[Message]) -> None:
        await self._half.do(self._sender.send_messages, [outgoing(message) for message in messages])

    async def send_batch(self, messages: Sequence[Message]) -> int:
        batch = await self._half.do(self._sender.create_message_batch)
        for message in messages:
            try:
                batch.add_message(outgoing(message))
            except errors.MessageSizeExceededError:
                break
        await self._half.do(self._sender.send_messages, batch)
        return len(batch)

    async def send_again(self, received: Received) -> None:
        await self._half.do(self._sender.send_messages, received.original)

    async def send_json(self, content: object) -> None:
        raise NotImplementedError

    async def schedule(self, messages: Sequence[Message], at: datetime) -> list[int]:
        numbers: list[int] = await self._half.do(
            self._sender.schedule_messages, [outgoing(message) for message in messages], at
        )
        return numbers

    async def cancel(self, sequence_numbers: Sequence[int]) -> None:
        await self._half.do(self._sender.cancel_scheduled_messages, list(sequence_numbers))

    async def close(self) -> None:
        await self._half.do(self._sender.close)


class PythonReceiver(SessionReceiver):
    """A ``ServiceBusReceiver``, with a session or without."""

    def __init__(self, half: Half, receiver: Any, renewer: Any | None) -> None:
        self._half = half
        self._receiver = receiver
        self._renewer = renewer
        self._is_open = False

    async def open(self) -> None:
        """Open the link before it is used: it takes the SDK half a second, which counts as waiting otherwise."""
        if not self._is_open:
            with translated():
                await self._half.open(self._receiver)
            self._is_open = True

    async def receive(self, count: int = 1, *, wait: timedelta = PATIENCE) -> list[Received]:
        await self.open()
        found = await self._half.do(
            self._receiver.receive_messages, max_message_count=count, max_wait_time=wait.total_seconds()
        )
        while found and len(found) < count:  # a receive ends at the first gap between messages
            more = await self._half.do(
                self._receiver.receive_messages,
                max_message_count=count - len(found),
                max_wait_time=PATIENCE.total_seconds(),
            )
            if not more:
                break
            found += more
        return [incoming(received) for received in found]

    async def stream(self, count: int) -> list[Received]:
        with translated():
            return [incoming(received) for received in await self._half.stream(self._receiver, count)]

    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> list[Received]:
        found = await self._half.do(self._receiver.receive_deferred_messages, list(sequence_numbers))
        return [incoming(received) for received in found]

    async def peek(self, count: int, *, from_sequence_number: int | None = None) -> list[Received]:
        found = await self._half.do(
            self._receiver.peek_messages, max_message_count=count, sequence_number=from_sequence_number or 0
        )
        return [incoming(received) for received in found]

    async def complete(self, received: Received) -> None:
        await self._half.do(self._receiver.complete_message, received.original)

    async def abandon(self, received: Received, properties: Mapping[str, Value] | None = None) -> None:
        assert properties is None
        await self._half.do(self._receiver.abandon_message, received.original)

    async def defer(self, received: Received, properties: Mapping[str, Value] | None = None) -> None:
        assert properties is None
        await self._half.do(self._receiver.defer_message, received.original)

    async def dead_letter(
        self,
        received: Received,
        *,
        reason: str | None = None,
        description: str | None = None,
        properties: Mapping[str, Value] | None = None,
    ) -> None:
        assert properties is None
        await self._half.do(
            self._receiver.dead_letter_message, received.original, reason=reason, error_description=description
        )

    async def renew_lock(self, received: Received) -> datetime:
        until: datetime = await self._half.do(self._receiver.renew_message_lock, received.original)
        return until

    async def close(self) -> None:
        if self._renewer is not None:
            await self._half.do(self._renewer.close)
        await self._half.do(self._receiver.close)

    @property
    def session_id(self) -> str:
        found: str = self._receiver.session.session_id
        return found

    @property
    def locked_until(self) -> datetime:
        until: datetime = self._receiver.session.locked_until_utc
        return until

    async def renew_session_lock(self) -> datetime:
        until: datetime = await self._half.do(self._receiver.session.renew_lock)
        return until

    async def state(self) -> bytes | None:
        state: bytes | None = await self._half.do(self._receiver.session.get_state)
        return state

    async def set_state(self, state: bytes | None) -> None:
        await self._half.do(self._receiver.session.set_state, state)


class PythonClient(Client):
    """A ``ServiceBusClient``."""

    def __init__(self, half: Half, endpoint: Endpoint, transport: Transport, retries: int) -> None:
        self._half = half
        self._endpoint = endpoint
        self._transport = transport
        self._retries = retries
        self._made: list[Sender | Receiver] = []

    async def open(self) -> None:
        connection_string, options = self._way()
        self._client = self._half.client(
            connection_string, retry_total=self._retries, retry_backoff_factor=0.1, retry_mode="fixed", **options
        )

    def _way(self) -> tuple[str, dict[str, Any]]:
        """Return the address to connect to; over TLS, a port other than the SDK's own is a custom endpoint."""
        if self._transport is Transport.TCP:
            return self._endpoint.connection_string, {}
        kinds = {Transport.TLS: TransportType.Amqp, Transport.WEBSOCKET: TransportType.AmqpOverWebsocket}
        return self._endpoint.tls_connection_string, {
            "custom_endpoint_address": f"sb://localhost:{self._endpoint.port}",
            "transport_type": kinds[self._transport],
            "connection_verify": str(self._endpoint.ca_file),
        }

    async def close(self) -> None:
        await asyncio.gather(*(made.close() for made in self._made))
        await self._half.do(self._client.close)

    async def sender(self, queue: str) -> Sender:
        return self._sender(self._client.get_queue_sender(queue))

    async def topic_sender(self, topic: str) -> Sender:
        return self._sender(self._client.get_topic_sender(topic))

    def _sender(self, made: Any) -> Sender:
        sender = PythonSender(self._half, made)
        self._made.append(sender)
        return sender

    async def receiver(
        self,
        entity: Entity,
        *,
        mode: Mode = Mode.PEEK_LOCK,
        sub_queue: SubQueue | None = None,
        prefetch: int = 0,
        renew_for: timedelta | None = None,
    ) -> Receiver:
        return self._receiver(
            entity,
            renew_for,
            receive_mode=_MODES[mode],
            sub_queue=_SUB_QUEUES[sub_queue],
            prefetch_count=prefetch,
        )

    async def session(
        self,
        entity: Entity,
        session_id: str | None,
        *,
        mode: Mode = Mode.PEEK_LOCK,
        wait: timedelta = PATIENCE,
        renew_for: timedelta | None = None,
    ) -> SessionReceiver:
        receiver = self._receiver(
            entity,
            renew_for,
            receive_mode=_MODES[mode],
            session_id=NEXT_AVAILABLE_SESSION if session_id is None else session_id,
            max_wait_time=wait.total_seconds(),
        )
        await receiver.open()
        return receiver

    def _receiver(self, entity: Entity, renew_for: timedelta | None, **options: Any) -> PythonReceiver:
        renewer = None
        if renew_for is not None:
            renewer = self._half.renewer(max_lock_renewal_duration=renew_for.total_seconds())
            options["auto_lock_renewer"] = renewer
        if isinstance(entity, Subscription):
            made = self._client.get_subscription_receiver(entity.topic, entity.name, **options)
        else:
            made = self._client.get_queue_receiver(entity, **options)
        receiver = PythonReceiver(self._half, made, renewer)
        self._made.append(receiver)
        return receiver

    async def receive_json(self, queue: str) -> object:
        raise NotImplementedError

    async def sessions(self, entity: Entity, *, updated_after: datetime | None = None) -> list[str]:
        with translated():
            if isinstance(entity, Subscription):
                pages = self._client.list_subscription_sessions(
                    entity.topic, entity.name, state_updated_after=updated_after
                )
            else:
                pages = self._client.list_queue_sessions(entity, state_updated_after=updated_after)
            return await self._half.collect(pages)

    async def rule_manager(self, subscription: Subscription) -> RuleManager:
        raise NotImplementedError
