"""SASL authentication before the connection opens (part 5.3 of the standard)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from pairbus.wire import encoder
from pairbus.wire.errors import AuthenticationError, IllegalStateError
from pairbus.wire.frames import FrameWriter
from pairbus.wire.performatives import (
    SaslChallenge,
    SaslCode,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
)
from pairbus.wire.states import SASL, SaslFrame, SaslState

ANONYMOUS: Final = "ANONYMOUS"
PLAIN: Final = "PLAIN"
EXTERNAL: Final = "EXTERNAL"
MSSBCBS: Final = "MSSBCBS"
"""Service Bus's mechanism for "no credentials, a token follows": to this layer the same as ``ANONYMOUS``."""

Authenticate = Callable[[str, bytes], SaslCode | bytes]
"""Checks the mechanism and response of a client; returns an outcome, or a challenge for the client.

Raising ``AuthenticationError``, as ``parse_plain`` does, is the same as returning ``SaslCode.AUTH``."""


def accept_anonymous(mechanism: str, response: bytes) -> SaslCode:
    """Accept clients without credentials; tokens determine their rights later."""
    return SaslCode.OK if mechanism in {ANONYMOUS, MSSBCBS} else SaslCode.AUTH


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslServer:
    """The mechanisms of a server, and its check of the responses."""

    mechanisms: tuple[str, ...] = (ANONYMOUS,)
    authenticate: Authenticate = accept_anonymous
    required: bool = True
    """True if a client that skips SASL is rejected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslClient:
    """The mechanism and response of a client."""

    mechanism: str
    initial_response: bytes = field(default=b"", repr=False)
    respond: Callable[[bytes], bytes] | None = None
    """Returns the response to a challenge; without it, a challenge ends the exchange."""


def anonymous() -> SaslClient:
    """Authenticate without credentials."""
    return SaslClient(mechanism=ANONYMOUS)


def plain(user: str, password: str) -> SaslClient:
    """Authenticate with a name and a password (RFC 4616), in clear text: for use inside TLS."""
    return SaslClient(mechanism=PLAIN, initial_response=b"\0" + user.encode() + b"\0" + password.encode())


def external(identity: str = "") -> SaslClient:
    """Authenticate by the transport, such as with a TLS client certificate."""
    return SaslClient(mechanism=EXTERNAL, initial_response=identity.encode())


def parse_plain(response: bytes) -> tuple[str, str]:
    """Return the name and password of a ``PLAIN`` response."""
    parts = response.split(b"\0")
    if len(parts) != 3:
        raise AuthenticationError("a PLAIN response must have three parts")
    try:
        return parts[1].decode("utf-8"), parts[2].decode("utf-8")
    except UnicodeDecodeError as error:
        raise AuthenticationError("a PLAIN response is not valid text") from error


@dataclass(frozen=True, slots=True)
class Authenticated:
    """Authentication succeeded: on a server with the client's response, on a client with its own."""

    mechanism: str
    response: bytes = field(repr=False)


class SaslExchange:
    """One authentication, from either end."""

    def __init__(self, side: SaslServer | SaslClient, hostname: str | None, writer: FrameWriter) -> None:
        self.state = SaslState.START
        self._side = side
        self._hostname = hostname
        self._writer = writer
        self._mechanism = ""

    def offer(self) -> None:
        """Send the mechanisms as the server."""
        if isinstance(self._side, SaslServer):
            self._say(SaslFrame.MECHANISMS, SaslMechanisms(sasl_server_mechanisms=self._side.mechanisms))

    def receive(self, performative: object) -> Authenticated | None:
        """Process a frame of the peer and respond; return ``Authenticated`` when the exchange has succeeded."""
        match performative, self._side:
            case SaslInit(), SaslServer() as server:
                self._advance(SaslFrame.INIT)
                self._mechanism = performative.mechanism
                return self._judge(server, performative.initial_response or b"")
            case SaslResponse(), SaslServer() as server:
                self._advance(SaslFrame.RESPONSE)
                return self._judge(server, performative.response)
            case SaslMechanisms(), SaslClient() as client:
                self._advance(SaslFrame.MECHANISMS)
                self._choose(client, performative.sasl_server_mechanisms)
            case SaslChallenge(), SaslClient() as client:
                self._advance(SaslFrame.CHALLENGE)
                self._respond(client, performative.challenge)
            case SaslOutcome(), SaslClient() as client:
                self._advance(SaslFrame.OUTCOME)
                if performative.code is not SaslCode.OK:
                    raise AuthenticationError(f"the peer refused {client.mechanism} with {performative.code.name}")
                return Authenticated(client.mechanism, client.initial_response)
            case _:
                raise IllegalStateError(f"the peer must not send {type(performative).__name__}")
        return None

    def _judge(self, server: SaslServer, response: bytes) -> Authenticated | None:
        verdict = self._verdict(server, response)
        if isinstance(verdict, bytes):
            self._say(SaslFrame.CHALLENGE, SaslChallenge(challenge=verdict))
            return None
        self._say(SaslFrame.OUTCOME, SaslOutcome(code=verdict))
        if verdict is not SaslCode.OK:
            raise AuthenticationError(f"{self._mechanism} was refused with {verdict.name}")
        return Authenticated(self._mechanism, response)

    def _verdict(self, server: SaslServer, response: bytes) -> SaslCode | bytes:
        if self._mechanism not in server.mechanisms:
            return SaslCode.AUTH
        try:
            return server.authenticate(self._mechanism, response)
        except AuthenticationError:
            return SaslCode.AUTH

    def _choose(self, client: SaslClient, offered: tuple[str, ...]) -> None:
        if client.mechanism not in offered:
            raise AuthenticationError(f"the peer offers {', '.join(offered)}, not {client.mechanism}")
        self._say(
            SaslFrame.INIT,
            SaslInit(mechanism=client.mechanism, initial_response=client.initial_response, hostname=self._hostname),
        )

    def _respond(self, client: SaslClient, challenge: bytes) -> None:
        if client.respond is None:
            raise AuthenticationError(f"a challenge, which {client.mechanism} has no answer to")
        self._say(SaslFrame.RESPONSE, SaslResponse(response=client.respond(challenge)))

    def _say(self, frame: SaslFrame, performative: object) -> None:
        self._advance(frame)
        self._writer.write_sasl(encoder.encode(performative))

    def _advance(self, frame: SaslFrame) -> None:
        state = SASL.get((self.state, frame))
        if state is None:
            raise IllegalStateError(f"sasl-{frame.name.lower()} cannot come in state {self.state.name}")
        self.state = state
