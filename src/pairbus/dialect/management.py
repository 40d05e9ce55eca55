"""Requests and responses on ``$cbs`` and ``$management`` nodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from pairbus.broker.descriptions import CORRELATION_FIELDS
from pairbus.wire import (
    AMQP_VALUE,
    Int,
    InvalidFieldError,
    Message,
    Properties,
    Symbol,
    ULong,
    check_values,
    decode_message,
    encode_message,
)


class Operation(StrEnum):
    """The operations of the nodes."""

    PUT_TOKEN = "put-token"  # noqa: S105 (a name)
    RENEW_LOCK = "com.microsoft:renew-lock"
    PEEK_MESSAGE = "com.microsoft:peek-message"
    SCHEDULE_MESSAGE = "com.microsoft:schedule-message"
    CANCEL_SCHEDULED_MESSAGE = "com.microsoft:cancel-scheduled-message"
    RECEIVE_BY_SEQUENCE_NUMBER = "com.microsoft:receive-by-sequence-number"
    UPDATE_DISPOSITION = "com.microsoft:update-disposition"
    RENEW_SESSION_LOCK = "com.microsoft:renew-session-lock"
    GET_SESSION_STATE = "com.microsoft:get-session-state"
    SET_SESSION_STATE = "com.microsoft:set-session-state"
    GET_MESSAGE_SESSIONS = "com.microsoft:get-message-sessions"
    ADD_RULE = "com.microsoft:add-rule"
    REMOVE_RULE = "com.microsoft:remove-rule"
    ENUMERATE_RULES = "com.microsoft:enumerate-rules"
    BATCH_DELETE_MESSAGES = "com.microsoft:batch-delete-messages"


ASSOCIATED_LINK: Final = "associated-link-name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request. Its ``message_id`` is the correlation id of the response, with the same type."""

    operation: str
    message_id: Any = None
    reply_to: str | None = None
    properties: dict[str, Any] = field(default_factory=dict)
    body: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A response; ``body`` is the result of the operation, ``condition`` the reason of a failure."""

    status: int = 200
    description: str = "OK"
    condition: str | None = None
    body: dict[str, Any] = field(default_factory=dict)


def read_request(payload: bytes, max_values: int | None = None) -> Request:
    """Decode a request; raises ``ProtocolError``, also if it holds more than ``max_values`` values."""
    if max_values is not None and len(payload) > max_values:  # a value takes at least a byte
        check_values(payload, max_values)
    message = decode_message(payload)
    properties = message.application_properties or {}
    operation = properties.get("operation")
    if not isinstance(operation, str):
        raise InvalidFieldError("the request has no application property 'operation'")
    return Request(
        operation=operation,
        message_id=message.properties.message_id,
        reply_to=message.properties.reply_to,
        properties=properties,
        body=message.body[0] if message.body_kind == AMQP_VALUE else None,
    )


def write_response(request: Request, response: Response) -> bytes:
    """Encode a response with the property names of the node: those of ``$cbs`` differ from those of ``$management``."""
    if request.operation == Operation.PUT_TOKEN:
        words: dict[str, Any] = {
            "status-code": Int(response.status),
            "status-description": response.description,
        }
    else:
        words = {"statusCode": Int(response.status), "statusDescription": response.description}
        if response.condition is not None:
            words["errorCondition"] = Symbol(response.condition)
    return encode_message(
        Message(
            properties=Properties(correlation_id=request.message_id),
            application_properties=words,
            body=(response.body,),
            body_kind=AMQP_VALUE,
        )
    )


def write_request(request: Request) -> bytes:
    return encode_message(
        Message(
            properties=Properties(message_id=request.message_id, reply_to=request.reply_to),
            application_properties={**request.properties, "operation": request.operation},
            body=(request.body,),
            body_kind=AMQP_VALUE,
        )
    )


def read_response(payload: bytes) -> tuple[Any, Response]:
    """Return the id of the request and the response to it; raises ``ProtocolError``."""
    message = decode_message(payload)
    words = message.application_properties or {}
    status = words.get("statusCode", words.get("status-code"))
    if not isinstance(status, int):
        raise InvalidFieldError("the response has no status")
    condition = words.get("errorCondition", words.get("error-condition"))
    body = message.body[0] if message.body_kind == AMQP_VALUE else None
    return message.properties.correlation_id, Response(
        status=int(status),
        description=str(words.get("statusDescription", words.get("status-description")) or ""),
        condition=None if condition is None else str(condition),
        body=body if isinstance(body, dict) else {},
    )


RULE: Final = ULong(0x13700000004)
EMPTY_ACTION: Final = ULong(0x13700000005)
SQL_ACTION: Final = ULong(0x13700000006)
SQL_FILTER: Final = ULong(0x1370000006)
TRUE_FILTER: Final = ULong(0x1370000007)
FALSE_FILTER: Final = ULong(0x1370000008)
CORRELATION_FILTER: Final = ULong(0x1370000009)

CORRELATED: Final = tuple(CORRELATION_FIELDS)
"""The fields of a correlation filter, in the order of the wire; in requests their names have hyphens."""
