"""Keys, tokens and credentials."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from pairbus.client.errors import UnauthorizedError
from pairbus.client.token_provider import (
    JWT,
    SAS_TOKEN,
    PlainCredentials,
    SharedAccessKeyTokenProvider,
    Token,
    TokenProvider,
)
from pairbus.dialect.sas import make_sas_token, parse_sas_token

AUDIENCE = "sb://contoso.servicebus.windows.net/orders"
SCOPE = "https://servicebus.azure.net/.default"


def token_of(provider: TokenProvider, audience: str = AUDIENCE) -> Token:
    return asyncio.run(provider.get_token(audience))


# Keys


def test_a8_key_signs_token_for_each_address() -> None:
    provider = SharedAccessKeyTokenProvider("root", "secret", time_to_live=timedelta(minutes=5), clock=lambda: 1_000.9)
    for path in ("orders", "orders/$management", "topic/Subscriptions/s"):
        token = token_of(provider, f"sb://contoso.servicebus.windows.net/{path}")
        parsed = parse_sas_token(token.text)
        assert parsed.path == path.lower()
        assert parsed.key_name == "root"
        assert parsed.is_signed_with(["secret"])
        assert token.type == SAS_TOKEN
        assert token.expires_s == parsed.expires_s == 1_300


def test_a8_token_is_valid_for_an_hour_by_default() -> None:
    provider = SharedAccessKeyTokenProvider("root", "secret", clock=lambda: 0)
    assert token_of(provider).expires_s == 3_600
    assert token_of(TokenProvider.from_key("root", "secret", time_to_live=timedelta(days=1))).expires_s > 86_400


@pytest.mark.parametrize(("name", "key"), [("", "secret"), ("root", ""), ("", "")])
def test_key_requires_name_and_value(name: str, key: str) -> None:
    with pytest.raises(ValueError, match="a name and a key"):
        TokenProvider.from_key(name, key)


@pytest.mark.parametrize("time_to_live", [timedelta(), timedelta(seconds=-1)])
def test_token_lifetime_must_be_positive(time_to_live: timedelta) -> None:
    with pytest.raises(ValueError, match="time_to_live must be > 0"):
        TokenProvider.from_key("root", "secret", time_to_live=time_to_live)


def test_secrets_are_not_shown() -> None:
    provider = TokenProvider.from_key("root", "secret")
    assert "root" in repr(provider)
    for shown in (repr(provider), repr(token_of(provider)), repr(PlainCredentials("user", "secret"))):
        assert "secret" not in shown
        assert "SharedAccessSignature" not in shown


# Tokens


def test_given_token_is_presented_for_every_address() -> None:
    text = make_sas_token(AUDIENCE, "root", "secret", 2_000_000_000)
    provider = TokenProvider.from_token(text)
    assert (
        token_of(provider)
        == token_of(provider, "sb://elsewhere/")
        == Token(text=text, type=SAS_TOKEN, expires_s=2_000_000_000)
    )


def test_token_prefix_is_optional() -> None:
    text = make_sas_token(AUDIENCE, "root", "secret", 2_000_000_000)
    assert token_of(TokenProvider.from_token(text.removeprefix("SharedAccessSignature "))).text == text


@pytest.mark.parametrize(
    "text", ["", "secret", "SharedAccessSignature secret", "SharedAccessSignature sr=a&sig=secret"]
)
def test_e3_invalid_token_is_rejected_without_being_shown(text: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        TokenProvider.from_token(text)
    assert "secret" not in str(caught.value)


# Credentials


@dataclass
class AccessToken:
    token: str
    expires_on: Any


class SyncCredential:
    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.scopes: list[tuple[str, ...]] = []

    def get_token(self, *scopes: str) -> Any:
        self.scopes.append(scopes)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class AsyncCredential(SyncCredential):
    async def get_token(self, *scopes: str) -> Any:
        await asyncio.sleep(0)
        return super().get_token(*scopes)


KINDS = [SyncCredential, AsyncCredential]


@pytest.mark.parametrize("kind", KINDS)
def test_a8_credential_is_asked_for_service_token(kind: type[SyncCredential]) -> None:
    credential = kind(AccessToken("ey.token", 1_700_000_000))
    token = token_of(TokenProvider.from_credential(credential))
    assert token == Token(text="ey.token", type=JWT, expires_s=1_700_000_000.0)
    assert credential.scopes == [(SCOPE,)]


@pytest.mark.parametrize("kind", KINDS)
def test_credential_may_return_shared_access_signature(kind: type[SyncCredential]) -> None:
    text = make_sas_token(AUDIENCE, "root", "secret", 2_000_000_000)
    assert token_of(TokenProvider.from_credential(kind(AccessToken(text, 2_000_000_000)))).type == SAS_TOKEN


@pytest.mark.parametrize("kind", KINDS)
def test_failing_credential_is_raised_with_reason(kind: type[SyncCredential]) -> None:
    reason = RuntimeError("the managed identity is not there")
    with pytest.raises(UnauthorizedError, match="the managed identity is not there") as caught:
        token_of(TokenProvider.from_credential(kind(reason)))
    assert caught.value.__cause__ is reason
    assert AUDIENCE in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "answer",
    [None, "text", AccessToken("t", None), AccessToken("t", "soon")],
    ids=repr,
)
def test_e3_credential_without_token_is_rejected(kind: type[SyncCredential], answer: Any) -> None:
    with pytest.raises(UnauthorizedError, match="the credential"):
        token_of(TokenProvider.from_credential(kind(answer)))


def test_invalid_credential_is_rejected() -> None:
    with pytest.raises(TypeError, match="a credential must have a method get_token"):
        TokenProvider.from_credential("secret")  # type: ignore[arg-type]
