"""Consumption of an entity that requires sessions: some sessions are locked at a time, each with all its messages."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Final

from pairbus.client.errors import MessagingTimeoutError, SessionLockLostError
from pairbus.client.receiver import MessageReceiver
from pairbus.client.session import MessageSession
from pairbus.spark.intake import LockedReceiver
from pairbus.spark.locks import LockedMessage, request_groups
from pairbus.spark.sequences import SequenceRanges

_log = logging.getLogger(__name__)

_FOREVER: Final = timedelta(days=3_650)
_LINGER: Final = timedelta(seconds=0.1)
"""Time that a session without messages is kept for its next one."""

_BATCH_WAIT: Final = timedelta(seconds=1)
"""Timeout of a receive from a session that is kept anyway, for its messages in a batch."""

_MAX_MESSAGES: Final = 2_000
"""Maximum number of messages received from a session before others get a turn."""


class LockedSessionsReceiver(LockedReceiver):
    """Receives the messages of sessions.

    A session stays locked until all its received messages are removed, so that no other receiver gets the ones after
    them. If its lock is lost, they are delivered again, and recognised by their numbers. Its state is left alone.
    """

    async def start(self) -> None:
        """Start receiving. Raise ``MessagingError`` if the entity cannot be read."""
        self._open: list[MessageSession] = []
        """The sessions that are received from. One whose link was lost may be accepted again before that is noticed."""

        self._parked: list[MessageSession] = []
        """Sessions whose next messages are after the target. They stay locked, or they would be accepted again."""

        self._completing: Counter[MessageSession | None] = Counter()
        self._is_start_checked = True  # a session is locked as a whole
        await super().start()
        for _ in range(self._settings.sessions - 1):
            self._background.start(self._run())

    def _lock_renewer(self) -> None:
        """The lock of the session, which it renews itself, covers its messages."""

    async def _receive_over_one_link(self) -> None:
        await self._wait_for_room()
        self.receives += 1
        try:
            session = await self._factory.accept_message_session(
                self.path, server_wait_time=self._settings.long_poll, max_auto_lock_renewal=_FOREVER
            )
        except MessagingTimeoutError as error:
            if error.condition is None:  # the namespace has not answered
                raise
            if self._target is not None and not self._open:
                self._end()
            return
        self._open.append(session)
        try:
            await self._receive_session(session)
        except SessionLockLostError as error:
            _log.info('session lost, waiting for redelivery entity=%s error="%s"', self.path, error)
        finally:
            self._open.remove(session)
            if session not in self._parked:
                self._lose([*self._of_session(session)])
                await session.close()

    async def _receive_session(self, session: MessageSession) -> None:
        count = 0
        while True:
            await self._wait_for_room()
            is_kept = self._is_in_use(session)
            if count >= _MAX_MESSAGES and not is_kept:
                return
            self.receives += 1
            room = self._receive_count if count < _MAX_MESSAGES else 1
            received = await session.receive(room, _BATCH_WAIT if is_kept else _LINGER)
            count += len(received)
            self._admit(received, session)
            if any(one.session is session for one in self._after_target.values()):
                self._parked.append(session)
                return
            if not received and not self._is_in_use(session):
                return

    def _of_session(self, session: MessageSession) -> Iterator[LockedMessage]:
        for locked_messages in (self._unplanned, self._planned, self._after_target):
            yield from (one for one in locked_messages.values() if one.session is session)

    def _is_in_use(self, session: MessageSession) -> bool:
        """Return whether messages of a session are received but not removed."""
        return self._completing[session] > 0 or any(self._of_session(session))

    def _sessions(self, locked_messages: Mapping[int, LockedMessage]) -> tuple[SequenceRanges, ...]:
        numbers: defaultdict[str | None, list[int]] = defaultdict(list)
        for number, locked in locked_messages.items():
            numbers[None if locked.session is None else locked.session.session_id].append(number)
        return tuple(SequenceRanges.of(of_session) for of_session in numbers.values())

    async def _complete(self, locked_messages: list[LockedMessage]) -> None:
        for locked in locked_messages:
            self._completing[locked.session] += 1
        try:
            await super()._complete(locked_messages)
        finally:
            for locked in locked_messages:
                self._completing[locked.session] -= 1

    def _groups(self, locked_messages: Iterable[LockedMessage]) -> Iterator[list[LockedMessage]]:
        of_sessions: defaultdict[MessageSession | None, list[LockedMessage]] = defaultdict(list)
        for locked in locked_messages:
            of_sessions[locked.session].append(locked)
        for of_session in of_sessions.values():
            yield from request_groups(of_session)

    def _settler_of(self, locked: LockedMessage) -> MessageReceiver:
        session = locked.session
        if session is None or session.is_closed:
            raise SessionLockLostError("the session is not locked any more", entity=self.path)
        return session

    async def close(self) -> None:
        await self._background.close()
        for session in self._parked:
            await session.close()
        self._parked.clear()
        self._after_target.clear()
        await super().close()
