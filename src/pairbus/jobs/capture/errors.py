"""What can be wrong with a capture."""

from __future__ import annotations

from pathlib import Path


class CaptureError(RuntimeError):
    """A capture cannot go on."""


class CaptureInUseError(CaptureError):
    """Another capture writes into the same directory."""


class OtherSourceError(CaptureError):
    """The directory belongs to the capture of another namespace."""

    def __init__(self, root: Path, owner: str, source: str) -> None:
        super().__init__(
            f"{root} has what was captured from {owner}, which numbers its messages as {source} does:"
            " one would be taken for the other. Give each namespace a directory of its own"
        )


class UncapturableError(CaptureError):
    """Messages of this entity cannot be captured, or not in this way."""


class CaptureDamagedError(CaptureError):
    """What a capture has kept in its directory cannot be read, or is not all there."""


class QueryFailedError(CaptureError):
    """The query has failed, and there is no reason to think that it would not again."""
