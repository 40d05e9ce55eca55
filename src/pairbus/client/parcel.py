"""Messages that are sent together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from pairbus.client.amqp.sending_link import SendingLink
from pairbus.client.errors import MessageSizeExceededError, MessagingError
from pairbus.dialect.batch import BATCH_FORMAT, join_batch

_SECTION_BYTES: Final = 8
"""What a message takes in a batch beside its own bytes."""


def batch_bytes(sizes: Sequence[int]) -> int:
    """How large a batch of messages of these sizes is, at most."""
    return sum(sizes) + len(sizes) * _SECTION_BYTES


class Parcel:
    """Encoded messages, in as few batches as they fit into; what has been confirmed is not sent again."""

    def __init__(self, payloads: Sequence[bytes], *, whole: bool = False) -> None:
        self.whole: Final = whole
        """Whether all of them have to go into one batch."""

        self.in_turn = False
        """Whether a batch is sent only when the one before it is confirmed, so that none overtakes another."""

        self._payloads = list(payloads)
        self._batches: list[list[bytes]] | None = None

    @property
    def unconfirmed(self) -> list[bytes]:
        """The messages that are not confirmed yet, in order."""
        if self._batches is None:
            return self._payloads
        return [payload for batch in self._batches for payload in batch]

    def hand_over(self, link: SendingLink) -> list[asyncio.Future[None]]:
        """Give to a link what is not confirmed yet. Raises before anything is sent if something is too large."""
        if self._batches is None:
            self._batches = self._packed(link)
            self._payloads = []
        return [_send(link, batch) for batch in (self._batches[:1] if self.in_turn else self._batches)]

    async def confirmed(self, futures: list[asyncio.Future[None]]) -> None:
        """Wait until all of it is confirmed; raises why something was not."""
        try:
            await asyncio.wait(futures)
        finally:
            batches = self._batches or []
            sent, rest = batches[: len(futures)], batches[len(futures) :]
            pairs = [pair for pair in zip(sent, futures, strict=True) if not _is_confirmed(pair[1])]
            self._batches = [*(batch for batch, _ in pairs), *rest]
            unsure = [future for _, future in pairs]
            for future in unsure:
                future.cancel()
        errors = [future.exception() for future in unsure if not future.cancelled()]
        failures = [error for error in errors if isinstance(error, MessagingError)]
        if failures:
            raise min(failures, key=lambda error: error.is_transient)  # what is for good goes first

    def _packed(self, link: SendingLink) -> list[list[bytes]]:
        """Batches in the order of the messages."""
        batches: list[list[bytes]] = []
        waiting: list[bytes] = []
        waiting_bytes = 0
        for payload in self._payloads:
            link.check_size(len(payload))
            size = len(payload) + _SECTION_BYTES
            if waiting and (waiting_bytes + size > link.max_batch_bytes or not link.takes_batches):
                batches.append(waiting)
                waiting, waiting_bytes = [], 0
            waiting.append(payload)
            waiting_bytes += size
        if waiting:
            batches.append(waiting)
        if self.whole and len(batches) > 1:
            raise MessageSizeExceededError(
                f"{len(self._payloads)} messages do not fit into one batch of {link.max_batch_bytes:,} bytes",
                entity=link.entity,
            )
        return batches


def _send(link: SendingLink, payloads: list[bytes]) -> asyncio.Future[None]:
    """A message that is alone goes as it is."""
    return link.send(payloads[0]) if len(payloads) == 1 else link.send(join_batch(payloads), BATCH_FORMAT)


def _is_confirmed(future: asyncio.Future[None]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None
