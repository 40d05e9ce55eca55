"""Authentication: keys, tokens and credentials for a namespace."""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Protocol, runtime_checkable

from pairbus.client.errors import MessagingCommunicationError, MessagingError, UnauthorizedError
from pairbus.client.validation import shown
from pairbus.dialect.sas import PREFIX, SasTokenError, make_sas_token, parse_sas_token

SAS_TOKEN: Final = "servicebus.windows.net:sastoken"  # noqa: S105 (a name)
JWT: Final = "jwt"
_SCOPE: Final = "https://servicebus.azure.net/.default"
_HOUR: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token and its expiry time."""

    text: str = field(repr=False)
    type: str
    expires_s: float
    """Seconds since the Unix epoch."""


async def token_of(provider: TokenProvider, audience: str) -> Token:
    """Get a token from a provider, whose code may raise anything; raises ``MessagingError``."""
    try:
        token = await provider.get_token(audience)
    except MessagingError:
        raise
    except Exception as error:
        raise UnauthorizedError(f"the token provider failed for {audience}: {error}") from error
    if not isinstance(token, Token):
        raise UnauthorizedError(f"the token provider returned no Token for {audience}")
    return token


@runtime_checkable
class Credential(Protocol):
    """The interface of the credentials of ``azure-identity``; ``get_token`` may be a coroutine function."""

    def get_token(self, *scopes: str) -> Any:
        """Return an object with the attributes ``token`` and ``expires_on``."""


class TokenProvider(ABC):
    """Returns a token whenever one is needed."""

    @abstractmethod
    async def get_token(self, audience: str) -> Token:
        """Return a token for an address such as ``sb://contoso.servicebus.windows.net/orders``."""

    @staticmethod
    def from_key(name: str, key: str, *, time_to_live: timedelta = _HOUR) -> TokenProvider:
        """Return a provider that signs tokens with the key of an authorization rule, valid for ``time_to_live``."""
        return SharedAccessKeyTokenProvider(name, key, time_to_live=time_to_live)

    @staticmethod
    def from_token(token: str) -> TokenProvider:
        """Return a provider of a given shared access signature. Raises ``ValueError`` if it is not one."""
        return SharedAccessSignatureTokenProvider(token)

    @staticmethod
    def from_credential(credential: Credential) -> TokenProvider:
        """Return a provider that uses a credential of ``azure-identity``, or any object with such a ``get_token``."""
        return CredentialTokenProvider(credential)


class SharedAccessKeyTokenProvider(TokenProvider):
    """Signs a token for each address."""

    def __init__(
        self, name: str, key: str, *, time_to_live: timedelta = _HOUR, clock: Callable[[], float] = time.time
    ) -> None:
        if not name or not key:
            raise ValueError("an authorization rule requires a name and a key")
        if time_to_live <= timedelta():
            raise ValueError(f"time_to_live must be > 0, got {time_to_live}")
        self._name = name
        self._key = key
        self._time_to_live = time_to_live
        self._clock = clock

    def __repr__(self) -> str:
        return f"<SharedAccessKeyTokenProvider {self._name!r}>"

    async def get_token(self, audience: str) -> Token:
        expires_s = int(self._clock() + self._time_to_live.total_seconds())
        return Token(
            text=make_sas_token(audience, self._name, self._key, expires_s), type=SAS_TOKEN, expires_s=expires_s
        )


class SharedAccessSignatureTokenProvider(TokenProvider):
    """Returns the same token for every address."""

    def __init__(self, token: str) -> None:
        text = token if token.startswith(PREFIX) else PREFIX + token
        try:
            expires_s = parse_sas_token(text).expires_s
        except SasTokenError as error:
            raise ValueError(str(error)) from error
        self._token = Token(text=text, type=SAS_TOKEN, expires_s=expires_s)

    async def get_token(self, audience: str) -> Token:  # noqa: ARG002 (the token is the same for every address)
        return self._token


class CredentialTokenProvider(TokenProvider):
    """Gets tokens from a credential."""

    def __init__(self, credential: Credential) -> None:
        if not isinstance(credential, Credential):
            raise TypeError(f"a credential must have a method get_token; {shown(credential)} has none")
        self._credential = credential

    async def get_token(self, audience: str) -> Token:
        try:
            if inspect.iscoroutinefunction(self._credential.get_token):
                found = await self._credential.get_token(_SCOPE)
            else:  # in a thread: it may block, and must not block the event loop
                found = await asyncio.to_thread(self._credential.get_token, _SCOPE)
                if inspect.isawaitable(found):
                    found = await found
            text, expires_s = str(found.token), float(found.expires_on)
        except OSError as error:
            raise MessagingCommunicationError(f"the credential could not request a token: {error}") from error
        except Exception as error:  # any error of any credential means that there is no token
            raise UnauthorizedError(f"the credential returned no token for {audience}: {error}") from error
        if math.isnan(expires_s):
            raise UnauthorizedError(f"the credential returned a token without an expiry time for {audience}")
        return Token(text=text, type=SAS_TOKEN if text.startswith(PREFIX) else JWT, expires_s=expires_s)


@dataclass(frozen=True, slots=True)
class PlainCredentials:
    """A user name and a password, for AMQP peers without tokens. Without TLS they are sent in clear text."""

    user: str
    password: str = field(repr=False)


Credentials = TokenProvider | PlainCredentials | None
"""The means of authentication; ``None`` for no authentication."""
