"""@azure/service-bus as a client of the suite; the SDK itself runs in a process of node's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from tests.compatibility.administration import Administration, Rule, RuleAction, RuleFilter
from tests.compatibility.client import (
    Ability,
    Adapter,
    Client,
    Endpoint,
    Receiver,
    RuleManager,
    Sender,
    SessionReceiver,
    Transport,
)
from tests.compatibility.js_administration import JsAdministration
from tests.compatibility.js_errors import translated
from tests.compatibility.js_messages import incoming, outgoing
from tests.compatibility.js_rules import action_out, filter_out, rule_in
from tests.compatibility.node import UNDEFINED, Handle, NodeProcess, find_node, long, node_process
from tests.compatibility.values import (
    Entity,
    Message,
    Mode,
    Received,
    SubQueue,
    Subscription,
    Value,
)
from tests.compatibility.waiting import PATIENCE

"""The timeout of an operation; another timeout requires a new client."""

_MODES: Final = {Mode.PEEK_LOCK: "peekLock", Mode.RECEIVE_AND_DELETE: "receiveAndDelete"}
_SUB_QUEUES: Final = {
    None: UNDEFINED,
    SubQueue.DEAD_LETTER: "deadLetter",
    SubQueue.TRANSFER_DEAD_LETTER: "transferDeadLetter",
}


class JsObject:
    """An object of the SDK's."""

    def __init__(self, node: NodeProcess, handle: Handle) -> None:
        self._node = node
        self._handle = handle

    async def call(self, method: str, *args: Any) -> Any:
        with translated():
            return await self._node.call(self._handle, method, *args)

    async def close(self) -> None:
        await self.call("close")


class JsSender(JsObject, Sender):
    """A ``ServiceBusSender``."""

    async def send(self, message: Message) -> None:
        await self.call("sendMessages", outgoing(message))

    async def send_all(self, messages: Sequence[Message]) -> None:
        await self.call("sendMessages", [outgoing(message) for message in messages])

    async def send_batch(self, messages: Sequence[Message]) -> int:
        with translated():
            count: int = await self._node.request(
                on=self._handle.number, fill=[outgoing(message) for message in messages]
            )
        return count

    async def send_again(self, received: Received) -> None:
        await self.call("sendMessages", received.original)

    async def send_json(self, content: object) -> None:
        await self.call("sendMessages", {"body": content})

    async def schedule(self, messages: Sequence[Message], at: datetime) -> list[int]:
        numbers: list[int] = await self.call("scheduleMessages", [outgoing(message) for message in messages], at)
        return numbers

    async def cancel(self, sequence_numbers: Sequence[int]) -> None:
        await self.call("cancelScheduledMessages", [long(number) for number in sequence_numbers])


class JsReceiver(JsObject, SessionReceiver):
    """A ``ServiceBusReceiver``, with a session or without."""

    def __init__(self, node: NodeProcess, handle: Handle, session: dict[str, Any] | None = None) -> None:
        super().__init__(node, handle)
        self._session = session or {}

    async def receive(self, count: int = 1, *, wait: timedelta = PATIENCE) -> list[Received]:
        found = await self._receive(count, wait)
        while found and len(found) < count:  # a receive ends at the first gap between messages
            more = await self._receive(count - len(found), PATIENCE)
            if not more:
                break
            found += more
        return [incoming(received) for received in found]

    async def _receive(self, count: int, wait: timedelta) -> list[Handle]:
        found: list[Handle] = await self.call(
            "receiveMessages", count, {"maxWaitTimeInMs": wait.total_seconds() * 1000}
        )
        return found

    async def stream(self, count: int) -> list[Received]:
        with translated():
            found = await self._node.request(on=self._handle.number, stream=count)
        return [incoming(received) for received in found]

    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> list[Received]:
        found = await self.call("receiveDeferredMessages", [long(number) for number in sequence_numbers])
        return [incoming(received) for received in found]

    async def peek(self, count: int, *, from_sequence_number: int | None = None) -> list[Received]:
        options = {} if from_sequence_number is None else {"fromSequenceNumber": long(from_sequence_number)}
        return [incoming(received) for received in await self.call("peekMessages", count, options)]

    async def complete(self, received: Received) -> None:
        await self.call("completeMessage", received.original)

    async def abandon(self, received: Received, properties: Mapping[str, Value] | None = None) -> None:
        await self.call("abandonMessage", received.original, _or_undefined(properties))

    async def defer(self, received: Received, properties: Mapping[str, Value] | None = None) -> None:
        await self.call("deferMessage", received.original, _or_undefined(properties))

    async def dead_letter(
        self,
        received: Received,
        *,
        reason: str | None = None,
        description: str | None = None,
        properties: Mapping[str, Value] | None = None,
    ) -> None:
        options: dict[str, Any] = dict(properties or {})
        if reason is not None:
            options["deadLetterReason"] = reason
        if description is not None:
            options["deadLetterErrorDescription"] = description
        await self.call("deadLetterMessage", received.original, options or UNDEFINED)

    async def renew_lock(self, received: Received) -> datetime:
        until: datetime = await self.call("renewMessageLock", received.original)
        return until

    @property
    def session_id(self) -> str:
        found: str = self._session["sessionId"]
        return found

    @property
    def locked_until(self) -> datetime:
        until: datetime = self._session["sessionLockedUntilUtc"]
        return until

    async def renew_session_lock(self) -> datetime:
        until: datetime = await self.call("renewSessionLock")
        return until

    async def state(self) -> bytes | None:
        state = await self.call("getSessionState")
        return state.encode() if isinstance(state, str) else state

    async def set_state(self, state: bytes | None) -> None:
        await self.call("setSessionState", state)


class JsRuleManager(JsObject, RuleManager):
    """A ``ServiceBusRuleManager``."""

    async def create(self, name: str, rule_filter: RuleFilter, action: RuleAction | None = None) -> None:
        await self.call("createRule", name, filter_out(rule_filter), action_out(action) or UNDEFINED)

    async def delete(self, name: str) -> None:
        await self.call("deleteRule", name)

    async def rules(self) -> list[Rule]:
        with translated():
            found = await self._node.collect(self._handle, "listRules")
        return [rule_in(rule) for rule in found if rule is not None]  # where there is none, the SDK gives one nothing


class JsClient(Client):
    """A ``ServiceBusClient``."""

    def __init__(self, endpoint: Endpoint, transport: Transport, retries: int) -> None:
        self._endpoint = endpoint
        self._transport = transport
        self._retries = retries
        self._made: list[JsObject] = []

    async def open(self) -> None:
        is_plain = self._transport is Transport.TCP
        self._node = node_process(None if is_plain else self._endpoint.ca_file)
        self._clients = [await self._client(PATIENCE)]

    async def _client(self, patience: timedelta) -> Handle:
        is_plain = self._transport is Transport.TCP
        retry = {
            "maxRetries": self._retries,
            "retryDelayInMs": 100,
            "timeoutInMs": patience.total_seconds() * 1000,
        }
        with translated():
            return await self._node.new(
                "ServiceBusClient",
                self._endpoint.connection_string if is_plain else self._endpoint.tls_connection_string,
                {"retryOptions": retry},
                self._transport is Transport.WEBSOCKET,
            )

    async def close(self) -> None:
        with translated():
            for client in self._clients:
                await self._node.call(client, "close")

    async def sender(self, queue: str) -> Sender:
        return JsSender(self._node, await self.call("createSender", queue))

    async def topic_sender(self, topic: str) -> Sender:
        return await self.sender(topic)

    async def receiver(
        self,
        entity: Entity,
        *,
        mode: Mode = Mode.PEEK_LOCK,
        sub_queue: SubQueue | None = None,
        prefetch: int = 0,
        renew_for: timedelta | None = None,
    ) -> Receiver:
        assert not prefetch, "the SDK has no such option"
        options = {**_receiving(mode, renew_for), "subQueueType": _SUB_QUEUES[sub_queue]}
        return JsReceiver(self._node, await self.call("createReceiver", *_names(entity), options))

    async def receive_json(self, queue: str) -> object:
        receiver = JsObject(self._node, await self.call("createReceiver", queue))
        (found,) = await receiver.call("receiveMessages", 1, {"maxWaitTimeInMs": PATIENCE.total_seconds() * 1000})
        await receiver.call("completeMessage", found)
        return found.fields["body"]

    async def session(
        self,
        entity: Entity,
        session_id: str | None,
        *,
        mode: Mode = Mode.PEEK_LOCK,
        wait: timedelta = PATIENCE,
        renew_for: timedelta | None = None,
    ) -> SessionReceiver:
        client = await self._client(wait)  # there is no other way to tell how long to wait for a session
        self._clients.append(client)
        options = _receiving(mode, renew_for)
        with translated():
            if session_id is None:
                made = await self._node.call(client, "acceptNextSession", *_names(entity), options)
            else:
                made = await self._node.call(client, "acceptSession", *_names(entity), session_id, options)
            known = {name: await self._node.get(made, name) for name in ("sessionId", "sessionLockedUntilUtc")}
        return JsReceiver(self._node, made, known)

    async def sessions(self, entity: Entity, *, updated_after: datetime | None = None) -> list[str]:
        raise NotImplementedError

    async def rule_manager(self, subscription: Subscription) -> RuleManager:
        return JsRuleManager(self._node, await self.call("createRuleManager", *_names(subscription)))

    async def call(self, method: str, *args: Any) -> Handle:
        with translated():
            made: Handle = await self._node.call(self._clients[0], method, *args)
        return made


class JsAdapter(Adapter):
    """@azure/service-bus."""

    id = "javascript"
    title = "JavaScript, `@azure/service-bus`"
    abilities = frozenset(
        {
            Ability.CONCURRENT_CALLS,
            Ability.FALSY_BODIES,
            Ability.ID_UUID,
            Ability.LONG_PROPERTIES,
            Ability.MODIFY_PROPERTIES,
            Ability.NULL_PROPERTIES,
            Ability.RULES_OVER_AMQP,
            Ability.JSON_BODIES,
        }
    )

    def check_presence(self) -> None:
        find_node()

    def client(self, endpoint: Endpoint, transport: Transport, *, retries: int = 0) -> Client:
        return JsClient(endpoint, transport, retries)

    def administration(self, endpoint: Endpoint) -> Administration:
        return JsAdministration(endpoint)


def _receiving(mode: Mode, renew_for: timedelta | None) -> dict[str, Any]:
    return {
        "receiveMode": _MODES[mode],
        "maxAutoLockRenewalDurationInMs": 0 if renew_for is None else renew_for.total_seconds() * 1000,
        "skipParsingBodyAsJson": True,
        "skipConvertingDate": True,
    }


def _names(entity: Entity) -> tuple[str, ...]:
    return (entity.topic, entity.name) if isinstance(entity, Subscription) else (entity,)


def _or_undefined(properties: Mapping[str, Value] | None) -> Any:
    return UNDEFINED if properties is None else dict(properties)
