"""The page of the pair: the backlog and pings that this namespace sees, and the reports of applications."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Final

from pairbus.console.counts import BacklogDestination, EntityCount
from pairbus.console.formatting import clock_time, date_time, number, rate
from pairbus.console.http import ConsoleEntity, ConsolePage, RequestContext
from pairbus.console.reports import LastReport, Reports, Row
from pairbus.console.sampler import KEPT_MS, Point
from pairbus.dialect.paths import is_drill_path
from pairbus.html import COMPACT, Chart, ChartSeries, line_chart
from pairbus.html.charts import format_value
from pairbus.pairing.policy import EntityState
from pairbus.pairing.report import EntityReport

_MAX_ROWS: Final = 200
_DAY_MS: Final = 86_400_000
_MIN_AXIS_MS: Final = 60_000
"""Minimum length of the time axis of a chart."""


def pair_page(context: RequestContext) -> ConsolePage:
    sampler = context.sampler
    return ConsolePage(
        template="pair.html",
        title="Pair",
        section="pair",
        events="/console/events?page=pair",
        live=live_values(context),
        values={
            "senders": sender_values(sampler.reports),
            "queues": [_queue_row(queue) for queue in sampler.reading.counts.backlog],
            "destinations": [_destination_row(one) for one in sampler.destinations],
            "pinged": _pinged(context),
            "charts": _charts([*sampler.timeline]),
            "pair_events": [
                {
                    "datetime": date_time(entry.at_ms).replace(" UTC", "Z"),
                    "time": clock_time(entry.at_ms),
                    "text": entry.text,
                }
                for entry in sampler.events
            ],
        },
    )


def live_values(context: RequestContext) -> dict[str, str]:
    sampler = context.sampler
    reading, rates = sampler.reading, sampler.rates
    backlog = reading.counts.backlog
    depth = sum(queue.message_count for queue in backlog)
    values = {
        "depth": number(depth),
        "diverted": rate(sum(rates.arriving(queue.path) for queue in backlog)),
        "syphoned": rate(sum(rates.leaving(queue.path) for queue in backlog)),
        "pings": number(reading.pings.total()),
        "summary": f"{number(depth)} diverted messages waiting in the backlog{unhealthy_text(sampler.reports)}",
        "timeline": str(0 if sampler.timeline.last is None else sampler.timeline.last.at_ms),
        "pair-events": str(sampler.events.version),
        **sender_live_values(sampler.reports),
    }
    for queue in backlog:
        values |= {
            f"depth:{queue.path}": number(queue.message_count),
            f"in:{queue.path}": rate(rates.arriving(queue.path)),
            f"out:{queue.path}": rate(rates.leaving(queue.path)),
            f"dead:{queue.path}": number(queue.dead_letters),
        }
    for destination in sampler.destinations:
        key = _destination_key(destination)
        has_backlog = any(queue.primary == destination.primary and queue.message_count for queue in backlog)
        values[f"state:{key}"] = destination.state(reading.at_ms, has_backlog=has_backlog).value
        values[f"last:{key}"] = date_time(destination.last_ms)
    rows = (tuple(queue.path for queue in backlog), tuple(one.path for one in sampler.destinations))
    values["shape"] = str(hash(rows))
    return values


def _queue_row(queue: EntityCount) -> dict[str, Any]:
    return {"path": queue.path, "link": ConsoleEntity(entity=queue.path).link(), "primary": queue.primary}


def _destination_key(destination: BacklogDestination) -> str:
    return f"{destination.primary} {destination.path}"


def _destination_row(destination: BacklogDestination) -> dict[str, str]:
    return {
        "path": destination.path,
        "primary": destination.primary,
        "key": _destination_key(destination),
        "first": date_time(destination.first_ms),
    }


def _pinged(context: RequestContext) -> list[dict[str, str]]:
    times = context.sampler.events.pinged
    return [
        {
            "path": str(address),
            "count": number(count),
            "last": date_time(times[str(address)]) if str(address) in times else "not yet",
        }
        for address, count in context.sampler.reading.pings.items()
    ]


# Charts


def _charts(points: Sequence[Point]) -> list[Chart]:
    times_ms = [point.at_ms for point in points]
    return [
        time_chart(
            "backlog",
            "Messages in the backlog",
            times_ms,
            [ChartSeries(name="waiting", values=[point.backlog for point in points])],
        ),
        time_chart(
            "flow",
            "Backlog: messages per second",
            times_ms,
            [
                ChartSeries(name="diverted", values=[point.diverted for point in points]),
                ChartSeries(name="syphoned", values=[point.syphoned for point in points]),
            ],
        ),
        time_chart(
            "traffic",
            "This namespace: messages per second, and pings",
            times_ms,
            [
                ChartSeries(name="sent to it", values=[point.sent for point in points]),
                ChartSeries(name="received from it", values=[point.received for point in points]),
                ChartSeries(name="pings", values=[point.pings for point in points]),
            ],
        ),
    ]


def time_chart(chart_id: str, title: str, times_ms: Sequence[int], series: Sequence[ChartSeries]) -> Chart:
    """Return a chart whose time axis ends at the last time, and is at least a minute and at most an hour long."""
    last_ms = times_ms[-1] if times_ms else 0
    length_ms = min(max(last_ms - times_ms[0], _MIN_AXIS_MS), KEPT_MS) if times_ms else _MIN_AXIS_MS
    ends = ((0.0, last_ms - length_ms), (1.0, last_ms)) if times_ms else ()
    return line_chart(
        chart_id,
        title,
        "; ".join(f"{one.name}: {_summary(one.values)}" for one in series),
        [1 - (last_ms - at_ms) / length_ms for at_ms in times_ms],
        series,
        [(position, f"{clock_time(at_ms)} UTC") for position, at_ms in ends],
        COMPACT,
    )


def _summary(values: Sequence[float]) -> str:
    return f"{format_value(values[-1])} now, {format_value(max(values))} at most" if values else "no values yet"


# The table of entities in the reports of applications


def sender_live_values(reports: Reports) -> dict[str, str]:
    values: dict[str, str] = {}
    shown = reports.rows[:_MAX_ROWS]
    for last, entity in shown:
        key = _sender_key(last, entity)
        values |= {
            f"state:{key}": _state(entity),
            f"since:{key}": _time(last.local_ms(entity.since_ms), last.received_ms),
            # A report keeps the last reason; that of an outage in the past would read as if the outage continued.
            f"reason:{key}": "" if entity.state is EntityState.HEALTHY else entity.reason,
            f"diverted:{key}": number(entity.diverted),
            f"pings:{key}": number(entity.pings),
            f"heard:{key}": clock_time(last.received_ms),
        }
    # The browser loads the rows again when this value changes.
    rows = tuple((_sender_key(last, entity), last.report.application, entity.state) for last, entity in shown)
    values["senders"] = str(hash((rows, _hidden_count(reports))))
    return values


def sender_values(reports: Reports) -> dict[str, Any]:
    """Return the values of the table."""
    hidden = _hidden_count(reports)
    return {
        "rows": [_sender_row(row) for row in reports.rows[:_MAX_ROWS]],
        "has_reports": len(reports) > 0,
        "more": number(hidden) if hidden else "",
    }


def unhealthy_text(reports: Reports) -> str:
    """Return the number of entities that are not healthy, as the end of a sentence."""
    unhealthy = {
        (last.report.primary.lower(), entity.path.lower())
        for last, entity in takewhile(lambda row: row[1].state is not EntityState.HEALTHY, reports.rows)
        if not is_drill_path(entity.path)
    }
    if not unhealthy:
        return ""
    count = len(unhealthy)
    return ", 1 entity is not healthy" if count == 1 else f", {number(count)} entities are not healthy"


def _hidden_count(reports: Reports) -> int:
    return max(0, len(reports.rows) - _MAX_ROWS) + sum(last.report.more for last in reports)


def _sender_key(last: LastReport, entity: EntityReport) -> str:
    return f"sender {last.report.pair_id} {entity.path}"


def _sender_row(row: Row) -> dict[str, Any]:
    last, entity = row
    return {
        "report": last.report,
        "path": entity.path,
        "key": _sender_key(last, entity),
        "is_unhealthy": entity.state is not EntityState.HEALTHY and not is_drill_path(entity.path),
    }


def _state(entity: EntityReport) -> str:
    is_drill = is_drill_path(entity.path) and entity.state is EntityState.HELD_OVER
    return "drill" if is_drill else entity.state.value


def _time(at_ms: int, now_ms: int) -> str:
    """Format a time, with the date if it is not today."""
    return clock_time(at_ms) if at_ms // _DAY_MS == now_ms // _DAY_MS else date_time(at_ms)
