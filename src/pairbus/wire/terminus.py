"""Where a link begins and ends: sources, targets and transaction coordinators (parts 3.5 and 4.5 of the standard)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Annotated

from pairbus.wire import encoder
from pairbus.wire.composites import amqp_type, boolean, composite, fields, string, symbol, uint
from pairbus.wire.settlement import any_outcome
from pairbus.wire.types import Symbol, UInt


class TerminusDurability(IntEnum):
    """What of a terminus survives a restart of its container."""

    NONE = 0
    CONFIGURATION = 1
    UNSETTLED_STATE = 2


class TerminusExpiryPolicy(StrEnum):
    """From when on the time-out of a terminus counts."""

    LINK_DETACH = "link-detach"
    SESSION_END = "session-end"
    CONNECTION_CLOSE = "connection-close"
    NEVER = "never"


durability = Annotated[TerminusDurability, amqp_type("uint", UInt, TerminusDurability, encoder.encode_uint)]
expiry = Annotated[TerminusExpiryPolicy, amqp_type("symbol", Symbol, TerminusExpiryPolicy, encoder.encode_symbol)]


@composite("amqp:source:list", 0x28, provides="source")
@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where messages come from."""

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
    """Where messages go to."""

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
    """A dynamic node goes when the link that made it goes."""


@composite("amqp:delete-on-no-links:list", 0x2C, provides="lifetime-policy")
@dataclass(frozen=True, slots=True)
class DeleteOnNoLinks:
    """A dynamic node goes when no link is left."""


@composite("amqp:delete-on-no-messages:list", 0x2D, provides="lifetime-policy")
@dataclass(frozen=True, slots=True)
class DeleteOnNoMessages:
    """A dynamic node goes when the link that made it is gone and no message is left."""


@composite("amqp:delete-on-no-links-or-messages:list", 0x2E, provides="lifetime-policy")
@dataclass(frozen=True, slots=True)
class DeleteOnNoLinksOrMessages:
    """A dynamic node goes when neither link nor message is left."""


@composite("amqp:coordinator:list", 0x30, provides="target")
@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinator:
    """The target of a link that declares and discharges transactions."""

    capabilities: tuple[symbol, ...] = ()
