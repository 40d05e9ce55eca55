"""The bodies of AMQP and SASL frames (parts 2.7 and 5.3 of the standard)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, Final, NamedTuple

from pairbus.wire import encoder
from pairbus.wire.composites import (
    Provides,
    amqp_type,
    binary,
    boolean,
    composite,
    fields,
    string,
    symbol,
    uint,
    ulong,
    ushort,
)
from pairbus.wire.settlement import (
    Error,
    ReceiverSettleMode,
    SenderSettleMode,
    any_state,
    receiver_settle_mode,
    sender_settle_mode,
)
from pairbus.wire.types import UByte

SENDER: Final = False
"""The role of the sending end of a link."""

RECEIVER: Final = True
"""The role of the receiving end of a link."""


class SaslCode(IntEnum):
    """The outcome of an authentication."""

    OK = 0
    AUTH = 1
    SYS = 2
    SYS_PERM = 3
    SYS_TEMP = 4


any_source = Annotated[Any, Provides("source")]
any_target = Annotated[Any, Provides("target")]
sasl_code = Annotated[SaslCode, amqp_type("ubyte", UByte, SaslCode, encoder.encode_ubyte)]


@composite("amqp:open:list", 0x10, provides="frame")
@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """Opens a connection and states the limits of its sender."""

    container_id: string
    hostname: string | None = None
    max_frame_size: uint = 4294967295
    channel_max: ushort = 65535
    idle_time_out: uint | None = None
    outgoing_locales: tuple[symbol, ...] = ()
    incoming_locales: tuple[symbol, ...] = ()
    offered_capabilities: tuple[symbol, ...] = ()
    desired_capabilities: tuple[symbol, ...] = ()
    properties: fields | None = None


@composite("amqp:begin:list", 0x11, provides="frame")
@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Begins a session on a channel."""

    remote_channel: ushort | None = None
    next_outgoing_id: uint
    incoming_window: uint
    outgoing_window: uint
    handle_max: uint = 4294967295
    offered_capabilities: tuple[symbol, ...] = ()
    desired_capabilities: tuple[symbol, ...] = ()
    properties: fields | None = None


@composite("amqp:attach:list", 0x12, provides="frame")
@dataclass(frozen=True, slots=True, kw_only=True)
class Attach:
    """Attaches a link to a session."""

    name: string
    handle: uint
    role: boolean
    snd_settle_mode: sender_settle_mode = SenderSettleMode.MIXED
    rcv_settle_mode: receiver_settle_mode = ReceiverSettleMode.FIRST
    source: any_source | None = None
    target: any_target | None = None
    unsettled: fields | None = None
    incomplete_unsettled: boolean = False
    initial_delivery_count: uint | None = None
    max_message_size: ulong | None = None
    offered_capabilities: tuple[symbol, ...] = ()
    desired_capabilities: tuple[symbol, ...] = ()
    properties: fields | None = None


@composite("amqp:flow:list", 0x13, provides="frame")
@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Updates the flow state of a session and, with a handle, of a link."""

    next_incoming_id: uint | None = None
    incoming_window: uint
    next_outgoing_id: uint
    outgoing_window: uint
    handle: uint | None = None
    delivery_count: uint | None = None
    link_credit: uint | None = None
    available: uint | None = None
    drain: boolean = False
    echo: boolean = False
    properties: fields | None = None


@composite("amqp:transfer:list", 0x14, provides="frame")
class Transfer(NamedTuple):
    """Carries a message, or a part of one. A tuple, because one is created for every frame of every message."""

    handle: uint
    delivery_id: uint | None = None
    delivery_tag: binary | None = None
    message_format: uint | None = None
    settled: boolean | None = None
    more: boolean = False
    rcv_settle_mode: receiver_settle_mode | None = None
    state: any_state | None = None
    resume: boolean = False
    aborted: boolean = False
    batchable: boolean = False


@composite("amqp:disposition:list", 0x15, provides="frame")
class Disposition(NamedTuple):
    """States the state of a range of deliveries. A tuple for the same reason as ``Transfer``."""

    role: boolean
    first: uint
    last: uint | None = None
    settled: boolean = False
    state: any_state | None = None
    batchable: boolean = False


@composite("amqp:detach:list", 0x16, provides="frame")
@dataclass(frozen=True, slots=True, kw_only=True)
class Detach:
    """Detaches a link from its session; permanently if it is ``closed``."""

    handle: uint
    closed: boolean = False
    error: Error | None = None


@composite("amqp:end:list", 0x17, provides="frame")
@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Ends a session."""

    error: Error | None = None


@composite("amqp:close:list", 0x18, provides="frame")
@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """Ends a connection."""

    error: Error | None = None


@composite("amqp:sasl-mechanisms:list", 0x40, provides="sasl-frame")
@dataclass(frozen=True, slots=True, kw_only=True)
class SaslMechanisms:
    """The mechanisms that the server offers."""

    sasl_server_mechanisms: tuple[symbol, ...]


@composite("amqp:sasl-init:list", 0x41, provides="sasl-frame")
@dataclass(frozen=True, slots=True, kw_only=True)
class SaslInit:
    """The mechanism that the client chose, with its initial response."""

    mechanism: symbol
    initial_response: binary | None = None
    hostname: string | None = None


@composite("amqp:sasl-challenge:list", 0x42, provides="sasl-frame")
@dataclass(frozen=True, slots=True, kw_only=True)
class SaslChallenge:
    """A challenge from the server."""

    challenge: binary


@composite("amqp:sasl-response:list", 0x43, provides="sasl-frame")
@dataclass(frozen=True, slots=True, kw_only=True)
class SaslResponse:
    """The client's response to a challenge."""

    response: binary


@composite("amqp:sasl-outcome:list", 0x44, provides="sasl-frame")
@dataclass(frozen=True, slots=True, kw_only=True)
class SaslOutcome:
    """The outcome of the authentication."""

    code: sasl_code
    additional_data: binary | None = None
