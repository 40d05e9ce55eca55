"""The order of sessions: while messages of a session are in the backlog, new ones are diverted, too."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple
from zlib import crc32

from pairbus.background_tasks import BackgroundTasks
from pairbus.client.errors import (
    ClosedError,
    EntityNotFoundError,
    MessagingError,
    MessagingTimeoutError,
    UnauthorizedError,
)
from pairbus.client.factory import MessagingFactory
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.dialect.transfer import PATH, SESSION_ID

_log = logging.getLogger(__name__)

_PAGE: Final = 200
_PEEK_S: Final = 5.0
"""Timeout of a peek, after which the queue counts as unreadable."""

_FIRST_SCAN_S: Final = 5.0
_LOOK_S: Final = 1.0
_REST_S: Final = 0.05
"""Pause after a scan for each page of the queue, so that a long backlog is not scanned all the time."""

_LONGEST_REST_S: Final = 60.0
_HOLD_S: Final = 2.0
_LONGEST_HOLD_S: Final = 15.0
"""Maximum time that new messages of a session wait until the last old ones are delivered."""

_STEP_S: Final = 0.02

Key = tuple[str, str]
"""The path of an entity in lower case, and a session id."""


class Mark(NamedTuple):
    """The last message of a session in the backlog, and when it was seen there."""

    sequence: int
    since_s: float


class BackloggedSession:
    """A session that has messages in the backlog, or may have."""

    __slots__ = ("held", "in_flight", "is_pinned", "mark", "queue", "version")

    def __init__(self, queue: int) -> None:
        self.queue = queue
        """The backlog queue of all its messages: in several queues their order would be lost."""

        self.is_pinned = False
        """True if messages of the session are in that queue, or may be."""

        self.in_flight = 0
        self.version = 0
        """Incremented with every message that is sent to the backlog."""

        self.mark: Mark | None = None
        self.held: asyncio.Future[None] | None = None
        """Done when new messages of the session may be sent; ``None`` while they need not wait."""

    def hold(self) -> None:
        """Make new messages wait."""
        self.held = asyncio.get_running_loop().create_future()

    def release(self) -> None:
        """Let new messages be sent."""
        held, self.held = self.held, None
        if held is not None and not held.done():
            held.set_result(None)


class SessionSpan(NamedTuple):
    """The first and the last message of a session in a queue."""

    first: int
    last: int


class SessionOrder:
    """Tracks which sessions have messages in the backlog, and detects when they have none left.

    Each scan peeks at a whole queue. With a longer backlog it takes longer, and is repeated less often. No state of a
    queue is kept between scans, because the queue may be re-created, or messages may be parked, meanwhile.
    """

    def __init__(
        self,
        factory: MessagingFactory,
        queues: tuple[str, ...],
        *,
        is_healthy: Callable[[str], bool],
        on_change: Callable[[str, int], None],
        on_scanned: Callable[[], None],
        on_missing: Callable[[str, EntityNotFoundError], None],
    ) -> None:
        self._factory = factory
        self._queues = queues
        self._is_healthy = is_healthy
        self._on_change = on_change
        """Called with the path of an entity, and the change of the number of its backlogged sessions."""

        self._on_scanned = on_scanned
        """Called when the whole backlog has been scanned for the first time."""

        self._on_missing = on_missing
        """Called with the path of a queue that was deleted, and the error."""

        self._sessions: dict[Key, BackloggedSession] = {}
        self._receivers: dict[int, MessageReceiver] = {}
        self._unscanned = set(range(len(queues)))
        """The queues that have not been scanned yet."""

        self._pages = [0] * len(queues)
        """Number of pages of each queue at its last scan."""

        self._all_scanned = asyncio.Event()
        self._unreadable: set[int] = set()
        self._tasks = BackgroundTasks("order of sessions")
        self._is_closed = False

    async def start(self) -> None:
        """Scan the existing backlog; the scan of a large one continues in the background.

        Raise ``UnauthorizedError`` if a queue must not be read.
        """
        scans = [self._tasks.start(self._first_scan(index)) for index in range(len(self._queues))]
        for index, scan in enumerate(scans):
            self._tasks.keep_running(self._watch, index, scan)
        await asyncio.wait(scans, timeout=_FIRST_SCAN_S)
        for scan in scans:
            refusal = scan.result() if scan.done() else None
            if isinstance(refusal, UnauthorizedError):
                await self.close()
                raise refusal

    # For senders.

    def default_queue(self, path: str) -> int:
        """Return the backlog queue for the sessions of an entity: the same in every process."""
        return crc32(path.lower().encode()) % len(self._queues)

    @property
    def is_scanning(self) -> bool:
        """True until all backlog queues have been scanned once."""
        return bool(self._unscanned)

    def follows(self, path: str, session_id: str) -> bool:
        """Return whether a new message must follow others of its session into the backlog, or may have to."""
        return self.is_scanning or (path.lower(), session_id) in self._sessions

    def is_located(self, path: str, session_id: str | None) -> bool:
        """Return whether it is known which backlog queue has the messages of a session, if any has."""
        if session_id is None or not self.is_scanning:
            return True
        found = self._sessions.get((path.lower(), session_id))
        return found is not None and found.is_pinned

    async def wait_until_located(self, path: str, deadline_s: float) -> None:
        """Wait until the backlog queues of all sessions are known. Raise ``MessagingTimeoutError``."""
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._all_scanned.wait()
        except TimeoutError as error:
            queues = ", ".join(self._queues[index] for index in sorted(self._unscanned))
            raise MessagingTimeoutError(
                f"its sessions are kept in order, but these backlog queues are not completely scanned yet: {queues}",
                entity=path,
            ) from error
        if self._is_closed:
            raise ClosedError("the pair has been closed", entity=path)

    async def wait_until_released(self, path: str, session_ids: Iterable[str]) -> None:
        """Wait until none of these sessions is held."""
        keys = [(path.lower(), session_id) for session_id in session_ids]
        while held := [one.held for key in keys if (one := self._sessions.get(key)) and one.held is not None]:
            await asyncio.wait(held)

    def track(self, path: str, session_id: str) -> BackloggedSession:
        """Return the record of a session; from now on the session counts as backlogged."""
        key = path.lower(), session_id
        found = self._sessions.get(key)
        if found is None:
            found = self._sessions[key] = BackloggedSession(self.default_queue(path))
            self._on_change(key[0], +1)
        return found

    # Scans.

    async def _first_scan(self, index: int) -> Exception | None:
        """Track the sessions of the existing messages of a queue; return the error if it cannot be read."""
        try:
            for path, session_id in await self._scan(index):
                found = self.track(path, session_id)
                found.queue, found.is_pinned = index, True
        except MessagingError as error:
            self._note_failure(index, error)
            return error
        except Exception as error:  # noqa: BLE001 (without this scan all sessions stay diverted)
            self._log_unexpected(index)
            return error
        self._note_failure(index, None)
        self._unscanned.discard(index)
        if not self._unscanned:
            self._all_scanned.set()
            self._on_scanned()
        return None

    async def _watch(self, index: int, first_scan: asyncio.Task[Exception | None]) -> None:
        await asyncio.wait((first_scan,))
        while index in self._unscanned:
            await asyncio.sleep(_LOOK_S)
            await self._first_scan(index)
        while True:
            await asyncio.sleep(min(max(_LOOK_S, _REST_S * self._pages[index]), _LONGEST_REST_S))
            try:
                await self._release_or_hold(index)
            except MessagingError as error:
                self._note_failure(index, error)
            except Exception:  # noqa: BLE001 (without scans its sessions stay diverted)
                self._log_unexpected(index)
            else:
                self._note_failure(index, None)

    def _note_failure(self, index: int, error: MessagingError | None) -> None:
        """Log an outage once."""
        if error is None:
            self._unreadable.discard(index)
        elif index not in self._unreadable:
            self._unreadable.add(index)
            _log.warning('scan of a backlog queue failed, retrying entity=%s error="%s"', self._queues[index], error)

    def _log_unexpected(self, index: int) -> None:
        _log.exception("scan of a backlog queue failed unexpectedly, retrying entity=%s", self._queues[index])

    async def _release_or_hold(self, index: int) -> None:
        """Release the sessions that have no messages in a queue any more; hold those with a steady flow of new ones."""
        sessions = {
            key: session
            for key, session in self._sessions.items()
            if session.queue == index and self._is_healthy(key[0])
        }
        if sessions:
            remaining = await self._release_drained(index, sessions)
            await self._hold_if_drained(
                index, {key: sessions[key] for key in sessions if key in self._sessions}, remaining
            )

    async def _release_drained(self, index: int, sessions: dict[Key, BackloggedSession]) -> dict[Key, SessionSpan]:
        """Release the sessions that a scan of the queue does not find; return those that it finds."""
        versions = {key: session.version for key, session in sessions.items()}
        remaining = await self._scan(index)
        for key, session in sessions.items():
            is_quiet = session.version == versions[key] and not session.in_flight
            if key not in remaining and is_quiet and self._sessions.get(key) is session:
                session.release()
                del self._sessions[key]
                self._on_change(key[0], -1)
        return remaining

    async def _hold_if_drained(
        self, index: int, sessions: dict[Key, BackloggedSession], remaining: dict[Key, SessionSpan]
    ) -> None:
        """Hold the sessions of which everything has been delivered that was in the backlog some time ago.

        The time that this took is an estimate of how long the rest takes.
        """
        now_s = asyncio.get_running_loop().time()
        took_s, drained = 0.0, {}
        for key, session in sessions.items():
            mark, span = session.mark, remaining.get(key)
            if mark is None:
                session.mark = None if span is None else Mark(span.last, now_s)
            elif span is None or span.first > mark.sequence:
                took_s = max(took_s, now_s - mark.since_s)
                session.mark = None
                drained[key] = session
        if drained:
            await self._hold(index, drained, min(max(_HOLD_S, 1.5 * took_s), _LONGEST_HOLD_S))

    async def _hold(self, index: int, sessions: dict[Key, BackloggedSession], hold_s: float) -> None:
        """Make new messages of sessions wait for a moment, in which the last old ones are delivered."""
        for session in sessions.values():
            session.hold()
        try:
            async with asyncio.timeout(hold_s):
                while sessions:
                    await self._release_drained(index, sessions)
                    sessions = {key: session for key, session in sessions.items() if session.held is not None}
                    await asyncio.sleep(_STEP_S)
        except TimeoutError as error:
            if isinstance(error, MessagingError):
                raise
        finally:
            for session in sessions.values():
                session.release()

    async def _scan(self, index: int) -> dict[Key, SessionSpan]:
        """Peek at a whole queue; return the sessions that have messages in it."""
        found: dict[Key, SessionSpan] = {}
        number = pages = 0
        try:
            while page := await self._peek(index, number):
                for message in page:
                    key = _key_of(message)
                    if key is not None:
                        first = found[key].first if key in found else message.sequence_number
                        found[key] = SessionSpan(first, message.sequence_number)
                number = page[-1].sequence_number + 1
                pages += 1
        except EntityNotFoundError as error:  # its messages were deleted with it
            self._on_missing(self._queues[index], error)
        self._pages[index] = pages
        return found

    async def _peek(self, index: int, number: int) -> list[ReceivedMessage]:
        receiver = self._receivers.get(index)
        if receiver is None:
            receiver = self._receivers[index] = await self._factory.create_message_receiver(self._queues[index])
        try:
            async with asyncio.timeout(_PEEK_S):
                return await receiver.peek(_PAGE, from_sequence_number=number)
        except TimeoutError as error:
            if isinstance(error, MessagingError):
                raise
            raise MessagingTimeoutError(
                f"peek of the backlog queue got no answer within {_PEEK_S:g} s", entity=self._queues[index]
            ) from error

    async def close(self) -> None:
        self._is_closed = True
        self._all_scanned.set()
        for session in self._sessions.values():
            session.release()
        await self._tasks.close()
        for receiver in self._receivers.values():
            await receiver.close()


def _key_of(message: ReceivedMessage) -> Key | None:
    """Return the session of a message in the backlog; ``None`` if it has none, or cannot be read."""
    with suppress(MessagingError):
        path, session_id = (message.application_properties.get(name) for name in (PATH, SESSION_ID))
        if isinstance(path, str) and isinstance(session_id, str):
            return path.lower(), session_id
    return None
