"""Our own client as a client of the suite: written once for its asynchronous and its blocking half."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import pairbus
from pairbus import (
    BrokeredMessage,
    MessageSizeExceededError,
    MessagingFactorySettings,
    ReceivedMessage,
    ReceiveMode,
    RetryPolicy,
)
from tests.compatibility.administration import Rule, RuleAction, RuleFilter
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
from tests.compatibility.pairbus_errors import translated
from tests.compatibility.pairbus_messages import content_of, incoming, outgoing
from tests.compatibility.pairbus_rules import rule_in, rule_out
from tests.compatibility.values import Entity, Message, Mode, Received, SubQueue, Subscription, Value
from tests.compatibility.waiting import PATIENCE

ABILITIES: Final = frozenset(
    {
        Ability.AMQP_USER_ID,
        Ability.BINARY_BODIES,
        Ability.CONCURRENT_CALLS,
        Ability.FALSY_BODIES,
        Ability.ID_BYTES,
        Ability.ID_UUID,
        Ability.JSON_BODIES,
        Ability.LIST_SESSIONS,
        Ability.LONG_PROPERTIES,
        Ability.MODIFY_PROPERTIES,
        Ability.NULL_BODIES,
        Ability.NULL_PROPERTIES,
        Ability.PREFETCH,
        Ability.RULES_OVER_AMQP,
        Ability.UUID_PROPERTIES,
    }
)

BACKOFF: Final = timedelta(milliseconds=100)
_MODES: Final = {
    Mode.PEEK_LOCK: ReceiveMode.PEEK_LOCK,
    Mode.RECEIVE_AND_DELETE: ReceiveMode.RECEIVE_AND_DELETE,
}
_SUB_QUEUES: Final = {
    None: "",
    SubQueue.DEAD_LETTER: "/$DeadLetterQueue",
    SubQueue.TRANSFER_DEAD_LETTER: "/$Transfer/$DeadLetterQueue",
}
_TRANSPORTS: Final = {
    Transport.TCP: pairbus.Transport.TCP,
    Transport.TLS: pairbus.Transport.TCP,
    Transport.WEBSOCKET: pairbus.Transport.WEB_SOCKET,
}


class Half(ABC):
    """The differences between the asynchronous and the blocking client."""

    factory: Callable[..., Any]
    """``MessagingFactory.from_connection_string``"""
    manager: Callable[..., Any]
    """``NamespaceManager.from_connection_string``"""

    @abstractmethod
    async def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a function of the client without blocking the event loop."""

    @abstractmethod
    async def stream(self, receiver: Any, count: int) -> list[ReceivedMessage]:
        """Iterate over a receiver for so many messages, completing each."""

    async def do(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        with translated():
            return await self.call(function, *args, **options)


class PairbusSender(Sender):
    """A ``MessageSender``."""

    def __init__(self, half: Half, sender: Any) -> None:
        self._half = half
        self._sender = sender

    async def send(self, message: Message) -> None:
        await self._half.do(self._sender.send, outgoing(message))

    async def send_all(self, messages: Sequence[Message]) -> None:
        await self._half.do(self._sender.send_batch, [outgoing(message) for message in messages])

    async def send_batch(self, messages: Sequence[Message]) -> int:
        """Retry with fewer messages while the client refuses the batch as too large."""
        batch = [outgoing(message) for message in messages]
        while True:
            try:
                await self._half.call(self._sender.send_batch, batch)
            except MessageSizeExceededError:
                del batch[-(len(batch) // 50 + 1) :]
            else:
                return len(batch)

    async def send_again(self, received: Received) -> None:
        await self._half.do(self._sender.send, received.original)

    async def send_json(self, content: object) -> None:
        await self._half.do(self._sender.send, BrokeredMessage(content))

    async def schedule(self, messages: Sequence[Message], at: datetime) -> list[int]:
        numbers: list[int] = await self._half.do(self._sender.schedule, [outgoing(message) for message in messages], at)
        return numbers

    async def cancel(self, sequence_numbers: Sequence[int]) -> None:
        await self._half.do(self._sender.cancel_scheduled, sequence_numbers)

    async def close(self) -> None:
        await self._half.do(self._sender.close)


class PairbusReceiver(SessionReceiver):
    """A ``MessageReceiver``, or a ``MessageSession``."""

    def __init__(self, half: Half, receiver: Any) -> None:
        self._half = half
        self._receiver = receiver

    async def receive(self, count: int = 1, *, wait: timedelta = PATIENCE) -> list[Received]:
        found = await self._half.do(self._receiver.receive, count, wait)
        while found and len(found) < count:  # a receive gives what is there, and does not wait for more
            more = await self._half.do(self._receiver.receive, count - len(found), PATIENCE)
            if not more:
                break
            found += more
        return [incoming(received) for received in found]

    async def stream(self, count: int) -> list[Received]:
        with translated():
            return [incoming(received) for received in await self._half.stream(self._receiver, count)]

    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> list[Received]:
        found = await self._half.do(self._receiver.receive_deferred, sequence_numbers)
        return [incoming(received) for received in found]

    async def peek(self, count: int, *, from_sequence_number: int | None = None) -> list[Received]:
        found = await self._half.do(self._receiver.peek, count, from_sequence_number)
        return [incoming(received) for received in found]

    async def complete(self, received: Received) -> None:
        await self._half.do(self._receiver.complete, received.original)

    async def abandon(self, received: Received, properties: Mapping[str, Value] | None = None) -> None:
        await self._half.do(self._receiver.abandon, received.original, properties)

    async def defer(self, received: Received, properties: Mapping[str, Value] | None = None) -> None:
        await self._half.do(self._receiver.defer, received.original, properties)

    async def dead_letter(
        self,
        received: Received,
        *,
        reason: str | None = None,
        description: str | None = None,
        properties: Mapping[str, Value] | None = None,
    ) -> None:
        await self._half.do(self._receiver.dead_letter, received.original, reason, description, properties)

    async def renew_lock(self, received: Received) -> datetime:
        until: datetime = await self._half.do(self._receiver.renew_lock, received.original)
        return until

    async def close(self) -> None:
        await self._half.do(self._receiver.close)

    @property
    def session_id(self) -> str:
        found: str = self._receiver.session_id
        return found

    @property
    def locked_until(self) -> datetime:
        until: datetime = self._receiver.locked_until
        return until

    async def renew_session_lock(self) -> datetime:
        until: datetime = await self._half.do(self._receiver.renew_lock)
        return until

    async def state(self) -> bytes | None:
        state: bytes | None = await self._half.do(self._receiver.get_state)
        return state

    async def set_state(self, state: bytes | None) -> None:
        await self._half.do(self._receiver.set_state, state)


class PairbusRuleManager(RuleManager):
    """A ``SubscriptionClient``."""

    def __init__(self, half: Half, subscription: Any) -> None:
        self._half = half
        self._subscription = subscription

    async def create(self, name: str, rule_filter: RuleFilter, action: RuleAction | None = None) -> None:
        rule = Rule(name=name, filter=rule_filter, action=action)
        await self._half.do(self._subscription.add_rule, rule_out(rule))

    async def delete(self, name: str) -> None:
        await self._half.do(self._subscription.remove_rule, name)

    async def rules(self) -> list[Rule]:
        return [rule_in(found) for found in await self._half.do(self._subscription.get_rules)]


class PairbusClient(Client):
    """A ``MessagingFactory``."""

    def __init__(self, half: Half, endpoint: Endpoint, transport: Transport, retries: int) -> None:
        self._half = half
        self._endpoint = endpoint
        self._transport = transport
        self._retries = retries

    async def open(self) -> None:
        is_plain = self._transport is Transport.TCP
        self._factory = self._half.factory(
            self._endpoint.connection_string if is_plain else self._endpoint.tls_connection_string, self._settings()
        )

    def _settings(self) -> MessagingFactorySettings:
        return MessagingFactorySettings(
            transport=_TRANSPORTS[self._transport],
            ca_file=self._endpoint.ca_file,
            retry_policy=RetryPolicy(
                minimum_backoff=BACKOFF,
                maximum_backoff=BACKOFF,
                server_busy_backoff=BACKOFF,
                maximum_retries=self._retries,
            ),
        )

    async def close(self) -> None:
        await self._half.do(self._factory.close)

    async def sender(self, queue: str) -> Sender:
        return PairbusSender(self._half, await self._half.do(self._factory.create_message_sender, queue))

    async def topic_sender(self, topic: str) -> Sender:
        return PairbusSender(self._half, await self._half.do(self._factory.create_topic_client, topic))

    async def receiver(
        self,
        entity: Entity,
        *,
        mode: Mode = Mode.PEEK_LOCK,
        sub_queue: SubQueue | None = None,
        prefetch: int = 0,
        renew_for: timedelta | None = None,
    ) -> Receiver:
        made = await self._half.do(
            self._factory.create_message_receiver,
            _path(entity) + _SUB_QUEUES[sub_queue],
            _MODES[mode],
            prefetch_count=prefetch,
            max_auto_lock_renewal=renew_for or timedelta(),
        )
        return PairbusReceiver(self._half, made)

    async def session(
        self,
        entity: Entity,
        session_id: str | None,
        *,
        mode: Mode = Mode.PEEK_LOCK,
        wait: timedelta = PATIENCE,
        renew_for: timedelta | None = None,
    ) -> SessionReceiver:
        accepted = await self._half.do(
            self._factory.accept_message_session,
            _path(entity),
            session_id,
            _MODES[mode],
            server_wait_time=wait,
            max_auto_lock_renewal=renew_for or timedelta(),
        )
        return PairbusReceiver(self._half, accepted)

    async def receive_json(self, queue: str) -> object:
        client = await self._half.do(self._factory.create_queue_client, queue)
        (received,) = await self._half.do(client.receive)
        await self._half.do(client.complete, received)
        await self._half.do(client.close)
        return content_of(received)

    async def sessions(self, entity: Entity, *, updated_after: datetime | None = None) -> list[str]:
        found: list[str] = await self._half.do((await self._entity(entity)).get_message_sessions, updated_after)
        return found

    async def rule_manager(self, subscription: Subscription) -> RuleManager:
        return PairbusRuleManager(self._half, await self._entity(subscription))

    async def _entity(self, entity: Entity) -> Any:
        if isinstance(entity, Subscription):
            return await self._half.do(self._factory.create_subscription_client, entity.topic, entity.name)
        return await self._half.do(self._factory.create_queue_client, entity)


def _path(entity: Entity) -> str:
    return f"{entity.topic}/Subscriptions/{entity.name}" if isinstance(entity, Subscription) else entity
