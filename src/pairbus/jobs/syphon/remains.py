"""What still lies in the backlog when a syphon has done what it can."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pairbus.client.errors import InvalidMessageError, MessagingError
from pairbus.client.factory import MessagingFactory
from pairbus.client.receiver import MessageReceiver
from pairbus.dialect.transfer import TransferError
from pairbus.pairing.homecoming.bound import bound_for, key_of
from pairbus.spark.numbers import last_number_of

_PAGE: Final = 500
_MOST: Final = 5_000
"""How many messages of a queue are looked at: to say what waits, it need not be counted."""

_MOST_NAMED: Final = 5
_NOT_KNOWN: Final = "they came back, or somebody else has them; run it again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """Messages that are not home."""

    counts: Mapping[str, int] = field(default_factory=dict)
    """How many there are, by destination."""

    causes: Mapping[str, str] = field(default_factory=dict)
    """Why they are, by the key of the destination; under the empty one, why all others are."""

    has_more: bool = False
    """Whether there are more than were counted."""

    def __bool__(self) -> bool:
        return bool(self.counts)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def cause_of(self, path: str) -> str:
        return self.causes.get(key_of(path)) or self.causes.get("") or _NOT_KNOWN

    @property
    def summary(self) -> str:
        least = "at least " if self.has_more else ""
        told = ", ".join(f"'{path}'" for path in [*self.counts][:_MOST_NAMED])
        more = f" and {len(self.counts) - _MOST_NAMED} more" if len(self.counts) > _MOST_NAMED else ""
        return f"{least}{self.total:,} messages still wait in the backlog, for {told}{more}"


class Stock:
    """What lay in the backlog at a moment: in each queue, all up to a number."""

    def __init__(self, factory: MessagingFactory, last: Mapping[str, int]) -> None:
        self._factory = factory
        self._last = last

    @classmethod
    async def take(cls, factory: MessagingFactory, queues: tuple[str, ...]) -> Stock:
        """Raises ``MessagingError``."""
        return cls(factory, {path: await last_number_of(factory, path) for path in queues})

    def __bool__(self) -> bool:
        return any(self._last.values())

    async def is_gone(self) -> bool:
        """Whether nothing is left of it."""
        for path, last in self._last.items():
            async with await self._factory.create_message_receiver(path) as receiver:
                first = await receiver.peek(1, 0)
            if first and first[0].sequence_number <= last:
                return False
        return True

    async def remains(self, causes: Mapping[str, MessagingError]) -> Remains:
        """What is left of it, with the causes that are known, by path; raises ``MessagingError``."""
        counts: Counter[str] = Counter()
        has_more = False
        for path, last in self._last.items():
            async with await self._factory.create_message_receiver(path) as receiver:
                found = await _destinations(receiver, last)
            counts.update(found)
            has_more |= len(found) >= _MOST
        told = {key_of(path): " ".join(str(cause).split()) for path, cause in causes.items()}
        return Remains(counts=counts, causes=told, has_more=has_more)


async def _destinations(receiver: MessageReceiver, last: int) -> list[str]:
    """Where the messages go that are left of a queue, one by one."""
    found: list[str] = []
    number = 0
    while len(found) < _MOST:
        page = await receiver.peek(_PAGE, number)
        found += (_destination(message.payload) for message in page if message.sequence_number <= last)
        if not page or page[-1].sequence_number >= last:
            break
        number = page[-1].sequence_number + 1
    return found


def _destination(payload: bytes) -> str:
    try:
        return bound_for(payload).path
    except (TransferError, InvalidMessageError):
        return ""
