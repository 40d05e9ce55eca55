"""The sending link to one entity, used by senders, pings and syphons."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from pairbus.client.amqp.authorization import Reconnecting
from pairbus.client.amqp.sending_link import SendingLink
from pairbus.client.errors import ClosedError, MessageSizeExceededError, MessagingError, MessagingTimeoutError
from pairbus.client.retrying import retrying
from pairbus.client.sending_link_factory import SendingLinkFactory
from pairbus.dialect.sent import BATCH_FORMAT, MAX_BATCH_MESSAGES, join_batch

_SECTION_BYTES: Final = 8
"""The overhead of one message in a batch, in bytes."""


def batch_bytes(sizes: Sequence[int]) -> int:
    """Return the maximum size of a batch of messages of these sizes."""
    return sum(sizes) + len(sizes) * _SECTION_BYTES


class SendBatch:
    """Encoded messages, packed into as few AMQP batches as possible; confirmed messages are not sent again."""

    def __init__(self, payloads: Sequence[bytes], *, whole: bool = False) -> None:
        self.whole: Final = whole
        """True if all messages have to fit into one AMQP batch."""

        self.in_turn = False
        """True if each AMQP batch waits for the confirmation of the previous one, so that none overtakes another."""

        self._payloads = list(payloads)
        self._batches: list[list[bytes]] | None = None

    @property
    def unconfirmed(self) -> list[bytes]:
        """The messages that are not confirmed yet, in order."""
        if self._batches is None:
            return self._payloads
        return [payload for batch in self._batches for payload in batch]

    def send_over(self, link: SendingLink) -> list[asyncio.Future[None]]:
        """Send everything unconfirmed over a link. Raises before anything is sent if a message is too large."""
        if self._batches is None:
            self._batches = self._packed(link)
            self._payloads = []
        return [_send(link, batch) for batch in (self._batches[:1] if self.in_turn else self._batches)]

    async def confirmed(self, futures: list[asyncio.Future[None]]) -> None:
        """Wait until everything is confirmed; raise the error of a message that was not, permanent errors first."""
        try:
            await asyncio.wait(futures)
        finally:
            batches = self._batches or []
            sent, rest = batches[: len(futures)], batches[len(futures) :]
            pairs = [pair for pair in zip(sent, futures, strict=True) if not is_confirmed(pair[1])]
            self._batches = [*(batch for batch, _ in pairs), *rest]
            unsure = [future for _, future in pairs]
            for future in unsure:
                future.cancel()
        errors = [future.exception() for future in unsure if not future.cancelled()]
        failures = [error for error in errors if isinstance(error, MessagingError)]
        if failures:
            raise min(failures, key=lambda error: error.is_transient)  # permanent errors first

    def _packed(self, link: SendingLink) -> list[list[bytes]]:
        """Return AMQP batches in the order of the messages."""
        batches: list[list[bytes]] = []
        waiting: list[bytes] = []
        waiting_bytes = 0
        for payload in self._payloads:
            link.check_size(len(payload))
            size = len(payload) + _SECTION_BYTES
            most = MAX_BATCH_MESSAGES if link.takes_batches else 1
            if waiting and (waiting_bytes + size > link.max_batch_bytes or len(waiting) >= most):
                batches.append(waiting)
                waiting, waiting_bytes = [], 0
            waiting.append(payload)
            waiting_bytes += size
        if waiting:
            batches.append(waiting)
        if self.whole and len(batches) > 1:
            raise MessageSizeExceededError(
                f"{len(self._payloads)} messages do not fit into one batch of at most {MAX_BATCH_MESSAGES:,} messages"
                f" and {link.max_batch_bytes:,} bytes",
                entity=link.entity,
            )
        return batches


def _send(link: SendingLink, payloads: list[bytes]) -> asyncio.Future[None]:
    """Send a single message as it is, and several as an AMQP batch."""
    return link.send(payloads[0]) if len(payloads) == 1 else link.send(join_batch(payloads), BATCH_FORMAT)


def is_confirmed(future: asyncio.Future[None]) -> bool:
    """Return whether the namespace has confirmed what was sent."""
    return future.done() and not future.cancelled() and future.exception() is None


class EntityLink:
    """Sends over the current link in the order of the calls, and reconnects when the link is lost.

    Messages sent with it are never diverted.
    """

    def __init__(self, factory: SendingLinkFactory, path: str, properties: Mapping[str, object] | None = None) -> None:
        """Create a link to ``path``; ``properties`` are the link properties of the attach."""
        self.path = path
        self._factory = factory
        self._current = Reconnecting(lambda: factory.open_sending_link(path, properties))
        self._queue_lock = asyncio.Lock()
        self._queued = 0
        """The number of callers waiting for a link; later callers wait behind them, so that the order is kept."""

        self._is_closed = False

    @property
    def ready(self) -> SendingLink | None:
        """The current link, if it is usable and no caller is waiting for it."""
        return None if self._queued else self._current.ready

    def check_size(self, size_bytes: int) -> None:
        """Raise ``MessageSizeExceededError`` if the limit of the last link, if there was one, is exceeded."""
        link = self._current.last
        if link is not None:
            link.check_size(size_bytes)

    def accepts(self, size_bytes: int) -> bool:
        """Return whether ``check_size`` would raise nothing."""
        link = self._current.last
        return link is None or link.accepts(size_bytes)

    def reached(self) -> asyncio.Future[None]:
        """Return a future that is done when the namespace is next reached."""
        return self._factory.reached()

    async def send(
        self, batch: SendBatch, failure: MessagingError | None = None, started_s: float | None = None
    ) -> None:
        """Send, with retries until the operation timeout; ``failure`` is the error of an earlier attempt."""
        await retrying(
            lambda: self.attempt(batch),
            settings=self._factory.settings,
            entity=self.path,
            failure=failure,
            started_s=started_s,
            has_own_timeout=True,
            reconnected=self._factory.reached,
        )

    async def attempt(self, batch: SendBatch) -> None:
        """Try once to send everything unconfirmed; raises ``MessagingError``."""
        while batch.unconfirmed:
            self._check_open()
            link = self.ready
            await batch.confirmed(await self._send_queued(batch) if link is None else batch.send_over(link))

    async def _send_queued(self, batch: SendBatch) -> list[asyncio.Future[None]]:
        """Wait for a link, behind earlier callers, then send."""
        self._queued += 1
        try:
            with self._in_time() as limit:
                async with limit, self._queue_lock:
                    self._check_open()  # it may have been closed while this call was waiting
                    return batch.send_over(await self._current.get())
        finally:
            self._queued -= 1

    async def link(self) -> SendingLink:
        """Return the current link; open one if needed, within the timeout of a send attempt."""
        with self._in_time() as limit:
            async with limit:
                return await self._current.get()

    @contextmanager
    def _in_time(self) -> Iterator[asyncio.Timeout]:
        """Limit the wait for a link, queued or not, to the timeout of a send attempt."""
        timeout_s = self._factory.send_attempt_s
        limit = asyncio.timeout(timeout_s)
        try:
            yield limit
        except TimeoutError as error:
            if isinstance(error, MessagingError) or not limit.expired():
                raise
            late = MessagingTimeoutError(f"no link could be opened within {timeout_s:g} s", entity=self.path)
            raise late.caused_by(error) from error

    def _check_open(self) -> None:
        self._factory.check_open()
        if self._is_closed:
            raise ClosedError("the link has been closed", entity=self.path)

    async def close(self) -> None:
        self._is_closed = True
        link = await self._current.clear()
        if link is not None:
            await link.close()
