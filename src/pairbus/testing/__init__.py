"""What tests are made of: a real namespace in the test's own process."""

from __future__ import annotations

from pairbus.testing.namespace import RunningNamespace, running_namespace

__all__ = ["RunningNamespace", "running_namespace"]
