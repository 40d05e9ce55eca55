"""The injected faults of the namespace, as JSON."""

from __future__ import annotations

import json
from http import HTTPStatus

from starlette.responses import JSONResponse, Response

from pairbus.fault_kinds import FaultKind, FaultRequest
from pairbus.server.errors import BadRequestError, FaultsNotAllowedError
from pairbus.server.fault_injection import inject_fault
from pairbus.server.faults import Fault, Faults
from pairbus.server.http.call import HttpCall


async def list_faults(call: HttpCall) -> Response:
    return _answer(_faults(call).engaged(call.now_ms))


async def add_fault(call: HttpCall) -> Response:
    _faults(call)
    try:
        request = FaultRequest.of_document(json.loads(call.body))
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"the fault cannot be injected: {error}") from error
    fault = inject_fault(call.host, request, call.actor)
    if fault.kind is FaultKind.QUARANTINE:
        await call.host.durable()
    return JSONResponse(fault.document(), HTTPStatus.CREATED)


async def clear_faults(call: HttpCall) -> Response:
    return _answer(_faults(call).clear_all(call.now_ms, call.actor))


async def clear_fault(call: HttpCall) -> Response:
    faults, fault_id = _faults(call), call.names["fault"]
    if not (fault_id.isascii() and fault_id.isdecimal() and len(fault_id) <= 18):
        raise BadRequestError(f"the id of a fault must be a whole number, got {fault_id[:64]!r}")
    return _answer([faults.clear(int(fault_id), call.now_ms, call.actor)])


def _faults(call: HttpCall) -> Faults:
    if call.host.faults is None:
        raise FaultsNotAllowedError
    return call.host.faults


def _answer(faults: list[Fault]) -> Response:
    return JSONResponse({"faults": [fault.document() for fault in faults]})
