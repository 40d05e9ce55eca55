"""Sessions: their locks, their states, and which there are."""

from __future__ import annotations

from typing import Final

from pairbus.broker import SessionLockLostError
from pairbus.dialect.conditions import ServiceBusCondition
from pairbus.dialect.management import Response
from pairbus.server.amqp.management.call import Call
from pairbus.wire import Array, Int, Timestamp

_EVERY_MS: Final = 253_402_300_800_000
"""The first moment of the year 10000: whoever asks for states set after it asks for every session there is."""


def _token(call: Call) -> bytes:
    token = call.session_token()
    if token is None:
        raise SessionLockLostError("the request names no link that holds a session", str(call.address))
    return token


def renew_lock(call: Call) -> Response:
    until_ms = call.namespace.renew_session(call.address, _token(call), call.now_ms)
    return Response(body={"expiration": Timestamp(until_ms)})


def state(call: Call) -> Response:
    return Response(body={"session-state": call.namespace.session_state(call.address, _token(call), call.now_ms)})


def set_state(call: Call) -> Response:
    call.namespace.set_session_state(call.address, _token(call), call.optional_bytes("session-state"), call.now_ms)
    return Response()


def enumerate_sessions(call: Call) -> Response:
    updated_ms = call.number("last-updated-time", _EVERY_MS)
    after_ms = None if updated_ms >= _EVERY_MS else updated_ms
    found = call.namespace.sessions(call.address, call.now_ms, after_ms)
    if after_ms is None:  # those with messages are not all: a state keeps a session, too
        found = sorted({*found, *call.namespace.sessions(call.address, call.now_ms, 0)})
    skip = max(0, call.number("skip", 0))
    page = found[skip : skip + max(0, call.number("top", 100))]
    if not page:
        return Response(status=204, description="No sessions", condition=ServiceBusCondition.SESSION_NOT_FOUND)
    return Response(body={"skip": Int(skip + len(page)), "sessions-ids": Array(tuple(page))})
