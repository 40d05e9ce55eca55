"""What is sent back: entries, feeds and refusals."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final
from uuid import uuid4

from starlette.responses import Response

from pairbus.dialect.atom import (
    ENTRY_TYPE,
    ERROR_TYPE,
    FEED_TYPE,
    Entry,
    ErrorBody,
    Feed,
    format_instant,
    write_entry,
    write_error,
    write_feed,
)

_SUB_CODES: Final = {401: 40103}
"""Where the service has another than the first: a token that does not hold, or lacks the claim."""

_EXTRA_HEADERS: Final = {503: {"Retry-After": "10"}}


def entry_answer(entry: Entry, etag: str | None = None, status: int = HTTPStatus.OK) -> Response:
    headers = {} if etag is None else {"ETag": etag}
    return Response(write_entry(entry), status, headers | {"Content-Type": ENTRY_TYPE})


def feed_answer(feed: Feed) -> Response:
    return Response(write_feed(feed), headers={"Content-Type": FEED_TYPE})


def empty_answer() -> Response:
    return Response(status_code=HTTPStatus.OK)


def error_answer(
    status: int, reason: str, *, now_ms: int, tracking_id: str, headers: Mapping[str, str] | None = None
) -> Response:
    """A refusal in the form that the SDKs read. The sub-code tells JavaScript which error to raise."""
    sub_code = _SUB_CODES.get(status, status * 100)
    detail = (
        f"SubCode={sub_code}. {HTTPStatus(status).phrase}. {reason.rstrip('.')}."
        f" TrackingId:{tracking_id}, Timestamp:{format_instant(now_ms)}"
    )
    return Response(
        write_error(ErrorBody(status, detail)),
        status,
        {"Content-Type": ERROR_TYPE, **_EXTRA_HEADERS.get(status, {}), **(headers or {})},
    )


def fresh_tracking_id() -> str:
    """What a user can quote, and an operator can find in the log."""
    return f"{uuid4()}_G0"
