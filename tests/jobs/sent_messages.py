"""Messages of a backlog, and those of them that were delivered."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

from pairbus import BrokeredMessage, MessagingFactory, NamespaceManager, QueueDescription, ReceivedMessage
from pairbus.client.entity_link import EntityLink, SendBatch
from pairbus.client.message import encode_brokered
from pairbus.dialect.paths import backlog_path
from pairbus.dialect.transfer import divert
from pairbus.pairing.backlog import backlog_description

NAMESPACE: Final = "contoso"
_PAGE: Final = 1_000
SHORT_LOCK: Final = timedelta(seconds=10)
"""Time to wait for locks of receivers that were killed."""

_KEPT: Final = (
    "message_id",
    "session_id",
    "correlation_id",
    "label",
    "content_type",
    "to",
    "reply_to",
    "partition_key",
    "time_to_live",
    "body_kind",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strings:
    """The connection strings of a pair."""

    primary: str = field(repr=False)
    secondary: str = field(repr=False)

    @asynccontextmanager
    async def factories(self) -> AsyncIterator[tuple[MessagingFactory, MessagingFactory]]:
        async with (
            MessagingFactory.from_connection_string(self.primary) as primary,
            MessagingFactory.from_connection_string(self.secondary) as secondary,
        ):
            yield primary, secondary

    def files(self, directory: Path) -> tuple[str, str]:
        """Write the connection strings to files, for processes with another environment."""
        for name, text in (("primary", self.primary), ("secondary", self.secondary)):
            path = directory / f"{name}.txt"
            path.touch(0o600)
            path.write_text(text)
        return f"file:{directory / 'primary.txt'}", f"file:{directory / 'secondary.txt'}"


def backlog_queues(count: int, namespace: str = NAMESPACE) -> tuple[str, ...]:
    return tuple(backlog_path(namespace, index) for index in range(count))


async def make_backlog(
    secondary: str, count: int, lock: timedelta = SHORT_LOCK, namespace: str = NAMESPACE
) -> tuple[str, ...]:
    """Backlog queues that soon give back what a process held that was killed."""
    paths = backlog_queues(count, namespace)
    async with NamespaceManager.from_connection_string(secondary) as manager:
        for path in paths:
            await manager.create_queue(replace(backlog_description(path), lock_duration=lock))
    return paths


async def make_queues(primary: str, prefix: str, count: int, **description: Any) -> list[str]:
    paths = [f"{prefix}-{index}" for index in range(count)]
    async with NamespaceManager.from_connection_string(primary) as manager:
        for path in paths:
            await manager.create_queue(QueueDescription(path, **description))
    return paths


class SentMessages:
    """Messages of all sorts for some destinations, each known by its id."""

    def __init__(self, destinations: Sequence[str], queues: Sequence[str], *, seed: int = 1, sessions: int = 0) -> None:
        self._destinations = destinations
        self._queues = queues
        self._random = Random(seed)  # noqa: S311 (the same each time)
        self._sessions = sessions
        self._name = f"{seed}"
        self.sent: dict[str, tuple[str, BrokeredMessage]] = {}
        """The destination and content of each message, by its id, in the order of sends."""

    def _message(self, number: int) -> BrokeredMessage:
        random = self._random
        return BrokeredMessage(
            random.randbytes(random.randrange(100, 300)),
            message_id=f"{self._name}-{number}",
            session_id=f"s{random.randrange(self._sessions)}" if self._sessions else None,
            correlation_id=random.choice([None, f"c{number}", number]),
            label=random.choice([None, "order", "größe"]),
            content_type=random.choice([None, "application/octet-stream"]),
            reply_to=random.choice([None, "answers"]),
            time_to_live=random.choice([None, timedelta(hours=random.randrange(1, 100))]),
            application_properties={"number": number, "half": number / 2, "even": number % 2 == 0, "text": f"{number}"},
        )

    async def load(self, secondary: MessagingFactory, count: int) -> None:
        """Divert so many more. What has the same destination, or session, lies in one queue, in order."""
        by_queue: dict[str, list[bytes]] = {path: [] for path in self._queues}
        for number in range(len(self.sent), len(self.sent) + count):
            message = self._message(number)
            index = number % len(self._destinations)
            path = self._destinations[index]
            self.sent[str(message.message_id)] = (path, message)
            by_queue[self._queues[index % len(self._queues)]].append(divert(encode_brokered(message), path))
        await asyncio.gather(*(send_raw(secondary, path, payloads) for path, payloads in by_queue.items()))

    async def arrivals(self, primary: MessagingFactory) -> Arrivals:
        """Return the messages at the destinations now."""
        found = {path: await peek_all(primary, path) for path in self._destinations}
        return Arrivals(sent=self.sent, found=found)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedMessages:
    """Messages for destinations that detect duplicates, and for others that do not."""

    exact: SentMessages
    plain: SentMessages

    @classmethod
    async def make(cls, primary: str, queues: Sequence[str], seed: int) -> MixedMessages:
        exact = await make_queues(primary, "exact", 4, requires_duplicate_detection=True)
        plain = await make_queues(primary, "plain", 4)
        return cls(
            exact=SentMessages(exact, queues, seed=seed),
            plain=SentMessages(plain, queues, seed=seed + 1_000, sessions=9),
        )

    async def load(self, secondary: MessagingFactory, count: int) -> None:
        for sent_messages in (self.exact, self.plain, self.exact, self.plain):
            await sent_messages.load(secondary, count // 4)

    async def check(self, primary: MessagingFactory) -> int:
        """Nothing is lost, and nothing twice where that is detected; how many repeats there are elsewhere."""
        exact, plain = await self.exact.arrivals(primary), await self.plain.arrivals(primary)
        print(f"with duplicate detection: {exact}; without: {plain}")
        exact.assert_exact()
        plain.assert_complete()
        return plain.repeats


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """The delivered messages, compared with those sent."""

    sent: dict[str, tuple[str, BrokeredMessage]]
    found: dict[str, list[ReceivedMessage]]

    @property
    def _counts(self) -> Counter[tuple[str, str]]:
        return Counter((path, str(one.message_id)) for path, messages in self.found.items() for one in messages)

    @property
    def lost(self) -> set[str]:
        there = self._counts
        return {message_id for message_id, (path, _) in self.sent.items() if not there[path, message_id]}

    @property
    def repeats(self) -> int:
        """Return the number of messages that were delivered more than once."""
        return sum(self._counts.values()) - len(self._counts)

    @property
    def strays(self) -> set[tuple[str, str]]:
        """Return the messages at the wrong destination."""
        return self._counts.keys() - {(path, message_id) for message_id, (path, _) in self.sent.items()}

    @property
    def changed(self) -> dict[str, tuple[Any, Any]]:
        """Return the messages that differ from a direct send."""
        found: dict[str, tuple[Any, Any]] = {}
        for messages in self.found.values():
            for message in messages:
                sent = self.sent.get(str(message.message_id))
                if sent is None:
                    continue
                before, after = message_values(ReceivedMessage(encode_brokered(sent[1]))), message_values(message)
                if before != after:
                    found[str(message.message_id)] = before, after
        return found

    @property
    def disordered(self) -> dict[tuple[str, str], list[str]]:
        """The sessions whose messages did not come in the order in which they were sent, at their first coming."""
        found: dict[tuple[str, str], list[str]] = {}
        place = {message_id: number for number, message_id in enumerate(self.sent)}
        for path, messages in self.found.items():
            sessions: dict[str, dict[str, None]] = {}
            for one in messages:
                if one.session_id is not None:
                    sessions.setdefault(one.session_id, {}).setdefault(str(one.message_id))
            for session_id, ids in sessions.items():
                if [*ids] != sorted(ids, key=place.__getitem__):
                    found[path, session_id] = [*ids]
        return found

    def assert_complete(self) -> None:
        """Every message is where it was sent, as it was sent; some perhaps more than once."""
        assert not self.lost, f"{len(self.lost)} of {len(self.sent)} are lost: {sorted(self.lost)[:10]}"
        assert not self.strays
        assert not self.changed

    def assert_exact(self) -> None:
        """The same, and each once."""
        self.assert_complete()
        assert self.repeats == 0

    def __str__(self) -> str:
        counts = {"sent": self.sent, "lost": self.lost, "sessions out of order": self.disordered}
        reported = ", ".join(f"{len(found):,} {name}" for name, found in counts.items())
        return f"{reported}, {self.repeats:,} repeats"


def message_values(message: ReceivedMessage) -> tuple[Any, ...]:
    """Return the properties of a message, with their types."""
    named = sorted((name, type(value), value) for name, value in message.application_properties.items())
    return (message.body, named, *(getattr(message, name) for name in _KEPT))


async def send_raw(factory: MessagingFactory, path: str, payloads: Iterable[bytes]) -> None:
    lane = EntityLink(factory, path)
    await lane.send(SendBatch([*payloads]))
    await lane.close()


async def peek_all(factory: MessagingFactory, path: str) -> list[ReceivedMessage]:
    """All messages of an entity, in whatever state, in the order of their numbers."""
    found: list[ReceivedMessage] = []
    async with await factory.create_message_receiver(path) as receiver:
        while page := await receiver.peek(_PAGE, found[-1].sequence_number + 1 if found else 0):
            found += page
    return found


async def dead_letters(factory: MessagingFactory, queues: Iterable[str]) -> list[ReceivedMessage]:
    return [one for path in queues for one in await peek_all(factory, f"{path}/$DeadLetterQueue")]


async def depth(factory: MessagingFactory, queues: Iterable[str]) -> int:
    """Return the number of messages in queues, in any state."""
    return sum([len(await peek_all(factory, path)) for path in queues])
