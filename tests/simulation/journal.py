"""The record of a run: messages sent and received, and the events of all processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from typing import Any

from pairbus.broker import Address, Namespace, NewMessage
from pairbus.client.message import BrokeredMessage
from pairbus.client.received_message import ReceivedMessage
from tests.faults.namespace import VirtualNamespace


class Outcome(Enum):
    """The outcome of a send."""

    UNDER_WAY = "under way"
    RETURNED = "returned"
    RAISED = "raised"
    KILLED = "killed with its process"
    GIVEN_UP = "cancelled by the sender"


@dataclass(slots=True, kw_only=True)
class Sent:
    """A message that was sent, with others or alone."""

    message: BrokeredMessage
    path: str
    process: str
    sender: str
    number: int
    """In the order in which its sender has sent them."""
    began_s: float
    limit_s: float
    """The timeout of the send."""
    outcome: Outcome = Outcome.UNDER_WAY
    ended_s: float = 0.0
    error: BaseException | None = None
    is_one_of_many: bool = False
    """True if other messages of the sender were in flight at the same time."""

    @property
    def id(self) -> str:
        return str(self.message.message_id)

    @property
    def took_s(self) -> float:
        return self.ended_s - self.began_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A received message."""

    at_s: float
    place: str
    message: ReceivedMessage

    @property
    def id(self) -> str:
        return str(self.message.message_id)

    @property
    def sequence(self) -> int:
        return self.message.sequence_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A message that the primary namespace was asked to take."""

    at_s: float
    path: str
    is_ping: bool
    payload: bytes


@dataclass(slots=True)
class Journal:
    """All of it."""

    sent: dict[str, Sent] = field(default_factory=dict)
    received: list[Received] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    healed_s: list[float] = field(default_factory=list)
    """The times at which network faults ended, so that delayed data arrived."""
    deleted_s: dict[str, float] = field(default_factory=dict)
    """The times at which entities were deleted."""
    lines: list[str] = field(default_factory=list)
    """The events, as text."""

    def note(self, at_s: float, text: str) -> None:
        self.lines.append(f"{at_s:9.3f} {text}")

    @property
    def digest(self) -> str:
        """Two runs that are the same have the same one."""
        return blake2b("\n".join(self.lines).encode(), digest_size=8).hexdigest()

    def arrived(self) -> dict[str, dict[str, list[Received]]]:
        """Return the received messages, by entity and id."""
        found: dict[str, dict[str, list[Received]]] = {}
        for one in self.received:
            found.setdefault(one.place, {}).setdefault(one.id, []).append(one)
        return found


class Watch:
    """Writes down every message that a namespace is asked to take; to be told of each start of it."""

    def __init__(self, namespace: VirtualNamespace, journal: Journal, now_s: Any) -> None:
        self._namespace = namespace
        self._journal = journal
        self._now_s = now_s
        self._watched: Namespace | None = None
        self.look()

    def look(self) -> None:
        broker = self._namespace.host.use_namespace()
        if broker is self._watched:
            return
        self._watched = broker
        send = broker.send

        def watched(address: Address, messages: Sequence[NewMessage], now_ms: int) -> Any:
            outcome = send(address, messages, now_ms)
            at_s, path = self._now_s(), str(address)
            self._journal.asked += [Asked(at_s=at_s, path=path, is_ping=one.ping, payload=one.body) for one in messages]
            return outcome

        broker.send = watched  # type: ignore[method-assign]
