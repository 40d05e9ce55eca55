"""Callbacks: a second listener does not replace the first one."""

from __future__ import annotations

from pairbus.callbacks import Callbacks


def test_all_listeners_are_called_in_the_order_in_which_they_were_added() -> None:
    seen: list[tuple[str, int]] = []
    callbacks: Callbacks[[int]] = Callbacks()
    callbacks.add(lambda number: seen.append(("first", number)))
    callbacks.add(lambda number: seen.append(("second", number)))
    callbacks(7)
    assert seen == [("first", 7), ("second", 7)]
