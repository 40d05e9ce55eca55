"""Runs each test of a feature with every client that has an interface for it, over every transport it names."""

from __future__ import annotations

import inspect
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from pairbus.testing import RunningNamespace
from tests.compatibility.adapters import ADAPTERS
from tests.compatibility.feature import Tier, feature_of
from tests.compatibility.scene import Case
from tests.compatibility.stage import AT_ONCE, STAGE


class FeatureTest(pytest.Item):
    """A test of a feature with one client over one transport."""

    def __init__(self, *, case: Case, **options: Any) -> None:
        super().__init__(**options)
        self.case = case
        self.own_markers.extend(getattr(case.test, "pytestmark", ()))
        if case.adapter.is_facade:
            self.own_markers.append(pytest.mark.slow.mark)
        self.keywords.update({mark.name: mark for mark in self.own_markers})
        self.user_properties += [("feature", case.feature.title), ("client", case.adapter.id)]

    def setup(self) -> None:
        self.case.adapter.check_presence()

    def runtest(self) -> None:
        STAGE.result(self.case, self._following())

    def _following(self) -> list[Case]:
        items = self.session.items
        after = islice(items, items.index(self) + 1, None)
        return list(islice((item.case for item in after if isinstance(item, FeatureTest)), AT_ONCE - 1))

    def reportinfo(self) -> tuple[Path, int, str]:
        code = self.case.test.__code__
        return self.path, code.co_firstlineno - 1, self.name


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "feature: what the test shows about a client, see feature.py")


def pytest_pycollect_makeitem(collector: pytest.Module, name: str, obj: object) -> list[FeatureTest] | None:
    if not (name.startswith("test_") and inspect.iscoroutinefunction(obj)):
        return None
    feature = feature_of(getattr(obj, "pytestmark", ()))
    assert feature is not None, f"{name} names no feature"
    cases = [
        Case(obj, feature, adapter, transport)
        for adapter in ADAPTERS
        if feature.runs_with(adapter)
        for transport in feature.transports_of(adapter)
    ]
    return [FeatureTest.from_parent(collector, name=f"{name}[{case.id}]", case=case) for case in cases]


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if isinstance(item, FeatureTest) and not isinstance(nextitem, FeatureTest):
        STAGE.clear()


def pytest_sessionfinish() -> None:
    STAGE.close()


@pytest.fixture(scope="session")
def relaxed() -> RunningNamespace:
    return STAGE.namespace(Tier.RELAXED)
