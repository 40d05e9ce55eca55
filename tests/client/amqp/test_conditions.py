"""The conditions that a namespace names, one by one, as the errors that an application gets."""

from __future__ import annotations

from typing import Final

import pytest

from pairbus.client.amqp.conditions import ERRORS, error_from, error_from_status, lost
from pairbus.client.errors import (
    EntityAlreadyExistsError,
    EntityDisabledError,
    EntityNotFoundError,
    InternalServerError,
    InvalidRequestError,
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingCommunicationError,
    MessagingError,
    MessagingTimeoutError,
    PreconditionFailedError,
    QuotaExceededError,
    ServerBusyError,
    SessionCannotBeLockedError,
    SessionLockLostError,
    UnauthorizedError,
)
from pairbus.client.message import BrokeredMessage
from pairbus.client.settings import NO_RETRY
from pairbus.wire import Error, Rejected
from tests.client.amqp_peer import run, scripted

KINDS: Final[dict[str, type[MessagingError]]] = {
    "amqp:internal-error": InternalServerError,
    "amqp:invalid-field": InvalidRequestError,
    "amqp:link:message-size-exceeded": MessageSizeExceededError,
    "amqp:not-allowed": InvalidRequestError,
    "amqp:not-found": EntityNotFoundError,
    "amqp:not-implemented": InvalidRequestError,
    "amqp:precondition-failed": PreconditionFailedError,
    "amqp:resource-deleted": EntityNotFoundError,
    "amqp:resource-limit-exceeded": QuotaExceededError,
    "amqp:unauthorized-access": UnauthorizedError,
    "com.microsoft:argument-error": InvalidRequestError,
    "com.microsoft:argument-out-of-range": InvalidRequestError,
    "com.microsoft:auth-failed": UnauthorizedError,
    "com.microsoft:entity-already-exists": EntityAlreadyExistsError,
    "com.microsoft:entity-disabled": EntityDisabledError,
    "com.microsoft:entity-not-found": EntityNotFoundError,
    "com.microsoft:message-lock-lost": MessageLockLostError,
    "com.microsoft:message-not-found": MessageNotFoundError,
    "com.microsoft:operation-cancelled": InternalServerError,
    "com.microsoft:precondition-failed": PreconditionFailedError,
    "com.microsoft:server-busy": ServerBusyError,
    "com.microsoft:session-cannot-be-locked": SessionCannotBeLockedError,
    "com.microsoft:session-lock-lost": SessionLockLostError,
    "com.microsoft:session-not-found": SessionCannotBeLockedError,
    "com.microsoft:timeout": MessagingTimeoutError,
    "amqp:connection:forced": MessagingCommunicationError,
    "amqp:connection:framing-error": MessagingCommunicationError,
    "amqp:illegal-state": MessagingCommunicationError,
    "amqp:link:detach-forced": MessagingCommunicationError,
    "amqp:link:stolen": MessagingCommunicationError,
    "amqp:link:transfer-limit-exceeded": MessagingCommunicationError,
    "amqp:resource-locked": MessagingCommunicationError,
    "amqp:session:errant-link": MessagingCommunicationError,
    "amqp:session:handle-in-use": MessagingCommunicationError,
    "amqp:session:unattached-handle": MessagingCommunicationError,
    "amqp:session:window-violation": MessagingCommunicationError,
}
TRANSIENT: Final = (MessagingCommunicationError, MessagingTimeoutError, ServerBusyError, InternalServerError)


def check(error: MessagingError, kind: type[MessagingError], condition: str) -> None:
    assert type(error) is kind
    assert error.is_transient is issubclass(kind, TRANSIENT)
    assert error.entity == "orders"
    assert error.condition == condition
    assert str(error).startswith(f"'orders': the reason ({condition})")


def test_every_known_condition_is_tested() -> None:
    assert {str(condition) for condition in ERRORS} == {*KINDS}


@pytest.mark.parametrize(("condition", "kind"), KINDS.items(), ids=KINDS)
def test_e4_each_condition_maps_to_error(condition: str, kind: type[MessagingError]) -> None:
    check(error_from(Error(condition, "the reason"), "orders"), kind, condition)
    check(error_from_status(500, "the reason", condition, "orders"), kind, condition)


@pytest.mark.parametrize(("condition", "kind"), KINDS.items(), ids=KINDS)
def test_e4_rejected_message_raises_reason(condition: str, kind: type[MessagingError]) -> None:
    async def scenario() -> None:
        async with scripted(retry_policy=NO_RETRY) as (peer, factory):
            peer.outcome = lambda _delivery: Rejected(Error(condition, "the reason"))
            sender = await factory.create_message_sender("orders")
            with pytest.raises(kind) as caught:
                await sender.send(BrokeredMessage(b"body"))
            check(caught.value, kind, condition)

    run(scenario())


@pytest.mark.parametrize(("condition", "kind"), KINDS.items(), ids=KINDS)
def test_e4_refused_link_raises_reason(condition: str, kind: type[MessagingError]) -> None:
    async def scenario() -> None:
        async with scripted(retry_policy=NO_RETRY) as (peer, factory):
            for make in (factory.create_message_sender, factory.create_message_receiver):
                part = await make("orders")
                peer.refusals.append(Error(condition, "the reason"))
                with pytest.raises(kind) as caught:
                    await (part.receive() if hasattr(part, "receive") else part.send(BrokeredMessage(b"body")))
                check(caught.value, kind, condition)

    run(scenario())


def test_unknown_condition_is_kept() -> None:
    error = error_from(Error("contoso:odd"), "orders")
    assert type(error) is MessagingError
    assert not error.is_transient
    assert str(error) == "'orders': refused as contoso:odd (contoso:odd)"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidRequestError),
        (401, UnauthorizedError),
        (403, QuotaExceededError),
        (404, EntityNotFoundError),
        (409, EntityAlreadyExistsError),
        (410, MessageLockLostError),
        (412, PreconditionFailedError),
        (429, ServerBusyError),
        (500, InternalServerError),
        (503, ServerBusyError),
        (418, MessagingError),
    ],
)
def test_response_without_condition_is_mapped_by_status(status: int, kind: type[MessagingError]) -> None:
    for condition in (None, "contoso:odd"):
        error = error_from_status(status, "", condition, "orders")
        assert type(error) is kind
        assert f"refused with status {status}" in str(error)
        assert error.condition == condition


def test_end_without_reason_is_transient() -> None:
    error = lost(None, "the link")
    assert type(error) is MessagingCommunicationError
    assert str(error) == "the namespace closed the link"


@pytest.mark.parametrize("condition", ["contoso:odd", "amqp:unauthorized-access", "amqp:not-found"])
def test_connection_end_with_any_reason_is_transient(condition: str) -> None:
    error = lost(Error(condition, "the reason"), "the connection")
    assert type(error) is MessagingCommunicationError
    assert error.is_transient
    assert str(error) == f"the namespace closed the connection: the reason ({condition})"
