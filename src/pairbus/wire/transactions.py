"""The messages that a transaction coordinator takes (part 4.5 of the standard)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pairbus.wire.composites import Provides, binary, boolean, composite

global_tx_id = Annotated[Any, Provides("global-tx-id")]


@composite("amqp:declare:list", 0x31)
@dataclass(frozen=True, slots=True)
class Declare:
    """Asks for a new transaction."""

    global_id: global_tx_id | None = None


@composite("amqp:discharge:list", 0x32)
@dataclass(frozen=True, slots=True, kw_only=True)
class Discharge:
    """Ends a transaction: commits it, or rolls it back when ``fail`` is set."""

    txn_id: binary
    fail: boolean | None = None
