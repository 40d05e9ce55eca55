"""The receiver of a session: related messages, delivered in order to one receiver at a time."""

from __future__ import annotations

from datetime import datetime, timedelta
from types import NoneType
from typing import Any

from pairbus.client.amqp.receiving_link import ReceivingLink
from pairbus.client.client_resource import ResourceFactory
from pairbus.client.errors import (
    ClosedError,
    MessagingError,
    SessionLockLostError,
)
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.client.settings import ReceiveMode
from pairbus.client.validation import check_type, from_ms

_NO_TIME = timedelta()


class MessageSession(MessageReceiver):
    """Holds the lock of a session and receives its messages.

    The lock belongs to the link: when the link is lost, other receivers can lock the session, and it has to be accepted
    again.
    """

    def __init__(
        self,
        factory: ResourceFactory,
        path: str,
        link: ReceivingLink,
        receive_mode: ReceiveMode,
        *,
        prefetch_count: int = 0,
        max_auto_lock_renewal: timedelta = _NO_TIME,
    ) -> None:
        super().__init__(
            factory, path, receive_mode, prefetch_count=prefetch_count, max_auto_lock_renewal=max_auto_lock_renewal
        )
        self._link = link
        self._session_id = link.session_id or ""
        self._locked_until = None if link.session_locked_until_ms is None else from_ms(link.session_locked_until_ms)
        if self._renewer is not None:
            self._renewer.watch(self)

    def __repr__(self) -> str:
        return f"<MessageSession {self._session_id!r} of {self._path!r}{', closed' if self._is_closed else ''}>"

    @property
    def session_id(self) -> str:
        return self._session_id

    @property
    def locked_until(self) -> datetime | None:
        """The time at which the lock of the session ends, unless it is renewed."""
        return self._locked_until

    @property
    def is_settled(self) -> bool:
        """True when the lock is no longer needed."""
        return self._is_closed

    async def renew_lock(self, message: ReceivedMessage | None = None) -> datetime:  # noqa: ARG002 (they share one)
        """Renew the lock of the session and of all its messages for another lock duration; return when it ends."""
        self._check_open()
        return (await self._renew([]))[0]

    async def _renew(self, messages: list[Any]) -> list[datetime]:  # noqa: ARG002 (they share one)
        self._locked_until = await self._node.renew_session_lock(self._session_id, self._link.name)
        return [self._locked_until]

    async def get_state(self) -> bytes | None:
        """Return the state of the session; ``None`` if none is set."""
        self._check_open()
        return await self._node.session_state(self._session_id, self._link.name)

    async def set_state(self, state: bytes | None) -> None:
        """Store the state of the session; ``None`` deletes it."""
        self._check_open()
        check_type("state", state, (bytes, NoneType))
        await self._node.set_session_state(self._session_id, state, self._link.name)

    async def _open(self) -> ReceivingLink:
        """Return the link that holds the session, never another one."""
        if self._link.error is not None:
            raise self._lost(self._link.error)
        return self._link

    def _check_open(self) -> None:
        super()._check_open()
        if self._link.error is not None:
            raise self._lost(self._link.error)

    def _lost(self, error: MessagingError) -> MessagingError:
        if error.is_transient or isinstance(error, ClosedError):
            lost = SessionLockLostError(f"the link of session {self._session_id!r} was lost", entity=self._path)
            lost.__cause__ = error
            return lost
        return error.copy()

    def _hand_out(self, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        return messages  # the session's lock covers them

    def _last_link(self) -> ReceivingLink | None:
        return self._link

    def _session(self) -> str | None:
        return self._session_id

    def _link_name(self) -> str | None:
        return self._link.name

    async def _close_links(self) -> None:
        await self._current.clear()
        if self._renewer is not None:
            await self._renewer.close()
        await self._give_back_salvaged()
        await self._link.close()
        await self._node.close()
