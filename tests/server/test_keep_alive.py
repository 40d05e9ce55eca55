"""HTTP connections that clients keep for their next request."""

from __future__ import annotations

import http.client
import re

from pairbus.testing import running_namespace


def test_clients_are_told_how_long_they_may_keep_a_connection() -> None:
    with running_namespace("contoso") as namespace:
        connection = http.client.HTTPConnection("localhost", namespace.port, timeout=60)
        for _ in range(2):  # the second time on the same connection
            connection.request("GET", "/health")
            response = connection.getresponse()
            assert response.read()
            told = re.fullmatch(r"timeout=(\d+)", response.headers["keep-alive"])
            assert told is not None
            assert int(told[1]) >= 60
        connection.close()
