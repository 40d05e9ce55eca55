"""The error for an unreachable namespace."""

from __future__ import annotations

import errno
import socket

import pytest

from pairbus.client.endpoint import Endpoint, unreachable

ENDPOINT = Endpoint("localhost", 5672, tls=False)
REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 5672)")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (REFUSED, "Connection refused"),
        (OSError(f"Multiple exceptions: {REFUSED}, {REFUSED}"), "Connection refused"),
        (
            OSError(f"Multiple exceptions: {REFUSED}, {OSError(errno.ENETUNREACH, 'x')}"),
            "Connection refused, Network is unreachable",
        ),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "Name or service not known"),
        (UnicodeError("label too long"), "label too long"),
        (OSError("something else"), "something else"),
    ],
    ids=["one address", "two addresses", "two reasons", "no such name", "no name", "no number"],
)
def test_unreachable_reason_has_no_error_numbers(error: Exception, reason: str) -> None:
    reported = str(unreachable(ENDPOINT, error))
    assert reported.startswith(
        f"amqp://localhost:5672 cannot be reached: {reason}; check that the namespace is running"
    )
