"""The supervisor: what fails is reported and restarted alone, and stopped if it fails again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from pairbus.server.supervision import supervisor
from pairbus.server.supervision.supervisor import (
    MAX_RESTARTS,
    WINDOW_S,
    Component,
    ComponentState,
    Problem,
    SupervisedTask,
    Supervisor,
)
from pairbus.server.supervision.watchdog import LoopWatchdog
from tests.waiting import eventually_async


@dataclass(slots=True)
class Part:
    """A component that fails as a test wants."""

    name: str = "part"
    problem: Problem | None = None
    calls: list[str] = field(default_factory=list)
    repairs: bool = True
    restart_error: Exception | None = None

    @property
    def component(self) -> Component:
        return Component(
            name=self.name, check=lambda: self.problem, restart=self.restart, stop=lambda: self.calls.append("stop")
        )

    async def restart(self) -> None:
        self.calls.append("restart")
        if self.restart_error is not None:
            raise self.restart_error
        if self.repairs:
            self.problem = None


@dataclass(slots=True)
class Bench:
    """A supervisor with a clock that only tests move."""

    now_s: float = 0.0
    reports: list[tuple[str, str]] = field(default_factory=list)
    supervisor: Supervisor = field(init=False)

    def __post_init__(self) -> None:
        self.supervisor = Supervisor(lambda: self.now_s)
        self.supervisor.report = self.report

    def report(self, component: str, problem: Problem) -> str:
        self.reports.append((component, problem.reason))
        return "bundle"

    def check(self, *parts: Part) -> list[ComponentState]:
        for part in parts:
            self.supervisor.add(part.component)
        asyncio.run(self._checked())
        return [status.state for status in self.supervisor.statuses()]

    async def _checked(self) -> None:
        self.supervisor.check()
        await eventually_async(lambda: not self.supervisor._restarting)


def test_failed_component_is_reported_and_restarted_alone(caplog: pytest.LogCaptureFixture) -> None:
    bench, failed, other = Bench(), Part(problem=Problem(reason="broken")), Part("other")
    assert bench.check(failed, other) == [ComponentState.RUNNING] * 2
    assert (failed.calls, other.calls) == (["restart"], [])
    assert bench.reports == [("part", "broken")]
    assert bench.supervisor.restarts == {"part": 1, "other": 0}
    assert [record.getMessage() for record in caplog.records] == [
        "component failed, restarting component=part reason=broken bundle=bundle",
        "component restarted component=part restarts=1",
    ]


def test_component_that_fails_after_three_restarts_in_a_minute_is_stopped(caplog: pytest.LogCaptureFixture) -> None:
    bench, part = Bench(), Part(problem=Problem(reason="broken"), repairs=False)
    for _ in range(MAX_RESTARTS):
        assert bench.check(part) == [ComponentState.RUNNING]
        bench.now_s += 1
    assert bench.check(part) == [ComponentState.STOPPED]
    assert bench.check(part) == [ComponentState.STOPPED]
    assert part.calls == ["restart"] * MAX_RESTARTS + ["stop"]
    assert bench.supervisor.restarts["part"] == MAX_RESTARTS
    assert [status.reason for status in bench.supervisor.statuses()] == ["broken"]
    assert len(bench.reports) == MAX_RESTARTS + 1
    assert "component stopped after too many restarts component=part" in caplog.text


def test_component_that_fails_seldom_is_never_stopped() -> None:
    bench, part = Bench(), Part()
    for _ in range(5 * MAX_RESTARTS):
        part.problem = Problem(reason="broken")
        assert bench.check(part) == [ComponentState.RUNNING]
        bench.now_s += WINDOW_S / MAX_RESTARTS
    assert part.calls == ["restart"] * 5 * MAX_RESTARTS


def test_restart_that_fails_counts_and_the_others_are_checked() -> None:
    bench = Bench()
    part, other = (
        Part(problem=Problem(reason="broken"), restart_error=OSError("no")),
        Part("other", Problem(reason="x")),
    )
    assert bench.check(part, other) == [ComponentState.RESTARTING, ComponentState.RUNNING]
    for _ in range(MAX_RESTARTS):
        bench.check()
    assert bench.check() == [ComponentState.STOPPED, ComponentState.RUNNING]


def test_restart_that_never_returns_delays_no_other_component(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        bench, part = Bench(), Part("other")
        bench.supervisor.add(
            Component(name="hanging", check=lambda: Problem(reason="broken"), restart=asyncio.Event().wait)
        )
        bench.supervisor.add(part.component)
        bench.supervisor.check()
        for restarts in (1, 2):
            part.problem = Problem(reason="broken")
            bench.supervisor.check()
            await eventually_async(lambda: part.problem is None)
            assert len(part.calls) == restarts
        assert [status.state for status in bench.supervisor.statuses()] == [
            ComponentState.RESTARTING,
            ComponentState.RUNNING,
        ]
        assert bench.supervisor.restarts == {"hanging": 1, "other": 2}, "a restart in progress is not begun again"
        await bench.supervisor.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def test_restart_that_takes_too_long_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_RESTART_WITHIN_S", 0.001)
    bench = Bench()
    bench.supervisor.add(
        Component(name="part", check=lambda: Problem(reason="broken"), restart=lambda: asyncio.Event().wait())
    )
    for _ in range(MAX_RESTARTS):
        assert bench.check() == [ComponentState.RESTARTING]
    assert bench.check() == [ComponentState.STOPPED]


def test_check_that_raises_is_a_failure() -> None:
    bench = Bench()
    calls: list[str] = []
    bench.supervisor.add(
        Component(name="part", check=lambda: 1 / 0, restart=lambda: calls.append("restart"))  # type: ignore[arg-type,return-value]
    )
    bench.check()
    assert calls == ["restart"]
    assert bench.reports == [("part", "its check failed with ZeroDivisionError")]


def test_stuck_component_is_reported_once_and_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    bench, part = Bench(), Part(problem=Problem(reason="waits for the disk", is_stuck=True))
    for _ in range(10):
        assert bench.check(part) == [ComponentState.STUCK]
    part.problem = None
    assert bench.check(part) == [ComponentState.RUNNING]
    assert part.calls == []
    assert bench.reports == [("part", "waits for the disk")]
    assert caplog.records[-1].getMessage() == "component answers again component=part"


async def fail() -> None:
    raise RuntimeError("defect")


async def end() -> None:
    pass


async def cancel_itself() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        (fail, "its task failed with RuntimeError"),
        (end, "its task has ended"),
        (cancel_itself, "its task was cancelled"),
    ],
)
def test_task_that_ends_has_a_problem_until_it_is_restarted(ending: Callable[[], Awaitable[None]], reason: str) -> None:
    async def run() -> tuple[str, Problem | None]:
        endings = [ending]

        async def body() -> None:
            await (endings.pop()() if endings else asyncio.Event().wait())

        task = SupervisedTask("part", body)
        assert task.problem() is None
        task.start()
        problem = await eventually_async(task.problem)
        task.start()
        await asyncio.sleep(0)
        after = task.problem()
        await task.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return problem.reason, after

    assert asyncio.run(run()) == (reason, None)


def test_watchdog_restarts_a_silent_supervisor(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> bool:
        loop = asyncio.get_running_loop()
        supervisor = Supervisor(loop.time)
        supervisor.start()
        await asyncio.sleep(0)
        first = supervisor._task
        assert first is not None
        first.cancel()
        supervisor.checked_s -= 11
        watchdog = LoopWatchdog(loop, supervisor)
        watchdog._answer()
        assert supervisor._task is first
        watchdog._answer()
        is_new = supervisor._task is not first
        await supervisor.close()
        return is_new

    assert asyncio.run(run())
    assert "supervisor silent, restarting" in caplog.text
