"""Paired namespaces: senders that go on when the primary namespace is down."""

from __future__ import annotations

from pairbus.client.paired_namespace import PairedNamespaceOptions
from pairbus.pairing.drill import DrillReport
from pairbus.pairing.events import (
    BacklogQueueChanged,
    DestinationChanged,
    EntityChanged,
    MessageDeadLettered,
    PairEvent,
    PingSent,
)
from pairbus.pairing.failure_rules import FAILURE_RULES, FailureRules, Verdict
from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from pairbus.pairing.pair import NamespacePair
from pairbus.pairing.policy import EntityState
from pairbus.pairing.status import BacklogQueueStatus, PairedEntityStatus, PairStatus, SyphonStatus
from pairbus.pairing.syphon import Syphon, SyphonContext, SyphonEngine, SyphonSettings, TimeToLive

__all__ = [
    "FAILURE_RULES",
    "BacklogQueueChanged",
    "BacklogQueueStatus",
    "DestinationChanged",
    "DrillReport",
    "EntityChanged",
    "EntityState",
    "FailureRules",
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
    "Verdict",
]
