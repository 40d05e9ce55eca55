"""HTTP connections that clients keep for their next request."""

from __future__ import annotations

import http.client
import re

from pairbus.testing import running_namespace


def test_keep_alive_header_announces_the_timeout() -> None:
    with running_namespace("contoso") as namespace:
        connection = http.client.HTTPConnection("localhost", namespace.port, timeout=60)
        for _ in range(2):  # the second time on the same connection
            connection.request("GET", "/health")
            response = connection.getresponse()
            assert response.read()
            reported = re.fullmatch(r"timeout=(\d+)", response.headers["keep-alive"])
            assert reported is not None
            assert int(reported[1]) >= 60
        connection.close()
