"""The way of a send into a side buffer, and past it again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from pairbus.broker import Address, BrokerError, Message
from pairbus.server.side_buffer.archive import Archive, size_of
from pairbus.server.side_buffer.lane import Item, Lane, LaneState
from pairbus.server.side_buffer.lanes import Lanes
from pairbus.server.side_buffer.parcel import Parcel
from pairbus.server.side_buffer.store import PASSING, Store
from pairbus.server.side_buffer.sweeper import Sweeper
from pairbus.server.side_buffer.tally import Tally
from pairbus.store import StoreError, StoreFailedError, StoreFullError
from pairbus.store.datafile import NO_SPACE

_log = logging.getLogger(__name__)

Done = Callable[[Exception | None], object]
"""Is told that messages are on disk, here or in the store, or why they are not."""


class Intake:
    """Takes items in as they come and writes them in groups: one fsync serves all that have come meanwhile."""

    def __init__(
        self,
        archive: Archive,
        sweeper: Sweeper,
        store: Store,
        lanes: Lanes,
        tally: Tally,
        place: str,
        max_bytes: int,
    ) -> None:
        self._archive = archive
        self._sweeper = sweeper
        self._store = store
        self._lanes = lanes
        self._tally = tally
        self._place = place
        self._max_bytes = max_bytes
        self._pending: list[Item] = []
        self._underway_bytes = 0
        self._writing: asyncio.Task[None] | None = None
        self._has_failed = False
        self._is_closed = False
        self.changed: Callable[[], object] = lambda: None
        """There is something to be merged, or a lane has less on its way."""

    def is_quiet(self) -> bool:
        """Whether nothing is on its way to the disk, and nothing waits to go there, or past the buffer."""
        return self._writing is None and not self._pending and not any(lane.arrivals for lane in self._lanes)

    async def close(self) -> None:
        """Take nothing more, and wait until what has come is on disk, or refused."""
        self._is_closed = True
        while self._writing is not None:
            await asyncio.wait([self._writing])

    def divert(self, address: Address, messages: Sequence[Message], done: Done, cause: StoreError | None) -> None:
        """Take a send in, behind all that was written before: should that fail, it comes into the buffer first."""
        item = self._item(address, messages, done, cause)
        if item is None:
            return
        lane = self._lanes.get(address)
        lane.arrivals.append(item)
        if lane.state is LaneState.CLOSING:
            item.is_ready = True  # nothing comes to be merged before that
        else:
            self._store.when_durable(lambda _error: self._ready(lane, item))

    def rescue(self, address: Address, messages: Sequence[Message], done: Done, cause: StoreError) -> None:
        """Take a send in whose commit has failed: it comes before all that waits for its outcome."""
        item = self._item(address, messages, done, cause)
        if item is not None:
            self._put(self._lanes.get(address), item)
            self._write()

    def go_on(self, lane: Lane) -> None:
        """A lane holds again: what has waited goes into the buffer after all."""
        while (item := lane.next_ready()) is not None:
            self._put(lane, item)
        self._write()

    def let_through(self, lane: Lane) -> None:
        """A lane is open: what has waited goes to the broker, in order."""
        self._lanes.drop(lane.address)
        while lane.arrivals:
            item = lane.arrivals.popleft()
            self._underway_bytes -= size_of([item.content])
            self._send(item)

    def _item(self, address: Address, messages: Sequence[Message], done: Done, cause: StoreError | None) -> Item | None:
        if self._is_closed:
            done(cause or StoreFailedError(self._place, "the server stops"))
            return None
        content = self._archive.pack(Parcel(address.entity, self._store.now_ms(), messages))
        size = size_of([content])
        if not self._has_room(size):
            done(cause or StoreFullError(self._place, f"the side buffer has its {self._max_bytes} bytes"))
            return None
        self._underway_bytes += size
        return Item(address=address, messages=messages, done=done, cause=cause, content=content, is_ready=False)

    def _has_room(self, size: int) -> bool:
        """Files that nobody needs any more do not count, unless they cannot be removed at all."""
        used = self._archive.used_bytes + self._underway_bytes + size
        if used <= self._max_bytes:
            return True
        unneeded = self._sweeper.unneeded_bytes
        if unneeded:
            self._sweeper.sweep_soon()
        return used - min(unneeded, self._max_bytes) <= self._max_bytes

    def _ready(self, lane: Lane, item: Item) -> None:
        item.is_ready = True
        if self._lanes.is_current(lane):
            self.go_on(lane)

    def _put(self, lane: Lane, item: Item) -> None:
        lane.underway += 1
        self._pending.append(item)

    def _arrived(self, lane: Lane, item: Item) -> None:
        lane.underway -= 1
        self._underway_bytes -= size_of([item.content])

    # Writing

    def _write(self) -> None:
        if self._writing is None and self._pending:
            group, self._pending = self._pending, []
            self._writing = self._store.loop.create_task(self._write_group(group))
            self._writing.add_done_callback(self._written)

    async def _write_group(self, group: Sequence[Item]) -> None:
        try:
            entries = await self._archive.append(
                [item.content for item in group], [len(item.messages) for item in group]
            )
        except OSError as error:
            self._fail(group, error)
            return
        self._has_failed = False
        for item, entry in zip(group, entries, strict=True):
            self._arrived(self._lanes.get(item.address), item)
            self._lanes.add(item.address, entry)
            self._tally.held += entry.messages
            self._tally.taken += entry.messages
        for item in group:
            item.done(None)

    def _fail(self, group: Sequence[Item], error: OSError) -> None:
        if not self._has_failed:
            _log.error("the side buffer in %s cannot be written: %s", self._place, error)
        self._has_failed = True
        for item in group:
            lane = self._lanes.get(item.address)
            self._arrived(lane, item)
            self._lanes.drop_if_vacant(lane)
        kind = StoreFullError if error.errno in NO_SPACE else StoreFailedError
        for item in group:
            item.done(item.cause or kind(self._place, str(error)))

    def _written(self, task: asyncio.Task[None]) -> None:
        self._writing = None
        self._write()
        self.changed()
        if not task.cancelled():
            task.result()  # a defect is told the loop

    # Past the buffer

    def _send(self, item: Item) -> None:
        store = self._store
        if item.address in self._lanes:  # the one before it has come into the buffer
            self.divert(item.address, item.messages, item.done, item.cause)
            return
        try:
            store.namespace.send(item.address, item.messages, store.now_ms())
        except PASSING as error:
            self.divert(item.address, item.messages, item.done, error)
        except (BrokerError, StoreError) as error:
            item.done(error)
        else:
            store.when_durable(partial(self._sent, item))

    def _sent(self, item: Item, error: StoreError | None) -> None:
        if isinstance(error, PASSING):
            self.rescue(item.address, item.messages, item.done, error)
        else:
            item.done(error)
