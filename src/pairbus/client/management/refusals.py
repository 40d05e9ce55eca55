"""What the management API refuses requests with: one table from statuses to our errors."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Final

from pairbus.client.errors import (
    EntityAlreadyExistsError,
    EntityNotFoundError,
    InternalServerError,
    InvalidRequestError,
    MessagingError,
    MessagingTimeoutError,
    PreconditionFailedError,
    QuotaExceededError,
    ServerBusyError,
    UnauthorizedError,
)
from pairbus.client.management.http import HttpResponse
from pairbus.dialect.atom import AtomError, parse_error

# PROTOCOL: 8.6. What is not here is a fault of ours below 500, and the service's above.
_ERRORS: Final[dict[int, type[MessagingError]]] = {
    401: UnauthorizedError,
    403: QuotaExceededError,
    404: EntityNotFoundError,
    408: MessagingTimeoutError,
    409: EntityAlreadyExistsError,
    410: EntityNotFoundError,
    412: PreconditionFailedError,
    429: ServerBusyError,
    501: InvalidRequestError,
    503: ServerBusyError,
}
_NOT_ALLOWED: Final = "40301"
_OTHER_OPERATION: Final = "40901"
_SUB_CODE: Final = re.compile(r"\s*SubCode=(\d+)\.?\s*")
_TRACKING: Final = re.compile(r"[\s.]*(?:To know more visit|TrackingId:).*", re.DOTALL)


def refusal_of(response: HttpResponse, *, entity: str | None, creates: bool) -> MessagingError:
    """The error that an answer stands for. Only what ``creates`` something can find that it is there already."""
    detail, sub_code = _detail(response)
    condition = None if sub_code is None else f"SubCode={sub_code}"
    if response.status == HTTPStatus.CONFLICT and (not creates or sub_code == _OTHER_OPERATION):
        # Somebody else is changing it at the same time.
        return PreconditionFailedError(detail, entity=entity, condition=condition, is_transient=True)
    if sub_code == _NOT_ALLOWED:
        return InvalidRequestError(detail, entity=entity, condition=condition)
    return _kind(response.status)(detail, entity=entity, condition=condition)


def _kind(status: int) -> type[MessagingError]:
    return _ERRORS.get(
        status, InternalServerError if status >= HTTPStatus.INTERNAL_SERVER_ERROR else InvalidRequestError
    )


def _detail(response: HttpResponse) -> tuple[str, str | None]:
    """Why, without what only operators can use; and the sub-code."""
    try:
        detail = parse_error(response.body).detail
    except AtomError:  # a proxy's page, or nothing
        detail = ""
    found = _SUB_CODE.match(detail)
    text = detail if found is None else detail[found.end() :]
    text = _TRACKING.sub("", text.removeprefix(f"{_phrase(response.status)}. "))
    return text or f"the answer is {response.status} {_phrase(response.status)}".strip(), found and found[1]


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
