"""The interface of a factory for those who send over its links; not compiled, so that any class can implement it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from pairbus.client.amqp.sending_link import SendingLink
from pairbus.client.settings import MessagingFactorySettings


class SendingLinkFactory(Protocol):
    """The interface of the factory that an entity link uses."""

    @property
    def settings(self) -> MessagingFactorySettings: ...

    @property
    def send_attempt_s(self) -> float:
        """The timeout of one send attempt, in seconds."""

    def check_open(self) -> None: ...

    def reached(self) -> asyncio.Future[None]: ...

    async def open_sending_link(self, path: str, properties: Mapping[str, object] | None = None) -> SendingLink: ...
