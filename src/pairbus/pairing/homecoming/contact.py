"""Whether the primary namespace answers at all."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Final, Protocol

from pairbus.client.errors import MessagingError, MessagingTimeoutError
from pairbus.client.lane import Opener
from pairbus.pairing.homecoming.delivery_rules import is_silence

_log = logging.getLogger(__name__)

_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0


class Namespace(Opener, Protocol):
    """A factory that can tell whether its namespace answers."""

    async def greet(self, path: str) -> None: ...


class Contact:
    """Shared by everything that delivers: while the namespace is away, nothing is tried but to reach it."""

    def __init__(self, primary: Namespace, on_change: Callable[[], None]) -> None:
        self.cause: MessagingError | None = None
        """Why the namespace is away; ``None`` while it is not."""

        self._primary = primary
        self._on_change = on_change
        self._answered_s = -math.inf
        self._pause_s = _FIRST_PAUSE_S
        self._probing: asyncio.Task[MessagingError | None] | None = None
        self._returning: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._is_here = asyncio.Event()
        self._is_here.set()

    @property
    def is_away(self) -> bool:
        return self.cause is not None

    async def wait(self) -> None:
        """Wait until the namespace is there."""
        await self._is_here.wait()

    def answered(self) -> None:
        """It has said something."""
        self._answered_s = asyncio.get_running_loop().time()

    def delivered(self) -> None:
        """It has confirmed a message."""
        self.answered()
        self._pause_s = _FIRST_PAUSE_S

    async def doubt(self, path: str, since_s: float) -> bool:
        """An entity has not answered since a time: look whether the namespace is away, and tell."""
        if self.is_away:
            return True
        if self._answered_s > since_s:
            return False
        probing = self._probing
        if probing is None:
            probing = self._probing = asyncio.get_running_loop().create_task(self._probe(path))
            probing.add_done_callback(self._probed)
        cause = await asyncio.shield(probing)
        if cause is not None and not self.is_away:
            self._lose(path, cause)
        return self.is_away

    def _probed(self, _task: asyncio.Task[MessagingError | None]) -> None:
        self._probing = None

    async def _probe(self, path: str) -> MessagingError | None:
        """Ask the namespace itself, and not the entity that was silent. Any answer will do."""
        timeout_s = self._primary.send_attempt_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._primary.greet(path)
        except MessagingError as error:
            if is_silence(error):
                return error
        except TimeoutError:
            return MessagingTimeoutError(f"the namespace did not answer within {timeout_s:g} s", entity=path)
        except Exception as error:  # noqa: BLE001 (whatever it is, it has to be tried again)
            _log.exception("the primary namespace could not be reached because of an unexpected error")
            return MessagingError(f"it could not be reached: {error!r}", entity=path)
        self.answered()
        return None

    def _lose(self, path: str, cause: MessagingError) -> None:
        _log.warning("nothing is brought home while the primary namespace is away: %s", cause)
        self.cause = cause
        self._is_here.clear()
        self._returning = asyncio.get_running_loop().create_task(self._return(path))
        self._on_change()

    async def _return(self, path: str) -> None:
        """Try to reach it, less and less often, and at once when somebody else has."""
        while True:
            await self._pause()
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            cause = await self._probe(path)
            if cause is None:
                break
            self.cause = cause
        _log.info("the primary namespace has been reached again")
        self.cause = None
        self._is_here.set()
        self._on_change()

    async def _pause(self) -> None:
        """Wait before the next try, unless somebody has a reason to believe that it is there."""
        self._hurry.clear()
        hurrying = asyncio.ensure_future(self._hurry.wait())
        try:
            await asyncio.wait(
                (self._primary.reached(), hurrying), timeout=self._pause_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            hurrying.cancel()

    def hurry(self) -> None:
        """Somebody else has reached it, so it is worth trying now."""
        self._hurry.set()

    async def close(self) -> None:
        tasks = [task for task in (self._probing, self._returning) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
