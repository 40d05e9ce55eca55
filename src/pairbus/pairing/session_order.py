"""Keeping sessions in order: while messages of a session lie in the backlog, new ones go there, too."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple
from zlib import crc32

from pairbus.client.errors import EntityNotFoundError, MessagingError, MessagingTimeoutError, UnauthorizedError
from pairbus.client.factory import MessagingFactory
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.dialect.transfer import PATH, SESSION_ID

_log = logging.getLogger(__name__)

_POLL_S: Final = 1.0
_PAGE: Final = 200
_MOST_LOOKS: Final = 100
"""How many sessions are looked for one by one in a round."""

_HOLD_S: Final = 2.0
_LONGEST_HOLD_S: Final = 15.0
"""How long new messages of a session wait at most for the last of the old ones to be brought home."""

_STEP_S: Final = 0.02
_VISIT_S: Final = 5.0

Key = tuple[str, str]
"""The path of an entity, in small letters, and a session id."""


class Mark(NamedTuple):
    """A message that was the last one of its session at a time."""

    sequence: int
    since_s: float


class Straggler:
    """A session of which messages lie in the backlog, or may do."""

    __slots__ = ("held", "in_flight", "is_pinned", "last", "mark", "queue", "version")

    def __init__(self, queue: int) -> None:
        self.queue = queue
        """The backlog queue that they are in, all of them: else their order would be lost."""

        self.is_pinned = False
        """Whether there are messages of it in that queue, or may be."""

        self.in_flight = 0
        self.version = 0
        """Goes up with every message that is sent there."""

        self.last: int | None = None
        """The highest sequence number that was seen of them."""

        self.mark: Mark | None = None
        """The last one of some time ago."""

        self.held: asyncio.Future[None] | None = None
        """Done when new messages of the session may go on."""

    def release(self) -> None:
        """New messages may go on."""
        held, self.held = self.held, None
        if held is not None and not held.done():
            held.set_result(None)


class SessionOrder:
    """Knows which sessions have messages in the backlog, and finds out when they have none any more."""

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
        self._scanned = [0] * len(queues)
        """The sequence number up to which each queue has been looked through."""

        self._heads = [0] * len(queues)
        """The lowest sequence number that was in each queue last: it only goes up."""

        self._unseen = set(range(len(queues)))
        """The queues that have not been looked through yet."""

        self._seen = asyncio.Event()
        self._unreadable: set[int] = set()
        self._cursors: dict[tuple[str, int], int] = {}
        """Where the next round begins that looks for sessions one by one, for each kind of look and queue."""

        self._holding: dict[int, asyncio.Task[None]] = {}
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Look what is there from before; a large backlog is looked through while we go on."""
        visits = (self._visit(index) for index in range(len(self._queues)))
        for refusal in await asyncio.gather(*visits):
            if isinstance(refusal, UnauthorizedError):
                raise refusal
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def _see(self, index: int) -> None:
        with suppress(EntityNotFoundError):  # then nothing is in it
            await self._scan(index, adopt=True)
        if index in self._unseen:
            self._unseen.discard(index)
            if not self._unseen:
                self._seen.set()
                self._on_seen()

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

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_POLL_S)
            for index in range(len(self._queues)):
                await self._visit(index)

    async def _visit(self, index: int) -> MessagingError | None:
        """Look at one queue, and not for long; whatever is wrong with it must not keep us from the others."""
        error: MessagingError | None = None
        try:
            async with asyncio.timeout(_VISIT_S):
                if index in self._unseen:
                    await self._see(index)
                await self._look(index)
        except MessagingError as refusal:
            error = refusal
        except TimeoutError:
            error = MessagingTimeoutError(f"not within {_VISIT_S:g} s")
        except Exception:  # noqa: BLE001 (whatever it is, sessions must not stay in the backlog for ever)
            _log.exception("the backlog queue '%s' could not be looked through", self._queues[index])
        self._note_failure(index, error)
        return error

    def _note_failure(self, index: int, error: MessagingError | None) -> None:
        """It is told once."""
        if error is None:
            self._unreadable.discard(index)
        elif index not in self._unreadable:
            self._unreadable.add(index)
            _log.warning("the backlog queue '%s' cannot be looked through: %s", self._queues[index], error)

    async def _look(self, index: int) -> None:
        """Let go of the sessions that have nothing in a queue any more."""
        here = {
            key: straggler
            for key, straggler in self._stragglers.items()
            if straggler.queue == index and self._is_healthy(key[0])
        }
        if not here:
            return
        await self._let_go_of_quiet(index, here)
        if index not in self._holding:
            await self._hold_if_home(index, [key for key in here if key in self._stragglers])

    def _is_quiet(self, straggler: Straggler, version: int) -> bool:
        """Whether nothing of it has been sent to the backlog since, or is on its way."""
        return straggler.version == version and not straggler.in_flight

    async def _gone(self, index: int, here: dict[Key, Straggler]) -> list[Key]:
        """Those of which nothing is left in a queue, as far as it was looked through just now."""
        await self._scan(index, adopt=False)
        first = await self._first(index, 0)
        if first is not None and first < self._heads[index]:  # the queue was made anew, and counts from one again
            self._scanned[index] = 0
            await self._scan(index, adopt=False)
        self._heads[index] = first or self._heads[index]
        gone = [key for key, one in here.items() if first is None or one.last is None or one.last < first]
        known = set(gone)
        for key in self._some("gone", index, [key for key in here if key not in known]):
            last = here[key].last
            if last is not None and await self._first(index, last) != last:
                gone.append(key)
        return gone

    def _some(self, what: str, index: int, keys: list[Key]) -> list[Key]:
        """As many as are looked for in a round: others each time."""
        begin = self._cursors.get((what, index), 0) % max(1, len(keys))
        self._cursors[what, index] = begin + _MOST_LOOKS
        return (keys[begin:] + keys[:begin])[:_MOST_LOOKS]

    async def _hold_if_home(self, index: int, keys: list[Key]) -> None:
        """Hold those that are sent to all the time, when what was there some time ago has been brought home.

        The time that this took tells how long the rest will take.
        """
        now_s = asyncio.get_running_loop().time()
        took_s, home = 0.0, []
        for key in self._some("home", index, keys):
            straggler = self._stragglers[key]
            mark = straggler.mark
            if mark is None:
                straggler.mark = None if straggler.last is None else Mark(straggler.last, now_s)
            elif await self._first(index, mark.sequence) != mark.sequence:
                took_s = max(took_s, now_s - mark.since_s)
                straggler.mark = None
                home.append(key)
        if home:
            hold_s = min(max(_HOLD_S, 1.5 * took_s), _LONGEST_HOLD_S)
            task = self._holding[index] = asyncio.get_running_loop().create_task(self._hold(index, home, hold_s))
            task.add_done_callback(lambda _: self._holding.pop(index, None))

    async def _hold(self, index: int, keys: list[Key], hold_s: float) -> None:
        """Keep new messages of sessions waiting for a moment, in which the last of the old ones come home."""
        held = {key: self._stragglers[key] for key in keys if key in self._stragglers}
        for straggler in held.values():
            straggler.held = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(hold_s):
                while held:
                    for key in await self._let_go_of_quiet(index, held):
                        held.pop(key).release()
                    await asyncio.sleep(_STEP_S)
        except (MessagingError, TimeoutError) as error:
            _log.debug("sessions of '%s' were held in vain: %r", self._queues[index], error)
        finally:
            for straggler in held.values():
                straggler.release()

    async def _let_go_of_quiet(self, index: int, here: dict[Key, Straggler]) -> list[Key]:
        versions = {key: straggler.version for key, straggler in here.items()}
        quiet = [key for key in await self._gone(index, here) if self._is_quiet(here[key], versions[key])]
        for key in quiet:
            self._let_go(key)
        return quiet

    def _let_go(self, key: Key) -> None:
        if self._stragglers.pop(key, None) is not None:
            self._on_change(key[0], -1)

    async def _scan(self, index: int, *, adopt: bool) -> None:
        """Look through what has come to a queue since the last time."""
        while True:
            page = await self._peek(index, _PAGE, self._scanned[index] + 1)
            for message in page:
                self._note(index, message, adopt=adopt)
            if not page:
                return
            self._scanned[index] = max(self._scanned[index], page[-1].sequence_number)

    def _note(self, index: int, message: ReceivedMessage, *, adopt: bool) -> None:
        with suppress(MessagingError):  # what cannot be read is nobody's
            path, session_id = (message.application_properties.get(name) for name in (PATH, SESSION_ID))
            if not isinstance(path, str) or not isinstance(session_id, str):
                return
            if adopt:
                found = self.straggler(path, session_id)
                found.queue, found.is_pinned = index, True
            else:
                known = self._stragglers.get((path.lower(), session_id))
                if known is None or known.queue != index:
                    return
                found = known
            found.last = max(found.last or 0, message.sequence_number)

    async def _first(self, index: int, number: int) -> int | None:
        """The sequence number of the first message in a queue from that number on."""
        page = await self._peek(index, 1, number)
        return page[0].sequence_number if page else None

    async def _peek(self, index: int, count: int, number: int) -> list[ReceivedMessage]:
        receiver = self._receivers.get(index)
        if receiver is None:
            receiver = self._receivers[index] = await self._factory.create_message_receiver(self._queues[index])
        return await receiver.peek(count, from_sequence_number=number)

    async def close(self) -> None:
        tasks = [task for task in (self._watching, *self._holding.values()) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for receiver in self._receivers.values():
            await receiver.close()
