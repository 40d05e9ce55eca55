"""The order index of a backlog queue, compared with a model that knows all messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pairbus.pairing.syphon.order import OrderIndex

LINE = ("visits", "a")


def test_consecutive_numbers_leave_no_gap() -> None:
    index = OrderIndex()
    for sequence in range(1, 100):
        index.received(sequence)
        assert index.first_unknown(sequence) is None
    assert index.first_unknown() == 100


def test_gap_is_peeked_once() -> None:
    index = OrderIndex()
    index.received(5)
    assert index.first_unknown(5) == 1
    index.peeked(3)
    assert index.first_unknown(5) == 4
    index.peeked(9)
    assert index.first_unknown(5) is None
    assert index.first_unknown() == 10
    index.received(20)
    index.peeked(20)
    assert index.first_unknown() == 21


def test_session_is_clear_if_no_other_receiver_has_an_earlier_message() -> None:
    index = OrderIndex()
    index.saw(3, LINE)
    index.saw(7, LINE)
    index.saw(1, None)
    assert index.is_clear(2, LINE)
    assert not index.is_clear(5, LINE)
    assert index.is_clear(5, None)
    assert index.is_clear(5, ("visits", "b"))
    assert index.gone(3) == LINE
    assert index.is_clear(5, LINE)
    assert not index.is_clear(8, LINE)
    index.received(7)
    assert not index.is_clear(8, LINE)  # received, and not locked by this process yet
    assert index.gone(7) == LINE
    assert index.is_clear(8, LINE)
    assert index.gone(7) is None


@given(st.lists(st.tuples(st.sampled_from(["received", "looked", "saw", "gone"]), st.integers(1, 30)), max_size=60))
def test_order_index_agrees_with_a_naive_model(steps: list[tuple[str, int]]) -> None:
    index = OrderIndex()
    known: set[int] = set()
    others: set[int] = set()
    top = 0
    for step, number in steps:
        match step:
            case "received":
                index.received(number)
                if number > top:
                    known.add(number)
                top = max(top, number)
            case "looked":
                index.peeked(number)
                known |= set(range(1, number + 1))
                top = max(top, number)
            case "saw":
                index.saw(number, LINE)
                others.add(number)
            case "gone":
                index.gone(number)
                others.discard(number)
        assert [one for one in range(1, 40) if index.is_unknown(one)] == [
            one for one in range(1, 40) if one > top or one not in known
        ]
        assert index.first_unknown() == next(one for one in range(1, 40) if one > top or one not in known)
        assert set(index.others) == others
        for one in range(1, 40):
            assert index.is_clear(one, LINE) == all(other >= one for other in others)
