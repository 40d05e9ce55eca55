"""B1: an entity cannot be sent to, received from, managed or contacted; each alone, and the others keep working."""

from __future__ import annotations

import asyncio
import gc
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final, Self, TypeVar

import pytest
from azure.core.exceptions import HttpResponseError, ServiceRequestError, ServiceResponseError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError, ServiceBusQuotaExceededError, ServiceBusServerBusyError
from azure.servicebus.management import ServiceBusAdministrationClient

import pairbus
from pairbus import (
    InternalServerError,
    MessagingCommunicationError,
    MessagingError,
    MessagingTimeoutError,
    QuotaExceededError,
    ServerBusyError,
)
from pairbus.blocking import BrokeredMessage, MessagingFactory, NamespaceManager
from pairbus.broker import Address, QueueDescription, QueuePart, SubscriptionDescription, TopicDescription
from pairbus.client.settings import MessagingFactorySettings, RetryPolicy
from pairbus.server.host import NamespaceHost
from pairbus.testing import CrashComponent, FaultKind, RunningNamespace, running_namespace
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

    wait_s: float = WAIT_S

    def __init__(self) -> None:
        self.resources = ExitStack()
        self.attempted: list[str] = []
        self.confirmed: list[str] = []
        self.completed: list[str] = []
        """Ids of messages, which only the clients of a queue record."""

    def begin(self) -> str:
        """Return the id of a message that is about to be sent."""
        self.attempted.append(f"{len(self.attempted)}")
        return self.attempted[-1]

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
        message_id = self.begin()
        self._sender.send_messages(ServiceBusMessage("one", message_id=message_id))
        self.confirmed.append(message_id)

    def receive(self) -> None:
        (message,) = self._receiver.receive_messages(max_message_count=1, max_wait_time=self.wait_s)
        self._receiver.complete_message(message)
        self.completed.append(str(message.message_id))

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
        message_id = self.begin()
        self._sender.send(BrokeredMessage(b"one", message_id=message_id))
        self.confirmed.append(message_id)

    def receive(self) -> None:
        (message,) = self._receiver.receive(max_wait_time=timedelta(seconds=self.wait_s))
        self._receiver.complete(message)
        self.completed.append(str(message.message_id))

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


# The other kinds of faults


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A fault, and what it does to each way of using a queue: the others work without delay."""

    kind: FaultKind
    scope: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    denied: dict[str, type[Exception] | tuple[type[Exception], ...]] = field(default_factory=dict)
    """The ways that fail, with the errors of the official SDK and of our client."""

    delayed: frozenset[str] = frozenset()
    may_fail: frozenset[str] = frozenset()
    """Ways one use of which fails, depending on who comes first."""


LATENCY_S: Final = 0.3
OVERDUE_S: Final = 0.3
EFFECTS: Final = {
    "server-busy": Effect(
        kind=FaultKind.SERVER_BUSY,
        scope="orders",
        denied={
            "send": (ServiceBusServerBusyError, ServerBusyError),
            "manage": (HttpResponseError, ServerBusyError),
        },
        may_fail=frozenset({"connect"}),  # the official SDK attaches a link at once, ours does later
    ),
    "slow": Effect(
        kind=FaultKind.SLOW,
        scope="orders",
        arguments={"latency": timedelta(seconds=LATENCY_S)},
        delayed=frozenset({"send", "receive", "manage"}),
    ),
    "storage-error": Effect(
        kind=FaultKind.STORAGE_ERROR,
        denied={
            "send": (ServiceBusError, InternalServerError),
            "receive": (ServiceBusError, InternalServerError),  # its completion cannot be written
        },
    ),
    "storage-stall": Effect(
        kind=FaultKind.STORAGE_STALL,
        denied={"send": (ServiceBusServerBusyError, ServerBusyError), "receive": ValueError},
    ),
    "storage-full": Effect(
        kind=FaultKind.STORAGE_FULL, denied={"send": (ServiceBusQuotaExceededError, QuotaExceededError)}
    ),
    **{
        f"crash of the {component}": Effect(
            kind=FaultKind.COMPONENT_CRASH, arguments={"component": component}, may_fail=may_fail
        )
        for component, may_fail in (
            (CrashComponent.DISPATCHER, frozenset[str]()),
            (CrashComponent.TIMERS, frozenset[str]()),
            (CrashComponent.LISTENER, frozenset({"connect", "manage"})),
            (CrashComponent.COMMIT_THREAD, frozenset({"send"})),  # if the thread does not start again in time
        )
    },
}
"""The effects of the other kinds; quarantines have a test of their own below."""


@pytest.fixture(scope="module")
def shared(forgiving: None) -> Iterator[RunningNamespace]:
    with running_namespace(queues=["orders"], topics={"news": ["all"]}, storage_timeout_s=OVERDUE_S) as namespace:
        yield namespace


@pytest.fixture(scope="module", params=APPLICATIONS)
def shared_application(request: pytest.FixtureRequest, shared: RunningNamespace) -> Iterator[Application]:
    with APPLICATIONS[request.param](shared) as made:
        made.send()
        made.receive()  # links that are attached already are not denied
        made.wait_s = 1.5
        yield made


def use(application: Application, way: str) -> tuple[Exception | None, float]:
    """Use a queue in one way; return the error, and the time that it took."""
    expected: tuple[type[Exception], ...] = (*application.errors, MessagingError, ValueError)
    begun_s = time.monotonic()
    try:
        getattr(application, way)()
    except expected as error:
        return error, time.monotonic() - begun_s
    return None, time.monotonic() - begun_s


def succeeds(application: Application, way: str) -> bool:
    return use(application, way)[0] is None


@pytest.mark.slow
@pytest.mark.parametrize("effect", EFFECTS.values(), ids=EFFECTS)
def test_b1_other_fault_has_its_effect_and_no_other(
    shared: RunningNamespace, shared_application: Application, effect: Effect
) -> None:
    application = shared_application
    for _ in range(3):
        application.send()
    with shared.faults.engaged(effect.kind, effect.scope, **effect.arguments):
        for way in WAYS:
            error, took_s = use(application, way)
            if way in effect.denied:
                assert isinstance(error, effect.denied[way]), way
            else:
                assert error is None or way in effect.may_fail, way
            assert way not in effect.delayed or took_s >= LATENCY_S, way
    for way in WAYS:
        eventually(partial(succeeds, application, way))
    check_contents(shared, application)


def check_contents(namespace: RunningNamespace, application: Application) -> None:
    """Check that what was confirmed and not completed is there, once, and receive all of it."""
    left = ids_in(namespace, ORDERS)
    assert len(left) == len({*left})
    assert {*application.confirmed} - {*application.completed} <= {*left}
    assert {*left} <= {*application.attempted} - {*application.completed}
    eventually(lambda: succeeds(application, "receive") and not ids_in(namespace, ORDERS))
    assert len(application.completed) == len({*application.completed})
    assert {*application.confirmed} <= {*application.completed}


def ids_in(namespace: RunningNamespace, address: Address) -> list[str]:
    def peek(host: NamespaceHost) -> list[str]:
        return [each.record.message_id for each in host.use_namespace().peek(address, 0, 100, host.now_ms())]

    return namespace.call(peek)


@pytest.mark.slow
def test_b1_quarantine_costs_one_message_and_all_ways_work(
    shared: RunningNamespace, shared_application: Application
) -> None:
    application = shared_application
    for _ in range(3):
        application.send()
    lost, *_ = shared.call(lambda host: host.use_namespace().peek(ORDERS, 0, 1, host.now_ms()))
    shared.faults.engage(FaultKind.QUARANTINE, "orders", sequence_number=lost.record.sequence)
    assert [way for way in WAYS if not succeeds(application, way)] == []
    assert lost.record.message_id in ids_in(shared, ORDERS._replace(part=QueuePart.DEAD_LETTER))
    application.confirmed.remove(lost.record.message_id)
    check_contents(shared, application)
    assert lost.record.message_id not in application.completed


@pytest.mark.slow
@pytest.mark.parametrize("kind", [FaultKind.SERVER_BUSY, FaultKind.SLOW, FaultKind.QUARANTINE])
@pytest.mark.parametrize("adapter", WITH_SUBSCRIPTIONS, ids=lambda adapter: adapter.id)
def test_b1_other_fault_of_a_subscription_leaves_its_topic_alone(
    contoso: RunningNamespace, runner: asyncio.Runner, adapter: Adapter, kind: FaultKind
) -> None:
    scope = "news/Subscriptions/all"
    with AdaptedApplication(adapter, contoso, runner) as application:
        for _ in range(3):
            application.send()
        if kind is FaultKind.QUARANTINE:
            (first, *_) = contoso.call(lambda host: host.use_namespace().peek(NEWS, 0, 1, host.now_ms()))
            contoso.faults.engage(kind, scope, sequence_number=first.record.sequence)
            assert [way for way in WAYS if not succeeds(application, way)] == []
            assert count_of(contoso, NEWS._replace(part=QueuePart.DEAD_LETTER)) == 1
            left = 2
        else:
            arguments = {"latency": timedelta(seconds=LATENCY_S)} if kind is FaultKind.SLOW else {}
            with contoso.faults.engaged(kind, scope, **arguments):
                found = {way: use(application, way) for way in WAYS}
            assert found["send"][0] is None
            assert found["connect"][0] is None
            assert (found["manage"][0] is not None) is (kind is FaultKind.SERVER_BUSY)
            if kind is FaultKind.SLOW:
                assert all(error is None for error, _ in found.values())
                assert min(found["receive"][1], found["manage"][1]) >= LATENCY_S
            left = count_of(contoso, NEWS)
            assert left in {3, 4}
        for _ in range(left):
            eventually(partial(succeeds, application, "receive"))
        assert count_of(contoso, NEWS) == 0
        for way in ("send", "receive", "manage", "connect"):
            getattr(application, way)()


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
