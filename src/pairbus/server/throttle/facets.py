"""The facets of a node, as one table."""

from __future__ import annotations

from typing import Final

from pairbus.dialect.management import Operation
from pairbus.server.settings import Settings
from pairbus.server.throttle.facet import Facet, Unit

# What is in neither set goes on whatever a node is short of. To receive, to settle and to cancel make room; a receiver
# may have to set the state of its session before it can settle; keys may have to be changed to keep somebody out; what
# only reads takes nothing. Links are attached as well: receivers need theirs to make room, and senders are told at
# the first message, which every SDK understands.
ADDING: Final = frozenset(
    {
        "send",
        Operation.SCHEDULE_MESSAGE,
        Operation.ADD_RULE,
        "put-entity",
        "put-subscription",
        "put-rule",
    }
)
"""What leaves more behind than there was."""

REMOVING_MANY: Final = frozenset({"purge", Operation.BATCH_DELETE_MESSAGES, "delete-entity", "delete-subscription"})
"""What makes room, and is much work: it waits where work is what there is too much of."""


def _portion(percent: float | None, whole: float) -> float | None:
    return None if percent is None else percent / 100 * whole


def _mebibytes(count: int | None) -> int | None:
    return None if count is None else count << 20


def _delay_s(settings: Settings) -> float | None:
    return None if settings.throttle_delay_ms is None else settings.throttle_delay_ms / 1_000


FACETS: Final = (
    Facet(
        name="connections",
        title="Connections",
        unit=Unit.CONNECTIONS,
        setting="max_connections",
        threshold=lambda settings: settings.max_connections,
        read=lambda gauges: gauges.connection_count(),
        denies=frozenset(),  # one too many is hung up on before it can ask for anything
        relief=1.0,  # one that goes makes room for another
    ),
    Facet(
        name="store",
        title="Store",
        unit=Unit.BYTES,
        setting="throttle_store_percent",
        threshold=lambda settings: _portion(settings.throttle_store_percent, settings.max_store_bytes),
        read=lambda gauges: gauges.used_bytes(),
        denies=ADDING,
    ),
    Facet(
        name="disk",
        title="Room on the disk",
        unit=Unit.BYTES,
        setting="throttle_disk_mb",
        threshold=lambda settings: _mebibytes(settings.throttle_disk_mb),
        read=lambda gauges: gauges.disk_bytes(),
        denies=ADDING,
        is_floor=True,
    ),
    Facet(
        name="memory",
        title="Memory of the process",
        unit=Unit.BYTES,
        setting="throttle_memory_mb",
        threshold=lambda settings: _mebibytes(settings.throttle_memory_mb),
        read=lambda gauges: gauges.memory_bytes(),
        denies=ADDING,
    ),
    Facet(
        name="processor",
        title="Processor",
        unit=Unit.RATIO,
        setting="throttle_processor_percent",
        threshold=lambda settings: _portion(settings.throttle_processor_percent, 1.0),
        read=lambda gauges: gauges.pulse.processor,
        denies=ADDING | REMOVING_MANY,
    ),
    Facet(
        name="delay",
        title="Delay of the event loop",
        unit=Unit.SECONDS,
        setting="throttle_delay_ms",
        threshold=_delay_s,
        read=lambda gauges: gauges.pulse.delay_s,
        denies=ADDING | REMOVING_MANY,
    ),
)
"""In the order in which they are asked: the first that denies a request is the one that its sender is told."""
