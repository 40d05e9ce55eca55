"""Who we are: keys, tokens and credentials that open a namespace."""

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
    """A token, and until when it opens what it opens."""

    text: str = field(repr=False)
    type: str
    expires_s: float
    """Seconds since the Unix epoch."""


async def token_of(provider: TokenProvider, audience: str) -> Token:
    """Ask a provider, which may be the application's own and raise whatever it likes; raises ``MessagingError``."""
    try:
        token = await provider.get_token(audience)
    except MessagingError:
        raise
    except Exception as error:
        raise UnauthorizedError(f"the token provider has no token for {audience}: {error}") from error
    if not isinstance(token, Token):
        raise UnauthorizedError(f"what the token provider gave for {audience} is no Token")
    return token


@runtime_checkable
class Credential(Protocol):
    """What the credentials of ``azure-identity`` have in common; ``get_token`` may be a coroutine function."""

    def get_token(self, *scopes: str) -> Any:
        """A token with ``token`` and ``expires_on``."""


class TokenProvider(ABC):
    """Makes a token whenever one is needed."""

    @abstractmethod
    async def get_token(self, audience: str) -> Token:
        """A token for an address such as ``sb://contoso.servicebus.windows.net/orders``."""

    @staticmethod
    def from_key(name: str, key: str, *, time_to_live: timedelta = _HOUR) -> TokenProvider:
        """Make tokens with the key of an authorization rule, each good for so long."""
        return SharedAccessKeyTokenProvider(name, key, time_to_live=time_to_live)

    @staticmethod
    def from_token(token: str) -> TokenProvider:
        """Present a shared access signature that somebody else has made. Raises ``ValueError`` if it is none."""
        return SharedAccessSignatureTokenProvider(token)

    @staticmethod
    def from_credential(credential: Credential) -> TokenProvider:
        """Ask a credential of ``azure-identity``, or anything that has such a ``get_token``."""
        return CredentialTokenProvider(credential)


class SharedAccessKeyTokenProvider(TokenProvider):
    """Signs a token for each address."""

    def __init__(
        self, name: str, key: str, *, time_to_live: timedelta = _HOUR, clock: Callable[[], float] = time.time
    ) -> None:
        if not name or not key:
            raise ValueError("an authorization rule has a name and a key")
        if time_to_live <= timedelta():
            raise ValueError(f"time_to_live is {time_to_live}; a token has to be good for some time")
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
    """Presents the same token for everything."""

    def __init__(self, token: str) -> None:
        text = token if token.startswith(PREFIX) else PREFIX + token
        try:
            expires_s = parse_sas_token(text).expires_s
        except SasTokenError as error:
            raise ValueError(str(error)) from error
        self._token = Token(text=text, type=SAS_TOKEN, expires_s=expires_s)

    async def get_token(self, audience: str) -> Token:  # noqa: ARG002 (it is good for what it is good for)
        return self._token


class CredentialTokenProvider(TokenProvider):
    """Asks a credential."""

    def __init__(self, credential: Credential) -> None:
        if not isinstance(credential, Credential):
            raise TypeError(f"a credential has a method get_token, which {shown(credential)} has not")
        self._credential = credential

    async def get_token(self, audience: str) -> Token:
        try:
            if inspect.iscoroutinefunction(self._credential.get_token):
                found = await self._credential.get_token(_SCOPE)
            else:  # it may take its time, which everything else on the loop has not
                found = await asyncio.to_thread(self._credential.get_token, _SCOPE)
                if inspect.isawaitable(found):
                    found = await found
            text, expires_s = str(found.token), float(found.expires_on)
        except OSError as error:
            raise MessagingCommunicationError(f"the credential could not ask for a token: {error}") from error
        except Exception as error:  # whatever kind of credential it is: it has no token for us
            raise UnauthorizedError(f"the credential has no token for {audience}: {error}") from error
        if math.isnan(expires_s):
            raise UnauthorizedError(f"the credential does not say when its token for {audience} ends")
        return Token(text=text, type=SAS_TOKEN if text.startswith(PREFIX) else JWT, expires_s=expires_s)


@dataclass(frozen=True, slots=True)
class PlainCredentials:
    """A user name and a password, for AMQP peers that know no tokens. They travel in the clear unless TLS is used."""

    user: str
    password: str = field(repr=False)


Credentials = TokenProvider | PlainCredentials | None
"""How to get in; ``None`` claims nothing."""
