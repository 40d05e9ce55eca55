"""Support for tests: a real namespace in the test process."""

from __future__ import annotations

from pairbus.fault_kinds import CrashComponent, FaultKind
from pairbus.server.faults import Fault
from pairbus.testing.faults import FaultControl
from pairbus.testing.namespace import RunningNamespace, running_namespace

__all__ = ["CrashComponent", "Fault", "FaultControl", "FaultKind", "RunningNamespace", "running_namespace"]
