"""A report as JSON has it: for programs."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from pairbus.jobs.reconcile.report import Report
from pairbus.jobs.reconcile.waits import EDGES


def as_document(report: Report) -> dict[str, Any]:
    """Times are in ISO form, lengths of time in seconds."""
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
