"""The frame trace: the frames of chosen connections in the log."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from pairbus.server.log_context import LogValue
from pairbus.wire.trace import FrameTrace

FRAMES: Final = "pairbus.frames"
"""The name of the logger; its lines are of level DEBUG."""

_log = logging.getLogger(FRAMES)

_MAX_PENDING: Final = 64
"""Lines that are kept until the container id is known: a client needs about ten frames until then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameTracing:
    """Selects the connections to trace: all, or those whose container id or address matches a pattern."""

    patterns: Sequence[str] = ()

    def start(self, peer: str, max_frame_size: int) -> ConnectionTrace:
        """Return the trace of a new connection."""
        return ConnectionTrace(self, peer, max_frame_size)

    def matches(self, peer: str, container: str) -> bool:
        """Return whether to trace a connection. An address matches with and without its port."""
        names = (peer, peer.rpartition(":")[0].strip("[]"), container)
        return not self.patterns or any(fnmatchcase(name, each) for name in names if name for each in self.patterns)


class ConnectionTrace:
    """Logs the frames of one connection; keeps the lines until the container id decides whether to log them."""

    def __init__(self, tracing: FrameTracing, peer: str, max_frame_size: int) -> None:
        self._tracing = tracing
        self._peer = peer
        self._received = FrameTrace(max_frame_size)
        self._sent = FrameTrace(max_frame_size)
        self._pending: list[tuple[str, str]] | None = None if tracing.matches(peer, "") else []
        """The lines so far, while it is not known whether to log them."""

    def received(self, data: bytes | memoryview) -> bool:
        """Trace received bytes; return whether the connection is still traced."""
        return self._trace("received", self._received.feed(data))

    def sent(self, data: bytes) -> bool:
        """Trace sent bytes; return whether the connection is still traced."""
        return self._trace("sent", self._sent.feed(data))

    def _trace(self, direction: str, frames: list[str]) -> bool:
        if self._pending is None:
            for frame in frames:
                self._write(direction, frame)
            return True
        self._pending += ((direction, frame) for frame in frames)
        container = self._received.container
        if container is None:
            return len(self._pending) <= _MAX_PENDING
        if not self._tracing.matches(self._peer, container):
            return False
        pending, self._pending = self._pending, None
        for line in pending:
            self._write(*line)
        return True

    def _write(self, direction: str, frame: str) -> None:
        container = self._received.container
        if container is None:
            _log.debug("frame %s peer=%s frame=%s", direction, self._peer, frame)
        else:
            _log.debug("frame %s peer=%s container=%s frame=%s", direction, self._peer, LogValue(container), frame)
