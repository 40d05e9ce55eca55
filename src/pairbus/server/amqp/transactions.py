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


@dataclass(slots=True)
class _Open:
    expires_ms: int
    operations: list[Operation] = field(default_factory=list)
    messages: int = 0


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
        most = self._host.limits.messages_per_transaction
        found.messages += len(operation.messages) if isinstance(operation, Send) else 1
        if found.messages > most:
            raise QuotaExceededError(f"a transaction has at most {most} messages")
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
