"""A server with its console."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.console.site import Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """One for the test alone."""
    with opened(tmp_path) as site:
        yield site


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One for all tests of a module that change nothing."""
    with opened(tmp_path_factory.mktemp("shared")) as site:
        yield site


@contextmanager
def opened(directory: Path) -> Iterator[Site]:
    site = Site(directory / "contoso")
    site.start()
    try:
        yield site
    finally:
        site.close()
