"""Deprecated: the configuration of a capture is in ``pairbus.jobs.capture.config``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairbus.renamed import moved

if not TYPE_CHECKING:  # type checkers only see the new names
    __getattr__ = moved(__name__, {"CaptureOrder": "pairbus.jobs.capture.config:CaptureConfig"})
