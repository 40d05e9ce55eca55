"""Two namespaces that can become a pair, and the ways to them that can fail, in one process and in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from pairbus.client.endpoint import Endpoint
from pairbus.client.factory import MessagingFactory
from pairbus.client.management.namespace_manager import NamespaceManager
from tests.faults.fault import Fault, Kind, Way
from tests.faults.lane import Lane
from tests.faults.namespace import VirtualNamespace
from tests.faults.proxy import Proxy, Relay
from tests.faults.virtual_loop import VirtualLoop
from tests.faults.world import Stage, run_on

PRIMARY: Final = "contoso"
SECONDARY: Final = "fabrikam"
_DOMAIN: Final = "example"
_PROXY_HOST: Final = "127.0.0.1"

P = TypeVar("P", bound=asyncio.BaseProtocol)


class NamedLoop(VirtualLoop):
    """A virtual loop on which hosts have more names."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, str] = {}

    async def create_connection(
        self, protocol_factory: Callable[[], P], host: str | None = None, port: int | None = None, **options: Any
    ) -> tuple[asyncio.Transport, P]:
        there = host if host is None else self.names.get(host, host)
        return await super().create_connection(protocol_factory, there, port, **options)


class NetworkPath(Proxy):
    """A way to a namespace, the only one for those who go by its name. What is done to it lasts until ``heal``."""

    def __init__(self, loop: NamedLoop, namespace: VirtualNamespace, domain: str = _DOMAIN) -> None:
        super().__init__(namespace.name, namespace.port)
        self._loop = loop
        self._public = f"{namespace.name}.{domain}"
        self._stalling: list[Way] = []
        self._lasting: list[Fault] = []
        """The faults of each new connection."""
        self._held: list[Lane] = []
        self._name()

    @property
    def endpoint(self) -> Endpoint:
        """Return the address of the namespace, with a host name that begins with its name."""
        return Endpoint(self._public, self.port, tls=False)

    @property
    def footprint(self) -> list[tuple[float, int, int]]:
        """Return the time of each connection, and its bytes in each direction: identical for the same seed."""
        return [(relay.began_s, relay.up.passed_bytes, relay.down.passed_bytes) for relay in self.relays]

    def cut(self) -> None:
        """Reset the connections that there are. New ones get through, unless something else is wrong."""
        self.apply(Fault(kind=Kind.CUT))

    def refuse(self) -> None:
        """Reset the connections that there are, and refuse others."""
        self.cut()
        self._change(self._refuse)

    def stall(self, way: Way = Way.BOTH) -> None:
        """Drop all data of existing and new connections, without an error."""
        self._stalling.append(way)
        for relay in self.open_relays:
            self._hold(relay, way)

    def slow(self, pause_s: float) -> None:
        """Let everything arrive so much later."""
        fault = Fault(kind=Kind.DELAY, way=Way.BOTH, pause_s=pause_s)
        self._lasting.append(fault)
        self.apply(fault)

    def hide(self) -> None:
        """Make its address unresolvable. Existing connections stay."""
        self._loop.names.pop(self._public, None)

    def heal(self) -> None:
        """All is well. What was held back arrives now, late as it is; ``cut`` first to have it lost."""
        super().heal()
        self._name()
        self._stalling.clear()
        self._lasting.clear()
        held, self._held = self._held, []
        for lane in held:
            lane._go_on()

    def let_new_through(self) -> None:
        """Stop dropping the data of new connections. Existing ones stay silent, without an error."""
        self._stalling.clear()

    def _name(self) -> None:
        self._loop.names[self._public] = _PROXY_HOST

    def block(self) -> None:
        """Refuse all connections, and make its address unresolvable."""
        self.refuse()
        self.hide()

    def _accept(self) -> asyncio.Protocol:
        protocol = super()._accept()
        for way in self._stalling:
            self._hold(self.relays[-1], way)
        for fault in self._lasting:
            self.relays[-1].apply(fault)
        return protocol

    def _hold(self, relay: Relay, way: Way) -> None:
        for lane in (relay.up, relay.down):
            if way in {lane.way, Way.BOTH}:
                lane.stall(None)
                self._held.append(lane)


class PairWorld(Stage):
    """A primary and a secondary namespace, empty at first, with nothing in common but the time."""

    def __init__(self, loop: NamedLoop, primary_skew_s: float = 0.0, secondary_skew_s: float = 0.0) -> None:
        super().__init__(loop)
        self._named = loop
        self.primary = VirtualNamespace(loop, PRIMARY, skew_s=primary_skew_s)
        self.secondary = VirtualNamespace(loop, SECONDARY, skew_s=secondary_skew_s)
        self.primary_network = NetworkPath(loop, self.primary)
        self.secondary_network = NetworkPath(loop, self.secondary)
        self.add(self.primary, self.primary_network)
        self.add(self.secondary, self.secondary_network)

    async def another_network(self, namespace: VirtualNamespace, domain: str) -> NetworkPath:
        """One more way to a namespace, on which other things can happen than on the first."""
        network = NetworkPath(self._named, namespace, domain)
        self.proxies.append(network)
        await network.start()
        return network

    def primary_factory(self, **settings: Any) -> MessagingFactory:
        return self.factory_at(self.primary_network.endpoint, **settings)

    def secondary_factory(self, **settings: Any) -> MessagingFactory:
        return self.factory_at(self.secondary_network.endpoint, **settings)

    def primary_manager(self, **settings: Any) -> NamespaceManager:
        return self.manager_at(self.primary_network.endpoint, **settings)

    def secondary_manager(self, **settings: Any) -> NamespaceManager:
        return self.manager_at(self.secondary_network.endpoint, **settings)

    @property
    def footprint(self) -> list[list[tuple[float, int, int]]]:
        """Return the traffic of the network, with times."""
        return [self.primary_network.footprint, self.secondary_network.footprint]


def run(
    scenario: Callable[[PairWorld], Coroutine[Any, Any, None]],
    seed: int = 0,
    *,
    primary_skew_s: float = 0.0,
    secondary_skew_s: float = 0.0,
) -> float:
    """Run it to its end, and see that nothing is left; answers how long it took."""
    loop = NamedLoop()
    return run_on(loop, lambda: PairWorld(loop, primary_skew_s, secondary_skew_s), scenario, seed)
