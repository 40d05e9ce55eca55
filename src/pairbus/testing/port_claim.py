"""Ports that a namespace goes on to have while it is stopped."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable


class PortClaim:
    """Keeps ports from being given to others, who would be found there by clients of the namespace.

    A socket that is bound and does not listen: whoever looks for any free port gets another one, and on Linux whoever
    asks for this one by its number, as the namespace does, gets it. Elsewhere it has to be given up first.
    """

    def __init__(self, host: str, ports: Iterable[int]) -> None:
        self._sockets: list[socket.socket] = []
        for port in ports:
            claim = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
            claim.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                claim.bind((host, port))
            except OSError:  # somebody was faster
                claim.close()
            else:
                self._sockets.append(claim)

    @property
    def lets_in(self) -> bool:
        """Whether the namespace can have its ports while they are claimed."""
        return sys.platform == "linux"

    def release(self) -> None:
        """To release twice is fine."""
        while self._sockets:
            self._sockets.pop().close()
