"""Where applications report their pairs: a request that shows a token, and no session of anybody's."""

from __future__ import annotations

from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response

from pairbus.broker import Right
from pairbus.console.body import read_body
from pairbus.console.watch import Watch
from pairbus.pairing.report_json import MOST_BYTES, ReportError, read_report
from pairbus.server.errors import InvalidCredentialsError, ServerBusyError, UnauthorizedError
from pairbus.server.http.credentials import Credentials, check_guesses, hold_back


class ReportApi:
    """Takes reports from whoever may send to the whole namespace."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._services = watch.services

    async def take(self, request: Request) -> Response:
        """Answer a request; raises ``BodyTooLargeError``."""
        credentials = Credentials(self._services.gatekeeper, request.headers.get("authorization"))
        try:
            check_guesses(self._services.guesses, request)
            self._require(credentials, Right.SEND)
        except ServerBusyError as error:
            return _refused(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        except UnauthorizedError as error:
            if isinstance(error, InvalidCredentialsError):
                await hold_back(self._services.guesses, request, error)
            return _refused(self._status_for(credentials), str(error))
        try:
            self._watch.hear(read_report(await read_body(request, MOST_BYTES)))
        except ReportError as error:
            return _refused(HTTPStatus.BAD_REQUEST, str(error))
        except ServerBusyError as error:
            return _refused(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        return Response(status_code=HTTPStatus.NO_CONTENT)

    def _require(self, credentials: Credentials, right: Right) -> None:
        credentials.require("", right, self._services.host.wall_ms())

    def _status_for(self, credentials: Credentials) -> HTTPStatus:
        """Who is known but may not is told so; who is not known is asked who they are."""
        now_ms = self._services.host.wall_ms()
        is_known = any(credentials.allows("", right, now_ms) for right in Right)
        return HTTPStatus.FORBIDDEN if is_known else HTTPStatus.UNAUTHORIZED


def _refused(status: HTTPStatus, reason: str) -> Response:
    return Response(f"{reason}\n", status, media_type="text/plain")
