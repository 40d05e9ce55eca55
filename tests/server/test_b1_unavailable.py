"""B1: an entity cannot be sent to, received from, managed or contacted; each alone, and the others keep working."""

from __future__ import annotations

import asyncio
import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Final, Self, TypeVar

import pytest
from azure.core.exceptions import HttpResponseError, ServiceRequestError, ServiceResponseError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient

import pairbus
from pairbus import MessagingCommunicationError, MessagingError, MessagingTimeoutError
from pairbus.blocking import BrokeredMessage, MessagingFactory, NamespaceManager
from pairbus.broker import Address, QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.client.settings import MessagingFactorySettings, RetryPolicy
from pairbus.server.host import NamespaceHost
from pairbus.testing import FaultKind, RunningNamespace, running_namespace
from tests.compatibility.adapters import ADAPTERS
from tests.compatibility.administration import Administration
from tests.compatibility.client import Adapter, Client, Endpoint, Transport
from tests.compatibility.stage import unclosed_forgiven
from tests.compatibility.values import Message, Reason, SdkError, Subscription
from tests.waiting import eventually

WAIT_S: Final = 30
QUICK: Final = MessagingFactorySettings(
    operation_timeout=timedelta(seconds=1), retry_policy=RetryPolicy(maximum_retries=0)
)
ORDERS: Final = Address.of("orders")
NEWS: Final = Address.of("news", "all")
WITH_SUBSCRIPTIONS: Final = [adapter for adapter in ADAPTERS if adapter.id in {"python-aio", "javascript", "pairbus"}]
"""The clients that are tested with a subscription: the synchronous ones are tested with a queue."""

RECONNECTING: Final = {"python-aio"}
"""The clients whose management requests open a connection each."""

LOCK_MS: Final = 5_000
WAYS: Final = ("send", "receive", "manage", "connect")


T = TypeVar("T", Client, Administration)


class Application(ABC):
    """A client of a queue whose connections are open."""

    errors: tuple[type[Exception], ...]

    def __init__(self) -> None:
        self.resources = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.resources.close()

    @abstractmethod
    def send(self) -> None: ...

    @abstractmethod
    def receive(self) -> None:
        """Receive a message and complete it."""

    @abstractmethod
    def manage(self) -> None: ...

    @abstractmethod
    def connect(self) -> None:
        """Open another connection."""


class AzureApplication(Application):
    """The official SDK for Python."""

    errors = (ServiceBusError, HttpResponseError, ServiceRequestError, ServiceResponseError)

    def __init__(self, namespace: RunningNamespace) -> None:
        super().__init__()
        self._namespace = namespace
        client = self.resources.enter_context(self._client())
        self._sender = self.resources.enter_context(client.get_queue_sender("orders"))
        self._receiver = self.resources.enter_context(client.get_queue_receiver("orders"))
        self._manager = self.resources.enter_context(
            ServiceBusAdministrationClient.from_connection_string(
                namespace.connection_string, connection_verify=str(namespace.ca_file), retry_total=0
            )
        )
        self.manage()

    def _client(self) -> ServiceBusClient:
        return ServiceBusClient.from_connection_string(self._namespace.connection_string, retry_total=0)

    def send(self) -> None:
        self._sender.send_messages(ServiceBusMessage("one"))

    def receive(self) -> None:
        (message,) = self._receiver.receive_messages(max_message_count=1, max_wait_time=WAIT_S)
        self._receiver.complete_message(message)

    def manage(self) -> None:
        self._manager.get_queue("orders")

    def connect(self) -> None:
        with self._client() as client, client.get_queue_sender("orders") as sender:
            sender.create_message_batch()


class OurApplication(Application):
    """The client of pairbus."""

    errors = (MessagingTimeoutError, MessagingCommunicationError)

    def __init__(self, namespace: RunningNamespace) -> None:
        super().__init__()
        self._namespace = namespace
        self._factory = self.resources.enter_context(self._client())
        self._sender = self.resources.enter_context(self._factory.create_message_sender("orders"))
        self._receiver = self.resources.enter_context(self._factory.create_message_receiver("orders"))
        self._manager = self.resources.enter_context(
            NamespaceManager.from_connection_string(namespace.connection_string, QUICK)
        )
        self.manage()

    def _client(self) -> MessagingFactory:
        return MessagingFactory.from_connection_string(self._namespace.connection_string, QUICK)

    def send(self) -> None:
        self._sender.send(BrokeredMessage(b"one"))

    def receive(self) -> None:
        (message,) = self._receiver.receive(max_wait_time=timedelta(seconds=WAIT_S))
        self._receiver.complete(message)

    def manage(self) -> None:
        self._manager.get_queue("orders")

    def connect(self) -> None:
        async def connected() -> None:
            async with pairbus.MessagingFactory.from_connection_string(self._namespace.connection_string) as factory:
                await factory.announced_name()

        asyncio.run(connected())


class AdaptedApplication(Application):
    """Any SDK, by its adapter of the compatibility suite, with a topic and its subscription."""

    errors = (SdkError,)

    def __init__(self, adapter: Adapter, namespace: RunningNamespace, runner: asyncio.Runner) -> None:
        super().__init__()
        adapter.check_presence()
        self._adapter = adapter
        self._endpoint = Endpoint(
            connection_string=namespace.connection_string,
            tls_connection_string=namespace.tls_connection_string,
            port=namespace.port,
            ca_file=namespace.ca_file,
        )
        self._runner = runner
        self._runner.run(self._open())

    async def _open(self) -> None:
        client = await self._opened(self._client())
        self._manager = await self._opened(self._adapter.administration(self._endpoint))
        self._sender = await client.topic_sender("news")
        self._receiver = await client.receiver(Subscription("news", "all"))
        await self._manager.subscription("news", "all")

    async def _opened(self, part: T) -> T:
        await part.open()
        self.resources.callback(lambda: self._runner.run(part.close()))
        return part

    def _client(self) -> Client:
        return self._adapter.client(self._endpoint, Transport.TCP)

    def send(self) -> None:
        self._runner.run(self._sender.send(Message()))

    def receive(self) -> None:
        async def received() -> None:
            found = await self._receiver.receive(wait=timedelta(seconds=WAIT_S))
            if not found:
                raise SdkError(Reason.TIMEOUT, "no message")
            await self._receiver.complete(found[0])

        self._runner.run(received())

    def manage(self) -> None:
        self._runner.run(self._manager.subscription("news", "all"))

    def connect(self) -> None:
        async def connected() -> None:
            async with self._client() as client:
                await (await client.receiver("others")).peek(1)

        self._runner.run(connected())


APPLICATIONS: Final[dict[str, Callable[[RunningNamespace], Application]]] = {
    "azure-sdk": AzureApplication,
    "pairbus": OurApplication,
}


@pytest.fixture(autouse=True, scope="module")
def forgiving() -> Iterator[None]:
    with unclosed_forgiven():
        yield


@pytest.fixture(scope="module")
def runner(forgiving: None) -> Iterator[asyncio.Runner]:
    """A loop that outlives the connections which an SDK leaves to the garbage collector."""
    with asyncio.Runner() as made:
        yield made
        gc.collect()


@pytest.fixture
def contoso() -> Iterator[RunningNamespace]:
    with running_namespace(queues=["others"]) as namespace:
        # An SDK that gives up a link may have got a message on it, which is locked then.
        def create(host: NamespaceHost) -> None:
            entities, now_ms = host.use_namespace(), host.now_ms()
            entities.create_queue("orders", QueueDescription(lock_duration_ms=LOCK_MS), now_ms)
            entities.create_topic("news", TopicDescription(), now_ms)
            entities.create_subscription("news", "all", SubscriptionDescription(lock_duration_ms=LOCK_MS), now_ms)

        namespace.call(create)
        yield namespace


@pytest.fixture(params=APPLICATIONS)
def application(request: pytest.FixtureRequest, contoso: RunningNamespace) -> Iterator[Application]:
    with APPLICATIONS[request.param](contoso) as made:
        made.send()
        made.receive()
        yield made


def works(application: Application, way: str) -> bool:
    try:
        getattr(application, way)()
    except application.errors:
        return False
    except ValueError:  # no message in time
        return False
    return True


def count_of(namespace: RunningNamespace, address: Address = ORDERS) -> int:
    return namespace.call(lambda host: len(host.use_namespace().peek(address, 0, 100, host.now_ms())))


def check_alone(
    namespace: RunningNamespace,
    application: Application,
    kind: FaultKind,
    scope: str | None,
    *,
    manager_reconnects: bool = False,
    address: Address = ORDERS,
) -> None:
    """Check that a fault denies its own way, that the others work, and that nothing confirmed is lost."""
    for _ in range(3):
        application.send()
    denied = {kind.value.removeprefix("cannot-")}
    if kind is FaultKind.CANNOT_CONNECT and manager_reconnects:
        denied.add("manage")  # each of its requests opens a connection
    with namespace.faults.engaged(kind, scope):
        assert {way for way in WAYS if not works(application, way)} == denied
    # What was confirmed is still there, and everything works again.
    left = 3 + ("send" not in denied) - ("receive" not in denied)
    assert count_of(namespace, address) == left
    eventually(lambda: works(application, "receive"))  # without retries, the SDK reports the lost link once more
    for _ in range(left - 1):
        application.receive()
    for way in WAYS:
        getattr(application, way)()
    assert count_of(namespace, address) == 0


@pytest.mark.parametrize(
    ("kind", "scope"),
    [
        (FaultKind.CANNOT_SEND, "orders"),
        pytest.param(FaultKind.CANNOT_SEND, None, marks=pytest.mark.slow),
        (FaultKind.CANNOT_RECEIVE, "orders"),
        pytest.param(FaultKind.CANNOT_RECEIVE, None, marks=pytest.mark.slow),
        (FaultKind.CANNOT_MANAGE, "orders"),
        pytest.param(FaultKind.CANNOT_MANAGE, None, marks=pytest.mark.slow),
        (FaultKind.CANNOT_CONNECT, None),
    ],
)
def test_b1_each_way_of_being_unavailable_happens_alone(
    contoso: RunningNamespace, application: Application, kind: FaultKind, scope: str | None
) -> None:
    check_alone(contoso, application, kind, scope)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "scope"),
    [
        (FaultKind.CANNOT_SEND, "news"),
        (FaultKind.CANNOT_RECEIVE, "news/Subscriptions/all"),
        (FaultKind.CANNOT_MANAGE, "news/Subscriptions/all"),
        (FaultKind.CANNOT_CONNECT, None),
    ],
)
@pytest.mark.parametrize("adapter", WITH_SUBSCRIPTIONS, ids=lambda adapter: adapter.id)
def test_b1_each_way_of_being_unavailable_happens_alone_to_a_subscription(
    contoso: RunningNamespace, runner: asyncio.Runner, adapter: Adapter, kind: FaultKind, scope: str | None
) -> None:
    with AdaptedApplication(adapter, contoso, runner) as application:
        application.send()
        application.receive()
        reconnects = adapter.id in RECONNECTING
        check_alone(contoso, application, kind, scope, manager_reconnects=reconnects, address=NEWS)


@pytest.mark.parametrize("kind", [FaultKind.CANNOT_SEND, FaultKind.CANNOT_RECEIVE, FaultKind.CANNOT_MANAGE])
def test_b1_fault_at_one_entity_does_not_affect_another(
    contoso: RunningNamespace, application: Application, kind: FaultKind
) -> None:
    with contoso.faults.engaged(kind, "others"):
        assert [way for way in WAYS if not works(application, way)] == []


def test_b1_dropped_connections_cannot_be_opened_again(contoso: RunningNamespace, application: Application) -> None:
    application.send()
    with contoso.faults.engaged(FaultKind.CANNOT_CONNECT, drop_connections=True):
        assert [works(application, way) for way in ("send", "receive", "connect")] == [False] * 3
    application.connect()
    assert count_of(contoso) == 1


def test_b1_error_names_the_fault_and_what_to_do(contoso: RunningNamespace) -> None:
    with (
        contoso.faults.engaged(FaultKind.CANNOT_SEND, "orders") as fault,
        MessagingFactory.from_connection_string(contoso.connection_string, QUICK) as factory,
        factory.create_message_sender("orders") as sender,
        pytest.raises(MessagingError, match=rf"fault {fault.id} \(cannot-send\) is injected at 'orders'") as caught,
    ):
        sender.send(BrokeredMessage(b"one"))
    assert "pairbus fault clear" in str(caught.value)
