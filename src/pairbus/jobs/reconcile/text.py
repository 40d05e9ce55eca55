"""A report as lines of text: for people at a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

from pairbus.jobs.reconcile.durations import told
from pairbus.jobs.reconcile.report import Report
from pairbus.jobs.reconcile.totals import MEASURES
from pairbus.jobs.reconcile.verdict import Verdict

_VERDICTS: Final = {
    Verdict.FINE: "nothing is missing",
    Verdict.MISSING: "messages are missing",
    Verdict.UNKNOWN: "it cannot be told whether anything is missing",
}

_ALWAYS: Final = ("accepted", "diverted", "syphoned", "received", "waiting", "backlog_waiting", "missing", "duplicated")
"""Told also where there is nothing to count."""


def headline(report: Report) -> str:
    """The verdict, in a sentence."""
    missing = report.total.counts["missing"]
    if report.verdict is Verdict.MISSING:
        return "1 message is missing" if missing == 1 else f"{missing:,} messages are missing"
    return _VERDICTS[report.verdict]


def told_measures(report: Report) -> list[str]:
    """The measures that are worth a line: those that are not 0, and those that people look for."""
    return [name for name, count in report.total.counts.items() if count or name in _ALWAYS]


def scope(report: Report) -> str:
    """Which namespaces, and which messages."""
    start, end = report.period.start, report.period.end
    pair = f"{report.primary or 'a primary'}, paired with {report.secondary or 'a secondary'}"
    if start is None and end is None:
        return f"{pair}: all messages in the ledgers"
    return f"{pair}: messages accepted from {moment(start) or 'the beginning'} to {moment(end) or 'the end'}"


def outage(report: Report) -> str:
    """From when to when messages were diverted, in a sentence."""
    found = report.diversion
    home = moment(found.last_home_at)
    told_home = f"the last one came home at {home}" if home else "none has come home"
    return f"diverted from {moment(found.first_at)} to {moment(found.last_at)}; {told_home}"


def moment(time: datetime | None) -> str:
    return "" if time is None else f"{time:%Y-%m-%d %H:%M:%S}.{time.microsecond // 1000:03} UTC"


def shown(text: str | None) -> str:
    """Ids are anyone's: what would move the cursor is spelt out."""
    return "-" if text is None else "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def as_text(report: Report) -> str:
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield scope(report)
    yield headline(report)
    yield from (f"note: {note}" for note in report.notes)
    measures = told_measures(report)
    yield ""
    yield from _table(((MEASURES[name], f"{report.total.counts[name]:,}") for name in measures), numbers={1})
    if report.diversion.first_at is not None:
        yield ""
        yield outage(report)
    waits = report.waits
    if waits.messages:
        rest = report.total.counts["diverted"] - waits.messages
        some = f" (without {rest:,} that were not received yet)" if rest > 0 else ""
        yield (
            f"from diverted to delivered{some}: p50 {told(waits.p50)}, p99 {told(waits.p99)}, "
            f"longest {told(waits.longest)}"
        )
    yield from _entities(report, measures)
    yield from _lists(report)


def _entities(report: Report, measures: Sequence[str]) -> Iterator[str]:
    """Entity by entity, with a line for each thing that there is to count."""
    for one in report.entities:
        yield ""
        yield shown(one.entity)
        counts = [(f"  {MEASURES[name]}", f"{one.counts[name]:,}") for name in measures if one.counts[name]]
        yield from _table(counts, numbers={1})


def _lists(report: Report) -> Iterator[str]:
    if report.missing:
        yield from _list(
            f"missing ({len(report.missing):,} of {report.total.counts['missing']:,})",
            ("entity", "message id", "session", "accepted", "why"),
            (
                (shown(m.entity), shown(m.message_id), shown(m.session_id), moment(m.accepted_at), m.cause)
                for m in report.missing
            ),
        )
    if report.duplicated:
        yield from _list(
            f"duplicated ({len(report.duplicated):,} of {report.total.counts['duplicated']:,})",
            ("entity", "message id", "session", "diverted", "came home again"),
            (
                (shown(m.entity), shown(m.message_id), shown(m.session_id), moment(m.diverted_at), moment(m.home_at))
                for m in report.duplicated
            ),
        )


def _list(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield ""
    yield title
    yield from _table([head, *rows])


def _table(rows: Iterable[Sequence[str]], numbers: Iterable[int] = ()) -> Iterator[str]:
    cells, right = list(rows), set(numbers)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        laid = (
            text.rjust(width) if number in right else text.ljust(width)
            for number, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(laid).rstrip()
