"""A namespace that is away for a while."""

from __future__ import annotations

from logging import Logger

from pairbus.client.endpoint import Endpoint
from pairbus.client.errors import MessagingError


class Absence:
    """Tells it once when it begins, and once when it is over, however often it is tried meanwhile."""

    def __init__(self, endpoint: Endpoint, log: Logger) -> None:
        self._endpoint = endpoint
        self._log = log
        self._is_away = False

    def failed(self, error: MessagingError) -> None:
        """A try has failed."""
        if error.is_transient and not self._is_away:
            self.began(error, "it is tried again")

    def began(self, error: MessagingError | None, then: str) -> None:
        """It is known that it is away; ``then`` says what follows."""
        self._log.warning("%s; %s", error, then)
        self._is_away = True

    def reached(self) -> None:
        if self._is_away:
            self._log.info("%s has been reached again", self._endpoint)
        self._is_away = False
