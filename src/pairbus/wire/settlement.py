"""Delivery states and outcomes (parts 3.4 and 4.5 of the standard), the ends of a link, and coordinators (3.5, 4.5)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Annotated, Any, Final

from pairbus.wire import encoder
from pairbus.wire.composites import Provides, amqp_type, binary, boolean, composite, fields, string, symbol, uint, ulong
from pairbus.wire.errors import ProtocolError
from pairbus.wire.types import Symbol, UByte, UInt


class SenderSettleMode(IntEnum):
    """The settle mode of a sender: whether it sends deliveries settled."""

    UNSETTLED = 0
    SETTLED = 1
    MIXED = 2


class ReceiverSettleMode(IntEnum):
    """The settle mode of a receiver: it settles spontaneously (first) or after the sender (second)."""

    FIRST = 0
    SECOND = 1


sender_settle_mode = Annotated[SenderSettleMode, amqp_type("ubyte", UByte, SenderSettleMode, encoder.encode_ubyte)]
receiver_settle_mode = Annotated[
    ReceiverSettleMode, amqp_type("ubyte", UByte, ReceiverSettleMode, encoder.encode_ubyte)
]


@composite("amqp:error:list", 0x1D, pad=True)
@dataclass(frozen=True, slots=True)
class Error:
    """An error as sent to the peer.

    All three fields are always written, null or not: the Azure SDK for Python reads them by position.
    """

    condition: symbol
    description: string | None = None
    info: fields | None = None


_LONGEST_DESCRIPTION: Final = 240
_LONGEST_CONDITION: Final = 128
_ROOM: Final = 64
"""The maximum size of a detach, end or close without its error."""


def error_of(violation: ProtocolError) -> Error:
    """Return the error for a violation, small enough for the minimum frame size of a peer."""
    description = violation.description.encode("ascii", "backslashreplace").decode("ascii")
    return Error(violation.condition, description[:_LONGEST_DESCRIPTION])


def shortened(error: Error | None, frame_size: int) -> Error | None:
    """Shorten an error that would not fit into a frame: a truncated error is better than none."""
    if error is None or len(encoder.encode(error)) <= frame_size - _ROOM:
        return error
    description = (error.description or "").encode("ascii", "backslashreplace").decode("ascii")
    return Error(error.condition[:_LONGEST_CONDITION], description[:_LONGEST_DESCRIPTION])


@composite("amqp:received:list", 0x23, provides="delivery-state")
@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """The progress of an incomplete delivery."""

    section_number: uint
    section_offset: ulong


@composite("amqp:accepted:list", 0x24, provides="delivery-state outcome")
@dataclass(frozen=True, slots=True)
class Accepted:
    """The receiver has accepted the message."""


@composite("amqp:rejected:list", 0x25, provides="delivery-state outcome")
@dataclass(frozen=True, slots=True)
class Rejected:
    """The message is invalid and cannot be processed."""

    error: Error | None = None


@composite("amqp:released:list", 0x26, provides="delivery-state outcome")
@dataclass(frozen=True, slots=True)
class Released:
    """The message was not and will not be processed by this receiver."""


@composite("amqp:modified:list", 0x27, provides="delivery-state outcome")
@dataclass(frozen=True, slots=True, kw_only=True)
class Modified:
    """The message was not processed and is modified before it is delivered again."""

    delivery_failed: boolean | None = None
    undeliverable_here: boolean | None = None
    message_annotations: fields | None = None


@composite("amqp:declared:list", 0x33, provides="delivery-state outcome")
@dataclass(frozen=True, slots=True)
class Declared:
    """A transaction has been declared."""

    txn_id: binary


any_state = Annotated[Any, Provides("delivery-state")]
any_outcome = Annotated[Any, Provides("outcome")]


@composite("amqp:transactional-state:list", 0x34, provides="delivery-state")
@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionalState:
    """The delivery and its outcome are part of a transaction."""

    txn_id: binary
    outcome: any_outcome | None = None


ACCEPTED: Final = Accepted()
RELEASED: Final = Released()


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
