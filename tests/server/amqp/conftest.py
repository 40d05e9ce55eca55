"""Shared fixtures: each module has a ``namespace`` of its own kind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pairbus.testing import RunningNamespace
from tests.server.amqp.wire_client import WireClient, connect


@pytest.fixture
def client(namespace: RunningNamespace) -> Iterator[WireClient]:
    with connect(namespace) as connected:
        yield connected


@pytest.fixture
def other(namespace: RunningNamespace) -> Iterator[WireClient]:
    with connect(namespace) as connected:
        yield connected
