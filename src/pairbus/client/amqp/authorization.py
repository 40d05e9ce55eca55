"""The tokens of a connection: each entity is opened with one before its links, and kept open."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, Final

from pairbus.client.amqp.conditions import error_from_status
from pairbus.client.amqp.connection import AmqpConnection
from pairbus.client.amqp.request_link import RequestLink
from pairbus.client.amqp.slot import Slot
from pairbus.client.errors import ClosedError, MessagingError, MessagingTimeoutError, UnauthorizedError
from pairbus.client.token_provider import Token, TokenProvider, token_of
from pairbus.dialect.entity_path import CBS
from pairbus.dialect.management import Operation
from pairbus.wire import Condition, Timestamp

_log = logging.getLogger(__name__)

_RENEW_AT: Final = 0.75
"""How much of a token's time may pass before the next one is put."""
_SHORTEST_S: Final = 1.0
_NOT_OFTENER_S: Final = 30.0
"""How long a renewal that failed waits, at the most, before it is tried again."""
_CONDITIONS: Final = {401: str(Condition.UNAUTHORIZED_ACCESS), 404: str(Condition.NOT_FOUND)}
"""What the statuses of ``$cbs`` mean, which names no conditions."""
_LONGEST_S: Final = 86_400.0
_LATEST_S: Final = 253_402_300_799.0
"""The end of the year 9999."""


class Authorization:
    """Puts tokens, and puts the next ones before they end."""

    def __init__(self, connection: AmqpConnection, provider: TokenProvider) -> None:
        self._connection = connection
        self._provider = provider
        self._cbs = Slot(self._attach)
        self._grants: dict[str, asyncio.Task[None]] = {}
        """For each entity the task that has put its first token, and goes on to put the next ones."""

        self._granted: dict[str, asyncio.Future[None]] = {}

    async def _attach(self) -> RequestLink:
        link = RequestLink(self._connection, CBS, CBS)
        await link.attached(self._connection.attempt_s)
        return link

    async def authorize(self, path: str) -> None:
        """Open an entity, unless it is open; raises ``MessagingError``."""
        granted = self._granted.get(path)
        if granted is None or (granted.done() and granted.exception() is not None):
            granted = self._granted[path] = self._connection.loop.create_future()
            task = self._connection.loop.create_task(self._keep(path, granted))
            self._grants[path] = task
            task.add_done_callback(lambda task: self._end(path, task))
        await asyncio.shield(granted)

    def forget(self, path: str) -> None:
        """Whoever asks for an entity next puts another token; one that is just being put is left alone."""
        granted = self._granted.get(path)
        if granted is None or not granted.done():
            return
        del self._granted[path]
        task = self._grants.pop(path, None)
        if task is not None:
            task.cancel()

    def _end(self, path: str, task: asyncio.Task[None]) -> None:
        if self._grants.get(path) is task:
            del self._grants[path]

    async def close(self) -> None:
        """Stop renewing."""
        tasks = [*self._grants.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _keep(self, path: str, granted: asyncio.Future[None]) -> None:
        try:
            token = await self._put(path)
        except MessagingError as error:
            granted.set_exception(error)
            granted.exception()  # nobody may be waiting any more
            return
        except asyncio.CancelledError:
            granted.set_exception(ClosedError("the connection was closed", entity=path))
            granted.exception()
            raise
        granted.set_result(None)
        delay_s = _until_renewal(token)
        while not await self._is_gone_within(delay_s):
            try:
                token = await self._put(path)
            except MessagingError as error:
                # The namespace ends the links when the old token ends, and whoever opens them anew is told why.
                _log.warning("the token for %s could not be renewed: %s", path, error)
                if token.expires_s <= time.time():  # whoever opens a link puts another one
                    self._granted.pop(path, None)
                    return
                delay_s = min(_NOT_OFTENER_S, max(_SHORTEST_S, (token.expires_s - time.time()) / 4))
            else:
                delay_s = _until_renewal(token)

    async def _is_gone_within(self, delay_s: float) -> bool:
        """Wait; whether the connection was lost meanwhile."""
        done, _ = await asyncio.wait((self._connection.gone,), timeout=delay_s)
        return bool(done)

    async def _put(self, path: str) -> Token:
        started_s = self._connection.loop.time()
        timeout_s = self._connection.attempt_s
        try:
            async with asyncio.timeout(timeout_s) as limit:
                return await self._put_token(path)
        except MessagingError as error:
            error.entity = path  # rather than the node that was asked
            raise
        except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
            # A provider may be the application's own, and what it gives no token.
            raise UnauthorizedError(f"what the token provider gave is no token: {error!r}", entity=path) from error
        except TimeoutError as error:
            if not limit.expired():
                raise
            late = MessagingTimeoutError(f"no word on our token within {timeout_s:g} s", entity=path)
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


def _until_renewal(token: Token) -> float:
    return min(_LONGEST_S, max(_SHORTEST_S, (token.expires_s - time.time()) * _RENEW_AT))
