"""Tokens: the node ``$cbs``, where a connection says who it is."""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from pairbus.broker import Address
from pairbus.dialect.entity_path import CBS, split_entity_path
from pairbus.dialect.management import Operation, Request, Response
from pairbus.dialect.sas import SasTokenError, parse_sas_token
from pairbus.server.access import path_of
from pairbus.server.amqp.peer import Peer
from pairbus.server.amqp.requests import RequestNode
from pairbus.server.amqp.unproven import BOUNDS
from pairbus.server.errors import (
    REFUSABLE,
    BadRequestError,
    InvalidCredentialsError,
    UnauthorizedError,
    refusal_of,
)
from pairbus.wire import Link

_log = logging.getLogger(__name__)

_SAS_TYPE: Final = "servicebus.windows.net:sastoken"
_ACCEPTED: Final = Response(status=202, description="Accepted")


class TokenNode(RequestNode):
    """Takes tokens, and answers whether they hold."""

    kind = "tokens"
    max_values = BOUNDS.values

    def __init__(self, peer: Peer, link: Link) -> None:
        super().__init__(peer, link, CBS)

    def on_request(self, request: Request) -> None:
        penalty_s = 0.0
        try:
            self._put(request)
        except REFUSABLE as error:
            refusal = refusal_of(error)
            self._peer.counters.refused[refusal.condition] += 1
            # Some SDKs keep the reason to themselves; so it has to be found here.
            _log.info("token refused for=%.300r reason=%s", request.properties.get("name"), error)
            if isinstance(error, InvalidCredentialsError):
                penalty_s = self._peer.penalty_s(_key_name(request), error)
            response = Response(status=refusal.status, description=refusal.description)
        else:
            response = _ACCEPTED
        if penalty_s:
            answer = partial(self._send_late, request, response)
            self._peer.host.loop.call_later(penalty_s, self._peer.guard, answer)
        else:
            self._send(request, response)

    def _send(self, request: Request, response: Response) -> None:
        self._peer.replies.send(self.link, CBS, request, response)

    def _send_late(self, request: Request, response: Response) -> None:
        if self.link.is_attached:
            self._send(request, response)
            self._peer.flush()

    def _put(self, request: Request) -> None:
        if request.operation != Operation.PUT_TOKEN:
            raise BadRequestError(f"'{request.operation}' is nothing that $cbs does")
        audience = request.properties.get("name")
        if not isinstance(audience, str) or not isinstance(request.body, str):
            raise BadRequestError("put-token needs the address as 'name', and the token as its body")
        self._peer.check_guesses(_key_name(request))
        # What kind of token it is shows in the token: the SDK for Python calls all of them JWTs.
        path = path_of(audience)
        grant = self._peer.gatekeeper.admit(request.body, path)
        if not self._peer.claims.put(path, grant):
            raise UnauthorizedError("the connection has too many tokens; open another one")
        self._peer.tokens_changed()
        if request.properties.get("type") == _SAS_TYPE and grant.rights:
            self._expect_entity(path)

    def _expect_entity(self, path: str) -> None:
        """Tell those who may know that there is no such entity, as the service does.

        Not the SDK for Python, which makes an authentication error of it; it is told when it attaches. The one for
        JavaScript would take a link that is refused for a session that somebody else has.
        """
        entity = split_entity_path(path)
        if entity is not None:
            host = self._peer.host
            host.namespace.entity(Address.of(entity.entity, entity.subscription), host.now_ms())


def _key_name(request: Request) -> str:
    """The name of the key that a token says it was made with; empty where it says none."""
    try:
        return parse_sas_token(str(request.body)).key_name
    except SasTokenError:
        return ""
