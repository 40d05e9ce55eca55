"""What a pair goes by."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from pairbus.pairing.failure_rules import FailureRules
from pairbus.pairing.syphon import SyphonSettings

LEAST_PING_INTERVAL: Final = timedelta(seconds=1)
MOST_PING_INTERVAL: Final = timedelta(minutes=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSettings:
    """The options of an application, checked."""

    failover_interval_s: float
    ping_interval_s: float
    failure_rules: FailureRules
    preserve_session_order: bool
    syphon: SyphonSettings
