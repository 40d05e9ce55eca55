"""What can be wrong with a capture."""

from __future__ import annotations


class CaptureError(RuntimeError):
    """A capture cannot go on."""


class CaptureInUseError(CaptureError):
    """Another capture writes into the same directory."""


class CaptureDamagedError(CaptureError):
    """What a capture has kept in its directory cannot be read, or is not all there."""


class QueryFailedError(CaptureError):
    """The query has failed, and there is no reason to think that it would not again."""
