"""Runs simulations: ``python -m tests.simulation --seeds 1000``, or ``--seed 7 --trace`` to see one."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator
from multiprocessing import get_context

from tests.simulation.plan import make_plan
from tests.simulation.report import Report, Total, examine, simulate
from tests.simulation.simulation import play


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one, and print all events")
    parser.add_argument("--trace", action="store_true", help="with what the client and the namespaces log")
    parser.add_argument("--seeds", type=int, default=200, help="how many to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at a time")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return _one(options.seed, is_traced=options.trace)
    return _many(range(options.first, options.first + options.seeds), options.jobs)


def _one(seed: int, *, is_traced: bool) -> int:
    run = play(make_plan(seed), on_line=_tell if is_traced else None)
    report = examine(run)
    for line in run.journal.lines:
        _tell(line)
    _tell(f"{report}\n  digest: {report.digest}")
    _tell("nothing is wrong" if not report.problems else f"{len(report.problems)} things are wrong")
    return bool(report.problems)


def _many(seeds: range, jobs: int) -> int:
    total, began_s = Total(), time.monotonic()
    for report in _reports(seeds, jobs):
        total.add(report)
        if report.problems:
            _tell(f"\r{report}")
        rate = total.runs / (time.monotonic() - began_s)
        sys.stderr.write(f"\r{total.runs:,} of {len(seeds):,}, {rate:.1f} a second, {len(total.failed)} failed ")
    sys.stderr.write("\n")
    _tell(f"{total}")
    return bool(total.failed)


def _reports(seeds: Iterable[int], jobs: int) -> Iterator[Report]:
    if jobs == 1:
        yield from map(simulate, seeds)
        return
    with get_context("spawn").Pool(jobs, maxtasksperchild=500) as pool:
        yield from pool.imap_unordered(simulate, seeds)


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
