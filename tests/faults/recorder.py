"""One end of a connection, which records what arrives and when."""

from __future__ import annotations

import asyncio
from typing import Final, cast

_LONGEST_S: Final = 30.0


class Recorder(asyncio.Protocol):
    """Stays when the other end says that nothing more comes, if it is asked to."""

    def __init__(self, *, echoes: bool = False, stays: bool = False) -> None:
        self.data = b""
        self.pieces: list[tuple[float, bytes]] = []
        self.ended_s: float | None = None
        self.lost_s: float | None = None
        self.error: Exception | None = None
        self.is_writable = True
        self._transport: asyncio.Transport | None = None
        self._echoes = echoes
        self._stays = stays

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    @property
    def is_connected(self) -> bool:
        return self._transport is not None

    @property
    def is_lost(self) -> bool:
        return self.lost_s is not None

    @property
    def was_reset(self) -> bool:
        return isinstance(self.error, ConnectionResetError)

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.pieces.append((_now(), data))
        if self._echoes:
            self.transport.write(data)

    def eof_received(self) -> bool:
        self.ended_s = _now()
        return self._stays

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost_s = _now()
        self.error = exc


def _now() -> float:
    return asyncio.get_running_loop().time()
