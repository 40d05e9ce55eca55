"""What a server shares among its entities, how much of it is in use, and how much there may be."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from pairbus.console.watch import Watch
from pairbus.console.wording import number, size
from pairbus.dialect.conditions import ServiceBusCondition
from pairbus.server.settings import Settings

try:
    import resource
except ImportError:  # there is none on Windows
    resource = None  # type: ignore[assignment]

_PAGE_BYTES: Final = 1 if resource is None else resource.getpagesize()
_NOTHING: Final = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facet:
    """A reading and its threshold, in words; ``share`` is the part that is in use, where there is a threshold."""

    name: str
    reading: str
    threshold: str = _NOTHING
    share: float | None = None


def facets(watch: Watch, settings: Settings) -> list[Facet]:
    services = watch.services
    census = watch.reading.census
    connections = services.counters.connections.total()
    entities = sum(entity.kind != "subscription" for entity in census.entities.values())
    limits = services.host.limits
    commit_ms = watch.rates.commit_ms
    return [
        _bounded("Connections", connections, settings.max_connections),
        _bounded("Queues and topics", entities, limits.entities),
        Facet(
            name="Messages, in the store",
            reading=size(census.size_bytes),
            threshold=size(settings.max_store_bytes),
            share=census.size_bytes / settings.max_store_bytes,
        ),
        _disk(settings),
        Facet(name="Memory of the process", reading=_memory()),
        Facet(name="Processor", reading=f"{watch.rates.cpu * 100:.0f} % of one"),
        Facet(name="Time of a commit", reading=_NOTHING if commit_ms is None else f"{commit_ms:.1f} ms"),
        Facet(
            name="Denied with server busy, since the start",
            reading=number(services.counters.refused[ServiceBusCondition.SERVER_BUSY]),
        ),
    ]


def busy_reason(watch: Watch) -> str | None:
    """Why requests are denied now; ``None`` while they are not."""
    return watch.services.host.deny("send", None)


def _bounded(name: str, value: int, most: int) -> Facet:
    return Facet(name=name, reading=number(value), threshold=number(most), share=value / most)


def _disk(settings: Settings) -> Facet:
    with suppress(OSError):
        usage = shutil.disk_usage(settings.data)
        return Facet(
            name="Disk",
            reading=f"{size(usage.used)} used",
            threshold=size(usage.total),
            share=usage.used / usage.total,
        )
    return Facet(name="Disk", reading=_NOTHING)


def _memory() -> str:
    with suppress(OSError, ValueError, IndexError), open("/proc/self/statm", encoding="ascii") as statm:
        return size(int(statm.read().split()[1]) * _PAGE_BYTES)
    return (
        _NOTHING if resource is None else f"{size(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024)} at most"
    )
