"""The model of a large backlog: no part is busy for longer than it lasts, and the bottleneck sets its time."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from benchmarks.scale import BATCH_S, COMPILED, COSTS, HOUR_S, LARGE_BATCH, Costs, Scenario, lines, simulate
from tests.docs.snippets import ROOT

SMALL = Scenario(messages=1_000_000, executors=10)


@pytest.mark.parametrize("costs", [*COSTS.values()], ids=[*COSTS])
def test_time_is_at_least_that_of_the_bottleneck(costs: Costs) -> None:
    result = simulate(replace(SMALL, batch_messages=LARGE_BATCH, costs=costs))
    least_s = SMALL.messages * costs.secondary_us / 1e6
    assert least_s <= result.hours * HOUR_S <= 1.05 * least_s + BATCH_S.value
    assert result.bottleneck == "secondary"
    assert all(0 < share <= 1 for share in result.busy.values())


def test_time_grows_with_the_backlog() -> None:
    assert simulate(replace(SMALL, messages=10 * SMALL.messages)).hours == pytest.approx(10 * simulate(SMALL).hours)


def test_one_task_works_on_one_group_at_a_time() -> None:
    result = simulate(replace(SMALL, executors=1, cores=1, costs=COMPILED))
    each_us = COMPILED.secondary_us + COMPILED.task_us + COMPILED.primary_us
    batches = SMALL.messages / SMALL.batch_messages
    assert result.hours * HOUR_S == pytest.approx(SMALL.messages * each_us / 1e6 + batches * BATCH_S.value)


def test_bottleneck_moves_to_the_primary_and_then_to_the_tasks() -> None:
    large = replace(SMALL, batch_messages=LARGE_BATCH)
    assert simulate(replace(large, secondaries=2)).bottleneck == "primary"
    assert simulate(replace(large, executors=1, secondaries=50, primaries=50)).bottleneck == "tasks"


def test_page_has_the_output_of_the_model() -> None:
    page = (ROOT / "docs" / "explanation" / "scale.md").read_text("utf-8")
    blocks = re.findall(r"^```\n(.*?)\n```", page, re.MULTILINE | re.DOTALL)
    assert "\n".join(blocks) == "\n".join(lines())
