"""The body of a request, read within bounds."""

from __future__ import annotations

from starlette.requests import Request

from pairbus.server.http.app import BodyTooLargeError


async def read_body(request: Request, most_bytes: int) -> bytes:
    """All of it; raises ``BodyTooLargeError`` as soon as it is too much."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most_bytes:
            raise BodyTooLargeError(f"the body has more than {most_bytes} bytes")
    return bytes(body)
