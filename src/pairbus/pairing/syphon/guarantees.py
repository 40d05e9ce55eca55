"""The guarantees of the destinations that a syphon delivers to, looked up in the background."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Final

from pairbus.background_tasks import BackgroundTasks
from pairbus.backoff import Backoff
from pairbus.client.errors import MessagingError, UnauthorizedError
from pairbus.client.factory import MessagingFactory
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.client.settings import NO_RETRY
from pairbus.client.token_provider import PlainCredentials
from pairbus.dialect.paths import is_drill_path
from pairbus.pairing.guarantee import (
    NOT_LOOKED_UP,
    DestinationGuarantee,
    guarantee_of,
    guarantee_without_settings,
    read_settings,
)
from pairbus.pairing.syphon.interface import destination_key

_log = logging.getLogger(__name__)

_BACKOFF: Final = Backoff(10.0, 600.0)
"""Delays between lookups of a destination whose settings could not be read."""

_TIMEOUT: Final = timedelta(seconds=10)
_SETTLE_S: Final = 3.0


class GuaranteeLookup:
    """Reads the settings of each destination once, after the first delivery to it.

    Lookups run one after the other, and only while the primary namespace is reachable. No delivery waits for them, and
    an error only becomes the reason why a guarantee is not known: a transient one is retried, any other one is final.
    """

    def __init__(self, primary: MessagingFactory, reachable: Callable[[], Awaitable[None]]) -> None:
        """``reachable`` waits until the primary namespace is reachable."""
        self._primary = primary
        self._reachable = reachable
        self._paths: dict[str, str] = {}
        self._found: dict[str, DestinationGuarantee] = {}
        self._turn = asyncio.Lock()
        self._manager: NamespaceManager | None = None
        self._tasks = BackgroundTasks("guarantees of destinations")
        self._is_closed = False

    @property
    def found(self) -> Mapping[str, DestinationGuarantee]:
        """The guarantees of all destinations with a delivery, by path."""
        return dict(self._found)

    def note_delivery(self, path: str) -> None:
        """Note that a destination has confirmed a message."""
        key = destination_key(path)
        if key in self._paths or self._is_closed or is_drill_path(key):
            return
        path = self._paths[key] = path.strip("/")
        self._found[path] = NOT_LOOKED_UP
        self._tasks.start(self._look_up(path), is_due=True)

    async def _look_up(self, path: str, pause_s: float = 0.0) -> None:
        await asyncio.sleep(pause_s)
        await self._reachable()
        try:
            async with self._turn:
                self._found[path] = guarantee_of(await read_settings(self._opened_manager(), path))
        except MessagingError as error:
            self._found[path] = guarantee_without_settings(error)
            _log.debug('settings of the destination unknown entity=%s error="%s"', path, error)
            if error.is_transient:
                self._tasks.start(self._look_up(path, _BACKOFF.after(pause_s)))

    def _opened_manager(self) -> NamespaceManager:
        if self._manager is None:
            primary = self._primary
            if isinstance(primary.credentials, PlainCredentials):
                raise UnauthorizedError("management requires a key or a token")
            settings = replace(primary.settings, operation_timeout=_TIMEOUT, retry_policy=NO_RETRY)
            self._manager = NamespaceManager(primary.endpoint, primary.credentials, settings)
        return self._manager

    async def settle(self) -> None:
        """Wait a moment for the first lookups of all destinations."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_S):
                await self._tasks.finish()

    async def close(self) -> None:
        """Cancel the lookups. The guarantees found so far are kept."""
        self._is_closed = True
        await self._tasks.close()
        if self._manager is not None:
            await self._manager.close()
