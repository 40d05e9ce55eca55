"""Filters that Spark pushes down: those that are taken select the rows that Spark would select."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from pairbus.spark.filters import is_supported, matches, numbers_of, selects_entity
from pairbus.spark.schema import MESSAGE_SCHEMA

LABEL = ("label",)
NUMBER = ("sequence_number",)
LABELS = pa.array(["espresso", None, "latte", ""])


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (EqualTo(LABEL, "latte"), [False, False, True, False]),
        (Not(EqualTo(LABEL, "latte")), [True, False, False, True]),
        (EqualNullSafe(LABEL, "latte"), [False, False, True, False]),
        (Not(EqualNullSafe(LABEL, "latte")), [True, True, False, True]),
        (GreaterThan(LABEL, "f"), [False, False, True, False]),
        (GreaterThanOrEqual(LABEL, "latte"), [False, False, True, False]),
        (LessThan(LABEL, "espresso"), [False, False, False, True]),
        (LessThanOrEqual(LABEL, "espresso"), [True, False, False, True]),
        (In(LABEL, ("latte", "")), [False, False, True, True]),
        (Not(In(LABEL, ("latte", ""))), [True, False, False, False]),
        (IsNull(LABEL), [False, True, False, False]),
        (IsNotNull(LABEL), [True, False, True, True]),
        (Not(IsNull(LABEL)), [True, False, True, True]),
        (StringStartsWith(LABEL, "esp"), [True, False, False, False]),
        (StringEndsWith(LABEL, "te"), [False, False, True, False]),
        (StringContains(LABEL, "tt"), [False, False, True, False]),
        (Not(StringContains(LABEL, "tt")), [True, False, False, True]),
    ],
    ids=str,
)
def test_supported_filter_selects_as_sql_does(condition: Filter, expected: list[bool]) -> None:
    assert is_supported(condition, MESSAGE_SCHEMA)
    assert matches(condition, LABELS) == expected


@pytest.mark.parametrize(
    "condition",
    [
        EqualTo(("body",), b"x"),
        EqualTo(("application_properties", "n"), "1"),
        EqualTo(("colour",), "red"),
        EqualTo(LABEL, 1),
        EqualTo(LABEL, None),
        EqualTo(NUMBER, True),
        EqualTo(NUMBER, 2**63),
        EqualTo(("enqueued_time",), datetime(2030, 1, 1)),  # noqa: DTZ001
        StringContains(NUMBER, "1"),
        In(LABEL, ("x", None)),
        Not(EqualTo(("body",), b"x")),
    ],
    ids=str,
)
def test_other_filters_are_left_to_spark(condition: Filter) -> None:
    assert not is_supported(condition, MESSAGE_SCHEMA)


def test_times_are_compared() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    times = pa.array([at, at.replace(year=2031)], pa.timestamp("us", tz="UTC"))
    assert matches(GreaterThan(("enqueued_time",), at), times) == [False, True]


@given(
    st.lists(
        st.one_of(
            st.builds(
                lambda kind, value: kind(NUMBER, value),
                st.sampled_from([EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]),
                st.integers(-2, 12),
            ),
            st.builds(lambda values: In(NUMBER, tuple(values)), st.sets(st.integers(0, 10))),
            st.builds(lambda value: Not(EqualTo(NUMBER, value)), st.integers(0, 10)),
        ),
        max_size=3,
    )
)
def test_numbers_are_a_superset_of_the_selected_ones(conditions: list[Any]) -> None:
    numbers = range(11)
    chosen = numbers_of(conditions)
    for number in numbers:
        is_selected = all(matches(one, pa.array([number]))[0] for one in conditions)
        assert number in chosen or not is_selected
        assert is_selected or number not in chosen or any(isinstance(one, Not) for one in conditions)


def test_entities_are_selected() -> None:
    conditions = [In(("entity",), ("orders", "mail")), GreaterThan(NUMBER, 3)]
    assert [selects_entity(conditions, name) for name in ("orders", "mail", "news")] == [True, True, False]
