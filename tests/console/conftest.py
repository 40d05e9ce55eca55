"""Fixtures: a server with its console."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.console.site import Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Yield a server for one test."""
    with opened(tmp_path) as site:
        yield site


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield a server that all tests of a module share; they must not change it."""
    with opened(tmp_path_factory.mktemp("shared")) as site:
        yield site


@contextmanager
def opened(directory: Path, **settings: Any) -> Iterator[Site]:
    site = Site(directory / "contoso", **settings)
    site.start()
    try:
        yield site
    finally:
        site.close()
