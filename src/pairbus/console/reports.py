"""Reports of applications about their pairs: the endpoint that accepts them, and the last report of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from pairbus.broker import Right
from pairbus.dialect.paths import is_drill_path
from pairbus.pairing.policy import EntityState
from pairbus.pairing.report import (
    HEARTBEAT_S,
    MOST_BYTES,
    EntityReport,
    PairReport,
    ReportError,
    SwitchReport,
    read_report,
)
from pairbus.server.amqp.services import AmqpServices
from pairbus.server.errors import ServerBusyError, UnauthorizedError
from pairbus.server.http.call import read_body
from pairbus.server.http.credentials import Credentials, check_guesses, note_known, refuse_login

EXPIRES_MS: Final = int(3 * HEARTBEAT_S * 1_000)
"""An application that misses three heartbeats has ended, or cannot reach this namespace."""

MAX_APPLICATIONS: Final = 500
MAX_ENTITIES: Final = 10_000
"""Maximum number of entities of all applications together."""

_JITTER_MS: Final = 2_000
"""Clocks that differ by less than this count as equal: a report may take this long to arrive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastReport:
    """The last report of an application, and the time of its arrival."""

    report: PairReport
    received_ms: int
    offset_ms: int = 0
    """The difference of this namespace's clock to that of the application."""

    def local_ms(self, at_ms: int) -> int:
        """Convert a time of the application to this namespace's clock; the result is not after the arrival."""
        return max(0, min(at_ms + self.offset_ms, self.received_ms))


Row = tuple[LastReport, EntityReport]
"""An entity in the report of an application."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSwitches:
    """The switches that a report contains and earlier ones do not."""

    last: LastReport
    switches: tuple[SwitchReport, ...]
    missed: int
    """Number of switches that the report counts but does not list."""


class Reports:
    """The last report of each application, up to a maximum number of applications and entities."""

    def __init__(self) -> None:
        self._reports: dict[str, LastReport] = {}
        self._rows: list[Row] | None = None
        """Sorted when first needed."""

    def __len__(self) -> int:
        return len(self._reports)

    def __iter__(self) -> Iterator[LastReport]:
        return iter(self._reports.values())

    @property
    def rows(self) -> Sequence[Row]:
        """All entities; those that are not healthy come first."""
        if self._rows is None:
            self._rows = sorted(((last, one) for last in self for one in last.report.entities), key=_order)
        return self._rows

    def has_diversion(self, primary: str) -> bool:
        """Return whether an application reports that it diverts messages of a primary, other than those of drills."""
        return any(
            entity.is_diverting and not is_drill_path(entity.path)
            for last, entity in self.rows
            if last.report.primary.lower() == primary.lower()
        )

    def add(self, report: PairReport, now_ms: int) -> NewSwitches | None:
        """Replace the last report of an application; return ``None`` if this one is older.

        Raise ``ServerBusyError`` if there is no room.
        """
        self.expire(now_ms)
        before = self._reports.get(report.pair_id)
        if before is not None and report.number <= before.report.number:
            return None
        self._check_room(report, before)
        known = report.switched - len(report.switches) if before is None else before.report.switched
        new = tuple(one for one in report.switches if one.number > known)
        last = LastReport(
            report=replace(report, switches=()),
            received_ms=now_ms,
            offset_ms=_offset(0 if before is None else before.offset_ms, now_ms - report.sent_ms),
        )
        self._reports[report.pair_id] = last
        self._rows = None
        return NewSwitches(last=last, switches=new, missed=max(0, report.switched - known - len(new)))

    def expire(self, now_ms: int) -> None:
        for pair_id, last in [*self._reports.items()]:
            if now_ms - last.received_ms >= EXPIRES_MS:
                del self._reports[pair_id]
                self._rows = None

    def _check_room(self, report: PairReport, before: LastReport | None) -> None:
        others = [last for last in self if last is not before]
        if len(others) >= MAX_APPLICATIONS:
            raise ServerBusyError(f"too many applications report their pairs: the limit is {MAX_APPLICATIONS:,}")
        if _entity_count(others) + len(report.entities) > MAX_ENTITIES:
            raise ServerBusyError(f"the reports have too many entities: the limit is {MAX_ENTITIES:,}")


def _order(row: Row) -> tuple[bool, str, str, int, str]:
    last, entity = row
    report = last.report
    return (entity.state is EntityState.HEALTHY, report.application, report.host, report.process, entity.path)


def _entity_count(reports: Iterable[LastReport]) -> int:
    return sum(len(one.report.entities) for one in reports)


def _offset(before_ms: int, measured_ms: int) -> int:
    """Return the measured offset of a clock, or the previous one if the difference may be due to the transmission."""
    return before_ms if abs(measured_ms - before_ms) < _JITTER_MS else measured_ms


class ReportApi:
    """The endpoint for reports. It requires a token with Send for the whole namespace; a session does not suffice."""

    def __init__(self, services: AmqpServices, add: Callable[[PairReport], None]) -> None:
        self._services = services
        self._add = add

    async def handle(self, request: Request) -> Response:
        """Return the response to a request; raise ``BodyTooLargeError``."""
        credentials = Credentials(self._services.authorizer, request.headers.get("authorization"))
        try:
            check_guesses(self._services.guesses, request)
            credentials.require("", Right.SEND, self._services.host.wall_ms())
            note_known(self._services.guesses, request)
        except ServerBusyError as error:
            return _error(HTTPStatus.SERVICE_UNAVAILABLE, error)
        except UnauthorizedError as error:
            # Not stored here: the error refers to this frame, and both would hold the request until they are collected.
            return self._refusal(credentials, await refuse_login(self._services.guesses, request, error))
        try:
            body = await read_body(request, MOST_BYTES)
            credentials.require("", Right.SEND, self._services.host.wall_ms())  # it may have been revoked meanwhile
            self._add(read_report(body))
        except UnauthorizedError as error:
            return _error(self._status_for(credentials), error)
        except ReportError as error:
            return _error(HTTPStatus.BAD_REQUEST, error)
        except ServerBusyError as error:
            return _error(HTTPStatus.SERVICE_UNAVAILABLE, error)
        return Response(status_code=HTTPStatus.NO_CONTENT)

    def _refusal(self, credentials: Credentials, error: Exception) -> Response:
        is_busy = isinstance(error, ServerBusyError)
        return _error(HTTPStatus.SERVICE_UNAVAILABLE if is_busy else self._status_for(credentials), error)

    def _status_for(self, credentials: Credentials) -> HTTPStatus:
        """Return 403 for a valid credential without the claim, and 401 for an invalid one."""
        now_ms = self._services.host.wall_ms()
        is_known = any(credentials.allows("", right, now_ms) for right in Right)
        return HTTPStatus.FORBIDDEN if is_known else HTTPStatus.UNAUTHORIZED


def _error(status: HTTPStatus, error: Exception) -> Response:
    return Response(f"{error}\n", status, media_type="text/plain")
