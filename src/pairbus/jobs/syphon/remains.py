"""What still lies in the backlog when a syphon has done what it can."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from pairbus.client.errors import InvalidMessageError, MessagingError
from pairbus.client.factory import MessagingFactory
from pairbus.client.receiver import MessageReceiver
from pairbus.dialect.transfer import TransferError
from pairbus.pairing.homecoming.bound import bound_for, key_of
from pairbus.spark.lookout import messages
from pairbus.spark.numbers import last_numbers_of
from pairbus.spark.sequence_marks import SequenceMarks

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
    """What lay in the backlog at a moment: in each queue, all up to some numbers."""

    def __init__(self, factory: MessagingFactory, last: Mapping[str, SequenceMarks]) -> None:
        self._factory = factory
        self._last = last

    @classmethod
    async def take(cls, factory: MessagingFactory, queues: tuple[str, ...]) -> Stock:
        """Raises ``MessagingError``."""
        return cls(factory, {path: await last_numbers_of(factory, path) for path in queues})

    def __bool__(self) -> bool:
        return any(self._last.values())

    async def is_gone(self) -> bool:
        """Whether nothing is left of it."""
        for path, last in self._last.items():
            async with await self._factory.create_message_receiver(path) as receiver:
                if await _destinations(receiver, last, most=1):
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


async def _destinations(receiver: MessageReceiver, last: SequenceMarks, most: int = _MOST) -> list[str]:
    """Return where the messages go that are left of a queue, one by one."""
    found: list[str] = []
    async with aclosing(messages(receiver, last.ranges, min(_PAGE, most))) as left:
        async for message in left:
            found.append(_destination(message.payload))
            if len(found) >= most:
                break
    return found


def _destination(payload: bytes) -> str:
    try:
        return bound_for(payload).path
    except (TransferError, InvalidMessageError):
        return ""
