"""Errors of a capture."""

from __future__ import annotations

from pathlib import Path


class CaptureError(RuntimeError):
    """A capture cannot continue."""


class CaptureInUseError(CaptureError):
    """Another capture writes into the same directory."""


class OtherSourceError(CaptureError):
    """The directory belongs to the capture of another namespace."""

    def __init__(self, root: Path, owner: str, source: str) -> None:
        super().__init__(
            f"{root} has messages captured from {owner}, which uses the same sequence numbers as {source}:"
            " they could not be distinguished. Use a separate directory for each namespace"
        )


class UncapturableError(CaptureError):
    """The messages of an entity cannot be captured, or not in this mode."""


class CaptureDamagedError(CaptureError):
    """The state of a capture in its directory is unreadable or incomplete."""


class QueryFailedError(CaptureError):
    """The query failed, and would probably fail again."""
