"""The way of messages to one queue or topic of one namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from pairbus.client.amqp.sending_link import SendingLink
from pairbus.client.amqp.slot import Slot
from pairbus.client.errors import ClosedError, MessagingError, MessagingTimeoutError
from pairbus.client.parcel import Parcel
from pairbus.client.retrying import retrying
from pairbus.client.settings import MessagingFactorySettings


class Opener(Protocol):
    """What makes links: a factory."""

    @property
    def settings(self) -> MessagingFactorySettings: ...

    @property
    def send_attempt_s(self) -> float:
        """How many seconds a try to send waits for an answer."""

    def check_open(self) -> None: ...

    def reached(self) -> asyncio.Future[None]: ...

    async def open_sending_link(self, path: str, properties: Mapping[str, object] | None = None) -> SendingLink: ...


class Lane:
    """Sends over the link of the moment, in the order in which it is asked to, and over another when that was lost.

    It knows no way but this one: what is sent with it is never diverted.
    """

    def __init__(self, opener: Opener, path: str, properties: Mapping[str, object] | None = None) -> None:
        """``properties`` go with the link: what the namespace should know of whoever sends."""
        self.path = path
        self._opener = opener
        self._slot = Slot(lambda: opener.open_sending_link(path, properties))
        self._line = asyncio.Lock()
        self._lined_up = 0
        """How many wait for a link in the line; whoever comes then lines up too, so that the order is kept."""

        self._is_closed = False

    @property
    def ready(self) -> SendingLink | None:
        """The link of the moment, if it is of use and nobody is in line for it."""
        return None if self._lined_up else self._slot.ready

    def check_size(self, size_bytes: int) -> None:
        """Refuse what the entity would refuse, as far as that is known from the last link."""
        link = self._slot.last
        if link is not None:
            link.check_size(size_bytes)

    def reached(self) -> asyncio.Future[None]:
        """Done when the namespace is reached the next time."""
        return self._opener.reached()

    async def send(self, parcel: Parcel, failure: MessagingError | None = None, started_s: float | None = None) -> None:
        """Send, and try again until the operation time-out; there may have been a try already."""
        await retrying(
            lambda: self.attempt(parcel),
            settings=self._opener.settings,
            entity=self.path,
            failure=failure,
            started_s=started_s,
            limits_itself=True,
            hurry=self._opener.reached,
        )

    async def attempt(self, parcel: Parcel) -> None:
        """Try once to send what is not confirmed yet of a parcel; raises ``MessagingError``."""
        while parcel.unconfirmed:
            self._check_open()
            link = self.ready
            await parcel.confirmed(await self._line_up(parcel) if link is None else parcel.hand_over(link))

    async def _line_up(self, parcel: Parcel) -> list[asyncio.Future[None]]:
        """Hand it over when there is a link, after those who came before."""
        self._lined_up += 1
        try:
            with self._in_time() as limit:
                async with limit, self._line:
                    self._check_open()  # it may have been closed while we stood in line
                    return parcel.hand_over(await self._slot.get())
        finally:
            self._lined_up -= 1

    async def link(self) -> SendingLink:
        """The link of the moment, opened if need be, which may take as long as any try to send."""
        with self._in_time() as limit:
            async with limit:
                return await self._slot.get()

    @contextmanager
    def _in_time(self) -> Iterator[asyncio.Timeout]:
        """How long a link may be waited for, in line or not."""
        timeout_s = self._opener.send_attempt_s
        limit = asyncio.timeout(timeout_s)
        try:
            yield limit
        except TimeoutError as error:
            if isinstance(error, MessagingError) or not limit.expired():
                raise
            raise MessagingTimeoutError(f"it was not reached within {timeout_s:g} s", entity=self.path) from error

    def _check_open(self) -> None:
        self._opener.check_open()
        if self._is_closed:
            raise ClosedError("it has been closed", entity=self.path)

    async def close(self) -> None:
        self._is_closed = True
        link = await self._slot.clear()
        if link is not None:
            await link.close()
