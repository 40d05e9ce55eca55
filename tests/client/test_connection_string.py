"""Connection strings, opened."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from pairbus.client.endpoint import Endpoint, open_connection_string
from pairbus.client.factory import MessagingFactory
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.client.settings import MessagingFactorySettings, Transport
from pairbus.dialect.connection_string import ConnectionStringError
from pairbus.dialect.sas import make_sas_token, parse_sas_token

HOST = "contoso.servicebus.windows.net"
ENDPOINT = f"Endpoint=sb://{HOST}/;"
KEY = "SharedAccessKeyName=root;SharedAccessKey=a+b/c=;"


def test_key_signs_tokens_for_any_address() -> None:
    endpoint, provider, entity_path = open_connection_string(ENDPOINT + KEY)
    assert endpoint == Endpoint(HOST)
    assert entity_path is None
    assert provider is not None
    token = parse_sas_token(asyncio.run(provider.get_token(endpoint.uri("orders"))).text)
    assert (token.path, token.key_name) == ("orders", "root")
    assert token.is_signed_with(["a+b/c="])


def test_token_is_presented_unchanged() -> None:
    text = make_sas_token(f"sb://{HOST}/orders", "k", "v", 2_000_000_000)
    _, provider, _ = open_connection_string(f"{ENDPOINT}SharedAccessSignature={text}")
    assert provider is not None
    assert asyncio.run(provider.get_token("sb://whatever/")).text == text


def test_connection_string_without_key_and_token_has_no_credentials() -> None:
    assert open_connection_string(ENDPOINT) == (Endpoint(HOST), None, None)


def test_entity_path_is_returned() -> None:
    assert open_connection_string(f"{ENDPOINT}{KEY}EntityPath=orders/old")[2] == "orders/old"


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("Endpoint=sb://localhost:5300;UseDevelopmentEmulator=true", Endpoint("localhost", 5300, tls=False)),
        ("Endpoint=sb://localhost:5671;UseDevelopmentEmulator=false", Endpoint("localhost", 5671)),
        ("Endpoint=sb://[::1]:5672;UseDevelopmentEmulator=true", Endpoint("::1", 5672, tls=False)),
    ],
)
def test_emulator_is_reached_without_tls_on_given_port(text: str, endpoint: Endpoint) -> None:
    assert open_connection_string(text)[0] == endpoint


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Endpoint=;",
        ENDPOINT + "SharedAccessKeyName=root",
        ENDPOINT + "SharedAccessKeyName=;SharedAccessKey=secret",
        ENDPOINT + "SharedAccessSignature=secret",
        ENDPOINT + "Colour=secret",
    ],
)
def test_invalid_connection_string_is_rejected_without_its_secrets(text: str) -> None:
    with pytest.raises(ConnectionStringError) as caught:
        open_connection_string(text)
    assert isinstance(caught.value, ValueError)
    assert "secret" not in str(caught.value)


def test_connection_string_that_is_not_text_is_rejected() -> None:
    with pytest.raises(TypeError, match="a connection string must be a str, got bytes"):
        open_connection_string(b"Endpoint=sb://localhost")  # type: ignore[arg-type]


def test_file_reference_is_rejected_with_advice() -> None:
    with pytest.raises(ConnectionStringError, match="names a file, which only the pairbus commands read") as caught:
        open_connection_string("@contoso.txt")
    assert "contoso" not in str(caught.value)


MINUTE = timedelta(minutes=1)
HALF = timedelta(seconds=30)


@pytest.mark.parametrize("kind", [MessagingFactory, NamespaceManager])
@pytest.mark.parametrize(
    ("parts", "given", "timeout", "transport"),
    [
        ("", None, MINUTE, Transport.TCP),
        ("OperationTimeout=00:00:30;", None, HALF, Transport.TCP),
        ("OperationTimeout=00:00:30;", {"attempt_timeout": timedelta(seconds=3)}, HALF, Transport.TCP),
        ("OperationTimeout=00:00:30;", {"operation_timeout": HALF / 2}, HALF / 2, Transport.TCP),
        ("OperationTimeout=00:00:30;", {"operation_timeout": timedelta(minutes=1)}, MINUTE, Transport.TCP),
        ("TransportType=AmqpWebSockets;", None, MINUTE, Transport.WEB_SOCKET),
        ("TransportType=Amqp;", {"transport": Transport.WEB_SOCKET}, MINUTE, Transport.WEB_SOCKET),
    ],
)
def test_connection_string_sets_unset_settings(
    kind: type[MessagingFactory | NamespaceManager],
    parts: str,
    given: dict[str, Any] | None,
    timeout: timedelta,
    transport: Transport,
) -> None:
    settings = None if given is None else MessagingFactorySettings(**given)
    made = kind.from_connection_string(ENDPOINT + KEY + parts, settings)
    assert (made.settings.operation_timeout, made.settings.transport) == (timeout, transport)
    if given:
        assert made.settings.attempt_timeout == given.get("attempt_timeout", timedelta(seconds=15))
