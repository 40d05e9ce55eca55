"""The ends of a link (part 3.5 of the standard), and transaction coordinators with their messages (part 4.5)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Annotated, Any

from pairbus.wire import encoder
from pairbus.wire.composites import Provides, amqp_type, binary, boolean, composite, fields, string, symbol, uint
from pairbus.wire.settlement import any_outcome
from pairbus.wire.types import Symbol, UInt


class TerminusDurability(IntEnum):
    """The state of a terminus that survives a restart of its container."""

    NONE = 0
    CONFIGURATION = 1
    UNSETTLED_STATE = 2


class TerminusExpiryPolicy(StrEnum):
    """The event that starts the expiry timeout of a terminus."""

    LINK_DETACH = "link-detach"
    SESSION_END = "session-end"
    CONNECTION_CLOSE = "connection-close"
    NEVER = "never"


durability = Annotated[TerminusDurability, amqp_type("uint", UInt, TerminusDurability, encoder.encode_uint)]
expiry = Annotated[TerminusExpiryPolicy, amqp_type("symbol", Symbol, TerminusExpiryPolicy, encoder.encode_symbol)]


@composite("amqp:source:list", 0x28, provides="source")
@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The origin of messages."""

    address: string | None = None
    durable: durability = TerminusDurability.NONE
    expiry_policy: expiry = TerminusExpiryPolicy.SESSION_END
    timeout: uint = 0
    dynamic: boolean = False
    dynamic_node_properties: fields | None = None
    distribution_mode: symbol | None = None
    filter: fields | None = None
    default_outcome: any_outcome | None = None
    outcomes: tuple[symbol, ...] = ()
    capabilities: tuple[symbol, ...] = ()


@composite("amqp:target:list", 0x29, provides="target")
@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The destination of messages."""

    address: string | None = None
    durable: durability = TerminusDurability.NONE
    expiry_policy: expiry = TerminusExpiryPolicy.SESSION_END
    timeout: uint = 0
    dynamic: boolean = False
    dynamic_node_properties: fields | None = None
    capabilities: tuple[symbol, ...] = ()


@composite("amqp:delete-on-close:list", 0x2B, provides="lifetime-policy")
@dataclass(frozen=True, slots=True)
class DeleteOnClose:
    """Delete a dynamic node with the link that created it."""


@composite("amqp:delete-on-no-links:list", 0x2C, provides="lifetime-policy")
@dataclass(frozen=True, slots=True)
class DeleteOnNoLinks:
    """Delete a dynamic node when it has no links."""


@composite("amqp:delete-on-no-messages:list", 0x2D, provides="lifetime-policy")
@dataclass(frozen=True, slots=True)
class DeleteOnNoMessages:
    """Delete a dynamic node when the link that created it is closed and it has no messages."""


@composite("amqp:delete-on-no-links-or-messages:list", 0x2E, provides="lifetime-policy")
@dataclass(frozen=True, slots=True)
class DeleteOnNoLinksOrMessages:
    """Delete a dynamic node when it has neither links nor messages."""


@composite("amqp:coordinator:list", 0x30, provides="target")
@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinator:
    """The target of a link that declares and discharges transactions."""

    capabilities: tuple[symbol, ...] = ()


global_tx_id = Annotated[Any, Provides("global-tx-id")]


@composite("amqp:declare:list", 0x31)
@dataclass(frozen=True, slots=True)
class Declare:
    """Requests a new transaction."""

    global_id: global_tx_id | None = None


@composite("amqp:discharge:list", 0x32)
@dataclass(frozen=True, slots=True, kw_only=True)
class Discharge:
    """Ends a transaction: commits it, or rolls it back when ``fail`` is set."""

    txn_id: binary
    fail: boolean | None = None
