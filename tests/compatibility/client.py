"""The client of a namespace: the interface that every SDK is adapted to, so that one suite runs with all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.compatibility.administration import Administration, Rule, RuleAction, RuleFilter
from tests.compatibility.values import Entity, Message, Mode, Received, SubQueue, Subscription, Value
from tests.compatibility.waiting import PATIENCE


class Transport(StrEnum):
    """The transport of a connection."""

    TCP = "tcp"
    TLS = "tls"
    WEBSOCKET = "websocket"


class Ability(StrEnum):
    """Features that some SDKs do not have."""

    AMQP_USER_ID = "set the user id"
    BINARY_BODIES = "bytes as an AMQP value"
    CONCURRENT_CALLS = "several calls to one object at the same time"
    DATA_SECTIONS = "bodies of several data sections"
    FALSY_BODIES = "bodies that are false, zero or an empty text"
    ID_BYTES = "message ids of bytes"
    ID_UUID = "message ids that are UUIDs"
    LIST_SESSIONS = "list sessions"
    LONG_PROPERTIES = "application properties of 64 bits"
    MODIFY_PROPERTIES = "change properties at settlement"
    NULL_BODIES = "bodies that are null"
    NULL_PROPERTIES = "application properties of null"
    PREFETCH = "prefetch"
    RULES_OVER_AMQP = "manage rules over AMQP"
    SEQUENCE_SECTIONS = "bodies of several sequence sections"
    JSON_BODIES = "bodies of JSON"
    UUID_PROPERTIES = "application properties of UUIDs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address of a namespace, and the key to use."""

    connection_string: str
    tls_connection_string: str
    port: int
    ca_file: Path

    def with_key(self, name: str, key: str) -> Endpoint:
        """The same namespace, entered with another key."""
        return self._signed(f"SharedAccessKeyName={name};SharedAccessKey={key}")

    def with_signature(self, signature: str) -> Endpoint:
        """The same namespace, entered with a token that was made elsewhere."""
        return self._signed(f"SharedAccessSignature={signature}")

    def _signed(self, credentials: str) -> Endpoint:
        address = f"Endpoint=sb://localhost:{self.port};{credentials};"
        return Endpoint(
            connection_string=f"{address}UseDevelopmentEmulator=true;",
            tls_connection_string=address,
            port=self.port,
            ca_file=self.ca_file,
        )


class Sender(ABC):
    """Sends to a queue or a topic."""

    @abstractmethod
    async def send(self, message: Message) -> None: ...

    @abstractmethod
    async def send_all(self, messages: Sequence[Message]) -> None:
        """Send several at once; all of them arrive or none."""

    @abstractmethod
    async def send_batch(self, messages: Sequence[Message]) -> int:
        """Fill one batch with as many of these as it takes, and send it; how many these were."""

    @abstractmethod
    async def send_again(self, received: Received) -> None:
        """Send a message that was received, as the SDK gave it out."""

    @abstractmethod
    async def send_json(self, content: object) -> None:
        """Send what the SDK makes of a JSON value by itself."""

    @abstractmethod
    async def schedule(self, messages: Sequence[Message], at: datetime) -> list[int]: ...

    @abstractmethod
    async def cancel(self, sequence_numbers: Sequence[int]) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...


class Receiver(ABC):
    """Receives from a queue, a subscription, or one of their sub-queues."""

    @abstractmethod
    async def receive(self, count: int = 1, *, wait: timedelta = PATIENCE) -> list[Received]:
        """Receive so many, waiting so long for the first one; fewer, if the others do not come."""

    @abstractmethod
    async def stream(self, count: int) -> list[Received]:
        """Receive so many by the way the SDK has for endless receiving, completing each."""

    @abstractmethod
    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> list[Received]: ...

    @abstractmethod
    async def peek(self, count: int, *, from_sequence_number: int | None = None) -> list[Received]: ...

    @abstractmethod
    async def complete(self, received: Received) -> None: ...

    @abstractmethod
    async def abandon(self, received: Received, properties: Mapping[str, Value] | None = None) -> None: ...

    @abstractmethod
    async def defer(self, received: Received, properties: Mapping[str, Value] | None = None) -> None: ...

    @abstractmethod
    async def dead_letter(
        self,
        received: Received,
        *,
        reason: str | None = None,
        description: str | None = None,
        properties: Mapping[str, Value] | None = None,
    ) -> None: ...

    @abstractmethod
    async def renew_lock(self, received: Received) -> datetime: ...

    @abstractmethod
    async def close(self) -> None: ...

    async def one(self) -> Received:
        """Receive the one message that has to come."""
        (received,) = await self.receive()
        return received


class SessionReceiver(Receiver):
    """Receives from one session, which it holds."""

    @property
    @abstractmethod
    def session_id(self) -> str: ...

    @property
    @abstractmethod
    def locked_until(self) -> datetime: ...

    @abstractmethod
    async def renew_session_lock(self) -> datetime: ...

    @abstractmethod
    async def state(self) -> bytes | None: ...

    @abstractmethod
    async def set_state(self, state: bytes | None) -> None: ...


class RuleManager(ABC):
    """Manages the rules of a subscription over AMQP."""

    @abstractmethod
    async def create(self, name: str, rule_filter: RuleFilter, action: RuleAction | None = None) -> None: ...

    @abstractmethod
    async def delete(self, name: str) -> None: ...

    @abstractmethod
    async def rules(self) -> list[Rule]: ...


class Client(AbstractAsyncContextManager["Client"], ABC):
    """A client of a namespace; it connects when it is entered, or later."""

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def close(self) -> None:
        """Close it, and all that was made with it."""

    @abstractmethod
    async def sender(self, queue: str) -> Sender: ...

    @abstractmethod
    async def topic_sender(self, topic: str) -> Sender: ...

    @abstractmethod
    async def receiver(
        self,
        entity: Entity,
        *,
        mode: Mode = Mode.PEEK_LOCK,
        sub_queue: SubQueue | None = None,
        prefetch: int = 0,
        renew_for: timedelta | None = None,
    ) -> Receiver:
        """A receiver; ``renew_for`` has the SDK renew the locks of messages by itself, for so long."""

    @abstractmethod
    async def session(
        self,
        entity: Entity,
        session_id: str | None,
        *,
        mode: Mode = Mode.PEEK_LOCK,
        wait: timedelta = PATIENCE,
        renew_for: timedelta | None = None,
    ) -> SessionReceiver:
        """A receiver of one session: of that id, or (``None``) the next one that is free, waiting so long for it."""

    @abstractmethod
    async def receive_json(self, queue: str) -> object:
        """Receive a message, complete it, and give what the SDK makes of its body by itself."""

    @abstractmethod
    async def sessions(self, entity: Entity, *, updated_after: datetime | None = None) -> list[str]: ...

    @abstractmethod
    async def rule_manager(self, subscription: Subscription) -> RuleManager: ...

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Adapter(ABC):
    """One SDK, ready to make clients."""

    id: str
    """As in the names of tests."""
    title: str
    """As on the page."""
    abilities: frozenset[Ability]
    transports: frozenset[Transport] = frozenset(Transport)
    is_facade: bool = False
    """True if it only wraps another of these, so that its tests can be left to CI."""

    @abstractmethod
    def check_presence(self) -> None:
        """Skip the test, or fail it in CI, where the SDK is not installed."""

    @abstractmethod
    def client(self, endpoint: Endpoint, transport: Transport, *, retries: int = 0) -> Client: ...

    @abstractmethod
    def administration(self, endpoint: Endpoint) -> Administration: ...


async def drain(receiver: Receiver) -> AsyncIterator[Received]:
    """Receive and complete whatever there is."""
    while there := await receiver.peek(100, from_sequence_number=1):
        for received in await receiver.receive(len(there)):
            await receiver.complete(received)
            yield received
