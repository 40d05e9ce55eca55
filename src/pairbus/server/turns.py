"""Turns on the event loop: one unproven peer at a time, and a rest for a client that has held it too long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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
