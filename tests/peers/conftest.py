"""The server that the peers' tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.peers.node_server import NodeServer


@pytest.fixture
def server() -> Iterator[NodeServer]:
    with NodeServer() as server:
        yield server
