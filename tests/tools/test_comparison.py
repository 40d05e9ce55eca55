"""The comparison with other brokers: latencies, trusted rounds, goals, the table and the chart."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import looptime
import pytest

from benchmarks.brokers.load import SEND, WORKLOADS
from benchmarks.chart import picture
from benchmarks.comparison import BYTES_A_ROUND, Options, WorkerError, contestants, play_rounds
from benchmarks.figures import (
    COMPILED,
    CONTESTANTS,
    GOALS,
    JETSTREAM,
    MAX_OTHERS_SHARE,
    NOT_MEASURED,
    PLAIN,
    RABBITMQ,
    TOO_BUSY,
    Comparison,
    Result,
    Summary,
    judged,
    lines_of,
)
from benchmarks.latency import FEWEST_FOR_P999, Percentiles, open_loop, percentile
from benchmarks.processors import MachineTime, cpu_s
from benchmarks.worker import Rate, Turn, Watch

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"
TICKS = os.sysconf("SC_CLK_TCK")


def turn(per_s: float = 1_000.0, cpu_us: float = 10.0, p99_ms: float = 2.0, others_share: float = 0.0) -> Turn:
    latency = Percentiles(count=3_000, p50_ms=1.0, p99_ms=p99_ms, p999_ms=9.0)
    return Turn(
        rates={workload: Rate(per_s=per_s, client_us=cpu_us, broker_us=cpu_us) for workload in WORKLOADS},
        latencies={1_000: latency},
        client_bytes=40_000_000,
        broker_bytes=60_000_000,
        others_share=others_share,
    )


def comparison(*turns: tuple[str, Turn], body_bytes: int = 1024) -> Comparison:
    results = [Result(contestant=name, body_bytes=body_bytes, turn=each) for name, each in turns]
    return Comparison(conditions=["2 cores"], rates=(1_000,), results=results)


def verdicts(found: Comparison) -> dict[str, str]:
    return {goal.text: verdict for goal, _, verdict in judged(found)}


# Latencies


def test_percentile_is_a_value_that_was_measured() -> None:
    ordered = [float(number) for number in range(1, 101)]
    assert [percentile(ordered, share) for share in (0.0, 0.5, 0.99, 0.999, 1.0)] == [1.0, 50.0, 99.0, 100.0, 100.0]
    assert percentile([7.0], 0.5) == 7.0


def test_percentiles_are_in_milliseconds_and_of_any_order() -> None:
    found = Percentiles.of(number / 1_000 for number in reversed(range(1, 1_001)))
    assert (found.count, found.p50_ms, found.p99_ms, found.p999_ms) == (1_000, 500.0, 990.0, 999.0)


def test_too_few_samples_have_no_p999() -> None:
    assert Percentiles.of([0.001] * (FEWEST_FOR_P999 - 1)).p999_ms is None


def latencies_ms(send: Callable[[int], float], per_s: float, count: int) -> list[float]:
    """Return the latencies with confirmations after ``send`` seconds, in virtual time."""
    loop = looptime.new_event_loop(start=0, noop_cycles=1)

    async def confirmed(number: int) -> None:
        await asyncio.sleep(send(number))

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        found = runner.run(open_loop(per_s, count, confirmed, clock=loop.time))
    return [round(seconds * 1e3) for seconds in found]


def test_messages_are_sent_when_due_while_others_are_unconfirmed() -> None:
    assert latencies_ms(lambda _: 0.5, per_s=10, count=20) == [500] * 20


def test_pause_of_the_client_delays_every_message_that_was_due() -> None:
    loop = looptime.new_event_loop(start=0, noop_cycles=1)
    paused_s = 0.0

    async def confirmed(number: int) -> None:
        nonlocal paused_s
        if number == 0:  # while the loop sleeps until the next one is due
            paused_s = 0.35

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        found = runner.run(open_loop(10, 6, confirmed, clock=lambda: loop.time() + paused_s))
    assert [round(seconds * 1e3) for seconds in found] == [350, 350, 250, 150, 50, 0]


# Trust


def test_disturbed_rounds_do_not_count() -> None:
    found = comparison(
        (PLAIN, turn(100.0)), (PLAIN, turn(900.0, others_share=MAX_OTHERS_SHARE + 0.01)), (PLAIN, turn(200.0))
    ).summary(PLAIN, 1024)
    assert found is not None
    assert found.is_trusted
    assert found.rate(SEND).per_s == 150.0


def test_figures_of_mostly_disturbed_rounds_are_not_trusted() -> None:
    busy = turn(900.0, others_share=MAX_OTHERS_SHARE + 0.01)
    found = Summary.of(comparison((PLAIN, turn(100.0)), (PLAIN, busy)).results)
    assert not found.is_trusted
    assert found.rate(SEND).per_s == 500.0


def test_medians_are_of_each_figure() -> None:
    found = comparison((PLAIN, turn(1.0, 30.0, 7.0)), (PLAIN, turn(2.0, 10.0, 5.0)), (PLAIN, turn(9.0, 20.0, 6.0)))
    summary = found.summary(PLAIN, 1024)
    assert summary is not None
    assert (summary.rate(SEND).per_s, summary.rate(SEND).client_us, summary.latency(1_000).p99_ms) == (2.0, 20.0, 6.0)
    assert (summary.latency(1_000).count, summary.client_mb, summary.broker_mb) == (9_000, 40.0, 60.0)


def played(shares: dict[str, list[float]], rounds: int, repeats: int, may_repeat: bool = True) -> list[str]:
    """Return who played, in order, if others take these parts of the processors in the turns of each contestant."""
    order: list[str] = []
    left = {name: iter(each) for name, each in shares.items()}

    def play(name: str) -> Turn:
        order.append(name)
        return turn(others_share=next(left[name]))

    play_rounds(comparison(), list(shares), 1024, Options(rounds=rounds, repeats=repeats), play, lambda: may_repeat)
    return order


def test_contestants_take_turns() -> None:
    assert played({PLAIN: [0, 0], RABBITMQ: [0, 0]}, rounds=2, repeats=2) == [PLAIN, RABBITMQ] * 2


def test_disturbed_rounds_are_repeated() -> None:
    assert played({PLAIN: [0, 0], RABBITMQ: [1, 0, 0]}, rounds=2, repeats=2) == [PLAIN, RABBITMQ] * 2 + [RABBITMQ]


def test_repeats_are_bounded() -> None:
    assert played({PLAIN: [1] * 9}, rounds=3, repeats=2) == [PLAIN] * 5
    assert played({PLAIN: [1] * 9}, rounds=3, repeats=2, may_repeat=False) == [PLAIN] * 3


def test_contestant_that_fails_is_named_and_plays_no_more() -> None:
    found = comparison()
    order: list[str] = []

    def play(name: str) -> Turn:
        order.append(name)
        if name == RABBITMQ:
            raise WorkerError("connection refused")
        return turn()

    play_rounds(found, [RABBITMQ, PLAIN], 1024, Options(rounds=2), play, lambda: False)
    assert order == [RABBITMQ, PLAIN, PLAIN]
    assert found.absent == {RABBITMQ: "failed with messages of 1 KB: connection refused"}
    assert f"Not measured: {RABBITMQ}: failed with messages of 1 KB: connection refused" in [*lines_of(found)]


def test_time_of_the_machine_excludes_waiting_stolen_and_kernel_time() -> None:
    stat = "cpu  100 20 30 5000 700 4 6 80 50 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
    found = MachineTime.parsed(stat, kernel_s=10 / TICKS)
    assert found.busy_s == pytest.approx((100 + 20 + 30 + 4 + 6 - 10) / TICKS)
    assert found.stolen_s == pytest.approx(80 / TICKS)


def test_other_processes_are_noticed_and_the_broker_is_not_one() -> None:
    burn, rest = "while True: pass", "import time; time.sleep(60)"
    with (
        subprocess.Popen([sys.executable, "-c", burn]) as burning,
        subprocess.Popen([sys.executable, "-c", rest]) as resting,
    ):
        try:
            other, broker = Watch(resting.pid), Watch(burning.pid)
            time.sleep(1.0)
            with_it, without_it = other.others_share(), broker.others_share()
        finally:
            burning.kill()
            resting.kill()
    cores = os.cpu_count() or 1
    assert (with_it - without_it) * cores > 0.1
    assert with_it * cores > 0.1


def test_processor_time_of_a_process_is_that_of_the_system() -> None:
    before_s, own_s = cpu_s(os.getpid()), time.process_time()
    while time.process_time() < own_s + 0.05:
        pass
    assert cpu_s(os.getpid()) - before_s == pytest.approx(time.process_time() - own_s, abs=0.005)
    with subprocess.Popen([sys.executable, "-c", "pass"]) as ended:
        pass
    with pytest.raises(ProcessLookupError):
        cpu_s(ended.pid)


# Goals


def test_goals_are_reached_or_missed_at_their_limits() -> None:
    at_limit = comparison((COMPILED, turn(10_000.0, 11.0, 1.0)), (RABBITMQ, turn(1_000.0, p99_ms=2.0)))
    found = verdicts(at_limit)
    assert found[f"send one by one, rate relative to {RABBITMQ}"] == "reached"
    assert found[f"send in batches of 100, rate relative to {RABBITMQ}"] == "missed"
    assert found["send one by one, µs of the server"] == "reached"
    assert found["send one by one, µs of the client"] == "missed"
    assert found[f"p99 of a send at 1,000 a second, relative to {RABBITMQ}"] == "reached"
    slower = comparison((COMPILED, turn(9_999.0, 11.1, 1.1)), (RABBITMQ, turn(1_000.0, p99_ms=2.0)))
    assert verdicts(slower)[f"send one by one, rate relative to {RABBITMQ}"] == "missed"
    assert verdicts(slower)["send one by one, µs of the server"] == "missed"
    assert verdicts(slower)[f"p99 of a send at 1,000 a second, relative to {RABBITMQ}"] == "missed"


def test_goals_need_figures_of_both_sides() -> None:
    found = verdicts(comparison((COMPILED, turn()), (RABBITMQ, turn())))
    assert found[f"send one by one, rate relative to {JETSTREAM}"] == NOT_MEASURED
    assert set(verdicts(comparison((RABBITMQ, turn()))).values()) == {NOT_MEASURED}
    assert set(verdicts(comparison((COMPILED, turn()), body_bytes=100)).values()) == {NOT_MEASURED}


def test_goals_are_not_judged_by_figures_that_are_not_trusted() -> None:
    found = verdicts(comparison((COMPILED, turn(10_000.0)), (RABBITMQ, turn(1_000.0, others_share=1.0))))
    assert found[f"send one by one, rate relative to {RABBITMQ}"] == TOO_BUSY
    assert found["send one by one, µs of the server"] == "reached"


# What is printed and written


def test_results_can_be_read_again() -> None:
    found = comparison((COMPILED, turn()), (RABBITMQ, turn(p99_ms=3.0)))
    found.absent[JETSTREAM] = "nats-server is not installed"
    stored = found.to_json()
    assert Comparison.from_json(stored) == found
    assert len(json.loads(stored)["goals"]) == len(GOALS)


def test_table_has_a_column_for_each_contestant() -> None:
    found = comparison((RABBITMQ, turn(1_000.0, others_share=1.0)), (COMPILED, turn(12_345.0)))
    lines = [*lines_of(found)]
    first = next(number for number, line in enumerate(lines) if line.startswith("messages of 1 KB"))
    table = lines[first : lines.index("", first)]
    assert re.split(" {3,}", table[0]) == ["messages of 1 KB", COMPILED, RABBITMQ]
    assert re.split(" {3,}", table[1]) == ["send one by one, a second", "12,345", "1,000 x 12.35 !"]
    assert len({len(line) for line in table}) == 1
    assert any(line.startswith(f"! The machine was too busy to trust {RABBITMQ}, 1 KB") for line in lines)


def all_measured() -> Comparison:
    return Comparison(
        conditions=[],
        rates=(1_000,),
        results=[
            Result(contestant=name, body_bytes=size, turn=turn(123_456.0 / (number + 1), p99_ms=50.0 * number + 1))
            for size in (100, 1024, 65_536)
            for number, name in enumerate(CONTESTANTS)
            if (name, size) != (RABBITMQ, 65_536)
        ],
    )


def texts(svg: str) -> Iterator[tuple[float, float, str, str]]:
    """Yield the position, the anchor and the content of each text."""
    for text in ET.fromstring(svg).iter(f"{SVG}text"):  # noqa: S314
        yield float(text.get("x", "")), float(text.get("y", "")), text.get("text-anchor", ""), text.text or ""


def extent(x: float, anchor: str, text: str) -> tuple[float, float]:
    """Return where a text begins and ends if all its characters are as wide as a digit and a bit."""
    width = 8.0 * len(text)
    return (x - width, x) if anchor == "end" else (x, x + width)


def test_picture_names_everything() -> None:
    found = [text for *_, text in texts(picture(all_measured()))]
    for name in CONTESTANTS:
        assert found.count(name) == len(WORKLOADS) + 1
    assert {"100 B", "1 KB", "64 KB", "123,456"} <= {*found}
    assert found.count("none") == len(WORKLOADS) + 1
    assert "99 of 100 sends are confirmed within, at 1,000 a second (shorter is better)" in found


def test_labels_of_the_picture_do_not_collide() -> None:
    svg = picture(all_measured())
    rows: dict[float, list[tuple[float, float]]] = {}
    for x, y, anchor, text in texts(svg):
        rows.setdefault(y, []).append(extent(x, anchor, text))
    for extents in rows.values():
        for (_, end), (start, _) in pairwise(sorted(extents)):
            assert end <= start
    heights = sorted(rows)
    assert min(second - first for first, second in pairwise(heights)) >= 13


def test_picture_explains_the_mark_of_figures_that_are_not_trusted() -> None:
    assert not any(text.startswith("!") for *_, text in texts(picture(all_measured())))
    busy = comparison((COMPILED, turn(others_share=1.0)))
    found = [text for *_, text in texts(picture(busy))]
    assert "1,000 !" in found
    assert found[-1] == "! The machine was too busy to trust this figure."


def test_picture_has_the_colours_of_both_schemes() -> None:
    assert "prefers-color-scheme: dark" in picture(all_measured())


def test_rounds_have_whole_batches_and_few_large_messages() -> None:
    options = Options(messages=1_234)
    for contestant in contestants():
        for size in options.sizes:
            count = options.count(contestant, size)
            assert count > 0
            assert count % 100 == 0
            assert count * size <= BYTES_A_ROUND


@pytest.mark.slow
def test_short_run_writes_results_and_a_chart(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.comparison", "--only", "plain", "azure", "--sizes", "100"]
    command += [
        "--messages",
        "400",
        "--rounds",
        "1",
        "--repeats",
        "0",
        "--rates",
        "50",
        "--seconds",
        "0.5",
        "--samples",
        "0",
    ]
    command += ["--json", str(tmp_path / "found.json"), "--chart", str(tmp_path / "found.svg")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    found = Comparison.from_json((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert {result.contestant for result in found.results} == {PLAIN, "azure-servicebus, pairbus"}, done.stdout
    for result in found.results:
        assert set(result.turn.rates) == set(WORKLOADS)
        assert result.turn.latencies[50].count == 25
        assert all(rate.per_s > 0 for rate in result.turn.rates.values())
    assert "Not measured: pairbus, compiled: not chosen" in done.stdout
    assert [*texts((tmp_path / "found.svg").read_text(encoding="utf-8"))]
