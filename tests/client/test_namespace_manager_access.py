"""Access of a manager: TLS, keys, tokens and claims, on real servers; and the credentials in its requests."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar, cast

import pytest

from pairbus.client.endpoint import Endpoint
from pairbus.client.errors import MessagingCommunicationError, UnauthorizedError
from pairbus.client.management.descriptions import (
    AccessRights,
    QueueDescription,
    SharedAccessAuthorizationRule,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.client.settings import NO_RETRY, MessagingFactorySettings
from pairbus.client.token_provider import PlainCredentials, Token, TokenProvider
from pairbus.dialect.connection_string import parse_connection_string
from pairbus.dialect.sas import make_sas_token, parse_sas_token
from pairbus.testing import RunningNamespace, running_namespace
from tests.client.http_peer import peer, refuses

T = TypeVar("T")

ONE_TRY = MessagingFactorySettings(retry_policy=NO_RETRY)


def key(name: str, right: AccessRights) -> SharedAccessAuthorizationRule:
    return SharedAccessAuthorizationRule(name, rights={right}, primary_key=f"{name}-1", secondary_key=f"{name}-2")


KEYS = (
    key("manager", AccessRights.MANAGE),
    key("sender", AccessRights.SEND),
    key("listener", AccessRights.LISTEN),
)


@pytest.fixture(scope="module")
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace(queues=["other"]) as running:
        asyncio.run(prepare(running))
        yield running


async def prepare(namespace: RunningNamespace) -> None:
    async with NamespaceManager.from_connection_string(namespace.connection_string) as manager:
        await manager.create_queue(QueueDescription("orders", authorization_rules=KEYS))
        await manager.create_topic(TopicDescription("news/local", authorization_rules=KEYS))


def endpoint_of(namespace: RunningNamespace) -> Endpoint:
    return Endpoint("localhost", namespace.port, tls=False)


def run(manager: NamespaceManager, use: Callable[[NamespaceManager], Awaitable[T]]) -> T:
    async def using() -> T:
        async with manager:
            return await use(manager)

    return asyncio.run(using())


def holder(namespace: RunningNamespace, name: str) -> NamespaceManager:
    return NamespaceManager.create(endpoint_of(namespace), TokenProvider.from_key(name, f"{name}-2"), ONE_TRY)


# TLS


def test_tls_with_the_certificate_of_the_namespace(namespace: RunningNamespace) -> None:
    settings = replace(ONE_TRY, ca_file=namespace.ca_file)
    manager = NamespaceManager.from_connection_string(namespace.tls_connection_string, settings)
    assert manager.endpoint.tls
    assert run(manager, lambda manager: manager.queue_exists("orders"))


def test_tls_with_custom_context(namespace: RunningNamespace) -> None:
    context = ssl.create_default_context(cafile=str(namespace.ca_file))
    settings = replace(ONE_TRY, ssl_context=context)
    manager = NamespaceManager.from_connection_string(namespace.tls_connection_string, settings)
    assert run(manager, lambda manager: manager.queue_exists("orders"))


def test_untrusted_certificate_is_raised_at_once(namespace: RunningNamespace) -> None:
    manager = NamespaceManager.from_connection_string(namespace.tls_connection_string)
    with pytest.raises(MessagingCommunicationError, match=r"not trusted.*ca_file") as caught:
        run(manager, lambda manager: manager.get_queues())
    assert not caught.value.is_transient


# Keys and tokens


def test_a8_wrong_key_is_rejected(namespace: RunningNamespace) -> None:
    wrong = replace(parse_connection_string(namespace.connection_string), key="wrong")
    with pytest.raises(UnauthorizedError, match="check the key or token") as caught:
        run(NamespaceManager.from_connection_string(str(wrong)), lambda manager: manager.get_queue("orders"))
    assert caught.value.entity == "orders"
    assert not caught.value.is_transient


@pytest.mark.parametrize("path", ["orders", "nothing"])
def test_a8_existence_is_not_revealed_without_right_key(namespace: RunningNamespace, path: str) -> None:
    wrong = replace(parse_connection_string(namespace.connection_string), key="wrong")
    with pytest.raises(UnauthorizedError):
        run(NamespaceManager.from_connection_string(str(wrong)), lambda manager: manager.queue_exists(path))


@pytest.mark.parametrize("name", ["sender", "listener"])
def test_a8_management_requires_manage_claim(namespace: RunningNamespace, name: str) -> None:
    with pytest.raises(UnauthorizedError, match="Manage"):
        run(holder(namespace, name), lambda manager: manager.get_queue("orders"))


def test_a8_entity_key_manages_only_its_entity(namespace: RunningNamespace) -> None:
    async def use(manager: NamespaceManager) -> None:
        assert await manager.update_queue(await manager.get_queue("orders")) == await manager.get_queue("orders")
        await manager.create_subscription("news/local", "mine")
        await manager.create_rule("news/local", "mine", "rule")
        assert [rule.name for rule in await manager.get_rules("news/local", "mine")] == ["$Default", "rule"]
        await manager.delete_subscription("news/local", "mine")
        for denied in (manager.get_queue("other"), manager.get_queues(), manager.get_namespace_info()):
            with pytest.raises(UnauthorizedError):
                await denied

    run(holder(namespace, "manager"), use)


def test_a8_given_token_is_accepted(namespace: RunningNamespace) -> None:
    token = make_sas_token("https://localhost/orders", "manager", "manager-1", 2_000_000_000)
    manager = NamespaceManager.create(endpoint_of(namespace), TokenProvider.from_token(token), ONE_TRY)
    assert run(manager, lambda manager: manager.get_queue("orders")).path == "orders"


def test_a8_expired_token_is_rejected(namespace: RunningNamespace) -> None:
    token = make_sas_token("https://localhost/orders", "manager", "manager-1", 1_000_000_000)
    manager = NamespaceManager.create(endpoint_of(namespace), TokenProvider.from_token(token), ONE_TRY)
    with pytest.raises(UnauthorizedError, match="expired"):
        run(manager, lambda manager: manager.get_queue("orders"))


def test_a8_access_without_key_and_token_is_rejected(namespace: RunningNamespace) -> None:
    manager = NamespaceManager.create(f"amqp://localhost:{namespace.port}")
    with pytest.raises(UnauthorizedError):
        run(manager, lambda manager: manager.get_queue("orders"))


def test_user_and_password_are_rejected_with_alternative() -> None:
    with pytest.raises(TypeError, match=r"TokenProvider.from_key.*not PlainCredentials"):
        NamespaceManager.create("sb://localhost", PlainCredentials("guest", "guest"))  # type: ignore[arg-type]


def test_invalid_endpoint_and_settings_are_rejected_at_once() -> None:
    with pytest.raises(TypeError, match="endpoint must be Endpoint or str"):
        NamespaceManager.create(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="settings must be MessagingFactorySettings or None"):
        NamespaceManager.create("sb://localhost", None, {})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the scheme must be sb://"):
        NamespaceManager.create("ftp://localhost")


def test_manager_does_not_show_its_key(namespace: RunningNamespace) -> None:
    manager = NamespaceManager.from_connection_string(namespace.connection_string)
    assert repr(manager) == f"<NamespaceManager amqp://localhost:{namespace.port}>"


# Forwarding


def test_forwarding_requires_key_with_send_on_target(namespace: RunningNamespace) -> None:
    async def use(manager: NamespaceManager) -> None:
        orders = await manager.get_queue("orders")
        with pytest.raises(UnauthorizedError, match="ServiceBusSupplementaryAuthorization"):
            await manager.update_queue(replace(orders, forward_to="other"))
        with pytest.raises(UnauthorizedError, match="ServiceBusDlqSupplementaryAuthorization"):
            await manager.update_queue(replace(orders, forward_dead_lettered_messages_to="other"))
        # The keys of both have the same name and value, but a token for one does not open the other.
        changed = await manager.update_queue(replace(orders, forward_dead_lettered_messages_to="news/local"))
        assert changed.forward_dead_lettered_messages_to == "news/local"
        await manager.update_queue(orders)

    run(holder(namespace, "manager"), use)


# What is said to be let in


@dataclass(frozen=True, slots=True)
class Issued:
    token: str
    expires_on: int = 2_000_000_000


class Credential:
    """As ``azure-identity`` has them."""

    async def get_token(self, *scopes: str) -> Issued:
        assert scopes == ("https://servicebus.azure.net/.default",)
        return Issued("a.b.c")


def headers_of(provider: TokenProvider | None, use: Callable[[NamespaceManager], Awaitable[object]]) -> dict[str, str]:
    """Return the requests sent to a peer that refuses them."""

    async def asking() -> dict[str, str]:
        async with peer(refuses(400, "no")) as opened, NamespaceManager.create(opened.endpoint, provider) as manager:
            with pytest.raises(Exception, match="no"):
                await use(manager)
            return opened.asked[0].headers

    return asyncio.run(asking())


def test_issuer_token_is_sent_as_bearer_token_and_plain_for_target() -> None:
    queue = QueueDescription("q", forward_to="t", forward_dead_lettered_messages_to="d")
    headers = headers_of(TokenProvider.from_credential(Credential()), lambda manager: manager.create_queue(queue))
    assert headers["authorization"] == "Bearer a.b.c"
    assert headers["servicebussupplementaryauthorization"] == "a.b.c"
    assert headers["servicebusdlqsupplementaryauthorization"] == "a.b.c"


def test_signature_is_sent_unchanged_for_minimum_scope() -> None:
    provider = TokenProvider.from_key("name", "key")
    subscription = SubscriptionDescription("s", forward_to="t")
    headers = headers_of(provider, lambda manager: manager.update_subscription("a/b", subscription))
    assert parse_sas_token(headers["authorization"]).path == "a/b"
    assert parse_sas_token(headers["servicebussupplementaryauthorization"]).path == "t"
    assert "servicebusdlqsupplementaryauthorization" not in headers
    assert headers["if-match"] == "*"


def test_request_without_token_has_no_authorization() -> None:
    headers = headers_of(None, lambda manager: manager.create_queue(QueueDescription("q", forward_to="t")))
    assert not [name for name in headers if name.endswith("authorization")]
    assert "if-match" not in headers
    assert headers["content-type"].startswith("application/atom+xml")


class Vault(TokenProvider):
    """Has no token to give."""

    def __init__(self, failure: Exception | None) -> None:
        self.failure = failure

    async def get_token(self, audience: str) -> Token:
        if self.failure is not None:
            raise self.failure
        return cast("Token", {"token": audience})


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (KeyError("AZURE_CLIENT_SECRET"), "failed for .*AZURE_CLIENT_SECRET"),
        (RuntimeError("the vault is closed"), "failed for .*the vault is closed"),
        (None, "returned no Token"),
    ],
)
def test_e4_any_error_of_token_provider_becomes_unauthorized(failure: Exception | None, text: str) -> None:
    manager = NamespaceManager.create("amqp://localhost:1", Vault(failure))
    with pytest.raises(UnauthorizedError, match=text) as caught:
        run(manager, lambda manager: manager.get_queue("orders"))
    assert caught.value.entity == "orders"
    assert caught.value.__cause__ is failure
