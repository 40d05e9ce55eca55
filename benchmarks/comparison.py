"""Our client and server beside other clients and brokers, in one run: a table, a JSON file and a chart.

Run as ``python -m benchmarks.comparison``. Each turn is a client process of its own (``benchmarks.worker``) that loads
one broker; the contestants take turns, so that whatever else the machine does falls on each. A turn during which other
processes took too much of the machine is repeated, a bounded number of times.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks import transfer
from benchmarks.brokers import azure, jetstream, rabbitmq
from benchmarks.brokers.load import BATCH
from benchmarks.chart import picture
from benchmarks.figures import AZURE, COMPILED, JETSTREAM, PLAIN, RABBITMQ, Comparison, Result, lines_of, size_name
from benchmarks.latency import FEWEST_FOR_P999
from benchmarks.server import Administrator, serving
from benchmarks.transfer import HERE
from benchmarks.worker import Job, Turn
from tests.client.rabbitmq_server import RabbitMqServer

RESULTS: Final = HERE / "build" / "bench" / "comparison.json"
CHART: Final = RESULTS.with_suffix(".svg")

BYTES_A_ROUND: Final = 128 * 1024 * 1024
"""Large messages are fewer, so that all of a round have no more than that."""

_QUEUE: Final = "orders"
_TIMEOUT_S: Final = 180.0
_SYNCS: Final = 50


@dataclass(frozen=True, slots=True)
class Broker:
    """A process that holds the messages."""

    address: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A client library and the broker that it loads."""

    name: str
    key: str
    """Its name on the command line."""

    module: str
    """The module of ``benchmarks.brokers`` with the client."""

    start: Callable[[Path], AbstractContextManager[Broker]]
    missing: Callable[[], str | None]
    share: float
    """Its part of the messages of a round: slower ones send fewer in the same time."""

    is_compiled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The contestants and sizes to measure, and the duration."""

    sizes: tuple[int, ...] = (1024, 100, 65_536)
    """In this order: the goals are for the first, and it is the first to be repeated."""

    messages: int = 20_000
    rounds: int = 3
    repeats: int = 2
    """The number of further rounds for contestants whose rounds were disturbed."""

    repeat_minutes: float = 8.0
    """No further rounds begin when the run has taken that long."""

    rates: tuple[int, ...] = (100, 1_000)
    seconds: float = 2.0
    samples: int = FEWEST_FOR_P999
    """The least number of latencies of each rate, for the first size."""

    only: tuple[str, ...] = ()
    uvloop: bool = False

    def count(self, contestant: Contestant, body_bytes: int) -> int:
        """Return the number of messages in each workload: whole batches."""
        count = min(round(self.messages * contestant.share), BYTES_A_ROUND // body_bytes)
        return max(1, count // BATCH) * BATCH


# Contestants


@contextmanager
def _namespace(directory: Path, *, compiled: bool) -> Iterator[Broker]:
    with serving(directory, compiled=compiled) as server:
        Administrator(server.address).create(_QUEUE)
        yield Broker(str(dataclasses.replace(server.address, entity_path=_QUEUE)), server.process.pid)


@contextmanager
def _rabbitmq(directory: Path) -> Iterator[Broker]:
    with RabbitMqServer(directory) as node:
        yield Broker(str(node.port), node.pid)


@contextmanager
def _jetstream(directory: Path) -> Iterator[Broker]:
    with jetstream.jetstream_server(directory) as (port, pid):
        yield Broker(str(port), pid)


def _missing_build() -> str | None:
    return None if _has_build() else "there is no compiled build; `make compiled` creates it"


def _has_build() -> bool:
    return (transfer.COMPILED / ".ready").exists()


def contestants() -> list[Contestant]:
    """Return all contestants, whether or not they are installed, in the order of their columns."""
    return [
        Contestant(
            name=COMPILED,
            key="compiled",
            module="pairbus",
            start=partial(_namespace, compiled=True),
            missing=_missing_build,
            share=1.0,
            is_compiled=True,
        ),
        Contestant(
            name=PLAIN,
            key="plain",
            module="pairbus",
            start=partial(_namespace, compiled=False),
            missing=lambda: None,
            share=0.5,
        ),
        Contestant(
            name=RABBITMQ,
            key="rabbitmq",
            module="rabbitmq",
            start=_rabbitmq,
            missing=rabbitmq.missing,
            share=0.25,
        ),
        Contestant(
            name=JETSTREAM,
            key="jetstream",
            module="jetstream",
            start=_jetstream,
            missing=jetstream.missing,
            share=0.5,
        ),
        Contestant(
            name=AZURE,
            key="azure",
            module="azure",
            start=partial(_namespace, compiled=_has_build()),
            missing=azure.missing,
            share=0.1,
        ),
    ]


# Rounds


def compare(options: Options) -> Comparison:
    """Let all contestants that are installed play their rounds."""
    comparison = Comparison(conditions=_conditions(options), rates=options.rates)
    deadline_s = time.monotonic() + options.repeat_minutes * 60
    chosen: list[Contestant] = []
    for contestant in contestants():
        if options.only and contestant.key not in options.only:
            comparison.absent[contestant.name] = "not chosen"
        elif reason := contestant.missing():
            comparison.absent[contestant.name] = reason
        else:
            chosen.append(contestant)
    for body_bytes in options.sizes:
        _compare(comparison, options, chosen, body_bytes, lambda: time.monotonic() < deadline_s)
    return comparison


class WorkerError(Exception):
    """A client process did not finish its turn."""


def _compare(
    comparison: Comparison,
    options: Options,
    chosen: Sequence[Contestant],
    body_bytes: int,
    may_repeat: Callable[[], bool],
) -> None:
    """Start fresh brokers, and play all rounds with messages of one size."""
    present = {one.name: one for one in chosen if one.name not in comparison.absent}
    with TemporaryDirectory(prefix="pairbus-bench-", dir=Path.cwd()) as directory, ExitStack() as stack:
        brokers = {
            name: stack.enter_context(contestant.start(Path(directory) / contestant.key))
            for name, contestant in present.items()
        }

        def play(name: str) -> Turn:
            return _play(present[name], brokers[name], options, body_bytes)

        play_rounds(comparison, list(present), body_bytes, options, play, may_repeat)


def play_rounds(
    comparison: Comparison,
    names: Sequence[str],
    body_bytes: int,
    options: Options,
    play: Callable[[str], Turn],
    may_repeat: Callable[[], bool],
) -> None:
    """Let contestants take turns until each has as many trusted turns as there are rounds, or no repeats are left."""
    for number in range(options.rounds + options.repeats):
        if number >= options.rounds and not may_repeat():
            break
        due = [
            name
            for name in names
            if name not in comparison.absent and comparison.trusted(name, body_bytes) < options.rounds
        ]
        if due:
            _progress(f"{size_name(body_bytes)}, round {number + 1}: {'; '.join(due)}")
        for name in due:
            try:
                turn = play(name)
            except WorkerError as error:
                comparison.absent[name] = f"failed with messages of {size_name(body_bytes)}: {error}"
            else:
                comparison.results.append(Result(contestant=name, body_bytes=body_bytes, turn=turn))


def _play(contestant: Contestant, broker: Broker, options: Options, body_bytes: int) -> Turn:
    """Run a client process, and return what it has measured."""
    job = Job(
        module=contestant.module,
        address=broker.address,
        broker_pid=broker.pid,
        body_bytes=body_bytes,
        messages=options.count(contestant, body_bytes),
        rates=options.rates,
        seconds=options.seconds,
        samples=options.samples if body_bytes == options.sizes[0] else 0,
        uvloop=options.uvloop,
    )
    roots = [transfer.COMPILED if contestant.is_compiled else HERE / "src", HERE]
    os.sync()  # or one contestant's fsync would wait for what another has left to the system to write
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.worker"],
            input=json.dumps(dataclasses.asdict(job)),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, roots))},
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=True,
            text=True,
        )
    except subprocess.TimeoutExpired:
        raise WorkerError(f"not finished after {_TIMEOUT_S:.0f} s") from None
    except subprocess.CalledProcessError as error:
        raise WorkerError(error.stderr.strip().rpartition("\n")[2] or f"exit code {error.returncode}") from None
    turn = Turn.from_json(done.stdout)
    if turn.is_compiled != contestant.is_compiled:
        raise WorkerError("the client was not the build that it had to be")
    return turn


def _conditions(options: Options) -> list[str]:
    counts = (
        f"{one.name} {' / '.join(f'{options.count(one, size):,}' for size in options.sizes)}" for one in contestants()
    )
    loop, sizes = "uvloop" if options.uvloop else "asyncio", " / ".join(map(size_name, options.sizes))
    sync_ms, load = _sync_ms(Path.cwd()), os.getloadavg()[0]
    return [
        f"{os.cpu_count()} cores, load average at the start {load:.1f}; Python {sys.version.split()[0]}, {loop};",
        f"to write and sync 4 KB takes {sync_ms:.2f} ms (median of {_SYNCS}).",
        f"Medians of {options.rounds} rounds; latencies over {options.seconds:g} s in each.",
        f"Messages in a round, of {sizes}: {'; '.join(counts)}.",
    ]


def _sync_ms(directory: Path) -> float:
    """Return the median time to append a page to a file and have it on disk."""
    with (
        TemporaryDirectory(prefix="pairbus-bench-", dir=directory) as name,
        (Path(name) / "page").open("wb", 0) as file,
    ):
        times_s: list[float] = []
        for _ in range(_SYNCS):
            start_s = time.perf_counter()
            file.write(bytes(4096))
            os.fsync(file.fileno())
            times_s.append(time.perf_counter() - start_s)
    return statistics.median(times_s) * 1e3


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# What is printed and written


def report(options: Options = Options(), results: Path = RESULTS, chart: Path = CHART) -> None:
    """Measure, write the JSON file and the chart, and print the table."""
    start_s = time.monotonic()
    comparison = compare(options)
    comparison.conditions.append(f"The run took {(time.monotonic() - start_s) / 60:.1f} minutes.")
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text(comparison.to_json(), encoding="utf-8")
    print(f"Results: {results}")
    show(comparison, chart)


def show(comparison: Comparison, chart: Path) -> None:
    """Print the table, and write the chart."""
    for line in lines_of(comparison):
        print(line)
    chart.parent.mkdir(parents=True, exist_ok=True)
    chart.write_text(picture(comparison), encoding="utf-8")
    print(f"Chart: {chart}")


def main() -> None:
    usual = Options()
    keys = [contestant.key for contestant in contestants()]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.comparison", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=usual.sizes, metavar="BYTES", help="of the bodies")
    parser.add_argument("--messages", type=int, default=usual.messages, help="maximum in a round (%(default)s)")
    parser.add_argument("--rounds", type=int, default=usual.rounds, help="of which the median counts (%(default)s)")
    parser.add_argument("--repeats", type=int, default=usual.repeats, help="further rounds, if disturbed (%(default)s)")
    parser.add_argument("--only", nargs="+", choices=keys, default=usual.only, help="contestants to measure")
    parser.add_argument("--rates", type=int, nargs="*", default=usual.rates, help="messages a second, for latencies")
    parser.add_argument("--seconds", type=float, default=usual.seconds, help="duration of each rate (%(default)s)")
    parser.add_argument("--samples", type=int, default=usual.samples, help="least latencies of a rate (%(default)s)")
    parser.add_argument("--uvloop", action="store_true", help="run every client on uvloop while rates are measured")
    parser.add_argument("--json", type=Path, default=RESULTS, help="file for the results (%(default)s)")
    parser.add_argument("--chart", type=Path, default=CHART, help="file for the chart (%(default)s)")
    parser.add_argument("--from", dest="stored", type=Path, help="show the results in this file, without measuring")
    chosen = parser.parse_args()
    if chosen.stored is not None:
        show(Comparison.from_json(chosen.stored.read_text(encoding="utf-8")), chosen.chart)
        return
    options = Options(
        sizes=tuple(chosen.sizes),
        messages=chosen.messages,
        rounds=chosen.rounds,
        repeats=chosen.repeats,
        only=tuple(chosen.only),
        rates=tuple(chosen.rates),
        seconds=chosen.seconds,
        samples=chosen.samples,
        uvloop=chosen.uvloop,
    )
    report(options, chosen.json, chosen.chart)


if __name__ == "__main__":
    main()
