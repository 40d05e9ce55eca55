"""The syphon that runs in the process of the application, and needs nothing else."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from pairbus.client.errors import EntityNotFoundError, MessagingError, UnauthorizedError
from pairbus.pairing.homecoming.bound import key_of
from pairbus.pairing.homecoming.contact import Contact
from pairbus.pairing.homecoming.destination import Destination
from pairbus.pairing.pump.backlog_reader import BacklogReader
from pairbus.pairing.status import SyphonStatus
from pairbus.pairing.syphon import IN_PROCESS, SyphonContext

_log = logging.getLogger(__name__)

_FIRST_LOOK_S: Final = 10.0
"""How long the start waits for a namespace that does not answer."""

_FINISH_S: Final = 5.0
_SETTLE_S: Final = 4.0
_SWEEP_S: Final = 30.0
_UNUSED_S: Final = 600.0
"""How long a destination is kept at hand that nothing goes to."""


class InProcessSyphon:
    """Reads all backlog queues at once, and delivers to all destinations at once."""

    def __init__(self, context: SyphonContext) -> None:
        self._context = context
        self._contact = Contact(context.primary, self._wake)
        self._destinations: dict[str, Destination] = {}
        self._readers: list[BacklogReader] = []
        self._sweeping: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    @property
    def status(self) -> SyphonStatus:
        return SyphonStatus(
            engine=IN_PROCESS,
            receives=sum(reader.receives for reader in self._readers),
            syphoned=sum(reader.syphoned for reader in self._readers),
            dead_lettered=sum(reader.dead_lettered for reader in self._readers),
            waiting={one.path: one.cause for one in self._destinations.values() if one.cause is not None},
        )

    async def start(self) -> None:
        """Begin to read; raises if that is not allowed, or if there is nothing to read."""
        try:
            for path in self._context.backlog_queues:
                self._readers.append(await self._reader(path))
            looks = [reader.start() for reader in self._readers]
            if looks:
                await asyncio.wait(looks, timeout=_FIRST_LOOK_S)
                check_looks(looks)
        except BaseException:
            await self.close()
            raise

    async def _reader(self, path: str) -> BacklogReader:
        context = self._context
        return BacklogReader(
            await context.secondary.create_message_receiver(path),
            context.settings,
            self._contact,
            context.secondary.reached,
            self._find_destination,
            context.tell,
        )

    def _find_destination(self, path: str) -> Destination:
        key = key_of(path)
        found = self._destinations.get(key)
        if found is None:
            context = self._context
            found = Destination(path.strip("/"), context.primary, context.is_held, context.tell)
            self._destinations[key] = found
            if self._sweeping is None:
                self._sweeping = asyncio.get_running_loop().create_task(self._sweep())
        found.used_s = asyncio.get_running_loop().time()
        return found

    def _wake(self) -> None:
        for destination in self._destinations.values():
            destination.wake()

    async def _sweep(self) -> None:
        """Let go of destinations that nothing goes to any more."""
        loop = asyncio.get_running_loop()
        while self._destinations:
            await asyncio.sleep(_SWEEP_S)
            idle = [(key, one) for key, one in self._destinations.items() if not one.waiters]
            for key, destination in idle:
                if destination.waiters:  # meanwhile
                    continue
                if not self._contact.is_away:
                    destination.forget()  # what was given back for it has gone another way
                if destination.used_s + _UNUSED_S <= loop.time():
                    del self._destinations[key]
                    for reader in self._readers:
                        reader.channels.pop(key, None)
                    await destination.close()
        self._sweeping = None

    def resume(self, path: str) -> None:
        """The pair sends to an entity again that was held."""
        destination = self._destinations.get(key_of(path))
        if destination is not None:
            destination.resume()

    async def close(self) -> None:
        """Stop; what is under way is finished or given back. To close twice is fine."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await asyncio.gather(*(reader.stop(_FINISH_S) for reader in self._readers))
        await self._contact.close()
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait((self._sweeping,))
        await asyncio.gather(*(reader.close(_SETTLE_S) for reader in self._readers))
        await asyncio.gather(*(destination.close() for destination in self._destinations.values()))


def check_looks(looks: list[asyncio.Task[None]]) -> None:
    """Raise why a queue cannot be read, if that does not pass."""
    for look in looks:
        error = look.exception() if look.done() and not look.cancelled() else None
        if isinstance(error, UnauthorizedError | EntityNotFoundError):
            raise error
        if isinstance(error, MessagingError):
            _log.warning("a backlog queue is read as soon as it can be: %s", error)
