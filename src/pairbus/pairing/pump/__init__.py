"""The syphon that runs in the process of an application, and needs nothing else."""

from __future__ import annotations

from pairbus.pairing.pump.in_process_syphon import InProcessSyphon

__all__ = ["InProcessSyphon"]
