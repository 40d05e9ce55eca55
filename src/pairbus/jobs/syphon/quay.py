"""Where an executor lands messages: what it knows of the primary namespace, and keeps from task to task."""

from __future__ import annotations

from typing import Final

from pairbus.client.factory import MessagingFactory
from pairbus.client.receiver import MessageReceiver
from pairbus.pairing.events import PairEvent
from pairbus.pairing.homecoming.bound import key_of
from pairbus.pairing.homecoming.contact import Contact
from pairbus.pairing.homecoming.destination import Destination
from pairbus.spark.connection_reference import ConnectionReference
from pairbus.spark.connections import factory_of, on_loop

_ATTEMPT_S: Final = 5.0
"""How long one destination may keep silent before the others need not wait for it."""


class Quay:
    """A destination that is down is remembered, so that not every task waits for it."""

    def __init__(self, primary: MessagingFactory, secondary: MessagingFactory) -> None:
        self.primary: Final = primary
        self.secondary: Final = secondary
        self.contact: Final = Contact(primary, _ignore)
        self._destinations: dict[str, Destination] = {}
        self._desks: dict[str, MessageReceiver] = {}

    def destination(self, path: str) -> Destination:
        key = key_of(path)
        if key not in self._destinations:
            self._destinations[key] = Destination(path.strip("/"), self.primary, _is_held, _ignore)
        return self._destinations[key]

    async def desk(self, queue: str) -> MessageReceiver:
        """What settles messages of a backlog queue; it never receives."""
        if queue not in self._desks:
            self._desks[queue] = await self.secondary.create_message_receiver(queue)
        return self._desks[queue]


def _ignore(*_event: PairEvent) -> None:
    """Whoever runs the query tells what happens; here nobody listens."""


def _is_held(path: str) -> bool:
    return False  # the plan says what the pair holds


_QUAYS: Final[dict[tuple[ConnectionReference, ConnectionReference], Quay]] = {}
"""Those of this process, for the reason that connections are kept."""


def quay_of(primary: ConnectionReference, secondary: ConnectionReference) -> Quay:
    """The quay of this process for a pair; another one when its connections are."""
    factories = factory_of(primary), factory_of(secondary)
    known = _QUAYS.get((primary, secondary))
    if known is not None and (known.primary, known.secondary) == factories:
        return known

    async def make() -> Quay:
        factories[0].limit_send_attempts(_ATTEMPT_S)
        return Quay(*factories)

    quay = _QUAYS[primary, secondary] = on_loop(make)
    return quay
