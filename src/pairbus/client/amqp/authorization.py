"""Reconnecting holders of connections and links, and the tokens that authorize a connection."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

from pairbus.client.amqp.conditions import error_from_status
from pairbus.client.amqp.connection import ClientConnection
from pairbus.client.amqp.link import RequestLink
from pairbus.client.errors import ClosedError, MessagingError, MessagingTimeoutError, UnauthorizedError
from pairbus.client.token_provider import Token, TokenProvider, token_of
from pairbus.dialect.management import Operation
from pairbus.dialect.paths import CBS
from pairbus.wire import Condition, Timestamp


class Reconnectable(Protocol):
    """A connection or a link."""

    @property
    def error(self) -> MessagingError | None:
        """The error that ended it; ``None`` while it is usable."""


L = TypeVar("L", bound=Reconnectable)


class Reconnecting(Generic[L]):
    """Holds the current connection or link. Concurrent callers share one attempt to open it."""

    def __init__(self, open_new: Callable[[], Awaitable[L]]) -> None:
        self._open_new = open_new
        self._current: L | None = None
        self._opening: asyncio.Task[L] | None = None

    @property
    def ready(self) -> L | None:
        """The current one, if it is usable."""
        current = self._current
        return current if current is not None and current.error is None else None

    @property
    def last(self) -> L | None:
        """The current one, usable or lost."""
        return self._current

    async def get(self) -> L:
        """Return the current one; open it if needed. A caller that is cancelled does not cancel the others.

        If an attempt that began before this call times out, another one is made, because the caller has its own time
        limit.
        """
        current = self.ready
        if current is not None:
            return current
        is_under_way = self._is_opening
        try:
            return await self._opened_now()
        except MessagingTimeoutError:
            if not is_under_way:
                raise
        return await self._opened_now()

    @property
    def _is_opening(self) -> bool:
        return self._opening is not None and not self._opening.done()

    async def _opened_now(self) -> L:
        opening = self._opening
        if opening is None or opening.done():
            opening = self._opening = asyncio.get_running_loop().create_task(self._open())
            opening.add_done_callback(self._opened)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if opening.cancelled() and task is not None and not task.cancelling():
                raise ClosedError("closed while it was being opened") from None
            raise

    async def _open(self) -> L:
        self._current = await self._open_new()
        return self._current

    def _opened(self, task: asyncio.Task[L]) -> None:
        if self._opening is task:
            self._opening = None
        if not task.cancelled():
            task.exception()  # mark as retrieved: waiting callers get it, but there may be none

    async def clear(self) -> L | None:
        """Stop opening; return and clear the current one, usable or not."""
        opening = self._opening
        if opening is not None:
            opening.cancel()
            await asyncio.wait((opening,))
        current, self._current = self._current, None
        return current


_log = logging.getLogger(__name__)

_RENEW_AT: Final = 0.75
"""The fraction of a token's lifetime after which it is renewed."""
_SHORTEST_S: Final = 1.0
_NOT_OFTENER_S: Final = 30.0
"""The longest wait before a failed renewal is retried."""
_CONDITIONS: Final = {401: str(Condition.UNAUTHORIZED_ACCESS), 404: str(Condition.NOT_FOUND)}
"""Conditions for the statuses of ``$cbs``, which sends none."""
_LONGEST_S: Final = 86_400.0
_LATEST_S: Final = 253_402_300_799.0
"""The end of the year 9999."""


class Authorization:
    """Puts tokens on a connection, and renews them before they expire."""

    def __init__(self, connection: ClientConnection, provider: TokenProvider) -> None:
        self._connection = connection
        self._provider = provider
        self._cbs = Reconnecting(self._attach)
        self._grants: dict[str, asyncio.Task[None]] = {}
        """The task of each entity that puts its first token and then renews it."""

        self._granted: dict[str, asyncio.Future[None]] = {}

    async def _attach(self) -> RequestLink:
        link = RequestLink(self._connection, CBS, CBS)
        await link.attached(self._connection.attempt_s)
        return link

    async def authorize(self, path: str) -> None:
        """Authorize the connection for an entity, unless it is authorized; raises ``MessagingError``."""
        granted = self._granted.get(path)
        if granted is None or (granted.done() and granted.exception() is not None):
            granted = self._granted[path] = self._connection.loop.create_future()
            task = self._connection.loop.create_task(self._keep(path, granted))
            self._grants[path] = task
            task.add_done_callback(partial(self._end, path, granted))
        await asyncio.shield(granted)

    def forget(self, path: str) -> None:
        """Discard the token of an entity, so that the next link puts another; a token that is being put is kept."""
        granted = self._granted.get(path)
        if granted is None or not granted.done():
            return
        del self._granted[path]
        task = self._grants.pop(path, None)
        if task is not None:
            task.cancel()

    def _end(self, path: str, granted: asyncio.Future[None], task: asyncio.Task[None]) -> None:
        if self._grants.get(path) is task:
            del self._grants[path]
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            endpoint = self._connection.endpoint
            _log.error('token task failed endpoint=%s entity=%s error="%r"', endpoint, path, failure, exc_info=failure)
            if self._granted.get(path) is granted:  # the next link puts another token
                del self._granted[path]
            error = MessagingError(f"no token was sent: {failure!r}", entity=path)
            error.__cause__ = failure
        else:
            error = ClosedError("the connection was closed", entity=path)
        if not granted.done():
            _fail(granted, error)

    async def close(self) -> None:
        """Stop all renewals."""
        tasks = [*self._grants.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _keep(self, path: str, granted: asyncio.Future[None]) -> None:
        try:
            token = await self._put(path)
        except MessagingError as error:
            _fail(granted, error)
            return
        granted.set_result(None)
        delay_s, is_logged = _until_renewal(token), False
        while not await self._is_gone_within(delay_s):
            try:
                token = await self._put(path)
            except MessagingError as error:
                # The namespace closes the links when the old token expires; opening them again then raises the error.
                level = logging.DEBUG if is_logged else logging.WARNING
                endpoint = self._connection.endpoint
                _log.log(level, 'token renewal failed endpoint=%s entity=%s error="%s"', endpoint, path, error)
                is_logged = True
                if token.expires_s <= time.time():  # the next link puts another token
                    self._granted.pop(path, None)
                    return
                delay_s = min(_NOT_OFTENER_S, max(_SHORTEST_S, (token.expires_s - time.time()) / 4))
            else:
                delay_s, is_logged = _until_renewal(token), False

    async def _is_gone_within(self, delay_s: float) -> bool:
        """Wait; return True if the connection was lost meanwhile."""
        done, _ = await asyncio.wait((self._connection.gone,), timeout=delay_s)
        return bool(done)

    async def _put(self, path: str) -> Token:
        started_s = self._connection.loop.time()
        timeout_s = self._connection.attempt_s
        try:
            async with asyncio.timeout(timeout_s) as limit:
                return await self._put_token(path)
        except MessagingError as error:
            error.entity = path  # rather than the $cbs node
            raise
        except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
            # A custom provider may return anything.
            raise UnauthorizedError(f"the token provider returned an invalid token: {error!r}", entity=path) from error
        except TimeoutError as error:
            if not limit.expired():
                raise
            late = MessagingTimeoutError(f"no response to the token within {timeout_s:g} s", entity=path)
            link = self._cbs.last
            if link is not None:
                link.suspect(late, started_s)
            raise late from error

    async def _put_token(self, path: str) -> Token:
        audience = self._connection.endpoint.uri(path)
        token = await token_of(self._provider, audience)
        link = await self._cbs.get()
        properties: dict[str, Any] = {
            "name": audience,
            "type": token.type,
            "expiration": Timestamp(int(min(max(0.0, token.expires_s), _LATEST_S) * 1_000)),
        }
        response = await link.ask(Operation.PUT_TOKEN, token.text, properties)
        if not 200 <= response.status < 300:
            condition = response.condition or _CONDITIONS.get(response.status)
            raise error_from_status(response.status, response.description, condition, path)
        return token


def _fail(granted: asyncio.Future[None], error: MessagingError) -> None:
    granted.set_exception(error)
    granted.exception()  # mark as retrieved: no caller may be waiting any more


def _until_renewal(token: Token) -> float:
    return min(_LONGEST_S, max(_SHORTEST_S, (token.expires_s - time.time()) * _RENEW_AT))
