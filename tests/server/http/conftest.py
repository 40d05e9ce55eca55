"""A namespace for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.http.site import Site


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as opened:
        yield opened
