"""Paired namespaces: senders that keep working while the primary namespace is down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairbus.client.client_resource import PairedNamespaceOptions
from pairbus.pairing.drill import DrillReport
from pairbus.pairing.events import (
    BacklogQueueChanged,
    DestinationChanged,
    EntityChanged,
    MessageDeadLettered,
    PairEvent,
    PingSent,
)
from pairbus.pairing.guarantee import DeliveryGuarantee, DestinationGuarantee
from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from pairbus.pairing.pair import NamespacePair
from pairbus.pairing.policy import FAILURE_RULES, EntityState, FailureRules, FailureVerdict
from pairbus.pairing.status import BacklogQueueStatus, PairedEntityStatus, PairStatus, SyphonStatus
from pairbus.pairing.syphon import Syphon, SyphonContext, SyphonEngine, SyphonSettings, TimeToLive
from pairbus.renamed import renamed

__all__: list[str] = [
    "FAILURE_RULES",
    "BacklogQueueChanged",
    "BacklogQueueStatus",
    "DeliveryGuarantee",
    "DestinationChanged",
    "DestinationGuarantee",
    "DrillReport",
    "EntityChanged",
    "EntityState",
    "FailureRules",
    "FailureVerdict",
    "MessageDeadLettered",
    "NamespacePair",
    "PairEvent",
    "PairStatus",
    "PairedEntityStatus",
    "PairedNamespaceOptions",
    "PingSent",
    "SendAvailabilityPairedNamespaceOptions",
    "Syphon",
    "SyphonContext",
    "SyphonEngine",
    "SyphonSettings",
    "SyphonStatus",
    "TimeToLive",
]

if not TYPE_CHECKING:  # type checkers see the new names alone
    __getattr__ = renamed(__name__, {"Verdict": "FailureVerdict"})
