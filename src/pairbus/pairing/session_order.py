"""Keeping sessions in order: while messages of a session lie in the backlog, new ones go there, too."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple
from zlib import crc32

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
"""How long a peek may take before the queue counts as one that cannot be looked through."""

_FIRST_LOOK_S: Final = 5.0
_LOOK_S: Final = 1.0
_REST_S: Final = 0.05
"""How long a queue is left alone for each page that it had: a long backlog is not looked through all the time."""

_LONGEST_REST_S: Final = 60.0
_HOLD_S: Final = 2.0
_LONGEST_HOLD_S: Final = 15.0
"""How long new messages of a session wait at most for the last of the old ones to be brought home."""

_STEP_S: Final = 0.02

Key = tuple[str, str]
"""The path of an entity, in small letters, and a session id."""


class Mark(NamedTuple):
    """The last message of a session that was in the backlog at a time."""

    sequence: int
    since_s: float


class Straggler:
    """A session of which messages lie in the backlog, or may do."""

    __slots__ = ("held", "in_flight", "is_pinned", "mark", "queue", "version")

    def __init__(self, queue: int) -> None:
        self.queue = queue
        """The backlog queue that they are in, all of them: else their order would be lost."""

        self.is_pinned = False
        """Whether there are messages of it in that queue, or may be."""

        self.in_flight = 0
        self.version = 0
        """Goes up with every message that is sent there."""

        self.mark: Mark | None = None
        self.held: asyncio.Future[None] | None = None
        """Done when new messages of the session may go on."""

    def hold(self) -> None:
        """Keep new messages waiting."""
        self.held = asyncio.get_running_loop().create_future()

    def release(self) -> None:
        """New messages may go on."""
        held, self.held = self.held, None
        if held is not None and not held.done():
            held.set_result(None)


class Span(NamedTuple):
    """The first and the last message of a session in a queue."""

    first: int
    last: int


class SessionOrder:
    """Knows which sessions have messages in the backlog, and finds out when they have none any more.

    It looks through the whole of a queue each time. That takes as long as the backlog is long, so it is done the less
    often; and it needs to remember nothing about a queue that could be made anew, or have parked messages, meanwhile.
    """

    def __init__(
        self,
        factory: MessagingFactory,
        queues: tuple[str, ...],
        *,
        is_healthy: Callable[[str], bool],
        on_change: Callable[[str, int], None],
        on_seen: Callable[[], None],
    ) -> None:
        self._factory = factory
        self._queues = queues
        self._is_healthy = is_healthy
        self._on_change = on_change
        """Told the path of an entity, and by how many its stragglers are more."""

        self._on_seen = on_seen
        """Told when the whole backlog has been looked through for the first time."""

        self._stragglers: dict[Key, Straggler] = {}
        self._receivers: dict[int, MessageReceiver] = {}
        self._unseen = set(range(len(queues)))
        """The queues that have not been looked through yet."""

        self._pages = [0] * len(queues)
        """How many pages each of them had when it was looked through last."""

        self._seen = asyncio.Event()
        self._unreadable: set[int] = set()
        self._watching: list[asyncio.Task[None]] = []
        self._is_closed = False

    async def start(self) -> None:
        """Look what is there from before; a large backlog is looked through while we go on."""
        loop = asyncio.get_running_loop()
        looks = [loop.create_task(self._first_look(index)) for index in range(len(self._queues))]
        self._watching = [loop.create_task(self._watch(index, look)) for index, look in enumerate(looks)]
        await asyncio.wait(looks, timeout=_FIRST_LOOK_S)
        for look in looks:
            refusal = look.result() if look.done() else None
            if isinstance(refusal, UnauthorizedError):
                await self.close()
                raise refusal

    # What senders ask.

    def default_queue(self, path: str) -> int:
        """The backlog queue for the sessions of an entity: the same in every process."""
        return crc32(path.lower().encode()) % len(self._queues)

    @property
    def is_looking(self) -> bool:
        """Whether there are backlog queues of which we do not know yet what is in them."""
        return bool(self._unseen)

    def follows(self, path: str, session_id: str) -> bool:
        """Whether a new message has to follow others of its session into the backlog, or may have to."""
        return self.is_looking or (path.lower(), session_id) in self._stragglers

    def is_located(self, path: str, session_id: str | None) -> bool:
        """Whether it is known where the messages of a session are, if it has any."""
        if session_id is None or not self.is_looking:
            return True
        found = self._stragglers.get((path.lower(), session_id))
        return found is not None and found.is_pinned

    async def located(self, path: str, deadline_s: float) -> None:
        """Wait until it is known for all sessions where their messages are; raises ``MessagingTimeoutError``."""
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._seen.wait()
        except TimeoutError as error:
            queues = ", ".join(self._queues[index] for index in sorted(self._unseen))
            raise MessagingTimeoutError(
                f"its sessions are kept in order, and not all of the backlog has been looked through yet: {queues}",
                entity=path,
            ) from error
        if self._is_closed:
            raise ClosedError("the pair has been closed", entity=path)

    async def admitted(self, path: str, session_ids: Iterable[str]) -> None:
        """Wait until none of these sessions is held."""
        keys = [(path.lower(), session_id) for session_id in session_ids]
        while held := [one.held for key in keys if (one := self._stragglers.get(key)) and one.held is not None]:
            await asyncio.wait(held)

    def straggler(self, path: str, session_id: str) -> Straggler:
        """The straggler that a session is from now on."""
        key = path.lower(), session_id
        found = self._stragglers.get(key)
        if found is None:
            found = self._stragglers[key] = Straggler(self.default_queue(path))
            self._on_change(key[0], +1)
        return found

    # How it finds out.

    async def _first_look(self, index: int) -> MessagingError | None:
        """See what is in a queue from before; gives why that cannot be told."""
        try:
            for path, session_id in await self._scan(index):
                found = self.straggler(path, session_id)
                found.queue, found.is_pinned = index, True
        except MessagingError as error:
            self._note_failure(index, error)
            return error
        self._note_failure(index, None)
        self._unseen.discard(index)
        if not self._unseen:
            self._seen.set()
            self._on_seen()
        return None

    async def _watch(self, index: int, look: asyncio.Task[MessagingError | None]) -> None:
        loop = asyncio.get_running_loop()
        while await look is not None:
            await asyncio.sleep(_LOOK_S)
            look = loop.create_task(self._first_look(index))
        while True:
            await asyncio.sleep(min(max(_LOOK_S, _REST_S * self._pages[index]), _LONGEST_REST_S))
            try:
                await self._look(index)
            except MessagingError as error:
                self._note_failure(index, error)
            except Exception:  # noqa: BLE001 (whatever it is, sessions must not stay in the backlog for ever)
                _log.exception("the backlog queue '%s' could not be looked through", self._queues[index])
            else:
                self._note_failure(index, None)

    def _note_failure(self, index: int, error: MessagingError | None) -> None:
        """It is told once."""
        if error is None:
            self._unreadable.discard(index)
        elif index not in self._unreadable:
            self._unreadable.add(index)
            _log.warning("the backlog queue '%s' cannot be looked through: %s", self._queues[index], error)

    async def _look(self, index: int) -> None:
        """Let go of the sessions that have nothing in a queue any more; hold those that are sent to all the time."""
        here = {
            key: straggler
            for key, straggler in self._stragglers.items()
            if straggler.queue == index and self._is_healthy(key[0])
        }
        if here:
            left = await self._let_go_of_gone(index, here)
            await self._hold_if_home(index, {key: here[key] for key in here if key in self._stragglers}, left)

    async def _let_go_of_gone(self, index: int, here: dict[Key, Straggler]) -> dict[Key, Span]:
        """Let go of those that a look at the whole queue has not seen; gives what it has."""
        versions = {key: straggler.version for key, straggler in here.items()}
        left = await self._scan(index)
        for key, straggler in here.items():
            is_quiet = straggler.version == versions[key] and not straggler.in_flight
            if key not in left and is_quiet and self._stragglers.get(key) is straggler:
                straggler.release()
                del self._stragglers[key]
                self._on_change(key[0], -1)
        return left

    async def _hold_if_home(self, index: int, here: dict[Key, Straggler], left: dict[Key, Span]) -> None:
        """Hold those of which everything has been brought home that was there some time ago.

        The time that this took tells how long the rest will take.
        """
        now_s = asyncio.get_running_loop().time()
        took_s, home = 0.0, {}
        for key, straggler in here.items():
            mark, span = straggler.mark, left.get(key)
            if mark is None:
                straggler.mark = None if span is None else Mark(span.last, now_s)
            elif span is None or span.first > mark.sequence:
                took_s = max(took_s, now_s - mark.since_s)
                straggler.mark = None
                home[key] = straggler
        if home:
            await self._hold(index, home, min(max(_HOLD_S, 1.5 * took_s), _LONGEST_HOLD_S))

    async def _hold(self, index: int, here: dict[Key, Straggler], hold_s: float) -> None:
        """Keep new messages of sessions waiting for a moment, in which the last of the old ones come home."""
        for straggler in here.values():
            straggler.hold()
        try:
            async with asyncio.timeout(hold_s):
                while here:
                    await self._let_go_of_gone(index, here)
                    here = {key: straggler for key, straggler in here.items() if straggler.held is not None}
                    await asyncio.sleep(_STEP_S)
        except TimeoutError as error:
            if isinstance(error, MessagingError):
                raise
        finally:
            for straggler in here.values():
                straggler.release()

    async def _scan(self, index: int) -> dict[Key, Span]:
        """Look through a whole queue, for the sessions that have messages in it."""
        found: dict[Key, Span] = {}
        number = pages = 0
        with suppress(EntityNotFoundError):  # then nothing is in it
            while page := await self._peek(index, number):
                for message in page:
                    key = _key_of(message)
                    if key is not None:
                        first = found[key].first if key in found else message.sequence_number
                        found[key] = Span(first, message.sequence_number)
                number = page[-1].sequence_number + 1
                pages += 1
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
            raise MessagingTimeoutError(f"not within {_PEEK_S:g} s", entity=self._queues[index]) from error

    async def close(self) -> None:
        self._is_closed = True
        self._seen.set()
        for straggler in self._stragglers.values():
            straggler.release()
        for task in self._watching:
            task.cancel()
        if self._watching:
            await asyncio.wait(self._watching)
        for receiver in self._receivers.values():
            await receiver.close()


def _key_of(message: ReceivedMessage) -> Key | None:
    """The session that a message in the backlog belongs to; what cannot be read belongs to none."""
    with suppress(MessagingError):
        path, session_id = (message.application_properties.get(name) for name in (PATH, SESSION_ID))
        if isinstance(path, str) and isinstance(session_id, str):
            return path.lower(), session_id
    return None
