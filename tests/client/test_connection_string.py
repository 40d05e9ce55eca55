"""Connection strings, opened."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from pairbus.client.connection_string import open_connection_string
from pairbus.client.endpoint import Endpoint
from pairbus.client.factory import MessagingFactory
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.client.settings import MessagingFactorySettings, Transport
from pairbus.dialect.connection_string import ConnectionStringError
from pairbus.dialect.sas import make_sas_token, parse_sas_token

HOST = "contoso.servicebus.windows.net"
ENDPOINT = f"Endpoint=sb://{HOST}/;"
KEY = "SharedAccessKeyName=root;SharedAccessKey=a+b/c=;"


def test_a_key_makes_tokens_for_whatever_is_asked() -> None:
    endpoint, provider, entity_path = open_connection_string(ENDPOINT + KEY)
    assert endpoint == Endpoint(HOST)
    assert entity_path is None
    assert provider is not None
    token = parse_sas_token(asyncio.run(provider.get_token(endpoint.uri("orders"))).text)
    assert (token.path, token.key_name) == ("orders", "root")
    assert token.is_signed_with(["a+b/c="])


def test_a_token_is_presented_as_it_is() -> None:
    text = make_sas_token(f"sb://{HOST}/orders", "k", "v", 2_000_000_000)
    _, provider, _ = open_connection_string(f"{ENDPOINT}SharedAccessSignature={text}")
    assert provider is not None
    assert asyncio.run(provider.get_token("sb://whatever/")).text == text


def test_without_key_and_token_nothing_is_claimed() -> None:
    assert open_connection_string(ENDPOINT) == (Endpoint(HOST), None, None)


def test_the_entity_path_is_passed_on() -> None:
    assert open_connection_string(f"{ENDPOINT}{KEY}EntityPath=orders/old")[2] == "orders/old"


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("Endpoint=sb://localhost:5300;UseDevelopmentEmulator=true", Endpoint("localhost", 5300, tls=False)),
        ("Endpoint=sb://localhost:5671;UseDevelopmentEmulator=false", Endpoint("localhost", 5671)),
        ("Endpoint=sb://[::1]:5672;UseDevelopmentEmulator=true", Endpoint("::1", 5672, tls=False)),
    ],
)
def test_the_emulator_is_reached_without_tls_on_the_port_that_is_given(text: str, endpoint: Endpoint) -> None:
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
def test_what_is_no_connection_string_is_told_without_its_secrets(text: str) -> None:
    with pytest.raises(ConnectionStringError) as caught:
        open_connection_string(text)
    assert isinstance(caught.value, ValueError)
    assert "secret" not in str(caught.value)


def test_what_is_no_text_is_told() -> None:
    with pytest.raises(TypeError, match="a connection string is a text, not a bytes"):
        open_connection_string(b"Endpoint=sb://localhost")  # type: ignore[arg-type]


def test_the_name_of_a_file_is_told_to_be_one() -> None:
    with pytest.raises(ConnectionStringError, match="names a file, which only the commands of pairbus read") as caught:
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
def test_settings_come_from_the_connection_string_unless_they_are_passed(
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
