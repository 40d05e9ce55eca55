"""Turns on the event loop: one unproven peer at a time, a rest for a client that has held it too long, and deliveries
for a part of each pass.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

_FORGOTTEN_BYTES_S: Final = 4_096.0
"""Bytes of an unproven peer's recent traffic that are forgotten each second: an occasional request always counts as
new.
"""

_MODEST_BYTES: Final = 4_096
"""Recent bytes up to which an unproven peer is served without a pause: logging in takes a few kilobytes."""

_PAUSE_S: Final = 0.005
"""Pause between peers that have sent more. Meanwhile the loop waits, and the commit thread runs."""

_LONGEST_REST_S: Final = 0.1
"""The longest time that a client waits after a turn that was too long."""

_DELIVERY_S: Final = 0.001
"""Time that deliveries have in a pass of the loop in which clients were hardly served."""

_DELIVERY_SHARE: Final = 0.25
"""Time that deliveries have in a pass, as a part of the time for which clients were served since the last one.

What is delivered has to be removed, committed and settled as well, which takes several times as long. So this must not
count: if deliveries had a part of *all* other time, passes would grow to the longest as long as there is a backlog,
however few messages are sent."""

_LONGEST_DELIVERY_S: Final = 0.05
"""The longest time that deliveries have in one pass, however long clients were served."""

_LEAST_REMOVED: Final = 128
"""Messages that deliveries may always remove in one commit."""

_REMOVED_SHARE: Final = 2
"""Messages that deliveries may remove in one commit for each request of clients that waits for it."""

_MOST_REMOVED: Final = 1_024
"""The same if no client waits for it."""

_MOST_EMPTY: Final = 64
"""Empty places in the queue that are left until its next turns, however short it is."""

Work = Callable[[], object]


class Share:
    """The recent traffic of an unproven peer."""

    __slots__ = ("_at_s", "_bytes")

    def __init__(self) -> None:
        self._bytes = 0.0
        self._at_s = 0.0

    def add(self, size_bytes: int, now_s: float) -> None:
        self._bytes = self.at(now_s) + size_bytes
        self._at_s = now_s

    def at(self, now_s: float) -> float:
        return max(0.0, self._bytes - (now_s - self._at_s) * _FORGOTTEN_BYTES_S)


class Turns:
    """Gives unproven peers their turns, at most one in each pass of the event loop; the one that has sent least comes
    first.

    Proven peers do not wait here: each pass serves all of them and one unproven peer, however many of these there are.
    Unproven peers that send more than a login takes get a turn only now and then.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[Share, Work] = {}
        self._queue: list[tuple[float, int, Share]] = []
        """The order in which peers are served. The places of those that do not wait any more are empty."""
        self._numbers = count()
        self._is_taken = False
        """True if the turn of this pass is taken."""
        self.client_count = 0
        """The number of turns that proven connections have taken."""
        self._pause: asyncio.TimerHandle | None = None
        """Timer until peers that have sent much may have another turn."""

    def __len__(self) -> int:
        return len(self._waiting)

    def now_s(self) -> float:
        return self._loop.time()

    def take(self, share: Share, work: Work) -> None:
        """Do a short piece of work for an unproven peer: now if the turn is free, otherwise when its turn comes."""
        self._waiting[share] = work
        heappush(self._queue, (share.at(self._loop.time()), next(self._numbers), share))
        if not self._is_taken:
            self._serve()

    def drop(self, share: Share) -> None:
        """Forget the work of a peer that is gone: it would keep all that is held for the peer until its turn."""
        if self._waiting.pop(share, None) is not None and len(self._queue) > 2 * len(self._waiting) + _MOST_EMPTY:
            self._queue = [place for place in self._queue if place[2] in self._waiting]
            heapify(self._queue)

    def _serve(self) -> None:
        """Serve the peer that has sent least, if it may be served now."""
        while self._queue and self._queue[0][2] not in self._waiting:
            heappop(self._queue)
        if not self._queue or (self._pause is not None and self._queue[0][0] > _MODEST_BYTES):
            return
        level, _, share = heappop(self._queue)
        if level > _MODEST_BYTES:
            self._pause = self._loop.call_later(_PAUSE_S, self._end_pause)
        self._is_taken = True
        self._loop.call_soon(self._pass)
        self._waiting.pop(share)()

    def _pass(self) -> None:
        self._is_taken = False
        self._serve()

    def _end_pause(self) -> None:
        self._pause = None
        if not self._is_taken:
            self._serve()


class Pace:
    """Makes a client rest for as long as its last turn was too long, if others have had turns since the one before.

    What is stored in one piece, such as a large batch, holds the event loop first and the commit after that. Times are
    seconds of the connection's stopwatch.
    """

    __slots__ = ("_rests_until", "_seen_count", "_turns")

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._rests_until = 0.0
        self._seen_count = 0

    def end_turn(self, due: float, now: float) -> None:
        """Note the end of a turn that was to end at ``due``."""
        has_others = self._turns.client_count > self._seen_count
        self._rests_until = now + min(now - due, _LONGEST_REST_S) if now > due and has_others else 0.0
        self._turns.client_count += 1
        self._seen_count = self._turns.client_count

    def rest_s(self, now: float) -> float:
        """Return how long the next turn has to wait; zero or less if it need not."""
        return self._rests_until - now


class DeliveryTurns:
    """Gives deliveries a part of each pass of the event loop: a quarter of the time for which clients were served.

    Without it, many entities with a backlog would fill a pass with deliveries, and every send would wait for all of
    them. With a fixed time, receivers would fall behind senders on a busy server.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, stopwatch: Callable[[], float] = time.perf_counter) -> None:
        self._loop = loop
        self._stopwatch = stopwatch
        self._waiting: dict[Hashable, Work] = {}
        self._ends_at_s: float | None = None
        """Until when deliveries have their turn in this pass; ``None`` before the first."""
        self._served_s = 0.0
        """Duration of the turns of clients since the turn in the last pass."""
        self._removed = 0
        """Messages that were removed in order to be delivered, and whose removal is not durable yet."""
        self._requested = 0
        """Requests of clients that are not durable yet."""
        self._is_scheduled = False

    def add_served(self, seconds: float) -> None:
        """Record for how long a client was served."""
        self._served_s += seconds

    def add_requests(self, count: int) -> None:
        """Record requests of clients that wait for the next commit; or, with a negative number, its end for them."""
        self._requested += count

    def add_removed(self, count: int) -> None:
        """Record messages that the next commit removes; or, with a negative number, its end for them.

        To remove and to deliver them takes several times as long as to choose them. If there were no limit, a commit
        that takes long would be followed by one with even more of them, and all sends would wait for that.
        """
        self._removed += count
        if self._waiting and not self.is_full:
            self._schedule()

    @property
    def is_over(self) -> bool:
        """True if the time of this pass is used up, or the next commit has enough messages to remove."""
        return self.is_full or (self._ends_at_s is not None and self._stopwatch() >= self._ends_at_s)

    @property
    def is_full(self) -> bool:
        """True if the next commit has enough messages to remove."""
        most = max(_LEAST_REMOVED, _REMOVED_SHARE * self._requested) if self._requested else _MOST_REMOVED
        return self._removed >= most

    def take(self, key: Hashable, work: Work) -> None:
        """Deliver now if there is time left in this pass, otherwise in a later one; once for a key that waits."""
        if self._ends_at_s is None and not self.is_full:
            self._begin()
        if self.is_over or key in self._waiting:
            self.wait(key, work)
        else:
            work()

    def wait(self, key: Hashable, work: Work) -> None:
        """Deliver in a later pass: once for a key that waits already."""
        self._waiting[key] = work
        self._schedule()

    def has_waiting(self, key: Hashable) -> bool:
        """Return whether work with a key waits for a later pass."""
        return key in self._waiting

    def _begin(self) -> None:
        length_s = min(max(_DELIVERY_SHARE * self._served_s, _DELIVERY_S), _LONGEST_DELIVERY_S)
        self._served_s = 0.0
        self._ends_at_s = self._stopwatch() + length_s
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._take_waiting)

    def _take_waiting(self) -> None:
        """Begin the turn of the next pass: do each piece of work that waits, as long as there is time."""
        self._is_scheduled = False
        self._ends_at_s = None
        if not self._waiting or self.is_full:
            return
        self._begin()
        for _ in range(len(self._waiting)):
            key = next(iter(self._waiting))
            self._waiting.pop(key)()
            if self.is_over:
                break
