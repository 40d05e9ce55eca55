"""The way of one sender's messages: straight to the primary, or to a backlog queue."""

from __future__ import annotations

import asyncio
from typing import Final

from pairbus.client.errors import (
    InvalidMessageError,
    MessageSizeExceededError,
    MessagingCommunicationError,
    MessagingError,
)
from pairbus.client.lane import Lane
from pairbus.client.message import BrokeredMessage
from pairbus.client.parcel import Parcel, batch_bytes
from pairbus.client.retrying import retrying
from pairbus.client.settings import MessagingFactorySettings
from pairbus.dialect.transfer import RESERVED, divert, growth_bytes, header_bytes
from pairbus.pairing.backlog import Backlog
from pairbus.pairing.diversion import Diversion
from pairbus.pairing.entity import PairedEntity
from pairbus.pairing.until import Until

_HEADER_LIMIT_BYTES: Final = 64 * 1024
"""What the service takes of a message beside its body."""


class PairedRoute:
    """A sender of a paired factory."""

    def __init__(self, lane: Lane, entity: PairedEntity, backlog: Backlog, settings: MessagingFactorySettings) -> None:
        self._lane = lane
        self._path = lane.path
        self._entity = entity
        self._backlog = backlog
        self._settings = settings
        self._diversion = Diversion(lane.path, entity, backlog, settings)
        smallest = min(backlog.max_message_bytes or _HEADER_LIMIT_BYTES, _HEADER_LIMIT_BYTES)
        self._roomy_bytes = smallest - growth_bytes(self._path)
        """Messages up to this size have room for what the backlog adds, whatever they are like."""

    @property
    def is_direct(self) -> bool:
        return self._entity.is_direct

    def confirmed(self) -> None:
        self._entity.sent()

    # What could not take every way is refused on every way.

    def check(self, message: BrokeredMessage, payload: bytes) -> None:
        properties = message.application_properties
        if properties and not RESERVED.isdisjoint(properties):
            names = ", ".join(sorted(RESERVED.intersection(properties)))
            raise InvalidMessageError(
                f"the application property {names} is the backlog's own; a paired sender cannot send it",
                entity=self._path,
            )
        if len(payload) > self._roomy_bytes:
            self._check_size(payload)

    def _check_size(self, payload: bytes) -> None:
        self._lane.check_size(len(payload))
        diverted = divert(payload, self._path)
        limit_bytes = self._backlog.max_message_bytes
        if limit_bytes and len(diverted) > limit_bytes:
            raise self._too_large(f"the message has {len(payload):,} bytes", len(diverted), limit_bytes)
        in_header = header_bytes(diverted)
        if in_header > _HEADER_LIMIT_BYTES:
            what = f"the message has {header_bytes(payload):,} bytes of properties"
            raise self._too_large(what, in_header, _HEADER_LIMIT_BYTES)

    def check_batch(self, payloads: list[bytes]) -> None:
        limit_bytes = self._backlog.max_batch_bytes if len(payloads) > 1 else 0  # one goes as it is
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
            raise error from self._entity.cause

    def _too_large(self, what: str, diverted_bytes: int, limit_bytes: int) -> MessageSizeExceededError:
        return MessageSizeExceededError(
            f"{what}, which would be {diverted_bytes:,} in the backlog of the pair, and at most {limit_bytes:,} "
            "are taken there; a paired sender takes no message that an outage would stop",
            entity=self._path,
        )

    # Sending.

    async def send(self, parcel: Parcel, failure: MessagingError | None, started_s: float | None) -> None:
        if started_s is None:
            started_s = asyncio.get_running_loop().time()
        if failure is not None and not self._entity.failed(failure) and not failure.is_transient:
            raise failure
        await self._send(parcel, failure, started_s)

    async def _send(self, parcel: Parcel, failure: MessagingError | None, started_s: float) -> None:
        if not self._entity.is_diverting and await self._sent_directly(parcel, failure, started_s):
            return
        await self._divert(parcel, started_s)

    async def _sent_directly(self, parcel: Parcel, failure: MessagingError | None, started_s: float) -> bool:
        """Send to the primary, with all its tries; tells whether it was sent, or is to be diverted."""
        entity = self._entity
        try:
            async with Until(entity.engaged()):
                await retrying(
                    lambda: self._attempt(parcel),
                    settings=self._settings,
                    entity=self._path,
                    failure=failure,
                    started_s=started_s,
                    limits_itself=True,
                    hurry=self._lane.reached,
                    insists=entity.counts,  # what speaks against the primary may end in a failover
                )
                return True
        except MessagingError as error:
            entity.gave_up(error)
            if not entity.is_diverting or not entity.counts(error, is_last=True):
                raise
        return False

    async def _attempt(self, parcel: Parcel) -> None:
        try:
            await self._lane.attempt(parcel)
        except MessagingError as error:
            self._entity.failed(error)
            raise
        self._entity.sent()

    async def _divert(self, parcel: Parcel, started_s: float) -> None:
        await self._diversion.send(self._diverted(parcel), started_s)

    def _diverted(self, parcel: Parcel) -> Parcel:
        for payload in parcel.unconfirmed:
            self._lane.check_size(len(payload))  # what the primary never takes would lie in the backlog for ever
        return Parcel([divert(payload, self._path) for payload in parcel.unconfirmed], whole=parcel.whole)
