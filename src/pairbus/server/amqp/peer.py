"""What the nodes at the ends of links need of the connection that carries them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pairbus.broker import Address, Right
from pairbus.server.access import Gatekeeper
from pairbus.server.amqp.claims import Claims
from pairbus.server.amqp.node import Node
from pairbus.server.amqp.replies import Replies
from pairbus.server.amqp.transactions import Transactions
from pairbus.server.counters import Counters
from pairbus.server.dispatcher import Dispatcher
from pairbus.server.host import NamespaceHost
from pairbus.server.metering import Meter
from pairbus.wire import Delivery, Link

if TYPE_CHECKING:
    from pairbus.store import StoreError

Tell = Callable[[Exception | None], object]
"""Is told that something is kept, or why it is not."""

Keep = Callable[[Tell], object]
"""Has something kept, and tells it whom it is given."""


class Peer(ABC):
    """One connection, as its nodes see it."""

    host: NamespaceHost
    gatekeeper: Gatekeeper
    dispatcher: Dispatcher
    counters: Counters
    meter: Meter | None
    """Who counts what is billed, if anybody does."""
    claims: Claims
    replies: Replies
    transactions: Transactions

    @property
    @abstractmethod
    def is_draining(self) -> bool:
        """Whether the server stops: nothing is to be begun any more."""

    @property
    @abstractmethod
    def is_writable(self) -> bool:
        """Whether the peer takes in what it is sent."""

    @abstractmethod
    def allows(self, path: str, rights: Sequence[Right]) -> bool:
        """Whether the tokens that were put so far allow this."""

    @abstractmethod
    def confirm(self, delivery: Delivery, state: object) -> None:
        """Tell the peer the outcome of its message, once all that was written until now is on disk."""

    @abstractmethod
    def divert(self, delivery: Delivery, keep: Keep) -> None:
        """As ``keep``, behind all that came before it."""

    @abstractmethod
    def keep(self, delivery: Delivery, keep: Keep) -> None:
        """Have a message of the peer's kept elsewhere than in the store, and tell the peer the outcome."""

    @abstractmethod
    def refuse(self, delivery: Delivery, error: Exception) -> None:
        """Reject a message of the peer's, now."""

    @abstractmethod
    def when_durable(self, done: Callable[[StoreError | None], object]) -> None:
        """As the host's, and flush afterwards; not called when the connection has gone meanwhile."""

    @abstractmethod
    def answer_when_durable(self, done: Callable[[StoreError | None], object]) -> None:
        """The same for an answer that may be large: what the peer asks next waits when there are many of them."""

    @abstractmethod
    def wrote(self, size_bytes: int) -> None:
        """So much was written for the peer: it is sent at the end of the turn, or now if it is much."""

    @abstractmethod
    def guard(self, work: Callable[[], object]) -> None:
        """Do something for this connection; whatever goes wrong ends this one at the most."""

    @abstractmethod
    def attempt(self, link: Link, work: Callable[[], object]) -> None:
        """Answer an attach; what goes wrong is told the peer as a refusal."""

    @abstractmethod
    def hold(self, node: Node) -> None:
        """Something that a node has sent waits for the session's window; tell the node when it has gone out."""

    @abstractmethod
    def flush(self) -> None:
        """Send what has been written."""

    @abstractmethod
    def tokens_changed(self) -> None:
        """A token was put: see when the next one ends."""

    @abstractmethod
    def check_guesses(self, key: str) -> None:
        """Raise ``ServerBusyError`` if too many log-ins of this peer with such a key have failed."""

    @abstractmethod
    def penalty_s(self, key: str, reason: Exception) -> float:
        """Note a failed log-in; return for how many seconds its answer is to be held back."""

    @abstractmethod
    def session_token(self, link_name: object, address: Address, session_id: object) -> bytes | None:
        """What holds the session that one of the connection's links has; ``None`` where the link has no session.

        Raises ``SessionLockLostError`` if a session is asked for that the link does not hold.
        """
