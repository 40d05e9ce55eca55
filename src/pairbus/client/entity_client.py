"""What the clients of queues and of subscriptions have in common: messages, one by one or in sessions."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Protocol

from pairbus.client.node import ACTIVE_SESSIONS_MS
from pairbus.client.part import Maker
from pairbus.client.receive_mode import ReceiveMode
from pairbus.client.receiver import MessageReceiver
from pairbus.client.session import MessageSession
from pairbus.client.times import to_ms

_NO_TIME = timedelta()


class SessionMaker(Maker, Protocol):
    """A factory that can lock sessions too."""

    async def accept_message_session(
        self,
        path: str,
        session_id: str | None = None,
        receive_mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        *,
        server_wait_time: timedelta | None = None,
        prefetch_count: int = 0,
        max_auto_lock_renewal: timedelta = _NO_TIME,
    ) -> MessageSession: ...


class EntityClient(MessageReceiver):
    """Receives messages, and accepts sessions."""

    def __init__(
        self,
        maker: SessionMaker,
        path: str,
        receive_mode: ReceiveMode,
        *,
        prefetch_count: int = 0,
        max_auto_lock_renewal: timedelta = _NO_TIME,
    ) -> None:
        super().__init__(
            maker, path, receive_mode, prefetch_count=prefetch_count, max_auto_lock_renewal=max_auto_lock_renewal
        )
        self._sessions = maker
        self._max_auto_lock_renewal = max_auto_lock_renewal

    async def accept_message_session(
        self, session_id: str | None = None, *, server_wait_time: timedelta | None = None
    ) -> MessageSession:
        """Lock a session: of that id, or the next one that is free and has messages."""
        self._check_open()
        return await self._sessions.accept_message_session(
            self._path,
            session_id,
            self._mode,
            server_wait_time=server_wait_time,
            prefetch_count=self._prefetch_count,
            max_auto_lock_renewal=self._max_auto_lock_renewal,
        )

    async def get_message_sessions(self, updated_since: datetime | None = None) -> list[str]:
        """The ids of the sessions that have messages; or of those whose state was set since a time."""
        self._check_open()
        return await self._node.sessions(ACTIVE_SESSIONS_MS if updated_since is None else to_ms(updated_since))
