"""An event loop on which time takes no time, and on which the network is in memory."""

from __future__ import annotations

import asyncio
import ssl as tls
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, cast

import looptime

from tests.faults.network import Listening, MakeProtocol, Network

P = TypeVar("P", bound=asyncio.BaseProtocol)

_STUCK_S: Final = 5.0
"""Real seconds: with no timer set and nothing to do, nothing will ever happen."""


class VirtualLoop(looptime.LoopTimeEventLoop, asyncio.SelectorEventLoop):
    """Jumps to the next timer when there is nothing to do. ``create_connection`` and ``create_server`` stay inside."""

    def __init__(self, latency_s: float = 0.001) -> None:
        super().__init__(start=0, noop_cycles=1, idle_timeout=_STUCK_S)
        self.network = Network(self, latency_s)
        self.complaints: list[dict[str, Any]] = []
        """Uncaught errors."""
        self.set_exception_handler(lambda _loop, context: self.complaints.append(context))

    async def create_connection(
        self,
        protocol_factory: Callable[[], P],
        host: str | None = None,
        port: int | None = None,
        *,
        ssl: tls.SSLContext | bool | None = None,
        server_hostname: str | None = None,
        ssl_handshake_timeout: float | None = None,
        ssl_shutdown_timeout: float | None = None,
        **_options: object,
    ) -> tuple[asyncio.Transport, P]:
        if host is None or port is None:
            raise NotImplementedError("only to a host and a port")
        if not ssl:
            stream, protocol = await self.network.connect(protocol_factory, host, port)
            return stream, cast("P", protocol)
        made = protocol_factory()
        shaken: asyncio.Future[None] = self.create_future()
        secure = SSLProtocol(
            self,
            made,
            ssl if isinstance(ssl, tls.SSLContext) else tls.create_default_context(),
            shaken,
            server_hostname=server_hostname or host,
            ssl_handshake_timeout=ssl_handshake_timeout,  # type: ignore[arg-type]
            ssl_shutdown_timeout=ssl_shutdown_timeout,
        )
        stream, _ = await self.network.connect(lambda: secure, host, port)
        transport = secure._app_transport
        try:
            await shaken
        except BaseException:
            stream.abort()
            raise
        return cast("asyncio.Transport", transport), made

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: MakeProtocol,
        host: str | Sequence[str] | None = None,
        port: int | None = None,
        *,
        ssl: tls.SSLContext | None = None,
        **_options: object,
    ) -> Listening:
        name = host if isinstance(host, str) else "127.0.0.1"
        if ssl is None:
            return self.network.listen(name, port or 0, protocol_factory)
        return self.network.listen(
            name,
            port or 0,
            lambda: SSLProtocol(self, cast("asyncio.Protocol", protocol_factory()), ssl, None, server_side=True),  # type: ignore[arg-type]
        )
