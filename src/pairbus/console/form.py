"""The body of a form, read within bounds."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request

from pairbus.console.body import read_body
from pairbus.server.errors import BadRequestError

_MOST_BYTES: Final = 64 * 1024
_MOST_FIELDS: Final = 32
_TYPE: Final = "application/x-www-form-urlencoded"


async def read_form(request: Request) -> dict[str, str]:
    """The fields that were sent; raises ``BadRequestError``."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _TYPE:
        raise BadRequestError("a form comes from a page of the console")
    body = await read_body(request, _MOST_BYTES)
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="strict")
    except ValueError as error:
        raise BadRequestError("the form cannot be read") from error
    return dict(pairs)
