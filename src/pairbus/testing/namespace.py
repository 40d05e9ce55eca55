"""A namespace for tests, which runs in a separate thread of the test process, on a free port."""

from __future__ import annotations

import asyncio
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread
from types import MappingProxyType
from typing import Any, Final, TypeVar

from pairbus.broker import Address
from pairbus.server import NamespaceServer, Settings, Tier
from pairbus.server.declaration import parse_declaration
from pairbus.server.host import NamespaceHost
from pairbus.server.process import new_event_loop
from pairbus.testing.faults import FaultControl


class PortClaim:
    """Reserves ports, so that clients of the stopped namespace do not connect to another server.

    Each port is bound by a socket that does not listen: the system does not assign it to a process that asks for any
    free port. On Linux, a process that asks for it by number, as the namespace does, still gets it; on other systems
    the reservation must be released first.
    """

    def __init__(self, host: str, ports: Iterable[int]) -> None:
        self._sockets: list[socket.socket] = []
        for port in ports:
            claim = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
            claim.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                claim.bind((host, port))
            except OSError:  # another process was faster
                claim.close()
            else:
                self._sockets.append(claim)

    @property
    def lets_in(self) -> bool:
        """True if the namespace can bind its ports while they are reserved."""
        return sys.platform == "linux"

    def release(self) -> None:
        """Release the ports. Can be called more than once."""
        while self._sockets:
            self._sockets.pop().close()


T = TypeVar("T")

_BUSY: Final = "server_busy is set by the test"


class RunningNamespace:
    """A real server: to clients it behaves like one in another process."""

    def __init__(self, settings: Settings, new_loop: Callable[[], asyncio.AbstractEventLoop] = new_event_loop) -> None:
        self._settings = settings
        self._loop = new_loop()
        self._thread = Thread(target=self._loop.run_forever, name="pairbus-testing", daemon=True)
        self._server: NamespaceServer | None = None
        self._claim = PortClaim(settings.host, ())
        self._is_busy = False

    # Connection data.

    @property
    def name(self) -> str:
        return self._settings.name

    @property
    def data(self) -> Path:
        """The data directory."""
        return self._settings.data

    @property
    def port(self) -> int:
        return self._running.ports[0]

    @property
    def connection_string(self) -> str:
        """The connection string without TLS; the admin clients of the Azure SDKs still use TLS and need ``ca_file``."""
        return self._running.connection_string

    @property
    def tls_connection_string(self) -> str:
        return self._running.tls_connection_string

    @property
    def key(self) -> str:
        """The value of the root key."""
        return self._running.key

    @property
    def ca_file(self) -> Path:
        """The certificate of the authority that clients must trust."""
        found = self._running.ca_file
        if found is None:
            raise RuntimeError("the namespace has no certificate authority: it uses the certificate from its settings")
        return found

    # Control.

    def start(self) -> None:
        """Start the server, on its previous port if it had one. Raise the error of the server if that fails."""
        if not self._thread.is_alive():
            self._thread.start()
        self._await(self._start)

    def stop(self) -> None:
        """Stop the server gracefully: confirm pending sends, then close all connections. Its port stays reserved."""
        self._await(self._stop)

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop the server and its thread for good. Raise ``StopTimeoutError`` if its storage does not answer."""
        try:
            if self._server is not None and self._thread.is_alive():
                self.stop()
        finally:
            if self._thread.is_alive():
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
            self._claim.release()
            self._loop.close()

    def kill_connections(self) -> None:
        """Drop all connections without closing them."""
        self._await(self._cut)

    @property
    def server_busy(self) -> bool:
        """True while every request is denied with *server busy*, not only those that exceed a threshold."""
        return self._is_busy

    @server_busy.setter
    def server_busy(self, is_busy: bool) -> None:
        self._is_busy = is_busy

    @property
    def faults(self) -> FaultControl:
        """Injects faults into the namespace. They end when it is stopped."""
        return FaultControl(self._execute)

    def call(self, function: Callable[[NamespaceHost], T]) -> T:
        """Call a function with the namespace in the thread of the server, and return its result once it is durable."""
        return self._execute(function, is_durable=True)

    # Implementation.

    def _execute(self, function: Callable[[NamespaceHost], T], *, is_durable: bool) -> T:
        async def executed() -> T:
            host = self._running.host
            answer = function(host)
            if is_durable:
                await host.durable()
            return answer

        answer: T = self._await(executed)
        return answer

    @property
    def _running(self) -> NamespaceServer:
        if self._server is None:
            raise RuntimeError("the namespace has been stopped; start() it first")
        return self._server

    async def _start(self) -> None:
        server = NamespaceServer(self._settings)
        if not self._claim.lets_in:
            self._claim.release()
        await server.start()
        self._claim.release()
        server.host.deny = self._deny
        self._settings = replace(self._settings, port=server.ports)
        self._server = server

    async def _stop(self) -> None:
        server, self._server = self._running, None
        await server.stop()
        self._claim = PortClaim(self._settings.host, self._settings.port)

    async def _cut(self) -> None:
        self._running.drop_connections()

    def _deny(self, _operation: str, _address: Address | None) -> str | None:
        return _BUSY if self._is_busy else None

    def _await(self, work: Callable[[], Any]) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work(), self._loop)
        return future.result()


@contextmanager
def running_namespace(
    name: str = "contoso",
    *,
    tier: Tier | str = Tier.STANDARD,
    data: Path | None = None,
    queues: Iterable[str] = (),
    topics: Mapping[str, Iterable[str]] = MappingProxyType({}),
    new_loop: Callable[[], asyncio.AbstractEventLoop] = new_event_loop,
    **settings: Any,
) -> Iterator[RunningNamespace]:
    """Run a namespace on a free port of this machine, in a temporary directory unless ``data`` names one.

    It starts with the given queues, topics and subscriptions. Any other field of ``Settings`` can be passed too.
    Works in tests with and without asyncio: the server runs in its own thread and event loop, which
    ``new_loop`` creates.
    """
    with tempfile.TemporaryDirectory(prefix="pairbus-") as directory:
        given: dict[str, Any] = {
            "data": data or Path(directory) / name,
            "name": name,
            "port": (0,),
            "tier": Tier(tier),
            "entities": parse_declaration(_document(queues, topics)),
            "allow_faults": True,
            **settings,
        }
        namespace = RunningNamespace(Settings(**given), new_loop)
        try:
            namespace.start()
            yield namespace
        finally:
            namespace.close()


def _document(queues: Iterable[str], topics: Mapping[str, Iterable[str]]) -> dict[str, object]:
    return {
        "queues": [{"name": queue} for queue in queues],
        "topics": [
            {"name": topic, "subscriptions": [{"name": subscription} for subscription in subscriptions]}
            for topic, subscriptions in topics.items()
        ],
    }
