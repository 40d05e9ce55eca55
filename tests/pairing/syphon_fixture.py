"""A syphon between two namespaces in virtual time, with access to its backlog and to the delivered messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Final

from pairbus.broker import Address, NewMessage, QueueDescription
from pairbus.client.message import BrokeredMessage, encode_brokered
from pairbus.client.received_message import ReceivedMessage
from pairbus.dialect.paths import split_entity_path
from pairbus.dialect.transfer import divert
from pairbus.pairing.events import DestinationChanged, Listener, MessageDeadLettered, PairEvent
from pairbus.pairing.syphon import InProcessSyphon, SyphonContext, SyphonSettings
from pairbus.server.messages import address_of, delivered_payload, received_message
from tests.faults.namespace import VirtualNamespace
from tests.simulation.pair_world import PairWorld
from tests.waiting import eventually_async

BACKLOG: Final = "contoso/x-servicebus-transfer/0"
ATTEMPT_S: Final = 5.0
_BACKLOG: Final = QueueDescription(
    max_delivery_count=2**31 - 1, lock_duration_ms=60_000, dead_letter_on_expiration=True
)


def backlog_path(index: int) -> str:
    return f"contoso/x-servicebus-transfer/{index}"


class SyphonFixture:
    """The context of a syphon, and the events that it reports."""

    def __init__(self, world: PairWorld, queues: int = 1) -> None:
        self.world = world
        self.queues = tuple(backlog_path(index) for index in range(queues))
        self.events: list[PairEvent] = []
        self.held: set[str] = set()
        """The entities that the pair does not send to."""
        self.listener: Listener = self.events.append
        """Called with each event."""
        self._count = 0
        for path in self.queues:
            world.secondary.create_queue(path, _BACKLOG)

    def syphon(self, **settings: Any) -> InProcessSyphon:
        """Return a new syphon, with its own connections."""
        primary, secondary = self.world.primary_factory(), self.world.secondary_factory()
        primary.limit_send_attempts(ATTEMPT_S)
        return InProcessSyphon(
            SyphonContext(
                primary=primary,
                secondary=secondary,
                backlog_queues=self.queues,
                settings=SyphonSettings(**settings),
                is_held=lambda path: path in self.held,
                publish=self._tell,
            )
        )

    async def started(self, **settings: Any) -> InProcessSyphon:
        syphon = self.syphon(**settings)
        await syphon.start()
        return syphon

    def _tell(self, event: PairEvent) -> None:
        self.listener(event)

    # Backlog.

    def put(self, path: str, count: int = 1, *, queue: int = 0, **properties: Any) -> list[str]:
        """Put ``count`` diverted messages for a destination into the backlog; return their ids."""
        ids = [f"{self._count + number}" for number in range(count)]
        self._count += count
        self.put_raw(
            *(
                divert(encode_brokered(BrokeredMessage(one.encode(), message_id=one, **properties)), path)
                for one in ids
            ),
            queue=queue,
        )
        return ids

    def put_raw(self, *payloads: bytes, queue: int = 0) -> None:
        address = _address(self.queues[queue])
        for payload in payloads:
            self._send(address, received_message(payload))

    def _send(self, address: Address, message: NewMessage) -> None:
        self.world.secondary.call(lambda namespace, now_ms: namespace.send(address, [message], now_ms))

    def left(self, queue: int = 0) -> list[ReceivedMessage]:
        return peek_all(self.world.secondary, self.queues[queue])

    def dead(self, queue: int = 0) -> list[ReceivedMessage]:
        return peek_all(self.world.secondary, f"{self.queues[queue]}/$DeadLetterQueue")

    @property
    def is_empty(self) -> bool:
        secondary = self.world.secondary
        broker, now_ms = secondary.host.use_namespace(), secondary.now_ms()
        return not any(broker.peek(_address(path), 0, 1, now_ms) for path in self.queues)

    # Results.

    def delivered(self, path: str) -> list[str]:
        """Return the ids of the messages in a queue of the primary, in order."""
        return [str(message.message_id) for message in peek_all(self.world.primary, path)]

    def changes(self, path: str) -> list[bool]:
        """Return the reported changes of a destination: true when it was reachable again."""
        return [
            event.is_reached for event in self.events if isinstance(event, DestinationChanged) and event.path == path
        ]

    @property
    def dead_letters(self) -> list[MessageDeadLettered]:
        return [event for event in self.events if isinstance(event, MessageDeadLettered)]

    async def drained(self, limit_s: float = 300.0) -> float:
        """Wait until the backlog is empty; return how long that took."""
        return await self.until(lambda: self.is_empty, limit_s)

    async def until(self, condition: Callable[[], bool], limit_s: float = 300.0) -> float:
        start_s = self.world.loop.time()
        await eventually_async(condition, limit_s, every_s=0.1)
        return self.world.loop.time() - start_s


def peek_all(namespace: VirtualNamespace, path: str) -> list[ReceivedMessage]:
    """Return all messages of a queue, in any state, in the order of their numbers."""
    found: list[ReceivedMessage] = []
    address = _address(path)
    first = 0
    while page := namespace.host.use_namespace().peek(address, first, 1_000, namespace.now_ms()):
        found += [ReceivedMessage(delivered_payload(one)) for one in page]
        first = page[-1].record.sequence + 1
    return found


def queues(namespace: VirtualNamespace, *paths: str, **description: Any) -> None:
    for path in paths:
        namespace.create_queue(path, QueueDescription(**description))


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


def unique(ids: Iterable[str]) -> list[str]:
    """Return the ids without duplicates, in order."""
    return [*dict.fromkeys(ids)]


def _address(path: str) -> Address:
    entity = split_entity_path(path)
    assert entity is not None
    return address_of(entity)
