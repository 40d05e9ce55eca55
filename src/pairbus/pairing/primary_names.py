"""The name of a primary namespace in the paths of its backlog queues.

Applications, syphons and commands all find it with ``find_primary_names``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from pairbus.client.endpoint import Endpoint
from pairbus.client.errors import EntityAlreadyExistsError, MessagingError, UnauthorizedError
from pairbus.client.factory import MessagingFactory
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.dialect.paths import backlog_path


def is_same_namespace(one: Endpoint, other: Endpoint) -> bool:
    """Return whether two endpoints are the same namespace, as far as their addresses show."""
    has_ports = one.port is not None or other.port is not None
    return is_same_host(one, other) and (not has_ports or one.amqp_port == other.amqp_port)


def is_same_host(one: Endpoint, other: Endpoint) -> bool:
    """Return whether two endpoints have the same host, in any spelling."""
    return _host(one) == _host(other)


def _host(endpoint: Endpoint) -> str:
    host = endpoint.host.lower().rstrip(".")
    try:
        address = ip_address(host)
    except ValueError:
        return host
    return "localhost" if address.is_loopback else address.compressed


RECORD: Final = "x-pairbus-name"
"""A queue ``<name by address>/x-pairbus-name/<name>`` in the secondary records which name a primary has announced."""

_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_SERVICE_BUS: Final = "servicebus"
_RETRY_S: Final = 5.0
"""Pause before the primary is asked again, unless it is reached earlier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrimaryNames:
    """The names under which a primary may have backlog queues, best first."""

    names: tuple[str, ...]
    is_final: bool = True
    """``False`` if the primary was not reached, so that it may announce another name."""

    announced: str | None = None
    """The name that the primary announced, if its address alone would give another one."""

    async def choose(self, exists: Callable[[str], Awaitable[bool]]) -> str:
        """Return the first name that has backlog queues, or the best one if none has.

        So all processes agree, also if the first of them could not ask the primary.
        """
        if len(self.names) > 1:
            for name in self.names:
                if await exists(backlog_path(name, 0)):
                    return name
        return self.names[0]


async def find_primary_names(
    primary: MessagingFactory, manager: NamespaceManager, given: str | None = None
) -> PrimaryNames:
    """Return the names of a primary; ``given`` wins. Raises ``MessagingError`` if the secondary cannot be asked.

    If the primary cannot be reached, this returns the name that it has announced to an earlier process that connected
    to the same address, as recorded in the secondary, and the name by its address.
    """
    if given is not None:
        return PrimaryNames(names=(given,))
    by_address = names_by_address(primary.endpoint)
    if _names_its_namespace(primary.endpoint):
        return PrimaryNames(names=by_address)
    try:
        return _announced(await primary.announced_name(), by_address)
    except MessagingError:
        recorded = await _recorded_names(manager, by_address)
        # Several are those of primaries at one address, seen from different machines: none of them can be trusted.
        return PrimaryNames(names=(*(recorded if len(recorded) == 1 else ()), *by_address), is_final=False)


async def await_final_names(primary: MessagingFactory) -> PrimaryNames:
    """Return the names of a primary that was not reached, as soon as it is."""
    while True:
        try:
            return _announced(await primary.announced_name(), names_by_address(primary.endpoint))
        except MessagingError:
            primary.check_open()
            await asyncio.wait((primary.reached(),), timeout=_RETRY_S)


def _announced(announced: str | None, by_address: tuple[str, ...]) -> PrimaryNames:
    if announced is None or announced.lower() == by_address[0].lower():
        return PrimaryNames(names=by_address)
    return PrimaryNames(names=(announced, *by_address), announced=announced)


async def record_name(manager: NamespaceManager, primary: Endpoint, name: str) -> None:
    """Record in the secondary which name a primary has announced, for processes that cannot reach it."""
    path = f"{names_by_address(primary)[0]}/{RECORD}/{name}"
    if not await manager.queue_exists(path):
        with suppress(EntityAlreadyExistsError):  # another process was faster
            await manager.create_queue(path)


async def _recorded_names(manager: NamespaceManager, by_address: tuple[str, ...]) -> list[str]:
    try:
        paths = [queue.path for queue in await manager.get_queues()]
    except UnauthorizedError:  # a syphon may lack Manage; a caller that needs it raises soon
        return []
    prefixes = tuple(f"{name}/{RECORD}/".lower() for name in by_address)
    return [*{path.rpartition("/")[2]: None for path in paths if path.lower().startswith(prefixes)}]


def names_by_address(endpoint: Endpoint) -> tuple[str, ...]:
    """Return the first part of the host name of a primary, or host and port where the host does not name it.

    The local host has several spellings, and applications may use different ones: the first is used, the others are
    those that earlier versions have used.
    """
    host = endpoint.host
    if host != "localhost" and not _is_address(host):
        return (endpoint.namespace,)
    hosts = _LOOPBACK if host in _LOOPBACK else (host,)
    return tuple(f"{each}-{endpoint.amqp_port}".replace(":", "-").strip("-") for each in hosts)


def _names_its_namespace(endpoint: Endpoint) -> bool:
    """Return whether the first part of the host is certainly the name, as in ``contoso.servicebus.windows.net``."""
    return endpoint.host.lower().split(".")[1:2] == [_SERVICE_BUS]


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
