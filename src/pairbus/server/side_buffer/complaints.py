"""What is wrong with a side buffer, for the log: told when it changes, and not each time that it is seen."""

from __future__ import annotations

import logging

_log = logging.getLogger(__name__)


class Complaints:
    """The last complaint about each thing."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def make(self, about: str, complaint: str, cause: BaseException | None = None) -> None:
        """Log it, unless it is known. The traceback of a cause that nobody has expected goes with it."""
        if self._known.get(about) != complaint:
            self._known[about] = complaint
            _log.error("%s: %s", about, complaint, exc_info=cause)

    def settle(self, about: str) -> None:
        """It is over: the next one is news."""
        self._known.pop(about, None)
