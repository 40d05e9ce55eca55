"""uvicorn's end of an HTTP connection, with a limit on how long a request's head may take."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

_HEAD_WITHIN_S: Final = 30.0


class HttpProtocol(H11Protocol):
    """Hangs up on whoever has begun a request and does not get to the end of its head."""

    def __init__(self, config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any]) -> None:
        super().__init__(config, server_state, app_state)
        self._deadline: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        is_answering = self.cycle is not None and not self.cycle.response_complete
        is_upgraded = self.transport.get_protocol() is not self
        if is_answering or is_upgraded:
            self._stop_waiting()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(_HEAD_WITHIN_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
