"""Diagnostic bundles over HTTP, for keys with the claim *Manage* on the namespace."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from starlette.responses import JSONResponse, Response

from pairbus.broker import EntityNotFoundError
from pairbus.server.errors import NotSupportedError
from pairbus.server.http.call import HttpCall
from pairbus.server.supervision.diagnostics import Diagnostics

PATH: Final = "$diagnostics"


async def collect_bundle(call: HttpCall) -> Response:
    """Collect a bundle now, keep it, and return it."""
    name, content = _diagnostics(call).collect()
    location = {"Location": f"/{PATH}/{name}"}
    return Response(content, HTTPStatus.CREATED, location, media_type="application/json")


async def list_bundles(call: HttpCall) -> Response:
    found = _diagnostics(call).kept
    return JSONResponse({"bundles": [{"name": info.name, "size_bytes": info.size_bytes} for info in found]})


async def get_bundle(call: HttpCall) -> Response:
    name = call.names["bundle"]
    content = await _diagnostics(call).read(name)
    if content is None:
        raise EntityNotFoundError(f"there is no bundle '{name}'", name)
    return Response(content, media_type="application/json")


def _diagnostics(call: HttpCall) -> Diagnostics:
    if call.diagnostics is None:
        raise NotSupportedError("this server keeps no diagnostic bundles")
    return call.diagnostics
