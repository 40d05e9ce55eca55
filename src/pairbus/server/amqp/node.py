"""The server's ends of links (nodes), and what the nodes of one connection share."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Final, TypeAlias

from pairbus.broker import QuotaExceededError, Right, SendOperation, TransactionOperation
from pairbus.dialect.management import Request, Response, write_response
from pairbus.server.access import NEVER_MS, Grant
from pairbus.server.connection_limits import ConnectionLimits
from pairbus.server.counters import Counters
from pairbus.server.errors import (
    LimitExceededError,
    ServerBusyError,
    TransactionError,
    TransactionTimeoutError,
    refusal_of,
)
from pairbus.server.host import NamespaceHost
from pairbus.store import CommitId, StoreError
from pairbus.wire import Condition, Delivery, Error, Link, MessageTooLargeError

Need: TypeAlias = tuple[str, tuple[Right, ...]]
"""A path in lower case, and the claims of which one is required there; none if it is empty."""


class Node:
    """The server's end of a link. By default a node ignores all events; each kind handles those of its links."""

    kind = ""
    """The name of this kind of link in metrics."""

    def __init__(self, link: Link, path: str, needs: tuple[Need, ...] = ()) -> None:
        self.link = link
        self.path = path
        """The address of the entity in lower case."""
        self.needs = needs
        """The claims that the link requires as long as it is attached."""

    def prepare(self, delivery: Delivery) -> bool:  # noqa: ARG002
        """Do a part of the work for a message; return whether only ``on_delivery`` is left to do.

        It is called until it returns ``True``; in between, other connections get their turns.
        """
        return True

    def on_delivery(self, delivery: Delivery) -> None:
        """Handle a message of the peer."""

    def rescue(self, delivery: Delivery, error: StoreError) -> bool:  # noqa: ARG002
        """Store a message elsewhere whose commit failed; return whether that is possible. It is confirmed then."""
        return False

    def on_overdue(self, delivery: Delivery, commit: CommitId) -> bool:  # noqa: ARG002
        """Answer a message whose commit is overdue; return whether that is possible. Otherwise it waits for it."""
        return False

    def on_credit(self) -> None:
        """Handle a change of the credit: the peer grants more, or requests a drain."""

    def on_writable(self) -> None:
        """Continue to send: the connection accepts more bytes again."""

    def settle(self, delivery: Delivery, state: object) -> object:  # noqa: ARG002
        """Settle a message that was sent to the peer; return the state to respond with, or ``None`` for no response."""
        return None

    def delay_s(self) -> float:
        """Return by how much an injected fault delays settlements on the link."""
        return 0.0

    def on_detached(self) -> None:
        """Release what the node holds: the link is detached."""


_MAX_WAITING_BYTES: Final = 4 * 1024 * 1024


class ReplyNode(Node):
    """The server's end of a link that carries responses."""

    kind = "replies"

    def __init__(self, link: Link, path: str, needs: tuple[Need, ...], replies: Replies) -> None:
        super().__init__(link, path, needs)
        self._waiting: deque[int] = deque()
        """The sizes of the responses that wait for the session window."""
        self._waiting_bytes = 0
        self._replies = replies
        replies.add(self)

    def on_detached(self) -> None:
        self._replies.remove(self)

    def count_waiting(self, size_bytes: int) -> int:
        """Count a response that was sent; return how many bytes wait for the session window now."""
        self._waiting.append(size_bytes)
        self._waiting_bytes += size_bytes
        while len(self._waiting) > self.link.queued:
            self._waiting_bytes -= self._waiting.popleft()
        return self._waiting_bytes


class Replies:
    """The reply links of one connection."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._nodes: list[ReplyNode] = []
        self._tags = count(1)

    def add(self, node: ReplyNode) -> None:
        self._nodes.append(node)

    def remove(self, node: ReplyNode) -> None:
        self._nodes.remove(node)

    def send(self, request_link: Link, path: str, request: Request, response: Response) -> bool:
        """Send the response to a request of ``request_link``; return whether there is a link for it."""
        node = self._find(request_link, path, request.reply_to)
        if node is None:
            return False
        # Settled, and beyond credit: the SDK for Python settles no response, and grants credit only once.
        try:
            self._write(node, write_response(request, response))
        except MessageTooLargeError as error:
            node.link.detach(error=refusal_of(error).error)
            return False
        return True

    def _write(self, node: ReplyNode, payload: bytes) -> None:
        link = node.link
        link.send(payload, tag=next(self._tags).to_bytes(8), settled=True, beyond_credit=True)
        if node.count_waiting(len(payload)) > _MAX_WAITING_BYTES and link.queued > 1:
            limit = "waiting_response_bytes"
            self._counters.refuse(Condition.RESOURCE_LIMIT_EXCEEDED, limit)
            link.detach(
                error=Error(
                    Condition.RESOURCE_LIMIT_EXCEEDED,
                    f"the link requests responses, but grants no window for them ({limit})",
                )
            )

    def _find(self, request_link: Link, path: str, reply_to: str | None) -> ReplyNode | None:
        """Return the link that the request names, or one in the session of the request, or any of the same path."""
        nodes = [node for node in self._nodes if node.path == path and node.link.is_attached]
        named = [node for node in nodes if reply_to in _names(node.link)]
        beside = [node for node in named or nodes if node.link.session is request_link.session]
        return next(iter(beside or named or nodes), None)


def _names(link: Link) -> tuple[object, ...]:
    target = None if link.peer is None else link.peer.target
    return link.name, getattr(target, "address", None)


_TIMEOUT_MS: Final = 120_000
_MAX_OPEN: Final = 100
"""Maximum number of open transactions of a connection."""
_MAX_BYTES: Final = 32 * 1024 * 1024
"""Maximum size of all open transactions together, which are in memory."""


@dataclass(slots=True)
class _Open:
    expires_ms: int
    operations: list[TransactionOperation] = field(default_factory=list)
    message_count: int = 0
    size_bytes: int = 0


class Transactions:
    """The open transactions of one connection. They are in memory only, and end with the connection."""

    def __init__(self, host: NamespaceHost) -> None:
        self._host = host
        self._open: dict[bytes, _Open] = {}
        self._ids = count(1)

    def declare(self) -> bytes:
        now_ms = self._host.now_ms()
        self._open = {txn_id: each for txn_id, each in self._open.items() if now_ms < each.expires_ms}
        if len(self._open) >= _MAX_OPEN:
            raise ServerBusyError(
                f"the connection has {len(self._open)} open transactions; end one first", limit="open_transactions"
            )
        txn_id = next(self._ids).to_bytes(8)
        self._open[txn_id] = _Open(now_ms + _TIMEOUT_MS)
        return txn_id

    def enlist(self, txn_id: bytes, operation: TransactionOperation) -> None:
        """Add an operation to a transaction; it is executed at the end of that."""
        found = self._find(txn_id)
        limits = self._host.limits
        messages = operation.messages if isinstance(operation, SendOperation) else ()
        count = found.message_count + (len(messages) or 1)
        if count > limits.messages_per_transaction:
            raise QuotaExceededError(f"a transaction has at most {limits.messages_per_transaction} messages")
        size = sum(len(message.body) for message in messages)
        held = sum(each.size_bytes for each in self._open.values())
        if held + size > max(_MAX_BYTES, limits.largest_bytes):
            raise LimitExceededError(
                f"the open transactions of this connection hold {held} bytes; end one first", "transaction_bytes"
            )
        found.message_count = count
        found.size_bytes += size
        found.operations.append(operation)

    def discharge(self, txn_id: bytes, *, fail: bool) -> None:
        """Execute all operations of a transaction, or none; raise the error of the one that failed."""
        found = self._find(txn_id)
        del self._open[txn_id]
        if not fail and found.operations:
            self._host.use_namespace().transact(found.operations, self._host.now_ms())

    def _find(self, txn_id: bytes) -> _Open:
        found = self._open.get(txn_id)
        if found is None:
            raise TransactionError("there is no such transaction on this connection")
        if found.expires_ms <= self._host.now_ms():
            del self._open[txn_id]
            raise TransactionTimeoutError(f"the transaction was open for more than {_TIMEOUT_MS // 1000} seconds")
        return found


_NAMED_GRANTS: Final = 4


class Claims:
    """The grants of one connection by path; a newer grant replaces an older one.

    A grant covers its path and all paths below, so a path is looked up by its prefixes: the cost does not grow with
    the number of tokens.
    """

    def __init__(self, max_grants: int = ConnectionLimits().max_tokens_per_connection) -> None:
        self._max_grants = max_grants
        self._grants: dict[str, Grant] = {}
        self._expiries: list[tuple[int, str]] = []
        """A heap of times and paths; entries of replaced grants are dropped when they reach the top."""

    def __bool__(self) -> bool:
        return bool(self._grants)

    def __len__(self) -> int:
        return len(self._grants)

    def put(self, path: str, grant: Grant) -> bool:
        """Add a grant; return ``False`` if there are too many."""
        if len(self._grants) >= self._max_grants and path not in self._grants:
            return False
        self._grants[path] = grant
        if grant.expires_ms < NEVER_MS:
            heapq.heappush(self._expiries, (grant.expires_ms, path))
            if len(self._expiries) > 2 * len(self._grants) + 16:
                self._expiries = [(each.expires_ms, name) for name, each in self._expiring()]
                heapq.heapify(self._expiries)
        return True

    def allows(self, path: str, rights: Sequence[Right], now_ms: int) -> bool:
        """Return whether one of these rights is granted, or none is required."""
        return not rights or any(
            grant.allows(path, right, now_ms) for grant in self._covering(path) for right in rights
        )

    def who(self, path: str) -> str:
        """Return the name of a key that grants access to a path, or an empty string."""
        return next((grant.who for grant in self._covering(path)), "")

    def rights(self, path: str) -> tuple[str, ...]:
        """Return the rights that are granted for a path."""
        return tuple(sorted({right for grant in self._covering(path) for right in grant.rights}))

    def names(self) -> str:
        """Return the names of the keys of the connection, a few at most."""
        return ",".join(dict.fromkeys(grant.who for grant in islice(self._grants.values(), _NAMED_GRANTS) if grant.who))

    def next_expiry_ms(self) -> int | None:
        """Return when the next grant expires; it may have expired without having been dropped."""
        expiries = self._expiries
        while expiries and not self._is_current(*expiries[0]):
            heapq.heappop(expiries)
        return expiries[0][0] if expiries else None

    def drop_expired(self, now_ms: int) -> None:
        while (due_ms := self.next_expiry_ms()) is not None and due_ms <= now_ms:
            del self._grants[heapq.heappop(self._expiries)[1]]

    def grants(self) -> list[tuple[str, Grant]]:
        """Return the current grants with their paths."""
        return [*self._grants.items()]

    def drop(self, revoked: Iterable[tuple[str, Grant]]) -> None:
        """Drop these grants, except those that were replaced by newer ones."""
        for path, grant in revoked:
            if self._grants.get(path) is grant:
                del self._grants[path]

    def _covering(self, path: str) -> Iterator[Grant]:
        """Yield the grants of the namespace, of this path, and of the paths above it."""
        for prefix in _prefixes(path):
            grant = self._grants.get(prefix)
            if grant is not None:
                yield grant

    def _expiring(self) -> Iterator[tuple[str, Grant]]:
        return ((path, grant) for path, grant in self._grants.items() if grant.expires_ms < NEVER_MS)

    def _is_current(self, expires_ms: int, path: str) -> bool:
        grant = self._grants.get(path)
        return grant is not None and grant.expires_ms == expires_ms


def _prefixes(path: str) -> Iterator[str]:
    yield ""
    end = path.find("/")
    while end >= 0:
        yield path[:end]
        end = path.find("/", end + 1)
    if path:
        yield path


OnStored = Callable[[Exception | None], object]
"""Called when a message is durable, or with the error."""

Keep = Callable[[OnStored], object]
"""Stores a message outside the store, and calls the function that it gets."""
