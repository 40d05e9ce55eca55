"""The delivery engine: restores messages of a source, sends them to a destination, and decides what an error means."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from enum import Enum
from types import MappingProxyType
from typing import Final, Protocol

from pairbus.client.entity_link import batch_bytes
from pairbus.client.errors import (
    ClosedError,
    EntityDisabledError,
    EntityNotFoundError,
    InternalServerError,
    InvalidMessageError,
    InvalidRequestError,
    MessageSizeExceededError,
    MessagingCommunicationError,
    MessagingError,
    MessagingTimeoutError,
    QuotaExceededError,
    ServerBusyError,
    UnauthorizedError,
)
from pairbus.client.tracing import trace_delivery
from pairbus.dialect.sent import MAX_BATCH_MESSAGES
from pairbus.pairing.syphon.destination import DeliveryDestination, NamespaceHealth, is_silence
from pairbus.pairing.syphon.interface import TimeToLive
from pairbus.pairing.syphon.message import (
    BacklogMessage,
    DeadLetterReason,
    UndeliverableMessage,
    reason_of,
    restore_message,
)

_AT_ONCE_S: Final = 1.0
"""A connection that is lost within this time was lost before the send."""

_RESPONSE_S: Final = 5.0
"""For how long a response of the primary shows that it is reachable."""

_EACH_BYTES: Final = batch_bytes([0])
_NO_AGE: Final = timedelta()
MAX_MESSAGES: Final = 1 << 30


class RetryDecision(Enum):
    """The decision on a message that its destination did not accept."""

    LATER = "later"
    """It stays in the backlog until the destination accepts it."""
    NEVER = "never"
    """It is moved to the dead-letter queue of the backlog."""


DELIVERY_RULES: Final[Mapping[type[MessagingError], RetryDecision]] = MappingProxyType(
    {
        MessagingError: RetryDecision.NEVER,
        # These pass without intervention.
        MessagingCommunicationError: RetryDecision.LATER,
        MessagingTimeoutError: RetryDecision.LATER,
        ServerBusyError: RetryDecision.LATER,
        InternalServerError: RetryDecision.LATER,
        # These pass when an operator acts.
        QuotaExceededError: RetryDecision.LATER,
        EntityDisabledError: RetryDecision.LATER,
        UnauthorizedError: RetryDecision.LATER,
        ClosedError: RetryDecision.LATER,
        # The destination does not exist, or never accepts the message.
        EntityNotFoundError: RetryDecision.NEVER,
        MessageSizeExceededError: RetryDecision.NEVER,
        InvalidMessageError: RetryDecision.NEVER,
        InvalidRequestError: RetryDecision.NEVER,
    }
)
"""The most specific class of an error decides; an error that is marked as transient is retried."""


def retry_decision(error: MessagingError) -> RetryDecision:
    if error.is_transient:
        return RetryDecision.LATER
    return next(DELIVERY_RULES[kind] for kind in type(error).__mro__ if kind in DELIVERY_RULES)


class MessageSource(Protocol):
    """A backlog queue, as the engine uses it: the owner of locked messages, which settles them.

    The settlement of both methods happens in the background, so that the next batch can be sent meanwhile. A message
    whose settlement fails is delivered again.
    """

    def age(self, message: BacklogMessage) -> timedelta:
        """Return how long a message has been in the backlog."""

    def complete(self, messages: list[BacklogMessage]) -> None:
        """Remove messages that their destination has confirmed."""

    def dead_letter(
        self, messages: Sequence[BacklogMessage | UndeliverableMessage], reason: DeadLetterReason, description: str
    ) -> None:
        """Move messages that can never be delivered to the dead-letter queue of the backlog queue."""


class DeliveryEngine:
    """Delivers messages of one source to one destination, one batch after the other, so that sessions stay in order."""

    def __init__(
        self, source: MessageSource, destination: DeliveryDestination, health: NamespaceHealth, time_to_live: TimeToLive
    ) -> None:
        self._source = source
        self._destination = destination
        self._health = health
        self._time_to_live = time_to_live

    async def must_release(self) -> bool:
        """Return whether the primary namespace is unreachable, so that no message should be kept locked or parked.

        A destination may be held because the whole namespace is unreachable, which is checked.
        """
        if self._health.is_away:
            return True
        if not self._destination.hold():
            return False
        since_s = asyncio.get_running_loop().time() - _RESPONSE_S
        return await self._health.doubt(self._destination.path, since_s)

    def claim(self) -> int:
        """Return how many messages may be sent now: none while the destination is held, or is down and not due for a
        retry; one as a retry, which only one engine makes at a time; otherwise any number. Call ``leave`` afterwards.
        """
        destination = self._destination
        if destination.hold():
            return 0
        if not destination.is_down:
            return MAX_MESSAGES
        return 1 if destination.may_try(self) else 0

    def leave(self) -> None:
        """End a claim."""
        self._destination.leave(self)

    async def deliver(self, pending: list[BacklogMessage], limit: int = MAX_MESSAGES) -> None:
        """Deliver up to ``limit`` messages from the front of ``pending``, and remove from it those that are done.

        A message is done when its destination has confirmed it, or when it was dead-lettered. Return at the first error
        that may pass: what is left in ``pending`` has to be delivered later, in the same order. The list is correct at
        any time, also after an exception or a cancellation.
        """
        started_s = asyncio.get_running_loop().time()
        try:
            max_bytes = await self._destination.max_batch_bytes()
        except MessagingError as error:
            await self._failed(pending, min(limit, len(pending)), error, started_s)
            return
        while pending and limit > 0:
            before = len(pending)
            payloads = self._pack(pending, max_bytes, limit)
            if payloads and not await self._send(pending, payloads):
                return
            limit -= before - len(pending)

    def _pack(self, pending: list[BacklogMessage], max_bytes: int, limit: int) -> list[bytes]:
        """Return the restored form of the first messages, as many as fit into one batch.

        Messages among them that cannot be restored are dead-lettered, and removed from ``pending``.
        """
        payloads: list[bytes] = []
        room = max_bytes
        counts_age = self._time_to_live is TimeToLive.REMAINING
        for message in pending[: min(limit, MAX_BATCH_MESSAGES)]:
            age = self._source.age(message) if counts_age else _NO_AGE
            restored = restore_message(message, self._time_to_live, age)
            if isinstance(restored, UndeliverableMessage):
                pending.remove(message)
                self._source.dead_letter([message], restored.reason, restored.description)
                continue
            room -= len(restored) + _EACH_BYTES
            if payloads and room < 0:
                break
            payloads.append(restored)
        return payloads

    async def _send(self, pending: list[BacklogMessage], payloads: list[bytes]) -> bool:
        """Send the first messages of ``pending``; return whether the destination works."""
        started_s = asyncio.get_running_loop().time()
        try:
            with trace_delivery(payloads, self._destination.path):
                await self._try(payloads)
        except MessagingError as error:
            if len(payloads) > 1 and retry_decision(error) is RetryDecision.NEVER:
                # None of them was accepted: find out in halves which of them the error is about.
                half = len(payloads) // 2
                return await self._send(pending, payloads[:half]) and await self._send(pending, payloads[half:])
            return await self._failed(pending, len(payloads), error, started_s)
        delivered = pending[: len(payloads)]
        del pending[: len(payloads)]
        self._health.delivered()
        self._destination.worked(self)
        self._source.complete(delivered)
        return True

    async def _try(self, payloads: list[bytes]) -> None:
        """Send one batch; if the connection was lost before, send it at once over a new one."""
        started_s = asyncio.get_running_loop().time()
        try:
            await self._destination.send(payloads)
        except MessagingError as error:
            waited_s = asyncio.get_running_loop().time() - started_s
            if not is_silence(error) or isinstance(error, MessagingTimeoutError) or waited_s > _AT_ONCE_S:
                raise
            if await self._health.doubt(self._destination.path, started_s):
                raise
            await self._destination.send(payloads)

    async def _failed(self, pending: list[BacklogMessage], count: int, error: MessagingError, started_s: float) -> bool:
        """Handle an error for the first messages of ``pending``; return whether the destination works all the same."""
        if is_silence(error):
            if await self._health.doubt(self._destination.path, started_s):
                return False
        else:
            self._health.answered()
        if retry_decision(error) is RetryDecision.LATER:
            self._destination.failed(error, self)
            return False
        rejected = pending[:count]
        del pending[:count]
        text = f"'{rejected[0].path}' does not accept the message: {error}"
        self._source.dead_letter(rejected, reason_of(error), text)
        self._destination.worked(self)
        return True
