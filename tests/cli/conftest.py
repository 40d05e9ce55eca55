"""Fixtures of the tests of the everyday commands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pairbus.testing import running_namespace
from tests.cli.everyday import CommandFixture


@pytest.fixture(scope="module")
def desk() -> Iterator[CommandFixture]:
    with running_namespace("contoso", topics={"events": ["audit"]}) as contoso:
        yield CommandFixture(contoso)
