"""What a factory and its senders know of a namespace that theirs is paired with."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar

from pairbus.client.endpoint import Endpoint
from pairbus.client.errors import MessagingError
from pairbus.client.lane import Lane, Opener
from pairbus.client.message import BrokeredMessage
from pairbus.client.parcel import Parcel


class Primary(Opener, Protocol):
    """A factory that is to be paired."""

    @property
    def endpoint(self) -> Endpoint: ...

    @property
    def is_closed(self) -> bool: ...

    def ended(self) -> asyncio.Future[None]:
        """Done when the factory is closed or faulted."""

    def fault(self, error: BaseException) -> None: ...

    def limit_send_attempts(self, attempt_s: float) -> None:
        """From now on, a try to send waits so many seconds for an answer."""


class Route(Protocol):
    """The way of one sender's messages, to whichever namespace that leads."""

    @property
    def is_direct(self) -> bool:
        """Whether it is the sender's own, straight to the primary, for whatever is sent now."""

    def check(self, message: BrokeredMessage, payload: bytes) -> None:
        """Refuse a message that could not take every way; raises ``MessagingError``."""

    def check_batch(self, payloads: list[bytes]) -> None:
        """Refuse messages that have to stay together and could not on every way."""

    def check_schedule(self) -> None:
        """Refuse to have messages scheduled where no sequence numbers can be given for them."""

    def confirmed(self) -> None:
        """Something has been sent straight to the primary."""

    async def send(self, parcel: Parcel, failure: MessagingError | None, started_s: float | None) -> None:
        """Send by the way of the moment; ``failure`` is what a try straight to the primary has come to."""


class Pairing(Protocol):
    """What is between two namespaces once they are a pair."""

    def route(self, lane: Lane) -> Route:
        """The way for a sender whose own is this lane."""

    async def close(self) -> None:
        """The primary factory is closed: stop everything that was started for the pair."""


P = TypeVar("P", bound=Pairing)


class PairedNamespaceOptions(ABC, Generic[P]):
    """How a namespace is to be paired with another one, for ``MessagingFactory.pair_namespace``."""

    @abstractmethod
    async def pair(self, primary: Primary) -> P:
        """Make a pair. Whatever cannot be done is raised, and nothing is left of it then."""
