"""The reports of one run, and of many."""

from __future__ import annotations

import gc
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from tests.simulation.checks import check
from tests.simulation.journal import Outcome
from tests.simulation.plan import make_plan
from tests.simulation.simulation import Run, play

_TIDY_EVERY: Final = 10
COUNTED: Final = (
    "sent",
    "diverted",
    "syphoned",
    "received",
    "raised",
    "dead-lettered",
    "duplicates",
    "pings",
    "outages",
)


@dataclass(slots=True)
class Report:
    """One run: its problems, and what there was of everything."""

    seed: int
    problems: list[str]
    digest: str
    counts: Counter[str]
    plan: list[str]

    def __str__(self) -> str:
        """Return the plan, the problems, and the command that repeats the run."""
        return "\n".join(
            [
                *self.plan,
                *(f"  wrong: {problem}" for problem in self.problems),
                f"  to see it again: make simulate SEED={self.seed}",
            ]
        )


@dataclass(slots=True)
class Total:
    """Many runs."""

    runs: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failed: list[int] = field(default_factory=list)

    def add(self, report: Report) -> None:
        self.runs += 1
        self.counts += report.counts
        if report.problems:
            self.failed.append(report.seed)

    def __str__(self) -> str:
        reported = ", ".join(f"{self.counts[name]:,} {name}" for name in COUNTED)
        failed = f"{len(self.failed)} failed: {sorted(self.failed)}" if self.failed else "none failed"
        return f"{self.runs:,} runs: {reported}; {failed}"


def simulate(seed: int) -> Report:
    """Run the plan of a seed, and check the result."""
    report = examine(play(make_plan(seed)))
    if seed % _TIDY_EVERY == 0:
        gc.collect()  # a run leaves much behind, and in many cycles
    return report


def examine(run: Run) -> Report:
    return Report(run.plan.seed, check(run), run.journal.digest, _counts(run), run.plan.lines())


def _counts(run: Run) -> Counter[str]:
    statuses = run.statuses()
    copies = sum(
        len({one.sequence for one in found}) - 1 for place in run.journal.arrived().values() for found in place.values()
    )
    outcomes = Counter(one.outcome for one in run.journal.sent.values())
    return Counter(
        {
            "sent": len(run.journal.sent),
            "diverted": sum(one.diverted for one in statuses),
            "syphoned": sum(one.syphon.syphoned for one in statuses if one.syphon is not None),
            "received": len(run.journal.received),
            "raised": outcomes[Outcome.RAISED],
            "dead-lettered": sum(map(len, run.dead_letters.values())),
            "duplicates": copies,
            "pings": sum(one.pings for one in statuses),
            "outages": len(run.plan.planned_faults),
        }
    )
