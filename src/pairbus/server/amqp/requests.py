"""The server's end of a link on which requests arrive."""

from __future__ import annotations

from abc import abstractmethod
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Final

from pairbus.broker import Address
from pairbus.dialect.management import Operation, Request, Response, read_request
from pairbus.dialect.paths import CBS, split_entity_path
from pairbus.dialect.sas import SasTokenError, parse_sas_token
from pairbus.server.access import path_of, shown_path
from pairbus.server.amqp.node import Need, Node
from pairbus.server.amqp.producer import CREDIT
from pairbus.server.amqp.services import VALUES
from pairbus.server.errors import (
    REFUSABLE,
    BadRequestError,
    LimitExceededError,
    UnauthorizedError,
    refusal_of,
)
from pairbus.server.log_context import LogValue
from pairbus.wire import ACCEPTED, Delivery, Link, ProtocolError

if TYPE_CHECKING:
    from pairbus.server.amqp.connection import ServerConnection

_LARGE_BYTES: Final = 4_096
"""Requests of this size and more are decoded on the worker thread: a byte may be a value, which takes half a µs."""


class RequestNode(Node):
    """Decodes requests and has them answered."""

    max_values = 65_536
    """The maximum number of values in a request."""

    def __init__(self, connection: ServerConnection, link: Link, path: str, needs: tuple[Need, ...] = ()) -> None:
        super().__init__(link, path, needs)
        self._connection = connection
        self._decoding: Future[Request] | None = None

    def prepare(self, delivery: Delivery) -> bool:
        if len(delivery.payload) < _LARGE_BYTES or self.max_values <= VALUES:
            return True
        if self._decoding is None:
            self._decoding = self._connection.compute(partial(read_request, delivery.payload, self.max_values))
        return self._decoding.done()

    def on_delivery(self, delivery: Delivery) -> None:
        if self.link.credit < CREDIT // 2:
            self.link.flow(CREDIT)
        decoding, self._decoding = self._decoding, None
        try:
            request = read_request(delivery.payload, self.max_values) if decoding is None else decoding.result()
        except ProtocolError as error:
            self._connection.refuse(delivery, error)
            return
        # Settle at once: the SDK for Python takes our settlement for its own while a request is in progress.
        self.link.settle(delivery, ACCEPTED)
        self.on_request(request)

    @abstractmethod
    def on_request(self, request: Request) -> None:
        """Answer a request, now or later."""


_SAS_TYPE: Final = "servicebus.windows.net:sastoken"
_ACCEPTED: Final = Response(status=202, description="Accepted")


class TokenNode(RequestNode):
    """Accepts or rejects tokens."""

    kind = "tokens"
    max_values = VALUES

    def __init__(self, connection: ServerConnection, link: Link) -> None:
        super().__init__(connection, link, CBS)

    def on_request(self, request: Request) -> None:
        penalty_s = 0.0
        try:
            self._put(request)
        except REFUSABLE as reason:
            error: Exception = reason
            if isinstance(reason, UnauthorizedError):
                error, penalty_s = self._connection.login_failed(_key_name(request), reason)
            refusal = refusal_of(error)
            self._connection.counters.refuse(refusal.condition, refusal.limit)
            # Some SDKs do not show the reason, so it is logged here.
            named = self._connection.log_context(self.link).having(
                entity=shown_path(request.properties.get("name")), key=_key_name(request)
            )
            named.info("token refused reason=%s", LogValue(reason))
            response = Response(status=refusal.status, description=refusal.description)
        else:
            response = _ACCEPTED
        if penalty_s:
            answer = partial(self._send_late, request, response)
            self._connection.host.loop.call_later(penalty_s, self._connection.guard, answer)
        else:
            self._send(request, response)

    def _send(self, request: Request, response: Response) -> None:
        self._connection.replies.send(self.link, CBS, request, response)

    def _send_late(self, request: Request, response: Response) -> None:
        if self.link.is_attached:
            self._send(request, response)
            self._connection.flush()

    def _put(self, request: Request) -> None:
        if request.operation != Operation.PUT_TOKEN:
            raise BadRequestError(f"'{request.operation}' is not an operation of $cbs")
        audience = request.properties.get("name")
        if not isinstance(audience, str) or not isinstance(request.body, str):
            raise BadRequestError("put-token needs the address as 'name', and the token as its body")
        key_name = _key_name(request)
        self._connection.check_guesses(key_name)
        # The token itself shows its type: the SDK for Python declares all of them as JWTs.
        path = path_of(audience)
        grant = self._connection.authorizer.admit(request.body, path)
        self._connection.logged_in(key_name)
        if not self._connection.claims.put(path, grant):
            count = len(self._connection.claims)
            raise LimitExceededError(f"the connection has {count} tokens, the maximum", "max_tokens_per_connection")
        self._connection.tokens_changed()
        if request.properties.get("type") == _SAS_TYPE and grant.rights:
            self._expect_entity(path)

    def _expect_entity(self, path: str) -> None:
        """Raise ``EntityNotFoundError`` if a peer that may know finds no such entity, as the service does.

        Not for the SDK for Python, which turns it into an authentication error; it gets the error at the attach. The
        SDK for JavaScript would take a refused link for a session that another receiver holds.
        """
        entity = split_entity_path(path)
        if entity is not None:
            host = self._connection.host
            host.use_namespace().entity(Address.of(entity.entity, entity.subscription), host.now_ms())


def _key_name(request: Request) -> str:
    """Return the key name in a token; empty if it has none."""
    try:
        return parse_sas_token(str(request.body)).key_name
    except SasTokenError:
        return ""
