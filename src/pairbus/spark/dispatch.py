"""Messages on their way to their entities."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Final

from pairbus.client.errors import MessagingError
from pairbus.client.parcel import Parcel
from pairbus.spark.lanes import Lanes

_MOST_BYTES: Final = 4 << 20
"""How much is under way at most."""

_MOST_SENDS: Final = 64
"""How many entities are sent to at once."""

_MOST_NAMED: Final = 5


class MessageWriteError(Exception):
    """Some messages of a task were not sent, so the task has failed."""

    def __init__(self, causes: Mapping[str, Exception], sent: Mapping[str, int]) -> None:
        super().__init__(_told(causes, sent))
        self.causes = dict(causes)
        """Why, by entity."""

        self.sent = dict(sent)
        """How many messages have been confirmed all the same, by entity."""


class Dispatch:
    """Sends to several entities at once, and to each of them in the order in which it is asked to.

    An entity's next messages go when those before are confirmed, so that none overtakes another that is sent again.
    When something could not be sent, nothing more is begun. To be used on the loop of its lanes.
    """

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._sent: Counter[str] = Counter()
        self._causes: dict[str, Exception] = {}
        self._last: dict[str, asyncio.Task[None]] = {}
        """What was asked for last of each entity that is sent to."""

        self._tasks: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(_MOST_SENDS)
        self._room = asyncio.Event()
        self._bytes = 0

    async def put(self, path: str, payloads: list[bytes]) -> None:
        """Have messages sent as soon as there is room for them; raises ``MessageWriteError`` if some were not."""
        size_bytes = sum(map(len, payloads))
        while self._bytes and self._bytes + size_bytes > _MOST_BYTES:
            self._room.clear()
            await self._room.wait()
        if self._causes:
            await self.finish()
        self._bytes += size_bytes
        key = path.lower()  # entities are the same however their names are capitalised
        sending = self._send(self._last.get(key), path, payloads, size_bytes)
        task = self._last[key] = asyncio.get_running_loop().create_task(sending)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self) -> dict[str, int]:
        """Wait until everything is confirmed: how many messages each entity got. Raises ``MessageWriteError``."""
        if self._tasks:
            await asyncio.wait([*self._tasks])
        if self._causes:
            raise MessageWriteError(self._causes, self._sent) from next(iter(self._causes.values()))
        return dict(self._sent)

    async def close(self) -> None:
        """Wait for nothing any more; what is not confirmed yet may have been sent, or not."""
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _send(self, before: asyncio.Task[None] | None, path: str, payloads: list[bytes], size_bytes: int) -> None:
        key = path.lower()
        try:
            if before is not None:
                await asyncio.wait((before,))
            async with self._turns:
                if not self._causes:
                    await self._deliver(path, payloads)
        except Exception as error:  # noqa: BLE001 (whatever it is, whoever waits for the end is told)
            self._causes[path] = error
        finally:
            self._bytes -= size_bytes
            self._room.set()
            if self._last.get(key) is asyncio.current_task():
                del self._last[key]

    async def _deliver(self, path: str, payloads: list[bytes]) -> None:
        lane = self._lanes.take(path)
        parcel = Parcel(payloads)
        parcel.in_turn = True
        try:
            await lane.send(parcel)
        except MessagingError as error:
            raise error.at(path) from error.__cause__
        finally:
            self._sent[path] += len(payloads) - len(parcel.unconfirmed)
            await self._lanes.give_back(lane)


def _told(causes: Mapping[str, Exception], sent: Mapping[str, int]) -> str:
    told = "; ".join(str(error) for error in [*causes.values()][:_MOST_NAMED])
    more = f"; and {len(causes) - _MOST_NAMED:,} more entities" if len(causes) > _MOST_NAMED else ""
    total = sum(sent.values())
    before = ", ".join(f"{count:,} to '{path}'" for path, count in Counter(sent).most_common(_MOST_NAMED) if count)
    return (
        f"not all messages of the task were sent: {told}{more}. {total:,} were sent{f' ({before})' if before else ''}."
        " When the task is run again it begins with its first row, and what was sent is sent once more, which makes no"
        " difference where duplicate detection is on. If running it again does not help, put the cause right and start"
        " the query again"
    )
