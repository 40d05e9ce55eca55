"""Sends and settlements that happen together or not at all."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Final

from pairbus.broker import Operation, QuotaExceededError, Send
from pairbus.server.errors import ServerBusyError, TransactionError, TransactionTimeoutError
from pairbus.server.host import NamespaceHost

_TIMEOUT_MS: Final = 120_000
_MOST_OPEN: Final = 100
"""How many transactions a connection may have open."""
_MOST_BYTES: Final = 32 * 1024 * 1024
"""What they may hold together: it lies in memory until they end."""


@dataclass(slots=True)
class _Open:
    expires_ms: int
    operations: list[Operation] = field(default_factory=list)
    message_count: int = 0
    size_bytes: int = 0


class Transactions:
    """The open transactions of one connection. What they hold is nowhere else: with the connection it is gone."""

    def __init__(self, host: NamespaceHost) -> None:
        self._host = host
        self._open: dict[bytes, _Open] = {}
        self._ids = count(1)

    def declare(self) -> bytes:
        now_ms = self._host.now_ms()
        self._open = {txn_id: each for txn_id, each in self._open.items() if now_ms < each.expires_ms}
        if len(self._open) >= _MOST_OPEN:
            raise ServerBusyError(f"the connection has {len(self._open)} open transactions; end one first")
        txn_id = next(self._ids).to_bytes(8)
        self._open[txn_id] = _Open(now_ms + _TIMEOUT_MS)
        return txn_id

    def enlist(self, txn_id: bytes, operation: Operation) -> None:
        """Keep an operation for the end of its transaction."""
        found = self._find(txn_id)
        limits = self._host.limits
        messages = operation.messages if isinstance(operation, Send) else ()
        count = found.message_count + (len(messages) or 1)
        if count > limits.messages_per_transaction:
            raise QuotaExceededError(f"a transaction has at most {limits.messages_per_transaction} messages")
        size = sum(len(message.body) for message in messages)
        held = sum(each.size_bytes for each in self._open.values())
        if held + size > max(_MOST_BYTES, limits.largest_bytes):
            raise QuotaExceededError(f"the open transactions of this connection hold {held} bytes; end one first")
        found.message_count = count
        found.size_bytes += size
        found.operations.append(operation)

    def discharge(self, txn_id: bytes, *, fail: bool) -> None:
        """Do everything that was enlisted, or nothing; raises what is wrong with it."""
        found = self._find(txn_id)
        del self._open[txn_id]
        if not fail and found.operations:
            self._host.namespace.transact(found.operations, self._host.now_ms())

    def _find(self, txn_id: bytes) -> _Open:
        found = self._open.get(txn_id)
        if found is None:
            raise TransactionError("there is no such transaction on this connection")
        if found.expires_ms <= self._host.now_ms():
            del self._open[txn_id]
            raise TransactionTimeoutError(f"the transaction was open for more than {_TIMEOUT_MS // 1000} seconds")
        return found
