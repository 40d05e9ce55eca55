"""The reports of an application to the namespaces of its pair, which their consoles show."""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Final, TypeVar

from pairbus.client.errors import MessagingError
from pairbus.pairing.policy import DIVERTING, EntityState
from pairbus.pairing.status import PairedEntityStatus

HEARTBEAT_S: Final = 30.0
"""Time between two reports without a change."""

MOST_ENTITIES: Final = 1_000
MOST_SWITCHES: Final = 100
MOST_REASON: Final = 200
"""Maximum length of a reason, in characters."""

MOST_NAME: Final = 100
"""Maximum length of the name of an application, a host or a namespace, in characters."""

MOST_PATH: Final = 260
_SECRET: Final = re.compile(
    r"(?i)\b(?P<name>(?:SharedAccessKey|SharedAccessSignature|sig|token|password)="
    r"|(?:SharedAccessSignature|Bearer) )[^;\s]+"
    r"|\beyJ[\w-]+(?:\.[\w-]+)+"
)
"""Matches keys and tokens by the text before them, and JSON web tokens by their beginning."""


class ReportRecipient(Enum):
    """The role in the pair of the namespace that gets a report."""

    PRIMARY = "primary"
    SECONDARY = "secondary"


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityReport:
    """The status of an entity of the primary namespace, as the application sees it."""

    path: str
    state: EntityState
    since_ms: int
    """By the clock of the application, like all times of a report."""

    reason: str
    """The last error; empty if there was none."""

    diverted: int
    pings: int

    @property
    def is_diverting(self) -> bool:
        return self.state in DIVERTING


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchReport:
    """A change of an entity to diverting its messages, or back to sending them to the primary."""

    number: int
    """The number of the switch in its pair, from 1, which shows repeated and missing switches."""

    path: str
    state: EntityState
    """The state since the switch."""

    at_ms: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PairReport:
    """One report to one namespace."""

    pair_id: str
    """A random id of the pair, because names need not be unique."""

    number: int
    """The number of the report to its namespace, which shows a report that arrived out of order."""

    application: str
    host: str
    process: int
    primary: str
    """The name of the primary in the paths of the backlog queues."""

    receiver: ReportRecipient
    sent_ms: int
    entities: tuple[EntityReport, ...]
    more: int
    """Number of entities that were left out because of the limits."""

    switches: tuple[SwitchReport, ...]
    """The switches that the namespace has not received yet."""

    switched: int
    """Total number of switches of the pair."""

    @property
    def has_unhealthy_entity(self) -> bool:
        return any(one.state is not EntityState.HEALTHY for one in self.entities)


def report_entities(
    entities: Iterable[PairedEntityStatus], reasons: Mapping[str, str]
) -> tuple[tuple[EntityReport, ...], int]:
    """Return the reports of up to ``MOST_ENTITIES`` entities, unhealthy ones first, and the number of those left out.

    ``reasons`` are the last errors by path, also of entities that are healthy again.
    """
    in_order = sorted(entities, key=lambda one: one.state is EntityState.HEALTHY)
    reported = tuple(
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
    return reported, len(in_order) - len(reported)


def reason_of(cause: MessagingError | None) -> str:
    """Return an error in one line, without keys and tokens, which errors of a custom token provider may contain."""
    if cause is None:
        return ""
    text = " ".join(str(cause).split())
    return _SECRET.sub(lambda found: f"{found['name'] or ''}…", text)[:MOST_REASON]


T = TypeVar("T")
E = TypeVar("E", bound=Enum)

MOST_BYTES: Final = 64 * 1024
_SWITCHES_BYTES: Final = 16 * 1024
_MARGIN_BYTES: Final = 4 * 1024
"""Room for the other members of a report."""

_LARGEST: Final = 2**53
"""The limit of integers that all JSON parsers read exactly."""


class ReportError(ValueError):
    """The body of a request is not a valid report."""


def write_report(report: PairReport) -> bytes:
    """Encode a report in at most ``MOST_BYTES``: without the oldest switches and the last entities if need be."""
    switches = _fitting([_plain(one) for one in reversed(report.switches)], _SWITCHES_BYTES)[::-1]
    entities = _fitting([_plain(one) for one in report.entities], MOST_BYTES - _SWITCHES_BYTES - _MARGIN_BYTES)
    more = report.more + len(report.entities) - len(entities)
    return _dump({**_plain(report), "entities": entities, "switches": switches, "more": more})


def _plain(value: Any) -> dict[str, Any]:
    found = {field.name: getattr(value, field.name) for field in fields(value)}
    return {name: one.value if isinstance(one, Enum) else one for name, one in found.items()}


def _fitting(items: Iterable[dict[str, Any]], room_bytes: int) -> list[dict[str, Any]]:
    taken = []
    for item in items:
        room_bytes -= len(_dump(item)) + 1
        if room_bytes < 0:
            break
        taken.append(item)
    return taken


def _dump(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def read_report(body: bytes) -> PairReport:
    """Decode a report; ignore unknown members. Raise ``ReportError``."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise ReportError("the report is not valid JSON") from None
    members = _Members(found, "the report")
    return PairReport(
        pair_id=members.text("pair_id", MOST_NAME),
        number=members.count("number"),
        application=members.text("application", MOST_NAME),
        host=members.text("host", MOST_NAME),
        process=members.count("process"),
        primary=members.text("primary", MOST_PATH),
        receiver=members.one_of("receiver", ReportRecipient),
        sent_ms=members.count("sent_ms"),
        entities=members.all("entities", MOST_ENTITIES, _entity),
        more=members.count("more"),
        switches=members.all("switches", MOST_SWITCHES, _switch),
        switched=members.count("switched"),
    )


def _entity(members: _Members) -> EntityReport:
    return EntityReport(
        path=members.text("path", MOST_PATH),
        state=members.one_of("state", EntityState),
        since_ms=members.count("since_ms"),
        reason=members.text("reason", MOST_REASON, may_be_empty=True),
        diverted=members.count("diverted"),
        pings=members.count("pings"),
    )


def _switch(members: _Members) -> SwitchReport:
    return SwitchReport(
        number=members.count("number"),
        path=members.text("path", MOST_PATH),
        state=members.one_of("state", EntityState),
        at_ms=members.count("at_ms"),
        reason=members.text("reason", MOST_REASON, may_be_empty=True),
    )


class _Members:
    """The members of a JSON object, with checks of their types."""

    def __init__(self, found: object, what: str) -> None:
        if not isinstance(found, dict):
            raise ReportError(f"{what} must be a JSON object, got {reprlib.repr(found)}")
        self._found: dict[str, object] = found
        self._what = what

    def text(self, name: str, limit: int, *, may_be_empty: bool = False) -> str:
        value = self._get(name)
        if not isinstance(value, str) or len(value) > limit or not (value or may_be_empty):
            raise self._wrong(name, f"a text of {0 if may_be_empty else 1} to {limit} characters", value)
        return value

    def count(self, name: str) -> int:
        value = self._get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _LARGEST:
            raise self._wrong(name, "a whole number >= 0", value)
        return value

    def one_of(self, name: str, kind: type[E]) -> E:
        value = self._get(name)
        for one in kind:
            if one.value == value:
                return one
        raise self._wrong(name, " or ".join(f"'{one.value}'" for one in kind), value)

    def all(self, name: str, limit: int, read: Callable[[_Members], T]) -> tuple[T, ...]:
        values = self._get(name)
        if not isinstance(values, Sequence) or isinstance(values, str) or len(values) > limit:
            raise self._wrong(name, f"a list of at most {limit}", values)
        return tuple(read(_Members(value, f"'{name}[{index}]'")) for index, value in enumerate(values))

    def _get(self, name: str) -> object:
        if name not in self._found:
            raise ReportError(f"{self._what} has no '{name}'")
        return self._found[name]

    def _wrong(self, name: str, wanted: str, value: object) -> ReportError:
        return ReportError(f"'{name}' of {self._what} must be {wanted}, got {reprlib.repr(value)}")
