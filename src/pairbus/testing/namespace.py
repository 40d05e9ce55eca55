"""A namespace that runs beside a test, in a thread of its own, on a free port."""

from __future__ import annotations

import asyncio
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
from pairbus.server.event_loop import new_event_loop
from pairbus.server.host import NamespaceHost
from pairbus.testing.port_claim import PortClaim

T = TypeVar("T")

_BUSY: Final = "the test wants this namespace to be busy"


class RunningNamespace:
    """A real server: what a client sees of it is what it would see of one in another process."""

    def __init__(self, settings: Settings, new_loop: Callable[[], asyncio.AbstractEventLoop] = new_event_loop) -> None:
        self._settings = settings
        self._loop = new_loop()
        self._thread = Thread(target=self._loop.run_forever, name="pairbus-testing", daemon=True)
        self._server: NamespaceServer | None = None
        self._claim = PortClaim(settings.host, ())
        self._is_busy = False

    # What a client needs.

    @property
    def name(self) -> str:
        return self._settings.name

    @property
    def data(self) -> Path:
        """Where its data is."""
        return self._settings.data

    @property
    def port(self) -> int:
        return self._running.ports[0]

    @property
    def connection_string(self) -> str:
        """For plain connections; the SDKs' admin clients use TLS all the same, and need ``ca_file``."""
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
        """The certificate to trust."""
        found = self._running.ca_file
        if found is None:
            raise RuntimeError("the namespace has a certificate of its own")
        return found

    # What can be done to it.

    def start(self) -> None:
        """Start it, on the port that it had before, if it had one. Raises what the server raises."""
        if not self._thread.is_alive():
            self._thread.start()
        self._await(self._start)

    def stop(self) -> None:
        """Stop it as an operator would: what has come is confirmed, then everyone is told. Nobody gets its port."""
        self._await(self._stop)

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop it for good."""
        if self._thread.is_alive():
            if self._server is not None:
                self.stop()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._claim.release()
        self._loop.close()

    def kill_connections(self) -> None:
        """Cut all connections without a word."""
        self._await(self._cut)

    @property
    def server_busy(self) -> bool:
        """Whether every request is denied with *server busy*, and not only those that its own thresholds deny."""
        return self._is_busy

    @server_busy.setter
    def server_busy(self, is_busy: bool) -> None:
        self._is_busy = is_busy

    def call(self, function: Callable[[NamespaceHost], T]) -> T:
        """Call a function with the namespace, where the server runs, and wait until what it did is on disk."""

        async def called() -> T:
            host = self._running.host
            answer = function(host)
            await host.durable()
            return answer

        answer: T = self._await(called)
        return answer

    # How it is done.

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
    """A namespace on a free port of this machine, in a directory that goes with it unless ``data`` names one.

    It has these queues, and these topics with their subscriptions, from the start. Whatever else ``Settings`` has can
    be given too. Works in tests with and without asyncio: the server has a thread
    and a loop of its own, which ``new_loop`` makes.
    """
    with tempfile.TemporaryDirectory(prefix="pairbus-") as directory:
        given: dict[str, Any] = {
            "data": data or Path(directory) / name,
            "name": name,
            "port": (0,),
            "tier": Tier(tier),
            "entities": parse_declaration(_document(queues, topics)),
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
