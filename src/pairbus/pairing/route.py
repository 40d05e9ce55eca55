"""The route of one sender's messages: to the primary, or to a backlog queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, NamedTuple

from pairbus.client.amqp.sending_link import SendingLink
from pairbus.client.entity_link import EntityLink, SendBatch, batch_bytes, is_confirmed
from pairbus.client.errors import (
    BacklogUnavailableError,
    ClosedError,
    InvalidMessageError,
    InvalidRequestError,
    MessageSizeExceededError,
    MessagingCommunicationError,
    MessagingError,
)
from pairbus.client.message import BrokeredMessage
from pairbus.client.retrying import retrying
from pairbus.client.settings import MessagingFactorySettings
from pairbus.client.tracing import trace_diversion
from pairbus.dialect.transfer import RESERVED, divert, growth_bytes, header_bytes
from pairbus.pairing.backlog import Backlog
from pairbus.pairing.entity import PairedEntity
from pairbus.pairing.session_order import BackloggedSession, SessionOrder
from pairbus.pairing.until import Until
from pairbus.wire import Sections


class BacklogChoice(NamedTuple):
    """A backlog queue to send to; ``None`` if no queue works or is due for a retry."""

    queue: int | None
    was_due: bool = False
    """True if the queue was out of the rotation, and is due for a retry."""

    only: int | None = None
    """The only queue that may be used, if there is a restriction."""


Choose = Callable[[float, bool], BacklogChoice]
"""Returns the queue to send to at a time; the flag is true for the first attempt of a batch."""


class SenderDiversion:
    """Diverts the messages of one sender: to a random backlog queue, which it keeps using while that works."""

    def __init__(self, path: str, entity: PairedEntity, backlog: Backlog, settings: MessagingFactorySettings) -> None:
        self._path = path
        self._entity = entity
        self._backlog = backlog
        self._timeout_s = settings.operation_timeout.total_seconds()
        self._queue: int | None = None

    async def send(self, diverted: SendBatch, started_s: float, choose: Choose | None = None) -> None:
        """Send messages in their diverted form. Raise ``BacklogUnavailableError`` with the errors of all queues."""
        if not diverted.unconfirmed:
            return
        backlog = self._backlog
        deadline_s = self._deadline_s(started_s, asyncio.get_running_loop().time())
        with trace_diversion(diverted.unconfirmed, self._path, backlog.factory.endpoint) as note:
            note(backlog.paths[await self._send_to_any(diverted, deadline_s, choose or self._choose)])

    def send_one(self, payload: bytes) -> Coroutine[Any, Any, None] | None:
        """Return the coroutine that sends a message in its diverted form to the queue in use.

        That is the common case: no queue is out of the rotation, and the link is ready. Returns ``None`` otherwise.
        """
        queue = self._queue
        if queue is None or self._backlog.rotation.is_reduced:
            return None
        link = self._backlog.links[queue].ready
        return self._send_over(link, queue, payload) if link is not None and link.accepts(len(payload)) else None

    async def _send_over(self, link: SendingLink, queue: int, payload: bytes) -> None:
        started_s = link.connection.loop.time()
        confirmation = link.send(payload)
        try:
            await confirmation
        except MessagingError as error:
            self._failed(queue, error, was_due=False)
        finally:
            is_accepted = is_confirmed(confirmation)
            if is_accepted:
                self._accepted(queue, 1)
                self._backlog.worked(queue)
        if not is_accepted:
            await self._send_to_others(SendBatch([payload]), self._deadline_s(started_s, started_s))

    async def _send_to_others(self, diverted: SendBatch, deadline_s: float) -> None:
        """Go on after the first attempt has failed."""
        if asyncio.get_running_loop().time() >= deadline_s:
            raise self._unavailable(None)
        await self._send_to_any(diverted, deadline_s, self._choose, is_first=False)

    def _deadline_s(self, started_s: float, diverted_s: float) -> float:
        """Return when to give up: a send that the primary has delayed gets one or two attempts all the same."""
        return max(started_s + self._timeout_s, diverted_s + 2 * self._backlog.factory.send_attempt_s)

    async def _send_to_any(
        self, diverted: SendBatch, deadline_s: float, choose: Choose, *, is_first: bool = True
    ) -> int:
        """Send to a backlog queue that works; return the one that has accepted the last message."""
        backlog, loop = self._backlog, asyncio.get_running_loop()
        while True:
            choice = choose(loop.time(), is_first)
            is_first = False
            if choice.queue is not None:
                if await self._try_send(choice.queue, diverted, was_due=choice.was_due):
                    return choice.queue
            elif not await backlog.wait_for_a_queue(choice.only, deadline_s):
                raise self._unavailable(choice.only)
            if loop.time() >= deadline_s:
                raise self._unavailable(choice.only)

    def _choose(self, now_s: float, is_first: bool) -> BacklogChoice:
        """Return a queue that is due for a retry, or the current one; after a failure, prefer one that works."""
        rotation = self._backlog.rotation
        due = rotation.due(now_s) if is_first else None
        if due is None and (self._queue is None or self._queue not in rotation):
            self._queue = rotation.pick()
            if self._queue is None:
                due = rotation.due(now_s)
        return BacklogChoice(self._queue) if due is None else BacklogChoice(due, was_due=True)

    async def _try_send(self, queue: int, diverted: SendBatch, *, was_due: bool) -> bool:
        backlog = self._backlog
        before = len(diverted.unconfirmed)
        try:
            await backlog.links[queue].attempt(diverted)
        except MessagingError as error:
            self._failed(queue, error, was_due=was_due)
            return False
        finally:
            self._accepted(queue, before - len(diverted.unconfirmed))
        backlog.worked(queue)
        return True

    def _failed(self, queue: int, error: MessagingError, *, was_due: bool) -> None:
        """Take a queue out of the rotation; raise the error if the queue is not to blame."""
        if isinstance(error, InvalidMessageError):
            raise error
        if isinstance(error, ClosedError) and not self._backlog.factory.is_closed:
            raise error  # the pair has been closed
        self._backlog.failed(queue, error, was_due=was_due)

    def _accepted(self, queue: int, count: int) -> None:
        """Count messages that the queue has accepted."""
        self._backlog.diverted[queue] += count
        self._entity.diverted += count

    def _unavailable(self, only: int | None) -> BacklogUnavailableError:
        backlog = self._backlog
        causes = {
            backlog.paths[queue]: cause
            for queue, cause in sorted(backlog.rotation.causes.items())
            if only is None or queue == only
        }
        details = "; ".join(f"{path}: {cause}" for path, cause in causes.items())
        error = BacklogUnavailableError(
            f"'{self._path}' is {self._entity.state.value}, and none of its backlog queues in "
            f"{backlog.factory.endpoint} takes the message: {details}",
            entity=self._path,
            causes=causes,
        )
        error.__cause__ = self._entity.cause
        return error


_HEADER_LIMIT_BYTES: Final = 64 * 1024
"""The service's limit for a message without its body."""


class PairedRoute:
    """The route of a sender of a paired factory."""

    def __init__(
        self, entity_link: EntityLink, entity: PairedEntity, backlog: Backlog, settings: MessagingFactorySettings
    ) -> None:
        self._entity_link = entity_link
        self._path = entity_link.path
        self._entity = entity
        self._backlog = backlog
        self._settings = settings
        self._diversion = SenderDiversion(entity_link.path, entity, backlog, settings)
        smallest = min(backlog.max_message_bytes or _HEADER_LIMIT_BYTES, _HEADER_LIMIT_BYTES)
        self._safe_bytes = smallest - growth_bytes(self._path)
        """Messages up to this size never exceed a limit of the backlog in their diverted form."""

    @property
    def is_direct(self) -> bool:
        return self._entity.is_direct

    def confirmed(self) -> None:
        self._entity.sent()

    # Checks. A message that could not be diverted is rejected always, also while the primary works.

    def check(self, message: BrokeredMessage, payload: bytes) -> None:
        properties = message.application_properties
        if properties and not RESERVED.isdisjoint(properties):
            names = ", ".join(sorted(RESERVED.intersection(properties)))
            raise InvalidMessageError(
                f"application properties reserved for the backlog: {names}; a paired sender must not set them",
                entity=self._path,
            )
        if len(payload) > self._safe_bytes:
            self._check_size(payload)

    def _check_size(self, payload: bytes) -> None:
        self._entity_link.check_size(len(payload))
        diverted = divert(payload, self._path)
        limit_bytes = self._backlog.max_message_bytes
        if limit_bytes and len(diverted) > limit_bytes:
            raise self._too_large(f"the message has {len(payload):,} bytes", len(diverted), limit_bytes)
        in_header = header_bytes(diverted)
        if in_header > _HEADER_LIMIT_BYTES:
            what = f"the message has {header_bytes(payload):,} bytes of properties"
            raise self._too_large(what, in_header, _HEADER_LIMIT_BYTES)

    def check_batch(self, payloads: list[bytes]) -> None:
        limit_bytes = self._backlog.max_batch_bytes if len(payloads) > 1 else 0  # a single message is no batch
        size_bytes = batch_bytes([len(payload) for payload in payloads])
        if not limit_bytes or size_bytes + len(payloads) * growth_bytes(self._path) <= limit_bytes:
            return
        diverted_bytes = batch_bytes([len(divert(payload, self._path)) for payload in payloads])
        if diverted_bytes > limit_bytes:
            raise self._too_large(f"the messages have {size_bytes:,} bytes together", diverted_bytes, limit_bytes)

    def check_schedule(self) -> None:
        if self._entity.is_diverting:
            error = MessagingCommunicationError(
                f"it is {self._entity.state.value}, and only the primary could give the sequence number of a scheduled "
                "message; send() takes messages with a scheduled_enqueue_time",
                entity=self._path,
            )
            raise error.caused_by(self._entity.cause)

    def _too_large(self, what: str, diverted_bytes: int, limit_bytes: int) -> MessageSizeExceededError:
        return MessageSizeExceededError(
            f"{what}, which would be {diverted_bytes:,} in the backlog of the pair, and at most {limit_bytes:,} "
            "are taken there; a paired sender takes no message that an outage would stop",
            entity=self._path,
        )

    # Sending.

    async def send(self, batch: SendBatch, failure: MessagingError | None, started_s: float | None) -> None:
        if started_s is None:
            started_s = asyncio.get_running_loop().time()
        if failure is not None and not self._entity.failed(failure) and not failure.is_transient:
            raise failure
        await self._send(batch, failure, started_s)

    async def _send(self, batch: SendBatch, failure: MessagingError | None, started_s: float) -> None:
        if not self._entity.is_diverting and await self._send_to_primary(batch, failure, started_s):
            return
        await self._divert(batch, started_s)

    async def _send_to_primary(self, batch: SendBatch, failure: MessagingError | None, started_s: float) -> bool:
        """Send to the primary, with retries; return ``False`` if the messages have to be diverted."""
        entity = self._entity
        try:
            async with Until(entity.engaged()):
                await retrying(
                    lambda: self._attempt(batch),
                    settings=self._settings,
                    entity=self._path,
                    failure=failure,
                    started_s=started_s,
                    has_own_timeout=True,
                    reconnected=self._entity_link.reached,
                    retry_anyway=entity.counts,  # an error that counts may lead to a failover
                )
                return True
        except MessagingError as error:
            entity.gave_up(error)
            if not entity.is_diverting or not entity.counts(error, is_last=True):
                raise
        return False

    async def _attempt(self, batch: SendBatch) -> None:
        try:
            await self._entity_link.attempt(batch)
        except MessagingError as error:
            self._entity.failed(error)
            raise
        self._entity.sent()

    def divert(self, payload: bytes) -> Coroutine[Any, Any, None] | None:
        if not self._entity.is_diverting or not self._entity_link.accepts(len(payload)):
            return None
        return self._diversion.send_one(divert(payload, self._path))

    async def _divert(self, batch: SendBatch, started_s: float) -> None:
        await self._diversion.send(self._diverted(batch), started_s)

    def _diverted(self, batch: SendBatch) -> SendBatch:
        for payload in batch.unconfirmed:
            self._entity_link.check_size(len(payload))  # else it could never be delivered
        return SendBatch([divert(payload, self._path) for payload in batch.unconfirmed], whole=batch.whole)


def session_of(payload: bytes) -> str | None:
    """Return the session id of an encoded message."""
    return Sections(payload).properties().group_id


class OrderedRoute(PairedRoute):
    """Diverts new messages of a session while others of it are in the backlog, always to the same queue."""

    def __init__(
        self,
        entity_link: EntityLink,
        entity: PairedEntity,
        backlog: Backlog,
        settings: MessagingFactorySettings,
        order: SessionOrder,
    ) -> None:
        super().__init__(entity_link, entity, backlog, settings)
        self._order = order
        self._timeout_s = settings.operation_timeout.total_seconds()

    def divert(self, payload: bytes) -> Coroutine[Any, Any, None] | None:
        return super().divert(payload) if session_of(payload) is None else None

    async def _send(self, batch: SendBatch, failure: MessagingError | None, started_s: float) -> None:
        if not self._entity.is_diverting:
            batch = await self._divert_followers(batch, started_s)
            batch.in_turn = any(session_of(payload) is not None for payload in batch.unconfirmed)
        if batch.unconfirmed:
            await super()._send(batch, failure, started_s)

    async def _divert_followers(self, batch: SendBatch, started_s: float) -> SendBatch:
        """Divert the messages that have to follow others of their sessions; return the rest."""
        order, payloads = self._order, batch.unconfirmed
        sessions = [session_of(payload) for payload in payloads]
        await order.wait_until_released(self._path, [one for one in sessions if one is not None])
        follows = [one is not None and order.follows(self._path, one) for one in sessions]
        if not any(follows):
            return batch
        pairs = [*zip(payloads, follows, strict=True)]
        follow = [payload for payload, does_follow in pairs if does_follow or batch.whole]
        await self._divert(SendBatch(follow, whole=batch.whole), started_s)
        return SendBatch([payload for payload, does_follow in pairs if not (does_follow or batch.whole)])

    async def _divert(self, batch: SendBatch, started_s: float) -> None:
        if not all(self._order.is_located(self._path, session_of(payload)) for payload in batch.unconfirmed):
            await self._order.wait_until_located(
                self._path, max(started_s + self._timeout_s, asyncio.get_running_loop().time())
            )
        groups = [*self._groups(batch)]
        sessions = [session for _, found in groups for session in found]
        for session in sessions:  # all at once: sessions of later groups must not be released meanwhile
            session.in_flight += 1
            session.version += 1
        try:
            for group, found in groups:
                await self._divert_group(group, found, started_s)
        finally:
            for session in sessions:
                session.in_flight -= 1

    def _groups(self, batch: SendBatch) -> Iterator[tuple[SendBatch, list[BackloggedSession]]]:
        """Split a batch into groups that can go to one backlog queue each; yield them with their sessions."""
        diverted = self._diverted(batch)
        pairs = [*zip(diverted.unconfirmed, map(session_of, batch.unconfirmed), strict=True)]
        found = {one: self._order.track(self._path, one) for _, one in pairs if one is not None}
        if len({session.queue for session in found.values() if session.is_pinned}) < 2:
            yield diverted, [*found.values()]
            return
        if batch.whole:
            raise InvalidRequestError(
                "the sessions of these messages have others in several backlog queues, so they cannot stay in order "
                "and be one batch; send them one by one",
                entity=self._path,
            )
        for queue in sorted({session.queue for session in found.values()}):
            ours = {one: session for one, session in found.items() if session.queue == queue}
            yield SendBatch([payload for payload, one in pairs if one in ours]), [*ours.values()]
        yield SendBatch([payload for payload, one in pairs if one is None]), []

    async def _divert_group(self, diverted: SendBatch, sessions: list[BackloggedSession], started_s: float) -> None:
        if not sessions:
            await self._diversion.send(diverted, started_s)
            return
        diverted.in_turn = True
        before = len(diverted.unconfirmed)

        def choose(now_s: float, _is_first: bool) -> BacklogChoice:
            self._pin(sessions, diverted, before)
            return self._choose_for(sessions, now_s)

        try:
            await self._diversion.send(diverted, started_s, choose)
        finally:
            self._pin(sessions, diverted, before)

    def _pin(self, sessions: list[BackloggedSession], diverted: SendBatch, before: int) -> None:
        """Pin the sessions to their queue if it has accepted a part of the batch: the rest has to follow."""
        if len(diverted.unconfirmed) < before:
            for session in sessions:
                session.is_pinned = True

    def _unpin(self, sessions: list[BackloggedSession]) -> None:
        """Unpin the sessions of a deleted queue: their messages were deleted with it."""
        for session in sessions:
            if session.is_pinned and self._backlog.rotation.is_missing(session.queue):
                session.is_pinned = False

    def _choose_for(self, sessions: list[BackloggedSession], now_s: float) -> BacklogChoice:
        """Return the backlog queue that has messages of these sessions, or the one that all senders choose."""
        rotation = self._backlog.rotation
        self._unpin(sessions)
        pinned = next((one.queue for one in sessions if one.is_pinned), None)
        if pinned is None:
            queue = rotation.next_to(sessions[0].queue)
            choice = BacklogChoice(rotation.due(now_s), was_due=True) if queue is None else BacklogChoice(queue)
        elif pinned in rotation:
            choice = BacklogChoice(pinned)
        else:
            choice = BacklogChoice(pinned if rotation.claim(pinned, now_s) else None, was_due=True, only=pinned)
        if choice.queue is not None:
            for session in sessions:
                session.queue = choice.queue
        return choice
