"""The table of entities as the applications that report see them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from pairbus.console.markup import Markup, fill, join, render
from pairbus.console.pages.frame import cell
from pairbus.console.reports import Heard, Reports, Row
from pairbus.console.wording import clock_time, moment, number
from pairbus.dialect.backlog_path import is_drill_path
from pairbus.pairing.policy import EntityState
from pairbus.pairing.report import EntityReport

_MOST_ROWS: Final = 200
_DAY_MS: Final = 86_400_000


def live_values(reports: Reports) -> dict[str, str]:
    values: dict[str, str] = {}
    shown = _shown(reports)
    for heard, entity in shown:
        key = _key(heard, entity)
        values |= {
            f"state:{key}": _state(entity),
            f"since:{key}": _when(heard.here_ms(entity.since_ms), heard.heard_ms),
            # A report keeps the last reason; one of an outage that is over would read as if it went on.
            f"reason:{key}": "" if entity.state is EntityState.HEALTHY else entity.reason,
            f"diverted:{key}": number(entity.diverted),
            f"pings:{key}": number(entity.pings),
            f"heard:{key}": clock_time(heard.heard_ms),
        }
    # Which rows there are, and how they look.
    rows = tuple((_key(heard, entity), heard.report.application, entity.state) for heard, entity in shown)
    values["senders"] = str(hash((rows, _more(reports))))
    return values


def told(reports: Reports) -> str:
    """How many entities are not healthy, as the end of a sentence."""
    away = {
        (heard.report.primary.lower(), entity.path.lower())
        for heard, entity in takewhile(lambda row: row[1].state is not EntityState.HEALTHY, reports.rows)
        if not is_drill_path(entity.path)
    }
    if not away:
        return ""
    return ", one entity is not healthy" if len(away) == 1 else f", {number(len(away))} entities are not healthy"


def table(reports: Reports, live: dict[str, str]) -> Markup:
    rows = join(_row(live, *row) for row in _shown(reports))
    return render("senders", rows=rows or _none(reports), more=_more_row(_more(reports)))


def _shown(reports: Reports) -> Sequence[Row]:
    return reports.rows[:_MOST_ROWS]


def _more(reports: Reports) -> int:
    """How many entities are not shown."""
    return len(reports.rows) + sum(heard.report.more for heard in reports) - len(_shown(reports))


def _when(at_ms: int, now_ms: int) -> str:
    """The time, with the day if that is another one."""
    return clock_time(at_ms) if at_ms // _DAY_MS == now_ms // _DAY_MS else moment(at_ms)


def _key(heard: Heard, entity: EntityReport) -> str:
    return f"sender {heard.report.pair_id} {entity.path}"


def _state(entity: EntityReport) -> str:
    is_drill = is_drill_path(entity.path) and entity.state is EntityState.HELD_OVER
    return "drill" if is_drill else entity.state.value


def _row(live: dict[str, str], heard: Heard, entity: EntityReport) -> Markup:
    report, key = heard.report, _key(heard, entity)
    return render(
        "sender_row",
        application=report.application,
        host=report.host,
        process=report.process,
        path=entity.path,
        primary=report.primary,
        key=key,
        mark="" if entity.state is EntityState.HEALTHY or is_drill_path(entity.path) else "away",
        state=live[f"state:{key}"],
        since=live[f"since:{key}"],
        reason=live[f"reason:{key}"],
        diverted=cell(live, f"diverted:{key}"),
        pings=cell(live, f"pings:{key}"),
        heard=live[f"heard:{key}"],
    )


def _none(reports: Reports) -> Markup:
    text = "Those that report have no senders yet." if len(reports) else "No application reports its pair here."
    return fill('<tr><td colspan="8">$text</td></tr>', text=text)


def _more_row(count: int) -> Markup:
    return fill('<tr><td colspan="8">$count more, not shown.</td></tr>', count=number(count)) if count else Markup()
