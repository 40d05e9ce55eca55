"""Generated message ids: the same for a retried task, and never the same for two messages."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from pairbus.spark.outgoing import MessageIds, Scope

QUERY: Final = Scope(nonce="", query="a6b1112c", batch="3", partition=1)
contents = st.lists(st.tuples(st.binary(max_size=2), st.sampled_from(["orders", "invoices"])), max_size=30)


def ids_of(rows: list[tuple[bytes, str]], scope: Scope = QUERY, max_counted: int = 1_000) -> list[str]:
    ids = MessageIds(scope, max_counted)
    return [ids.next_id(content, rest) for content, *rest in rows]


@given(contents)
def test_retried_task_generates_the_same_ids(rows: list[tuple[bytes, str]]) -> None:
    assert ids_of(rows) == ids_of(rows)


@given(contents, st.integers(0, 30))
def test_ids_of_a_task_are_unique(rows: list[tuple[bytes, str]], max_counted: int) -> None:
    assert len(set(ids_of(rows, max_counted=max_counted))) == len(rows)


@given(contents, st.randoms(use_true_random=False))
def test_rows_in_another_order_have_the_same_ids(rows: list[tuple[bytes, str]], chance: random.Random) -> None:
    shuffled = chance.sample(rows, len(rows))
    assert sorted(ids_of(shuffled)) == sorted(ids_of(rows))


@given(contents, contents, st.integers(0, 30))
def test_ids_of_different_contents_differ(
    rows: list[tuple[bytes, str]], others: list[tuple[bytes, str]], max_counted: int
) -> None:
    """A retry may have other rows: a message with the id of another one would be dropped."""
    first = dict(zip(ids_of(rows, max_counted=max_counted), rows, strict=True))
    second = dict(zip(ids_of(others, max_counted=max_counted), others, strict=True))
    assert all(first[one] == second[one] for one in first.keys() & second.keys())


def test_position_of_values_changes_the_id() -> None:
    pairs = [(b"ab", ("c",)), (b"a", ("bc",)), (b"abc", ()), (b"ab", ("c", None)), (b"ab#1", ()), (b"ab", ())]
    ids = {MessageIds(QUERY).next_id(content, rest) for content, rest in pairs}
    assert len(ids) == len(pairs)


def test_scopes_have_different_ids() -> None:
    scopes = [
        QUERY,
        replace(QUERY, query="other"),
        replace(QUERY, batch="4"),
        replace(QUERY, partition=2),
        replace(QUERY, nonce="1"),
        replace(QUERY, prefix="nightly"),
    ]
    assert len({one for scope in scopes for one in ids_of([(b"x", "orders")], scope)}) == len(scopes)


def test_id_starts_with_the_prefix_and_fits_the_limit() -> None:
    (one,) = ids_of([(b"x", "orders")], Scope(nonce="", prefix="p" * 48))
    assert one.startswith("p" * 48 + "-")
    assert len(one) <= 128


def test_write_without_a_task_is_identified_by_nonce_or_prefix() -> None:
    assert Scope.of_this_task(None, "n", is_stream=True) == Scope(nonce="n")
    assert Scope.of_this_task("nightly", "n", is_stream=False) == Scope(prefix="nightly", nonce="")
