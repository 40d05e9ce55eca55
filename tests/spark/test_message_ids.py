"""The ids that a task makes: the same ones when it is run again, and never one for two messages."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from pairbus.spark.message_ids import MessageIds, Scope

QUERY: Final = Scope(nonce="", query="a6b1112c", batch="3", partition=1)
contents = st.lists(st.tuples(st.binary(max_size=2), st.sampled_from(["orders", "invoices"])), max_size=30)


def ids_of(rows: list[tuple[bytes, str]], scope: Scope = QUERY, most_counted: int = 1_000) -> list[str]:
    ids = MessageIds(scope, most_counted)
    return [ids.next_id(content, rest) for content, *rest in rows]


@given(contents)
def test_a_task_that_is_run_again_makes_the_same_ids(rows: list[tuple[bytes, str]]) -> None:
    assert ids_of(rows) == ids_of(rows)


@given(contents, st.integers(0, 30))
def test_no_two_messages_of_a_task_have_one_id(rows: list[tuple[bytes, str]], most_counted: int) -> None:
    assert len(set(ids_of(rows, most_counted=most_counted))) == len(rows)


@given(contents, st.randoms(use_true_random=False))
def test_rows_in_another_order_have_the_same_ids(rows: list[tuple[bytes, str]], chance: random.Random) -> None:
    shuffled = chance.sample(rows, len(rows))
    assert sorted(ids_of(shuffled)) == sorted(ids_of(rows))


@given(contents, contents, st.integers(0, 30))
def test_an_id_never_stands_for_another_content(
    rows: list[tuple[bytes, str]], others: list[tuple[bytes, str]], most_counted: int
) -> None:
    """However different the rows of the second try are: what has the id of another message would be dropped."""
    first = dict(zip(ids_of(rows, most_counted=most_counted), rows, strict=True))
    second = dict(zip(ids_of(others, most_counted=most_counted), others, strict=True))
    assert all(first[one] == second[one] for one in first.keys() & second.keys())


def test_what_stands_where_makes_a_difference() -> None:
    pairs = [(b"ab", ("c",)), (b"a", ("bc",)), (b"abc", ()), (b"ab", ("c", None)), (b"ab#1", ()), (b"ab", ())]
    ids = {MessageIds(QUERY).next_id(content, rest) for content, rest in pairs}
    assert len(ids) == len(pairs)


def test_each_scope_has_ids_of_its_own() -> None:
    scopes = [
        QUERY,
        replace(QUERY, query="other"),
        replace(QUERY, batch="4"),
        replace(QUERY, partition=2),
        replace(QUERY, nonce="1"),
        replace(QUERY, prefix="nightly"),
    ]
    assert len({one for scope in scopes for one in ids_of([(b"x", "orders")], scope)}) == len(scopes)


def test_an_id_begins_with_what_the_user_has_chosen_and_is_short_enough() -> None:
    (one,) = ids_of([(b"x", "orders")], Scope(nonce="", prefix="p" * 48))
    assert one.startswith("p" * 48 + "-")
    assert len(one) <= 128


def test_without_a_task_of_spark_a_write_is_known_by_its_nonce_or_its_name() -> None:
    assert Scope.of_this_task(None, "n", is_stream=True) == Scope(nonce="n")
    assert Scope.of_this_task("nightly", "n", is_stream=False) == Scope(prefix="nightly", nonce="")
