"""Reports as JSON, within bounds: what is written can be read, and whatever else comes is refused in clear words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from enum import Enum
from typing import Any, Final, TypeVar

from pairbus.pairing.policy import EntityState
from pairbus.pairing.report import (
    MOST_ENTITIES,
    MOST_NAME,
    MOST_PATH,
    MOST_REASON,
    MOST_SWITCHES,
    EntityReport,
    PairReport,
    Receiver,
    SwitchReport,
)

T = TypeVar("T")
E = TypeVar("E", bound=Enum)

MOST_BYTES: Final = 64 * 1024
_SWITCHES_BYTES: Final = 16 * 1024
_MARGIN_BYTES: Final = 4 * 1024
"""For all that is no entity and no switch."""

_LARGEST: Final = 2**53
"""Beyond that some readers of JSON would round."""


class ReportError(ValueError):
    """What came is no report. The text says what is wrong with it."""


def write_report(report: PairReport) -> bytes:
    """At most ``MOST_BYTES``: of the switches the last, of the entities the first, and how many more there are."""
    switches = _fitting([_plain(one) for one in reversed(report.switches)], _SWITCHES_BYTES)[::-1]
    entities = _fitting([_plain(one) for one in report.entities], MOST_BYTES - _SWITCHES_BYTES - _MARGIN_BYTES)
    more = report.more + len(report.entities) - len(entities)
    return _dumped({**_plain(report), "entities": entities, "switches": switches, "more": more})


def _plain(value: Any) -> dict[str, Any]:
    found = {field.name: getattr(value, field.name) for field in fields(value)}
    return {name: one.value if isinstance(one, Enum) else one for name, one in found.items()}


def _fitting(items: Iterable[dict[str, Any]], room_bytes: int) -> list[dict[str, Any]]:
    taken = []
    for item in items:
        room_bytes -= len(_dumped(item)) + 1
        if room_bytes < 0:
            break
        taken.append(item)
    return taken


def _dumped(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def read_report(body: bytes) -> PairReport:
    """Raises ``ReportError``. What is not known is passed over."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise ReportError("the report is no JSON") from None
    members = _Members(found, "the report")
    return PairReport(
        pair_id=members.text("pair_id", MOST_NAME),
        number=members.count("number"),
        application=members.text("application", MOST_NAME),
        host=members.text("host", MOST_NAME),
        process=members.count("process"),
        primary=members.text("primary", MOST_PATH),
        receiver=members.one_of("receiver", Receiver),
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
    """The members of a JSON object, each of its own kind."""

    def __init__(self, found: object, what: str) -> None:
        if not isinstance(found, dict):
            raise ReportError(f"{what} is no JSON object")
        self._found: dict[str, object] = found
        self._what = what

    def text(self, name: str, most: int, *, may_be_empty: bool = False) -> str:
        value = self._get(name)
        if not isinstance(value, str) or len(value) > most or not (value or may_be_empty):
            raise self._wrong(name, f"a text of {0 if may_be_empty else 1} to {most} characters")
        return value

    def count(self, name: str) -> int:
        value = self._get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _LARGEST:
            raise self._wrong(name, "a whole number from 0 on")
        return value

    def one_of(self, name: str, kind: type[E]) -> E:
        value = self._get(name)
        for one in kind:
            if one.value == value:
                return one
        raise self._wrong(name, " or ".join(f"'{one.value}'" for one in kind))

    def all(self, name: str, most: int, read: Callable[[_Members], T]) -> tuple[T, ...]:
        values = self._get(name)
        if not isinstance(values, Sequence) or isinstance(values, str) or len(values) > most:
            raise self._wrong(name, f"a list of at most {most}")
        return tuple(read(_Members(value, f"'{name}[{place}]'")) for place, value in enumerate(values))

    def _get(self, name: str) -> object:
        if name not in self._found:
            raise ReportError(f"{self._what} has no '{name}'")
        return self._found[name]

    def _wrong(self, name: str, wanted: str) -> ReportError:
        return ReportError(f"'{name}' of {self._what} has to be {wanted}")
