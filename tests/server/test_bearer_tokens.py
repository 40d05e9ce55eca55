"""The SDK with tokens of an issuer instead of a key (A8)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusAuthorizationError
from azure.servicebus.management import ServiceBusAdministrationClient
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from pairbus.broker import QueueDescription
from pairbus.server.errors import InvalidCredentialsError
from pairbus.testing import RunningNamespace, running_namespace
from tests.server.amqp.wire_client import WireClient

ISSUER = "https://issuer.example/contoso"
AUDIENCE = "https://servicebus.azure.net"
KEY = ec.generate_private_key(ec.SECP256R1())


class Issued:
    """A credential like those of ``azure-identity``, from a test issuer."""

    def __init__(self, *roles: str, issuer: str = ISSUER, key: ec.EllipticCurvePrivateKey = KEY) -> None:
        self.roles = roles
        self.issuer = issuer
        self.key = key

    def get_token(self, *_scopes: str, **_: Any) -> AccessToken:
        expires = int(time.time()) + 600
        claims = {"iss": self.issuer, "aud": AUDIENCE, "exp": expires, "roles": self.roles, "appid": "cafe"}
        return AccessToken(jwt.encode(claims, self.key, "ES256", headers={"kid": "one"}), expires)


@pytest.fixture(scope="module")
def contoso(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNamespace]:
    keys: Path = tmp_path_factory.mktemp("issuer") / "keys.json"
    public = ECAlgorithm.to_jwk(KEY.public_key(), as_dict=True)
    keys.write_text(json.dumps({"keys": [{**public, "kid": "one", "alg": "ES256", "use": "sig"}]}))
    with running_namespace(jwt_issuer=ISSUER, jwt_keys=str(keys)) as namespace:
        namespace.call(lambda host: host.use_namespace().create_queue("orders", QueueDescription(), host.now_ms()))
        yield namespace


def client(contoso: RunningNamespace, credential: Any) -> ServiceBusClient:
    return ServiceBusClient(f"localhost:{contoso.port}", credential, use_tls=False, retry_total=0)


def send(contoso: RunningNamespace, credential: Any) -> None:
    with client(contoso, credential) as connected, connected.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("one espresso"))


def test_roles_grant_sending_and_receiving(contoso: RunningNamespace) -> None:
    send(contoso, Issued("Azure Service Bus Data Sender"))
    reader = client(contoso, Issued("Azure Service Bus Data Receiver"))
    with reader, reader.get_queue_receiver("orders", max_wait_time=5) as receiver:
        (message,) = receiver.receive_messages(1)
        assert str(message) == "one espresso"
        receiver.complete_message(message)


def test_insufficient_role_is_refused(contoso: RunningNamespace) -> None:
    with pytest.raises(ServiceBusAuthorizationError):
        send(contoso, Issued("Azure Service Bus Data Receiver"))


@pytest.mark.parametrize(
    "credential",
    [Issued("Send", issuer="https://somebody.else"), Issued("Send", key=ec.generate_private_key(ec.SECP256R1()))],
    ids=["another issuer", "another key"],
)
def test_token_of_another_issuer_is_refused(contoso: RunningNamespace, credential: Any) -> None:
    with pytest.raises(ServiceBusAuthenticationError):
        send(contoso, credential)


def test_owner_role_grants_managing(contoso: RunningNamespace) -> None:
    host = f"localhost:{contoso.port}"
    owner: Any = Issued("Azure Service Bus Data Owner")
    with ServiceBusAdministrationClient(host, owner, connection_verify=str(contoso.ca_file)) as admin:
        admin.create_queue("made")
        assert "made" in {queue.name for queue in admin.list_queues()}
    sender: Any = Issued("Azure Service Bus Data Sender")
    other = ServiceBusAdministrationClient(host, sender, connection_verify=str(contoso.ca_file))
    with other, pytest.raises(ClientAuthenticationError):
        other.get_queue("made")


def test_e5_issuer_whose_tokens_an_address_has_shown_is_known_there(contoso: RunningNamespace) -> None:
    """Guesses of many key names do not keep its clients out."""
    guesses = contoso._running._running.services.guesses
    token = Issued("Send").get_token().token
    with WireClient(contoso.port).open() as client:
        node = client.requests("$cbs")
        assert client.put_token("sb://localhost/orders", token, node).status == 202
        for number in range(200):
            guesses.failed("127.0.0.1", f"key {number}", "amqp", InvalidCredentialsError("wrong"))
        try:
            assert client.put_token("sb://localhost/orders", token, node).status == 202
        finally:
            guesses._paid.clear()
            guesses._owing.clear()


def test_jwt_is_refused_without_a_configured_issuer() -> None:
    with running_namespace() as contoso, pytest.raises(ServiceBusAuthenticationError):
        send(contoso, Issued("Azure Service Bus Data Owner"))


def test_any_token_is_accepted_with_allow_any_jwt(caplog: pytest.LogCaptureFixture) -> None:
    with running_namespace(allow_any_jwt=True) as contoso:
        contoso.call(lambda host: host.use_namespace().create_queue("orders", QueueDescription(), host.now_ms()))
        send(contoso, Issued())
    assert "token verification disabled setting=allow_any_jwt" in caplog.text
