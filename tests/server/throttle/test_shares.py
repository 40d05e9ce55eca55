"""B2: while a node is short of time, each entity, and each partition of one, has the same share of the sends."""

from __future__ import annotations

import math
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.broker import NewMessage
from pairbus.broker.queue import partition_of
from pairbus.server.throttle.shares import SMALLEST_SHARE, EntityBudgets, FairShares, fair_level

DEMANDS: Final = st.lists(st.integers(0, 10_000), max_size=20)
PARTITIONS: Final = 16


# The level.


@pytest.mark.parametrize(
    ("demands", "supply", "level"),
    [
        ([], 10, math.inf),
        ([5, 5], 10, math.inf),
        ([5, 6], 10, 5),
        ([1, 100], 11, 10),
        ([1, 2, 100, 100], 23, 10),
        ([8, 8, 8, 8], 16, 4),
        ([3], 0, 0),
    ],
)
def test_small_demands_are_met_and_large_ones_share_the_rest(demands: list[float], supply: float, level: float) -> None:
    assert fair_level(demands, supply) == pytest.approx(level)


@given(DEMANDS, st.floats(0, 100_000))
def test_no_more_than_the_supply_is_given_and_nothing_is_left_over(demands: list[int], supply: float) -> None:
    level = fair_level(demands, supply)
    given_out = sum(min(demand, level) for demand in demands)
    assert given_out == pytest.approx(min(sum(demands), supply), abs=1e-6)


@given(DEMANDS, st.floats(0, 100_000))
def test_demand_of_at_most_an_equal_part_is_met_in_full(demands: list[int], supply: float) -> None:
    level = fair_level(demands, supply)
    for demand in demands:
        assert demand <= level or demand * len(demands) > supply * 0.999_999


# Shares.


def started() -> FairShares:
    """Return shares whose first interval starts at 0."""
    shares = FairShares()
    shares.divide(None, 0.0)
    return shares


def test_nothing_is_denied_while_there_is_time() -> None:
    shares = started()
    for second in range(10):
        assert all(shares.admit({"loud": 1_000}, second + 0.5) for _ in range(100))
        shares.divide(None, second + 1.0)
    assert shares.share == math.inf


def demand(shares: FairShares, now_s: float, **counts: int) -> dict[str, int]:
    """Send that many single messages; return how many are admitted."""
    return {name: sum(shares.admit({name: 1}, now_s) for _ in range(count)) for name, count in counts.items()}


def test_demand_is_cut_in_proportion_to_the_pressure() -> None:
    shares = started()
    demand(shares, 0.5, loud=1_000)
    shares.divide(2.0, 1.0)
    assert shares.share == 500
    assert demand(shares, 1.0, loud=1_000) == {"loud": 500}


def test_denied_attempts_do_not_lower_the_share_further() -> None:
    shares = started()
    for second in range(20):
        admitted = demand(shares, second + 0.999, loud=1_000, quiet=10)
        shares.divide(2.0, second + 1.0)
        assert shares.share == pytest.approx(495)
        assert admitted["quiet"] == 10
    assert 450 < admitted["loud"] < 550


def test_late_interval_has_a_longer_allowance() -> None:
    shares = started()
    demand(shares, 0.5, loud=1_000)
    shares.divide(2.0, 1.0)
    admitted = demand(shares, 4.0, loud=5_000)["loud"]
    assert admitted == pytest.approx(2_000, abs=1), "one second in advance, and three that have passed"
    shares.divide(2.0, 4.0)
    assert shares.share == 750
    assert demand(shares, 4.0, loud=1_000) == {"loud": 0}, "what was taken in advance is used up"


def test_large_batch_is_admitted_and_then_paid_for_but_not_for_ever() -> None:
    shares = started()
    demand(shares, 0.5, other=20)
    shares.divide(50.0, 1.0)
    assert shares.admit({"loud": 4_500}, 1.0)
    attempts = []
    for second in range(1, 30):
        attempts.append(shares.admit({"loud": 1}, second + 0.99))
        shares.divide(50.0, second + 1.0)
        demand(shares, second + 1.0, other=20)
    assert not any(attempts[:5])
    assert any(attempts[:11]), "a client that waits ten seconds gets its turn"


def test_everyone_may_send_a_little() -> None:
    shares = started()
    shares.divide(1_000.0, 1.0)
    demand(shares, 1.5, **{f"q{number}": 1 for number in range(50)})
    shares.divide(1_000.0, 2.0)
    assert shares.share == SMALLEST_SHARE
    assert set(demand(shares, 2.0, **{f"q{number}": 1 for number in range(50)}).values()) == {1}


def test_each_denied_budget_is_reported_once() -> None:
    shares = started()
    demand(shares, 0.5, loud=1_000, quiet=1)
    for second in (1.0, 2.0):
        shares.divide(2.0, second)
        demand(shares, second, loud=1_000, quiet=1)
    assert shares.take_newly_denied() == ["loud"]
    assert shares.take_newly_denied() == []
    shares.divide(None, 3.0)
    demand(shares, 3.0, loud=1_000)
    shares.divide(2.0, 4.0)
    demand(shares, 4.0, loud=1_000)
    assert shares.take_newly_denied() == ["loud"], "it is another shortage"


@given(
    st.lists(
        st.tuples(st.floats(0.5, 3.0), st.none() | st.floats(0.9, 100.0), st.integers(0, 2_000), st.integers(0, 50)),
        min_size=1,
        max_size=30,
    )
)
def test_quiet_budget_within_its_share_is_never_denied(
    intervals: list[tuple[float, float | None, int, int]],
) -> None:
    shares, now_s = started(), 0.0
    for length_s, pressure, loud, quiet in intervals:
        within = min(quiet, int(shares.share * min(length_s, 1.0) * 0.99)) if shares.share < math.inf else quiet
        assert demand(shares, now_s + length_s / 2, loud=loud, quiet=within)["quiet"] == within
        now_s += length_s
        shares.divide(pressure, now_s)
        assert shares.share >= SMALLEST_SHARE


# Partitions.


def keyed(key: str | None) -> NewMessage:
    return NewMessage(b"", partition_key=key)


def test_partition_of_a_key_pays_for_its_messages() -> None:
    budgets, shares = EntityBudgets("orders", PARTITIONS), started()
    hot = partition_of("hot", PARTITIONS)
    assert budgets.charge([keyed("hot")] * 3, shares) == {f"orders|{hot}": 3}
    session = NewMessage(b"", session_id="hot")
    assert budgets.charge([session], shares) == {f"orders|{hot}": 1}, "a session belongs to a partition, too"


def test_messages_without_a_key_avoid_the_busy_partition() -> None:
    budgets, shares = EntityBudgets("orders", PARTITIONS), started()
    hot = partition_of("hot", PARTITIONS)
    for _ in range(1_000):
        shares.admit(budgets.charge([keyed("hot")], shares), 0.5)
    shares.divide(2.0, 1.0)
    while shares.admit(budgets.charge([keyed("hot")], shares), 1.0):
        pass
    charged = budgets.charge([keyed(None)] * 100, shares)
    assert f"orders|{hot}" not in charged
    assert sum(charged.values()) == 100
    assert shares.admit(charged, 1.0)


def test_unpartitioned_entity_has_one_budget() -> None:
    assert EntityBudgets("orders").charge([keyed("a"), keyed("b"), keyed(None)], FairShares()) == {"orders": 3}
