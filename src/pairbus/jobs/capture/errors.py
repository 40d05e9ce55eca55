"""Deprecated: the errors of a capture are in ``pairbus.jobs.capture.config``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairbus.renamed import moved

if not TYPE_CHECKING:  # type checkers only see the new module
    __getattr__ = moved(
        __name__,
        {
            "CaptureError": "pairbus.jobs.capture.config",
            "CaptureInUseError": "pairbus.jobs.capture.config",
            "OtherSourceError": "pairbus.jobs.capture.config",
            "UncapturableError": "pairbus.jobs.capture.config",
            "CaptureDamagedError": "pairbus.jobs.capture.config",
            "QueryFailedError": "pairbus.jobs.capture.config",
        },
    )
