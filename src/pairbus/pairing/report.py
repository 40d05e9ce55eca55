"""What an application tells the namespaces of its pair about itself, for the people who look at their consoles."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from pairbus.client.errors import MessagingError
from pairbus.pairing.policy import DIVERTING, EntityState
from pairbus.pairing.status import PairedEntityStatus

HEARTBEAT_S: Final = 30.0
"""So often an application reports that has nothing new to say."""

MOST_ENTITIES: Final = 1_000
MOST_SWITCHES: Final = 100
MOST_REASON: Final = 200
"""Characters."""

MOST_NAME: Final = 100
"""Characters of the name of an application, a host or a namespace."""

MOST_PATH: Final = 260
_SECRET: Final = re.compile(
    r"(?i)\b(?P<name>(?:SharedAccessKey|SharedAccessSignature|sig|token|password)="
    r"|(?:SharedAccessSignature|Bearer) )[^;\s]+"
    r"|\beyJ[\w-]+(?:\.[\w-]+)+"
)
"""Keys and tokens by what stands before them, and JSON web tokens by how they begin."""


class Receiver(Enum):
    """What the namespace that a report is sent to is in the pair."""

    PRIMARY = "primary"
    SECONDARY = "secondary"


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityReport:
    """How an entity of the primary namespace looks to the application."""

    path: str
    state: EntityState
    since_ms: int
    """By the clock of the application, as all times of a report."""

    reason: str
    """What it failed with at last; empty if it never did."""

    diverted: int
    pings: int

    @property
    def is_diverting(self) -> bool:
        return self.state in DIVERTING


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchReport:
    """An entity's messages go to the backlog from now on, or home again."""

    number: int
    """Counts the switches of a pair from 1, so that none is told twice, and those that are missing are known."""

    path: str
    state: EntityState
    """What it is since then."""

    at_ms: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PairReport:
    """Everything that is told at a time."""

    pair_id: str
    """Drawn by the application for its pair: names can be the same."""

    number: int
    """Counts the reports to a namespace: one that was late on its way is old."""

    application: str
    host: str
    process: int
    primary: str
    """What the backlog queues call the primary namespace."""

    receiver: Receiver
    sent_ms: int
    entities: tuple[EntityReport, ...]
    more: int
    """Entities for which there was no room."""

    switches: tuple[SwitchReport, ...]
    """Those that the namespace does not know of yet."""

    switched: int
    """How many switches there were in all."""

    @property
    def is_restless(self) -> bool:
        """Whether some entity is not healthy."""
        return any(one.state is not EntityState.HEALTHY for one in self.entities)


def report_entities(
    entities: Iterable[PairedEntityStatus], reasons: Mapping[str, str]
) -> tuple[tuple[EntityReport, ...], int]:
    """As many as there is room for, those that are not healthy first, and how many are left out.

    ``reasons`` has what those that are healthy again failed with before.
    """
    in_order = sorted(entities, key=lambda one: one.state is EntityState.HEALTHY)
    told = tuple(
        EntityReport(
            path=one.path[:MOST_PATH],
            state=one.state,
            since_ms=int(one.since.timestamp() * 1_000),
            reason=reasons.get(one.path, "") if one.cause is None else reason_of(one.cause),
            diverted=one.diverted,
            pings=one.pings,
        )
        for one in in_order[:MOST_ENTITIES]
    )
    return told, len(in_order) - len(told)


def reason_of(cause: MessagingError | None) -> str:
    """An error in a line. Errors of ours hold no keys; a token provider of the application's may say what it likes."""
    if cause is None:
        return ""
    text = " ".join(str(cause).split())
    return _SECRET.sub(lambda found: f"{found['name'] or ''}…", text)[:MOST_REASON]
