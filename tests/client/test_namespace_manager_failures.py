"""Failures of a manager: what is retried, what is raised, and how lost responses are handled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from pairbus.client.endpoint import open_connection_string
from pairbus.client.errors import (
    EntityAlreadyExistsError,
    EntityNotFoundError,
    InternalServerError,
    InvalidRequestError,
    MessagingCommunicationError,
    MessagingError,
    MessagingTimeoutError,
    PreconditionFailedError,
    QuotaExceededError,
    ServerBusyError,
    UnauthorizedError,
)
from pairbus.client.management.descriptions import QueueDescription
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.client.settings import NO_RETRY, MessagingFactorySettings, RetryPolicy
from pairbus.client.token_provider import Token, TokenProvider
from pairbus.testing import RunningNamespace, running_namespace
from tests.client.http_peer import FEED, Answer, Peer, loses, peer, refuses, relays, replies, says

MILLISECOND = timedelta(milliseconds=1)
ONE_TRY = MessagingFactorySettings(retry_policy=NO_RETRY)
SOON = MessagingFactorySettings(
    retry_policy=RetryPolicy(
        minimum_backoff=MILLISECOND, maximum_backoff=10 * MILLISECOND, server_busy_backoff=timedelta()
    )
)
BOUND_S = 45.0


@pytest.fixture(scope="module")
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace(queues=["orders"], topics={"news": ["all"]}) as running:
        yield running


def provider_of(namespace: RunningNamespace) -> TokenProvider:
    provider = open_connection_string(namespace.connection_string)[1]
    assert provider is not None
    return provider


def with_peer(
    answers: list[Answer],
    use: Callable[[NamespaceManager], Awaitable[object]],
    provider: TokenProvider | None = None,
    settings: MessagingFactorySettings = SOON,
) -> tuple[object, Peer]:
    async def using() -> tuple[object, Peer]:
        async with (
            asyncio.timeout(BOUND_S),
            peer(*answers) as opened,
            NamespaceManager.create(opened.endpoint, provider, settings) as manager,
        ):
            return await use(manager), opened

    return asyncio.run(using())


class Counting(TokenProvider):
    """Passes tokens on, after calling a function."""

    def __init__(self, provider: TokenProvider, called: Callable[[int], None]) -> None:
        self._provider = provider
        self._called = called
        self._count = 0

    async def get_token(self, audience: str) -> Token:
        self._count += 1
        self._called(self._count)
        return await self._provider.get_token(audience)


# Busy, down, and back


def test_busy_namespace_is_retried(namespace: RunningNamespace, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    def called(number: int) -> None:
        calls.append(number)
        namespace.server_busy = number < 3

    provider = Counting(provider_of(namespace), called)
    endpoint = open_connection_string(namespace.connection_string)[0]

    async def asking() -> None:
        async with NamespaceManager.create(endpoint, provider, SOON) as manager:
            assert (await manager.get_queue("orders")).path == "orders"

    with caplog.at_level(logging.INFO, "pairbus.client.management"):
        asyncio.run(asking())
    assert calls == [1, 2, 3]
    begins, ends = (record.getMessage() for record in caplog.records)  # once each, however often it was tried
    assert begins.endswith(' action="retrying"')
    assert ends == f"namespace available again endpoint={endpoint}"


def test_namespace_that_stays_busy_raises_server_busy(namespace: RunningNamespace) -> None:
    async def asking() -> None:
        async with NamespaceManager.from_connection_string(namespace.connection_string, ONE_TRY) as manager:
            with pytest.raises(ServerBusyError) as caught:
                await manager.queue_exists("orders")
            assert caught.value.is_transient

    namespace.server_busy = True
    try:
        asyncio.run(asking())
    finally:
        namespace.server_busy = False


def test_unreachable_namespace_is_logged_and_retried() -> None:
    with running_namespace(queues=["orders"]) as namespace:
        text = namespace.connection_string
        namespace.stop()

        async def asking() -> None:
            async with NamespaceManager.from_connection_string(text, ONE_TRY) as manager:
                with pytest.raises(MessagingCommunicationError, match="cannot be reached") as caught:
                    await manager.get_queue("orders")
                assert caught.value.is_transient
                assert caught.value.entity == "orders"
            minute = timedelta(minutes=1)  # longer than the operation may take, so that nothing is waited for
            patient = RetryPolicy(minimum_backoff=minute, maximum_backoff=minute)
            short = MessagingFactorySettings(operation_timeout=minute / 4, retry_policy=patient)
            async with NamespaceManager.from_connection_string(text, short) as manager:
                with pytest.raises(MessagingTimeoutError) as late:
                    await manager.create_queue("more")
                assert isinstance(late.value.__cause__, MessagingCommunicationError)
            async with NamespaceManager.from_connection_string(text, SOON) as manager:
                waiting = asyncio.create_task(manager.create_queue("more"))
                await asyncio.to_thread(namespace.start)
                assert (await waiting).path == "more"

        asyncio.run(asking())


def test_restarted_namespace_keeps_entities() -> None:
    with running_namespace() as namespace:

        async def asking() -> None:
            async with NamespaceManager.from_connection_string(namespace.connection_string, SOON) as manager:
                created = await manager.create_queue(QueueDescription("orders", max_delivery_count=3))
                await asyncio.to_thread(namespace.restart)
                assert await manager.get_queue("orders") == created

        asyncio.run(asking())


def test_cancelled_operation_disconnects_at_once() -> None:
    async def cancelling() -> None:
        async with asyncio.timeout(BOUND_S), peer() as opened, NamespaceManager.create(opened.endpoint) as manager:
            task = asyncio.create_task(manager.get_queues())
            await opened.waiting.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await opened.deserted.wait()
            assert len(opened.asked) == 1

    asyncio.run(cancelling())


def test_unanswered_attempt_is_retried(namespace: RunningNamespace) -> None:
    async def silent(_asked: object, reader: asyncio.StreamReader, _writer: object) -> None:
        await reader.read()

    settings = replace(SOON, attempt_timeout=200 * MILLISECOND)
    found, opened = with_peer(
        [silent, *[relays(namespace.port)] * 50],
        lambda manager: manager.queue_exists("orders"),
        provider_of(namespace),
        settings,
    )
    assert found is True
    assert len(opened.asked) > 1


# Answers that were lost


def test_entity_created_by_lost_attempt_is_returned(namespace: RunningNamespace) -> None:
    port = namespace.port
    queue = QueueDescription("lost/create", max_delivery_count=7)
    answers = [loses(port), relays(port), relays(port)]
    created, opened = with_peer(answers, lambda manager: manager.create_queue(queue), provider_of(namespace))
    assert isinstance(created, QueueDescription)
    assert (created.path, created.max_delivery_count) == ("lost/create", 7)
    assert [asked.line.split()[0] for asked in opened.asked] == ["PUT", "PUT", "GET"]


@pytest.mark.parametrize(
    "use",
    [
        lambda manager: manager.create_topic("lost/topic"),
        lambda manager: manager.create_subscription("news", "lost"),
        lambda manager: manager.create_rule("news", "all", "lost"),
    ],
)
def test_every_kind_created_by_lost_attempt_is_returned(
    namespace: RunningNamespace, use: Callable[[NamespaceManager], Awaitable[object]]
) -> None:
    port = namespace.port
    created, opened = with_peer([loses(port), relays(port), relays(port)], use, provider_of(namespace))
    assert created is not None
    assert len(opened.asked) == 3


def test_existing_entity_after_lost_response_must_be_same_kind(
    namespace: RunningNamespace,
) -> None:
    port = namespace.port
    with pytest.raises(EntityAlreadyExistsError):
        with_peer(
            [says(b""), relays(port), relays(port)],
            lambda manager: manager.create_queue("news"),
            provider_of(namespace),
        )


def test_denied_attempt_created_nothing(namespace: RunningNamespace) -> None:
    """A create that is first denied as busy, and then finds an entity, has not created it."""
    with pytest.raises(EntityAlreadyExistsError):
        with_peer(
            [refuses(503, "busy"), relays(namespace.port)],
            lambda manager: manager.create_queue("orders"),
            provider_of(namespace),
        )


def test_attempt_that_never_connected_created_nothing() -> None:
    with running_namespace(queues=["orders"]) as namespace:
        text = namespace.connection_string
        namespace.stop()

        async def asking() -> None:
            async with NamespaceManager.from_connection_string(text, SOON) as manager:
                waiting = asyncio.create_task(manager.create_queue("orders"))
                await asyncio.to_thread(namespace.start)
                with pytest.raises(EntityAlreadyExistsError):
                    await waiting

        asyncio.run(asking())


def test_entity_deleted_by_lost_attempt_counts_as_deleted(namespace: RunningNamespace) -> None:
    port, provider = namespace.port, provider_of(namespace)
    with_peer([relays(port)], lambda manager: manager.create_queue("lost/delete"), provider)
    answers = [relays(port), loses(port), relays(port)]
    _, opened = with_peer(answers, lambda manager: manager.delete_queue("lost/delete"), provider)
    assert [asked.line.split()[0] for asked in opened.asked] == ["GET", "DELETE", "GET"]
    gone, _ = with_peer([relays(port)], lambda manager: manager.queue_exists("lost/delete"), provider)
    assert gone is False


def test_missing_entity_is_an_error_despite_lost_response(namespace: RunningNamespace) -> None:
    """Only the question whether it is there was lost: nothing has been deleted."""
    port = namespace.port
    with pytest.raises(EntityNotFoundError):
        with_peer([loses(port), relays(port)], lambda manager: manager.delete_queue("nothing"), provider_of(namespace))


def test_update_with_lost_response_is_retried(namespace: RunningNamespace) -> None:
    port = namespace.port
    changed, _ = with_peer(
        [loses(port), relays(port)],
        lambda manager: manager.update_queue(QueueDescription("orders", max_delivery_count=5)),
        provider_of(namespace),
    )
    assert isinstance(changed, QueueDescription)
    assert changed.max_delivery_count == 5


# Refusals


@pytest.mark.parametrize(
    ("status", "detail", "kind"),
    [
        (400, "SubCode=40000. Bad Request. why. TrackingId:1_G0, Timestamp:2030", InvalidRequestError),
        (401, "SubCode=40103. Unauthorized. why. TrackingId:1_G0", UnauthorizedError),
        (403, "SubCode=40300. Forbidden. why. To know more visit https://aka.ms/x TrackingId:1", QuotaExceededError),
        (403, "SubCode=40301. Forbidden. why", InvalidRequestError),
        (404, "SubCode=40400. Not Found. why.TrackingId:1", EntityNotFoundError),
        (405, "why", InvalidRequestError),
        (408, "why", MessagingTimeoutError),
        (409, "SubCode=40900. Conflict. why", EntityAlreadyExistsError),
        (409, "SubCode=40901. Conflict. why", PreconditionFailedError),
        (410, "why", EntityNotFoundError),
        (412, "why", PreconditionFailedError),
        (429, "why", ServerBusyError),
        (500, "SubCode=50000. Internal Server Error. why", InternalServerError),
        (501, "why", InvalidRequestError),
        (502, "why", InternalServerError),
        (503, "why", ServerBusyError),
        (504, "why", InternalServerError),
    ],
)
def test_each_status_maps_to_error_with_reason(status: int, detail: str, kind: type[MessagingError]) -> None:
    with pytest.raises(MessagingError) as caught:
        with_peer([refuses(status, detail)], lambda manager: manager.create_queue("q"), settings=ONE_TRY)
    assert type(caught.value) is kind
    assert caught.value.message == "why"
    assert caught.value.entity == "q"
    assert caught.value.condition == (detail.partition(".")[0] if "SubCode" in detail else None)


@pytest.mark.parametrize("status", [409, 500, 502, 504, 503, 429, 408])
def test_transient_error_is_retried(status: int) -> None:
    answers = [refuses(status, "SubCode=40901. why"), refuses(400, "why")]
    with pytest.raises(InvalidRequestError):
        with_peer(answers, lambda manager: manager.update_queue(QueueDescription("q")))


def test_update_conflict_is_not_already_exists() -> None:
    with pytest.raises(PreconditionFailedError) as caught:
        with_peer(
            [refuses(409, "SubCode=40900. Conflict. why")],
            lambda manager: manager.update_queue(QueueDescription("q")),
            settings=ONE_TRY,
        )
    assert caught.value.is_transient


@pytest.mark.parametrize("body", [b"", b"<html>404</html>", b"<Error><Code>x</Code></Error>", b"\xff\xfe"])
def test_refusal_without_text_is_described_by_status(body: bytes) -> None:
    with pytest.raises(EntityNotFoundError, match="404 Not Found"):
        with_peer([replies(404, body)], lambda manager: manager.get_queue("q"))


# Answers that make no sense


def test_empty_feed_means_missing_queue() -> None:
    with pytest.raises(EntityNotFoundError, match="the queue 'q' does not exist"):
        with_peer([replies(200, FEED % b"")], lambda manager: manager.get_queue("q"))
    found, _ = with_peer([replies(200, FEED % b"")], lambda manager: manager.topic_exists("t"))
    assert found is False


def test_list_ends_at_empty_page() -> None:
    feed = FEED % b'<link rel="next" href="https://elsewhere.example/?$skip=0"/>'
    found, opened = with_peer([replies(200, feed)], lambda manager: manager.get_queues())
    assert found == []
    assert opened.asked[0].line == "GET /$Resources/Queues?$skip=0&$top=100&api-version=2021-05 HTTP/1.1"


ENTRY = (
    b'<entry xmlns="http://www.w3.org/2005/Atom"><title>%s</title><content type="application/xml">'
    b'<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">%s'
    b"</QueueDescription></content></entry>"
)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html/>",
        b"not even that",
        b"<!DOCTYPE x [<!ENTITY a 'b'>]><entry/>",
        b'<entry xmlns="http://www.w3.org/2005/Atom"/>',
        ENTRY % (b"q", b"<MaxDeliveryCount>many</MaxDeliveryCount>"),
        ENTRY % (b"q", b"<MaxDeliveryCount>-1</MaxDeliveryCount>"),
        ENTRY % (b"q", b"<LockDuration>-PT1S</LockDuration>"),
        ENTRY % (b"q", b"<Status>Asleep</Status>"),
        ENTRY % (b"", b""),
    ],
)
def test_malformed_response_is_not_retried(body: bytes) -> None:
    for use in (
        lambda manager: manager.get_queue("q"),
        lambda manager: manager.create_queue("q"),
    ):
        with pytest.raises(MessagingCommunicationError, match="malformed response") as caught:
            with_peer([replies(200, body)], use)
        assert not caught.value.is_transient
        assert caught.value.entity == "q"


def test_malformed_list_is_an_error() -> None:
    for body in (b"<html/>", FEED % (ENTRY % (b"q", b"<Status>Asleep</Status>"))):
        with pytest.raises(MessagingCommunicationError, match="malformed response"):
            with_peer([replies(200, body)], lambda manager: manager.get_queues())


def test_partial_response_is_accepted() -> None:
    found, _ = with_peer([replies(200, ENTRY % (b"Q", b""))], lambda manager: manager.get_queue("q"))
    assert found == QueueDescription("Q")
    info, _ = with_peer(
        [replies(200, ENTRY % (b"q", b"<AccessedAt>0001-01-01T00:00:00Z</AccessedAt>"))],
        lambda manager: manager.get_queue_runtime_info("q"),
    )
    assert getattr(info, "accessed_at", "") is None
