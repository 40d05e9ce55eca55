"""Delivery states and outcomes (parts 3.4 and 4.5 of the standard), and the settlement modes of a link."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, Final

from pairbus.wire import encoder
from pairbus.wire.composites import Provides, amqp_type, binary, boolean, composite, fields, string, symbol, uint, ulong
from pairbus.wire.errors import ProtocolError
from pairbus.wire.types import UByte


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
