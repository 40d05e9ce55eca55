"""What is known of a backlog queue, beside a model that knows everything."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pairbus.pairing.pump.ahead import Ahead

LINE = ("visits", "a")


def test_numbers_that_come_one_after_the_other_leave_no_gap() -> None:
    ahead = Ahead()
    for sequence in range(1, 100):
        ahead.received(sequence)
        assert ahead.first_unknown(sequence) is None
    assert ahead.first_unknown() == 100


def test_a_gap_is_looked_at_once() -> None:
    ahead = Ahead()
    ahead.received(5)
    assert ahead.first_unknown(5) == 1
    ahead.looked(3)
    assert ahead.first_unknown(5) == 4
    ahead.looked(9)
    assert ahead.first_unknown(5) is None
    assert ahead.first_unknown() == 10
    ahead.received(20)
    ahead.looked(20)
    assert ahead.first_unknown() == 21


def test_a_session_is_clear_when_nobody_else_has_an_earlier_message_of_it() -> None:
    ahead = Ahead()
    ahead.saw(3, LINE)
    ahead.saw(7, LINE)
    ahead.saw(1, None)
    assert ahead.is_clear(2, LINE)
    assert not ahead.is_clear(5, LINE)
    assert ahead.is_clear(5, None)
    assert ahead.is_clear(5, ("visits", "b"))
    assert ahead.gone(3) == LINE
    assert ahead.is_clear(5, LINE)
    assert not ahead.is_clear(8, LINE)
    ahead.received(7)
    assert not ahead.is_clear(8, LINE)  # it has come, and is not at hand yet
    assert ahead.gone(7) == LINE
    assert ahead.is_clear(8, LINE)
    assert ahead.gone(7) is None


@given(st.lists(st.tuples(st.sampled_from(["received", "looked", "saw", "gone"]), st.integers(1, 30)), max_size=60))
def test_it_knows_what_a_naive_model_knows(steps: list[tuple[str, int]]) -> None:
    ahead = Ahead()
    known: set[int] = set()
    others: set[int] = set()
    top = 0
    for step, number in steps:
        match step:
            case "received":
                ahead.received(number)
                if number > top:
                    known.add(number)
                top = max(top, number)
            case "looked":
                ahead.looked(number)
                known |= set(range(1, number + 1))
                top = max(top, number)
            case "saw":
                ahead.saw(number, LINE)
                others.add(number)
            case "gone":
                ahead.gone(number)
                others.discard(number)
        assert [one for one in range(1, 40) if ahead.is_unknown(one)] == [
            one for one in range(1, 40) if one > top or one not in known
        ]
        assert ahead.first_unknown() == next(one for one in range(1, 40) if one > top or one not in known)
        assert set(ahead.others) == others
        for one in range(1, 40):
            assert ahead.is_clear(one, LINE) == all(other >= one for other in others)
