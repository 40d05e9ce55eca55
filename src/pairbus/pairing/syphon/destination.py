"""Destinations of messages on the primary namespace: whether each is reachable, and whether the namespace is."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Protocol

from pairbus.background_tasks import BackgroundTasks
from pairbus.backoff import Backoff
from pairbus.client.entity_link import EntityLink, SendBatch
from pairbus.client.errors import (
    ClosedError,
    MessagingCommunicationError,
    MessagingError,
    MessagingTimeoutError,
    ServerBusyError,
)
from pairbus.client.sending_link_factory import SendingLinkFactory
from pairbus.dialect.annotations import SYPHON
from pairbus.dialect.paths import is_drill_path
from pairbus.pairing.events import DestinationChanged, Listener

_log = logging.getLogger(__name__)

PROBE_BACKOFF: Final = Backoff(1.0, 30.0)
"""Delays between probes of an unreachable namespace."""

RETRY_BACKOFF: Final = Backoff(5.0, 60.0)
"""Delays between retries of a destination that is down."""

_BUSY_PAUSE_S: Final = 10.0
_HELD_PAUSE_S: Final = 5.0
_MOMENT_S: Final = 0.001


def is_silence(error: MessagingError) -> bool:
    """Return whether an error means that there was no response, so that the whole namespace may be unreachable."""
    return isinstance(error, MessagingCommunicationError | MessagingTimeoutError | ClosedError)


class ReachableNamespace(SendingLinkFactory, Protocol):
    """A factory that can check whether its namespace responds."""

    async def greet(self, path: str) -> None: ...


class NamespaceHealth:
    """The reachability of the primary namespace.

    Everything that delivers shares it: while the namespace is unreachable, the only requests are its probes.
    """

    def __init__(self, primary: ReachableNamespace, on_change: Callable[[], None]) -> None:
        self.cause: MessagingError | None = None
        """The reason why the namespace is unreachable; ``None`` while it is reachable."""

        self._primary = primary
        self._on_change = on_change
        self._answered_s = -math.inf
        self._pause_s = PROBE_BACKOFF.first_s
        self._probing: asyncio.Task[MessagingError | None] | None = None
        self._tasks = BackgroundTasks("reachability of the primary")
        self._hurry = asyncio.Event()
        self._is_here = asyncio.Event()
        self._is_here.set()

    @property
    def is_away(self) -> bool:
        return self.cause is not None

    async def wait(self) -> None:
        """Wait until the namespace is reachable."""
        await self._is_here.wait()

    def answered(self) -> None:
        """Note that the namespace has responded."""
        self._answered_s = asyncio.get_running_loop().time()

    def delivered(self) -> None:
        """Note that the namespace has confirmed a message."""
        self.answered()
        self._pause_s = PROBE_BACKOFF.first_s

    async def doubt(self, path: str, since_s: float) -> bool:
        """Return whether the namespace is unreachable; probe it unless it has responded after ``since_s``."""
        if self.is_away:
            return True
        if self._answered_s > since_s:
            return False
        probing = self._probing
        if probing is None:
            probing = self._probing = self._tasks.start(self._probe(path))
            probing.add_done_callback(self._probed)
        cause = await asyncio.shield(probing)
        if cause is not None and not self.is_away:
            self._lose(path, cause)
        return self.is_away

    def _probed(self, _task: asyncio.Task[MessagingError | None]) -> None:
        self._probing = None

    async def _probe(self, path: str) -> MessagingError | None:
        """Probe the namespace itself, not the entity that did not respond; return why it is unreachable.

        Any response shows that it is reachable.
        """
        timeout_s = self._primary.send_attempt_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._primary.greet(path)
        except MessagingError as error:
            if is_silence(error):
                return error
        except TimeoutError:
            return MessagingTimeoutError(f"the namespace did not respond within {timeout_s:g} s", entity=path)
        except Exception as error:  # noqa: BLE001 (any error is retried)
            _log.exception("probe of the primary failed unexpectedly entity=%s", path)
            return MessagingError(f"the namespace could not be reached: {error!r}", entity=path)
        self.answered()
        return None

    def _lose(self, path: str, cause: MessagingError) -> None:
        _log.warning('primary unreachable, syphon paused entity=%s error="%s"', path, cause)
        self.cause = cause
        self._is_here.clear()
        self._tasks.keep_running(self._return, path)
        self._on_change()

    async def _return(self, path: str) -> None:
        """Probe the namespace until it responds, at once when another connection of the process has reached it."""
        while True:
            await self._pause()
            self._pause_s = PROBE_BACKOFF.after(self._pause_s)
            cause = await self._probe(path)
            if cause is None:
                break
            self.cause = cause
        _log.info("primary reachable again, syphon resumed entity=%s", path)
        self.cause = None
        self._is_here.set()
        self._on_change()

    async def _pause(self) -> None:
        """Wait before the next probe, until the namespace is reached by others or ``hurry`` is called."""
        self._hurry.clear()
        hurrying = asyncio.ensure_future(self._hurry.wait())
        try:
            await asyncio.wait(
                (self._primary.reached(), hurrying), timeout=self._pause_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            hurrying.cancel()

    def hurry(self) -> None:
        """Probe now: another process has reached the namespace."""
        self._hurry.set()

    async def close(self) -> None:
        await self._tasks.close()


class DestinationWaiter(Protocol):
    """An object with messages for a destination."""

    def wake(self) -> None:
        """Check the destination again."""


class DeliveryDestination:
    """One queue or topic of the primary namespace. While it is down, it is retried by one sender at a time."""

    def __init__(
        self,
        path: str,
        primary: SendingLinkFactory,
        is_held: Callable[[str], bool],
        publish: Listener,
        *,
        on_delivered: Callable[[str], None] = lambda _path: None,
    ) -> None:
        """``on_delivered`` is called with the path after each confirmed batch."""
        self.path = path
        self.cause: MessagingError | None = None
        """The reason why the destination is down; ``None`` while it works."""

        self.waiters: set[DestinationWaiter] = set()
        self.used_s = asyncio.get_running_loop().time()
        self._link = EntityLink(primary, path, {SYPHON: True})
        self._is_held = is_held
        self._publish = publish
        self._on_delivered = on_delivered
        self._pause_s = RETRY_BACKOFF.first_s
        self._due_s = 0.0
        self._is_held_back = False
        """True if the destination is down only because the pair holds it."""

        self._trying: object | None = None

    # State.

    @property
    def is_down(self) -> bool:
        return self.cause is not None

    @property
    def is_tried(self) -> bool:
        """True while a retry is under way."""
        return self._trying is not None

    @property
    def wait_s(self) -> float:
        """Time until the next retry; 0 if it is less than a timer can measure."""
        wait_s = self._due_s - asyncio.get_running_loop().time()
        return wait_s if wait_s > _MOMENT_S else 0.0

    @property
    def is_held(self) -> bool:
        """True while the pair does not send to the destination."""
        return self._is_held(self.path)

    def hold(self) -> bool:
        """Return whether the pair holds the destination, which then counts as down."""
        if not self.is_held:
            return False
        self._is_held_back = True
        error = MessagingError("the pair does not send to it at the moment", entity=self.path, is_transient=True)
        self._down(self.cause or error, _HELD_PAUSE_S)
        return True

    def may_try(self, sender: object) -> bool:
        """Return whether this sender may retry now; it has to report the result, or call ``leave``."""
        if self.is_tried or self.wait_s > 0:
            return False
        self._trying = sender
        return True

    def leave(self, sender: object) -> None:
        """End the retry of this sender, if it makes one."""
        if self._trying is sender:
            self._trying = None
            self.wake()

    def worked(self, sender: object) -> None:
        """Note that the destination has responded to this sender as a working one does."""
        self.leave(sender)
        if self.cause is None:
            return
        _log.info("destination works again entity=%s", self.path)
        self.cause = None
        self._pause_s = RETRY_BACKOFF.first_s
        self._changed(None)

    def failed(self, error: MessagingError, sender: object) -> None:
        """Note that a send of this sender failed, and that it may be retried."""
        self._is_held_back = False
        pause_s = max(self._pause_s, _BUSY_PAUSE_S) if isinstance(error, ServerBusyError) else self._pause_s
        self._pause_s = RETRY_BACKOFF.after(self._pause_s)
        self._down(error, pause_s)
        self.leave(sender)

    def suspend(self, cause: MessagingError) -> None:
        """Note that the namespace is unreachable; the destination may be retried as soon as that is over."""
        self._down(cause, 0.0)

    def resume(self) -> None:
        """Allow a retry now, if the destination was down only because the pair held it."""
        if self._is_held_back:
            self._is_held_back = False
            self._due_s = 0.0
            self.wake()

    def forget(self) -> None:
        """Forget that the destination is down: no message waits for it any more."""
        if self.cause is not None:
            _log.info("no messages waiting entity=%s", self.path)
            self.cause = None
            self._changed(None)

    def _down(self, cause: MessagingError, pause_s: float) -> None:
        self._due_s = asyncio.get_running_loop().time() + pause_s
        is_new = self.cause is None
        self.cause = cause
        if is_new:
            # A drill holds its own queue until its message is diverted.
            level = logging.DEBUG if is_drill_path(self.path) else logging.WARNING
            reason = str(cause).removeprefix(f"'{self.path}': ")
            _log.log(level, 'destination down, messages wait in the backlog entity=%s error="%s"', self.path, reason)
            self._changed(cause)

    def _changed(self, cause: MessagingError | None) -> None:
        self._publish(DestinationChanged(at=datetime.now(UTC), path=self.path, is_reached=cause is None, cause=cause))
        self.wake()

    def wake(self) -> None:
        for waiter in [*self.waiters]:
            waiter.wake()

    # Sending.

    async def max_batch_bytes(self) -> int:
        """Connect, and return the maximum size of a batch. Raise ``MessagingError``."""
        self.used_s = asyncio.get_running_loop().time()
        return (await self._link.link()).max_batch_bytes

    async def send(self, payloads: list[bytes]) -> None:
        """Send messages in one batch, and wait for the confirmation. Raise ``MessagingError``."""
        await self._link.attempt(SendBatch(payloads, whole=True))
        self._on_delivered(self.path)

    async def close(self) -> None:
        await self._link.close()
