"""Request bodies, read within limits."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request

from pairbus.server.errors import BadRequestError

MAX_BODY_BYTES: Final = 1 << 20
"""The largest body that any route accepts: a description of an entity, or of a rule with long expressions."""

_DIGITS: Final = 18


class BodyTooLargeError(BadRequestError):
    """The body is larger than the route allows."""

    limit = "http_body_bytes"


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Return the body; raises ``BodyTooLargeError`` as soon as it is too large, or declares that it will be."""
    check_length(request.headers.get("content-length", "0"), max_bytes)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
    return bytes(body)


def check_length(length: str, max_bytes: int) -> None:
    """Raise ``BodyTooLargeError`` if a Content-Length exceeds the limit."""
    if length.isascii() and length.isdigit() and (len(length) > _DIGITS or int(length) > max_bytes):
        raise _too_large(max_bytes)


def _too_large(max_bytes: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"the body has more than {max_bytes} bytes, the maximum of this route (http_body_bytes)")
