"""Responses: entries, feeds and errors."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Generic, TypeVar
from uuid import uuid4

from starlette.responses import Response

from pairbus.dialect.atom import (
    ENTRY_TYPE,
    ERROR_TYPE,
    FEED_TYPE,
    AtomEntry,
    AtomFeed,
    ErrorBody,
    format_instant,
    write_entry,
    write_error,
    write_feed,
)
from pairbus.server.errors import BadRequestError, PreconditionFailedError

_SUB_CODES: Final = {401: 40103}
"""Sub-codes that differ from the default: an invalid token, or one that lacks the claim."""

_EXTRA_HEADERS: Final = {503: {"Retry-After": "10"}}


def entry_answer(entry: AtomEntry, etag: str | None = None, status: int = HTTPStatus.OK) -> Response:
    headers = {} if etag is None else {"ETag": etag}
    return Response(write_entry(entry), status, headers | {"Content-Type": ENTRY_TYPE})


def feed_answer(feed: AtomFeed) -> Response:
    return Response(write_feed(feed), headers={"Content-Type": FEED_TYPE})


def empty_answer() -> Response:
    return Response(status_code=HTTPStatus.OK)


def error_answer(
    status: int, reason: str, *, now_ms: int, tracking_id: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an error response in the form that the SDKs parse. JavaScript chooses its error by the sub-code."""
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
    """Return an id that users can quote, and operators can find in the log."""
    return f"{uuid4()}_G0"


_TAG: Final = re.compile(r'(?:W/)?"([^"]*)"')


def etag_of(settings: Mapping[str, Any], updated_ms: int) -> str:
    """Return a tag that changes with each change of the settings, but not with the messages."""
    content = repr((updated_ms, sorted(settings.items(), key=lambda item: item[0])))
    return f'"{hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:32]}"'


def check_match(if_match: str | None, current: str, entity: str) -> None:
    """Raise ``PreconditionFailedError`` if the header names versions, but not this one. ``*`` is any version."""
    if if_match is None or if_match.strip() == "*":
        return
    named = _TAG.findall(if_match) or [if_match.strip()]
    if current.strip('"') not in named:
        raise PreconditionFailedError(
            f"'{entity}' has changed since the version that If-Match names: read it again", entity
        )


DEFAULT_TOP: Final = 100
MAX_TOP: Final = 1_000
"""Largest page; a larger request gets this many, and a link to the rest."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ResultPage(Generic[T]):
    """One page of results."""

    items: Sequence[T]
    skip: int
    top: int
    has_more: bool


def page_of(find: Callable[[int, int], Sequence[T]], query: Mapping[str, str]) -> ResultPage[T]:
    """Return the page that ``$skip`` and ``$top`` request; raises ``BadRequestError``.

    ``find`` is called with the number to skip and the number to return; one more than requested shows whether there are
    more.
    """
    skip = _number(query, "$skip", 0)
    top = min(_number(query, "$top", DEFAULT_TOP), MAX_TOP)
    items = find(skip, top + 1)
    return ResultPage(items[:top], skip, top, top > 0 and len(items) > top)


def among(items: Sequence[T]) -> Callable[[int, int], Sequence[T]]:
    """Return a page finder for a complete sequence."""
    return lambda skip, top: items[skip : skip + top]


def _number(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise BadRequestError(f"{name} must be a whole number >= 0, got {text[:64]!r}")
    return int(text)
