"""The feature that a test shows: a row of the page, and for which clients and transports the test runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import pytest

from tests.compatibility.client import Ability, Adapter, Transport

EVERY_TRANSPORT: Final = (Transport.TCP, Transport.TLS, Transport.WEBSOCKET)


class Tier(StrEnum):
    """The tier of the namespace that a test uses."""

    RELAXED = "relaxed"
    """The one without limits, where locks can be short; all tests of a worker share it."""
    STANDARD = "standard"
    PREMIUM = "premium"
    OWN = "own"
    """One without limits that no other test uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A row of the page."""

    title: str
    needs: frozenset[Ability] = frozenset()
    """A client without an interface for one of these is not asked."""
    transports: tuple[Transport, ...] = (Transport.TCP,)
    tier: Tier = Tier.RELAXED

    def runs_with(self, adapter: Adapter) -> bool:
        return self.needs <= adapter.abilities

    def transports_of(self, adapter: Adapter) -> list[Transport]:
        return [transport for transport in self.transports if transport in adapter.transports]


def feature(
    title: str,
    *,
    needs: Iterable[Ability] = (),
    transports: tuple[Transport, ...] = (Transport.TCP,),
    tier: Tier = Tier.RELAXED,
) -> pytest.MarkDecorator:
    """Mark the test of a feature."""
    return pytest.mark.feature(Feature(title=title, needs=frozenset(needs), transports=transports, tier=tier))


def feature_of(marks: Iterable[pytest.Mark]) -> Feature | None:
    """Find what a test shows, among its marks."""
    for mark in marks:
        if mark.name == "feature":
            (found,) = mark.args
            assert isinstance(found, Feature)
            return found
    return None
