"""Requests and answers on ``$cbs`` and ``$management``."""

from __future__ import annotations

from uuid import UUID

import pytest

from pairbus.dialect.management import Request, Response, read_request, write_response
from pairbus.wire import AMQP_VALUE, Int, Message, Properties, ProtocolError, Symbol, decode_message, encode_message


def test_request_is_decoded() -> None:
    payload = encode_message(
        Message(
            properties=Properties(message_id=UUID(int=1), reply_to="me"),
            application_properties={"operation": "com.microsoft:peek-message", "associated-link-name": "l"},
            body=({"message-count": Int(5)},),
            body_kind=AMQP_VALUE,
        )
    )
    assert read_request(payload) == Request(
        operation="com.microsoft:peek-message",
        message_id=UUID(int=1),
        reply_to="me",
        properties={"operation": "com.microsoft:peek-message", "associated-link-name": "l"},
        body={"message-count": Int(5)},
    )


@pytest.mark.parametrize("payload", [b"", b"\x00", encode_message(Message(body=(b"x",)))], ids=["", "cut", "plain"])
def test_request_without_operation_is_rejected(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_request(payload)


@pytest.mark.parametrize("identity", [UUID(int=3), "text"], ids=["uuid", "text"])
def test_response_correlates_with_type_of_request_id(identity: object) -> None:
    request = Request(operation="com.microsoft:renew-lock", message_id=identity)
    answer = decode_message(write_response(request, Response(status=410, description="gone", condition="a:b")))
    assert answer.properties.correlation_id == identity
    assert type(answer.properties.correlation_id) is type(identity)
    assert answer.application_properties == {
        "statusCode": Int(410),
        "statusDescription": "gone",
        "errorCondition": Symbol("a:b"),
    }


def test_cbs_response_uses_its_own_names() -> None:
    answer = decode_message(
        write_response(Request(operation="put-token"), Response(status=202, description="Accepted"))
    )
    assert answer.application_properties == {"status-code": Int(202), "status-description": "Accepted"}
