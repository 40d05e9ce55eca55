"""Fixtures of the tests of the everyday commands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pairbus.testing import running_namespace
from tests.cli.everyday import Desk


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    with running_namespace("contoso", topics={"events": ["audit"]}) as contoso:
        yield Desk(contoso)
