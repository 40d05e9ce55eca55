"""Output of a report: as text, as a self-contained HTML page, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

from pairbus.html import Chart, ChartSeries, bar_chart, environment, line_chart
from pairbus.jobs.reconcile.reconciliation import LINES, MEASURES
from pairbus.jobs.reconcile.report import EDGES, ReconcileReport, ReconcileVerdict, TimelinePoint

_UNITS: Final = ((timedelta(days=1), "d"), (timedelta(hours=1), "h"), (timedelta(minutes=1), "min"))


def format_duration(duration: timedelta | None) -> str:
    """Format a duration in a suitable unit."""
    if duration is None:
        return "-"
    for unit, name in _UNITS:
        if duration >= unit:
            return f"{duration / unit:.1f}".removesuffix(".0") + f" {name}"
    seconds = duration.total_seconds()
    return f"{seconds:.3f}".rstrip("0").rstrip(".") + " s"


_VERDICTS: Final = {
    ReconcileVerdict.FINE: "nothing is missing",
    ReconcileVerdict.MISSING: "messages are missing",
    ReconcileVerdict.UNKNOWN: "cannot determine whether messages are missing",
}

_ALWAYS: Final = ("accepted", "diverted", "syphoned", "received", "waiting", "backlog_waiting", "missing", "duplicated")
"""Shown even if the count is 0."""


def headline(report: ReconcileReport) -> str:
    """Return the verdict as a sentence."""
    missing = report.total.counts["missing"]
    if report.verdict is ReconcileVerdict.MISSING:
        return "1 message is missing" if missing == 1 else f"{missing:,} messages are missing"
    return _VERDICTS[report.verdict]


def shown_measures(report: ReconcileReport) -> list[str]:
    """Return the measures to show: those that are not 0, and those that readers look for."""
    return [name for name, count in report.total.counts.items() if count or name in _ALWAYS]


def scope(report: ReconcileReport) -> str:
    """Describe the namespaces and the selection of messages."""
    start, end = report.period.start, report.period.end
    pair = f"{report.primary or '(unknown primary)'}, paired with {report.secondary or '(unknown secondary)'}"
    if start is None and end is None:
        return f"{pair}: all messages in the ledgers"
    return f"{pair}: messages accepted from {format_time(start) or 'the start'} to {format_time(end) or 'the end'}"


def outage(report: ReconcileReport) -> str:
    """Return the time range of the diversion as a sentence."""
    found = report.diversion
    restored_at = format_time(found.last_restored_at)
    restored = f"the last one was restored at {restored_at}" if restored_at else "none has been restored"
    return f"diverted from {format_time(found.first_at)} to {format_time(found.last_at)}; {restored}"


def format_time(time: datetime | None) -> str:
    return "" if time is None else f"{time:%Y-%m-%d %H:%M:%S}.{time.microsecond // 1000:03} UTC"


def printable(text: str | None) -> str:
    """Escape characters that are not printable: ids are arbitrary, and could move the cursor."""
    return "-" if text is None else "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def as_text(report: ReconcileReport) -> str:
    return "\n".join(_lines(report)) + "\n"


def _lines(report: ReconcileReport) -> Iterator[str]:
    yield scope(report)
    yield headline(report)
    yield from (f"note: {note}" for note in report.notes)
    measures = shown_measures(report)
    yield ""
    yield from _text_table(((MEASURES[name], f"{report.total.counts[name]:,}") for name in measures), numbers={1})
    if report.diversion.first_at is not None:
        yield ""
        yield outage(report)
    waits = report.waits
    if waits.messages:
        rest = report.total.counts["diverted"] - waits.messages
        some = f" (without {rest:,} not received yet)" if rest > 0 else ""
        yield (
            f"from diverted to delivered{some}: p50 {format_duration(waits.p50)}, "
            f"p99 {format_duration(waits.p99)}, longest {format_duration(waits.longest)}"
        )
    yield from _entities(report, measures)
    yield from _lists(report)


def _entities(report: ReconcileReport, measures: Sequence[str]) -> Iterator[str]:
    """Yield the counts of each entity, without zeros."""
    for one in report.entities:
        yield ""
        yield printable(one.entity)
        counts = [(f"  {MEASURES[name]}", f"{one.counts[name]:,}") for name in measures if one.counts[name]]
        yield from _text_table(counts, numbers={1})


def _lists(report: ReconcileReport) -> Iterator[str]:
    if report.missing:
        yield from _list(
            f"missing ({len(report.missing):,} of {report.total.counts['missing']:,})",
            ("entity", "message id", "session", "accepted", "reason"),
            (
                (
                    printable(m.entity),
                    printable(m.message_id),
                    printable(m.session_id),
                    format_time(m.accepted_at),
                    m.cause,
                )
                for m in report.missing
            ),
        )
    if report.duplicated:
        yield from _list(
            f"duplicated ({len(report.duplicated):,} of {report.total.counts['duplicated']:,})",
            ("entity", "message id", "session", "diverted", "restored again"),
            (
                (
                    printable(m.entity),
                    printable(m.message_id),
                    printable(m.session_id),
                    format_time(m.diverted_at),
                    format_time(m.restored_at),
                )
                for m in report.duplicated
            ),
        )


def _list(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield ""
    yield title
    yield from _text_table([head, *rows])


def _text_table(rows: Iterable[Sequence[str]], numbers: Iterable[int] = ()) -> Iterator[str]:
    cells, right = list(rows), set(numbers)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = (
            text.rjust(width) if number in right else text.ljust(width)
            for number, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(padded).rstrip()


_MAX_COLUMNS: Final = 11
"""Maximum number of count columns that fit on a page of 1,280 pixels, with seven digits each."""

_LINE_NAMES: Final = {
    "direct": "accepted by the primary",
    "diverted": "diverted to the backlog",
    "syphoned": "restored by the syphon",
    "received": "received",
}

_Value: TypeAlias = str | int | datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    text: str
    kind: str = ""
    """The class of the cell: a number, a time, or empty for text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    name: str
    is_number: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """A table of formatted values, for the template."""

    label: str
    columns: tuple[_Column, ...]
    rows: tuple[tuple[_Cell, ...], ...]


def _table(head: Sequence[str], rows: Iterable[Sequence[_Value]]) -> _Table:
    values = list(rows)
    return _Table(
        label=", ".join(head[:2]),
        columns=tuple(
            _Column(name=name, is_number=all(isinstance(row[number], int) for row in values))
            for number, name in enumerate(head)
        ),
        rows=tuple(tuple(_cell(value) for value in row) for row in values),
    )


def _cell(value: _Value) -> _Cell:
    match value:
        case int():
            return _Cell(text=f"{value:,}", kind="number")
        case datetime():
            return _Cell(text=format_time(value).removesuffix(" UTC"), kind="time")
        case _:
            return _Cell(text=printable(value))


def as_page(report: ReconcileReport) -> str:
    """Return the complete HTML page."""
    measures = shown_measures(report)
    return (
        environment("pairbus.jobs")
        .get_template("reconcile.html")
        .render(
            headline=headline(report).capitalize(),
            pair=f"{report.primary or '(unknown primary)'} and {report.secondary or '(unknown secondary)'}",
            scope=scope(report),
            is_alarm=report.verdict is not ReconcileVerdict.FINE,
            notes=report.notes,
            total=_table(("count", "messages"), ((MEASURES[name], report.total.counts[name]) for name in measures)),
            outage="" if report.diversion.first_at is None else outage(report),
            lists=[*_message_tables(report)],
            timeline=_timeline_values(report) if report.timeline else None,
            waits=_waits_values(report) if report.waits.messages else None,
            entities=[*_entity_tables(report, [name for name in measures if report.total.counts[name]])],
        )
        + "\n"
    )


def _message_tables(report: ReconcileReport) -> Iterator[tuple[str, _Table]]:
    if report.missing:
        yield (
            f"Missing ({len(report.missing):,} of {report.total.counts['missing']:,})",
            _table(
                ("entity", "message id", "session", "accepted (UTC)", "reason"),
                ((m.entity, m.message_id, m.session_id, m.accepted_at, m.cause) for m in report.missing),
            ),
        )
    if report.duplicated:
        yield (
            f"Duplicated ({len(report.duplicated):,} of {report.total.counts['duplicated']:,})",
            _table(
                ("entity", "message id", "session", "diverted (UTC)", "restored again (UTC)"),
                ((m.entity, m.message_id, m.session_id, m.diverted_at, m.restored_at) for m in report.duplicated),
            ),
        )


def _entity_tables(report: ReconcileReport, measures: Sequence[str]) -> Iterator[tuple[str, _Table]]:
    """Yield a table with a row for each entity, or, if the columns would not fit on a screen, a table for each."""
    if len(measures) <= _MAX_COLUMNS:
        yield (
            "",
            _table(
                ("entity", *(MEASURES[name] for name in measures)),
                ((one.entity, *(one.counts[name] for name in measures)) for one in report.entities),
            ),
        )
        return
    for one in report.entities:
        rows = ((MEASURES[name], one.counts[name]) for name in measures if one.counts[name])
        yield printable(one.entity), _table(("count", "messages"), rows)


def _timeline_values(report: ReconcileReport) -> dict[str, Any]:
    return {
        "step": format_duration(report.step),
        "chart": timeline_chart(report.timeline, report.step),
        "table": _table(
            ("from (UTC)", *(_LINE_NAMES[name] for name in LINES)),
            ((point.at, *(getattr(point, name) for name in LINES)) for point in report.timeline),
        ),
    }


def _waits_values(report: ReconcileReport) -> dict[str, Any]:
    waits = report.waits
    rows = ((bar_name(number), count) for number, count in enumerate(waits.histogram))
    return {
        "messages": f"{waits.messages:,}",
        "p50": format_duration(waits.p50),
        "p99": format_duration(waits.p99),
        "longest": format_duration(waits.longest),
        "chart": waits_chart(waits.histogram),
        "table": _table(("duration", "messages"), rows),
    }


def timeline_chart(points: Sequence[TimelinePoint], step: timedelta) -> Chart:
    """Return a chart with a line for each of ``LINES``."""
    filled = _fill_gaps(points, step)
    last = len(filled) - 1
    positions = [number / max(1, last) for number in range(len(filled))]
    labeled = sorted({0, last // 3, last * 2 // 3, last} if filled else set())
    title = "Messages over time"
    span = f"from {filled[0].at:%Y-%m-%d %H:%M} to {filled[-1].at:%Y-%m-%d %H:%M} UTC" if filled else "none"
    return line_chart(
        "timeline",
        title,
        f"{title} in steps of {format_duration(step)}, {span}; see the table for the figures.",
        positions,
        [ChartSeries(name=_LINE_NAMES[name], values=[getattr(one, name) for one in filled]) for name in LINES],
        [(positions[number], f"{filled[number].at:%d %b %H:%M}") for number in labeled],
    )


def waits_chart(histogram: Sequence[int]) -> Chart:
    """Return a chart with a bar for each interval."""
    title = "Time from diverted to delivered"
    return bar_chart(
        "waits",
        title,
        f"{title}: number of messages by duration; see the table for the figures.",
        histogram,
        [bar_name(number) for number in range(len(histogram))],
    )


def bar_name(number: int) -> str:
    """Return the label of a bar of the histogram."""
    return f"<{format_duration(EDGES[number])}" if number < len(EDGES) else f"≥{format_duration(EDGES[-1])}"


def _fill_gaps(points: Sequence[TimelinePoint], step: timedelta) -> list[TimelinePoint]:
    """Add points with zeros for intervals without messages."""
    filled: list[TimelinePoint] = []
    for point in points:
        while filled and filled[-1].at + step < point.at:
            filled.append(TimelinePoint(at=filled[-1].at + step, direct=0, diverted=0, syphoned=0, received=0))
        filled.append(point)
    return filled


def as_document(report: ReconcileReport) -> dict[str, Any]:
    """Return the report for JSON: times in ISO format, durations in seconds."""
    waits = report.waits
    document = {
        "verdict": report.verdict,
        "notes": report.notes,
        "primary": report.primary,
        "secondary": report.secondary,
        "from": report.period.start,
        "to": report.period.end,
        "looked_until": {"primary": report.looked_until[0], "secondary": report.looked_until[1]},
        "total": report.total.counts,
        "entities": {one.entity: one.counts for one in report.entities},
        "missing": [asdict(one) for one in report.missing],
        "duplicated": [asdict(one) for one in report.duplicated],
        "out_of_order": [asdict(one) for one in report.disordered],
        "diversion": asdict(report.diversion),
        "diverted_to_delivered": {
            "messages": waits.messages,
            "p50": waits.p50,
            "p99": waits.p99,
            "max": waits.longest,
            "histogram": [
                {"below": edge, "messages": count} for edge, count in zip([*EDGES, None], waits.histogram, strict=True)
            ],
        },
        "timeline": {"step": report.step, "points": [asdict(one) for one in report.timeline]},
        "clocks": asdict(report.clocks),
    }
    found: dict[str, Any] = _plain(document)
    return found


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case dict():
            return {name: _plain(one) for name, one in value.items()}
        case list() | tuple():
            return [_plain(one) for one in value]
        case _:
            return value
