"""The status of a pair, as values and in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from pairbus.client.errors import MessagingError
from pairbus.pairing.guarantee import DeliveryGuarantee, DestinationGuarantee
from pairbus.pairing.policy import EntityState


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedEntityStatus:
    """The status of an entity of the primary namespace."""

    path: str
    state: EntityState
    since: datetime
    cause: MessagingError | None
    """The last error; ``None`` while the entity is healthy."""

    failures: int
    """Number of failed attempts that counted."""

    diverted: int
    pings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogQueueStatus:
    """The status of a backlog queue, as the senders see it."""

    path: str
    is_used: bool
    """True while the queue is in the rotation."""

    cause: MessagingError | None
    """The reason why the queue is not in the rotation."""

    diverted: int
    recreated: int = 0
    """Number of times that this pair has created the queue again after it was deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyphonStatus:
    """The status of a syphon in this process."""

    engine: str
    receives: int
    """Number of receives from backlog queues."""

    syphoned: int
    """Number of messages delivered from the backlog."""

    dead_lettered: int
    waiting: Mapping[str, MessagingError]
    """The errors of destinations whose messages wait in the backlog, by path."""

    guarantees: Mapping[str, DestinationGuarantee] = field(default_factory=dict)
    """The guarantees of the destinations that messages were delivered to, by path."""

    repeats_at_most: int | None = None
    """Maximum number of messages that are sent twice if all processes of the syphon are killed, to destinations that do
    not detect duplicates; ``None`` if there is no such limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairStatus:
    """The status of a pair, as one factory knows it."""

    primary: str
    secondary: str
    entities: tuple[PairedEntityStatus, ...]
    backlog_queues: tuple[BacklogQueueStatus, ...]
    syphon: SyphonStatus | None

    @property
    def diverted(self) -> int:
        return sum(entity.diverted for entity in self.entities)

    @property
    def pings(self) -> int:
        return sum(entity.pings for entity in self.entities)

    def metrics(self, backlog_depth: Mapping[str, int] | None = None) -> str:
        """Return the status in the text format of Prometheus, with the depth of each backlog queue if given."""
        return "".join(f"{line}\n" for line in self._metrics(backlog_depth or {}))

    def _metrics(self, depth: Mapping[str, int]) -> Iterator[str]:
        yield from _metric(
            "pairbus_pair_entity_state",
            "gauge",
            "1 for the state that an entity is in",
            [
                ({"entity": one.path, "state": state.value}, int(one.state is state))
                for one in self.entities
                for state in EntityState
            ],
        )
        yield from _metric(
            "pairbus_pair_entity_since_seconds",
            "gauge",
            "Unix time of the last change of the state",
            [({"entity": one.path}, one.since.timestamp()) for one in self.entities],
        )
        for name, help_text, values in (
            (
                "failures",
                "Attempts that counted against an entity",
                [(one.path, one.failures) for one in self.entities],
            ),
            ("diverted", "Messages diverted to the backlog", [(one.path, one.diverted) for one in self.entities]),
            ("pings", "Pings sent", [(one.path, one.pings) for one in self.entities]),
        ):
            samples: list[tuple[dict[str, str], float]] = [({"entity": path}, value) for path, value in values]
            yield from _metric(f"pairbus_pair_{name}_total", "counter", help_text, samples)
        yield from _metric(
            "pairbus_pair_backlog_queue_used",
            "gauge",
            "1 for a backlog queue that is in the rotation",
            [({"queue": one.path}, int(one.is_used)) for one in self.backlog_queues],
        )
        yield from _metric(
            "pairbus_pair_backlog_queue_recreated_total",
            "counter",
            "Deleted backlog queues that this pair has created again",
            [({"queue": one.path}, one.recreated) for one in self.backlog_queues],
        )
        if depth:
            yield from _metric(
                "pairbus_pair_backlog_messages",
                "gauge",
                "Messages in a backlog queue",
                [({"queue": path}, count) for path, count in depth.items()],
            )
        if self.syphon is not None:
            yield from self._syphon_metrics(self.syphon)

    def _syphon_metrics(self, syphon: SyphonStatus) -> Iterator[str]:
        for name, help_text, value in (
            ("receives", "Receive requests to backlog queues", syphon.receives),
            ("messages", "Messages delivered from the backlog", syphon.syphoned),
            ("dead_lettered", "Messages that can never be delivered", syphon.dead_lettered),
        ):
            yield from _metric(f"pairbus_syphon_{name}_total", "counter", help_text, [({}, value)])
        waiting = ({"entity": path} for path in syphon.waiting)
        yield from _metric(
            "pairbus_syphon_waiting",
            "gauge",
            "1 for a destination whose messages wait",
            [(label, 1) for label in waiting],
        )
        yield from _metric(
            "pairbus_syphon_exactly_once",
            "gauge",
            "1 for a destination that stores each delivered message exactly once, 0 for at least once",
            [
                ({"entity": path}, int(one.guarantee is DeliveryGuarantee.EXACTLY_ONCE))
                for path, one in syphon.guarantees.items()
            ],
        )


def _metric(name: str, kind: str, help_text: str, samples: list[tuple[dict[str, str], float]]) -> Iterator[str]:
    yield f"# HELP {name} {help_text}"
    yield f"# TYPE {name} {kind}"
    for labels, value in samples:
        label_text = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        yield f"{name}{{{label_text}}} {value:.17g}" if label_text else f"{name} {value:.17g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
