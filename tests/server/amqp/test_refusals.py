"""E3: every error of the broker, the store and the server has a condition and a status."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import pairbus.broker
import pairbus.server
import pairbus.store
from pairbus.broker import (
    BrokerError,
    EntityDisabledError,
    EntityExistsError,
    EntityNotFoundError,
    EntityUnavailableError,
    HeaderSizeExceededError,
    InvalidDescriptionError,
    InvalidExpressionError,
    InvalidMessageError,
    InvalidNameError,
    InvalidOperationError,
    InvalidRequestError,
    LockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    QuotaExceededError,
    RuleBudgetExceededError,
    RuleQuotaExceededError,
    SessionLockedError,
    SessionLockLostError,
    SessionRequiredError,
)
from pairbus.broker.sql.syntax import EvaluationError
from pairbus.server.errors import (
    REFUSABLE,
    BadRequestError,
    FaultNotFoundError,
    FaultsNotAllowedError,
    InjectedFaultError,
    InvalidCredentialsError,
    LimitExceededError,
    NotSupportedError,
    OperationTimeoutError,
    PreconditionFailedError,
    ServerBusyError,
    ServerError,
    TransactionError,
    TransactionTimeoutError,
    UnauthorizedError,
    refusal_of,
)
from pairbus.server.http.call import BodyTooLargeError
from pairbus.store import CommitId, CommitInDoubtError, StoreError
from pairbus.store.errors import (
    BufferOwnerError,
    CommitOrderError,
    DamagedRecordError,
    DamagedStoreError,
    InvalidKeyError,
    NamespaceLoadingError,
    NamespaceReplacedError,
    NewerFormatError,
    NotADataDirectoryError,
    RepairTargetError,
    StoreClosedError,
    StoreFailedError,
    StoreFullError,
    StoreInUseError,
    StoreStalledError,
    UnconfinedDamageError,
    UnsupportedSystemError,
)
from pairbus.wire import DecodeError, InvalidFieldError, LocalProtocolError, MessageTooLargeError, ProtocolError

HERE = Path("here")

# As the SDKs need it: the first part is PROTOCOL 3.4 and 6, the second the standard's.
TABLE: dict[type[Exception], tuple[Exception, str, int]] = {
    type(error): (error, condition, status)
    for error, condition, status in [
        (BrokerError("x"), "amqp:internal-error", 500),
        (InvalidRequestError("x"), "com.microsoft:argument-error", 400),
        (InvalidNameError("x"), "com.microsoft:argument-error", 400),
        (InvalidDescriptionError("x"), "com.microsoft:argument-error", 400),
        (InvalidExpressionError("x", "a =", 3), "com.microsoft:argument-error", 400),
        (InvalidMessageError("x"), "com.microsoft:argument-error", 400),
        (MessageSizeExceededError("x"), "amqp:link:message-size-exceeded", 403),
        (HeaderSizeExceededError("x"), "amqp:link:message-size-exceeded", 403),
        (SessionRequiredError("x"), "amqp:not-allowed", 400),
        (RuleBudgetExceededError("x"), "com.microsoft:argument-error", 400),
        (InvalidOperationError("x"), "amqp:not-allowed", 400),
        (EntityNotFoundError("x", "orders"), "amqp:not-found", 404),
        (EntityExistsError("x"), "com.microsoft:entity-already-exists", 409),
        (EntityDisabledError("x"), "com.microsoft:entity-disabled", 403),
        (EntityUnavailableError("x"), "com.microsoft:server-busy", 503),
        (QuotaExceededError("x"), "amqp:resource-limit-exceeded", 403),
        (RuleQuotaExceededError("x"), "amqp:resource-limit-exceeded", 403),
        (LockLostError("x"), "com.microsoft:message-lock-lost", 410),
        (SessionLockLostError("x"), "com.microsoft:session-lock-lost", 410),
        (SessionLockedError("x"), "com.microsoft:session-cannot-be-locked", 410),
        (MessageNotFoundError("x"), "com.microsoft:message-not-found", 404),
        (EvaluationError("x"), "amqp:internal-error", 500),
        (StoreError("x"), "amqp:internal-error", 500),
        (InvalidKeyError(b"k", 5), "amqp:internal-error", 500),
        (CommitOrderError("x"), "amqp:internal-error", 500),
        (StoreClosedError("x"), "amqp:internal-error", 500),
        (NamespaceReplacedError(), "amqp:internal-error", 500),
        (UnsupportedSystemError("x"), "amqp:internal-error", 500),
        (StoreFullError("x", "y"), "amqp:resource-limit-exceeded", 403),
        (StoreStalledError("x"), "com.microsoft:server-busy", 503),
        (UnconfinedDamageError("x", "a branch is damaged"), "com.microsoft:server-busy", 503),
        (CommitInDoubtError(StoreFailedError("x", "broken"), CommitId(1, 1)), "com.microsoft:server-busy", 503),
        (NamespaceLoadingError(), "com.microsoft:server-busy", 503),
        (StoreFailedError("x", "y"), "amqp:internal-error", 500),
        (DamagedRecordError(b"k", "x"), "amqp:internal-error", 500),
        (DamagedStoreError(HERE, "x"), "amqp:internal-error", 500),
        (StoreInUseError(HERE, None), "amqp:internal-error", 500),
        (NewerFormatError(HERE, 2, 1), "amqp:internal-error", 500),
        (RepairTargetError(HERE, "x"), "amqp:internal-error", 500),
        (BufferOwnerError(HERE, "it belongs to another namespace"), "amqp:internal-error", 500),
        (NotADataDirectoryError(HERE, "x"), "amqp:internal-error", 500),
        (UnauthorizedError("x"), "amqp:unauthorized-access", 401),
        (InvalidCredentialsError("x"), "amqp:unauthorized-access", 401),
        (ServerBusyError("x"), "com.microsoft:server-busy", 503),
        (OperationTimeoutError("x"), "com.microsoft:timeout", 408),
        (InjectedFaultError("x"), "com.microsoft:timeout", 408),
        (FaultsNotAllowedError(), "amqp:not-allowed", 400),
        (FaultNotFoundError("x"), "amqp:not-found", 404),
        (BadRequestError("x"), "com.microsoft:argument-error", 400),
        (BodyTooLargeError("x"), "com.microsoft:argument-error", 400),
        (LimitExceededError("x", "max_tokens_per_connection"), "amqp:resource-limit-exceeded", 403),
        (NotSupportedError("x"), "amqp:not-implemented", 501),
        (PreconditionFailedError("x"), "amqp:precondition-failed", 412),
        (TransactionError("x"), "amqp:transaction:unknown-id", 400),
        (TransactionTimeoutError("x"), "amqp:transaction:timeout", 400),
    ]
}
ABSTRACT = {ServerError}
"""Errors that are never raised themselves."""


def subclasses(kind: type[Exception]) -> Iterator[type[Exception]]:
    yield kind
    for each in kind.__subclasses__():
        yield from subclasses(each)


def test_table_is_complete() -> None:
    for package in (pairbus.broker, pairbus.store, pairbus.server):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    every = {each for family in (BrokerError, StoreError, ServerError) for each in subclasses(family)}
    ours = {each for each in every if each.__module__.startswith("pairbus.")}
    assert ours - ABSTRACT == TABLE.keys()


@pytest.mark.parametrize("kind", TABLE, ids=lambda kind: kind.__name__)
def test_each_error_has_the_condition_of_the_service(kind: type[Exception]) -> None:
    error, condition, status = TABLE[kind]
    refusal = refusal_of(error)
    assert (refusal.condition, refusal.status) == (condition, status)
    if isinstance(error, StoreError):  # its location and details are for the operator
        assert "disk" in refusal.description
        assert str(error) not in refusal.description
    elif isinstance(error, EntityNotFoundError):
        assert error.entity is not None
        assert error.entity in refusal.description
    else:
        assert str(error) in refusal.description
    assert refusal.error.condition == condition
    assert refusal.error.description == refusal.description
    assert isinstance(error, REFUSABLE)


def test_missing_entity_has_the_sentence_that_the_sdk_for_javascript_parses() -> None:
    deleted = refusal_of(EntityNotFoundError("'orders' was deleted", "orders"))
    assert deleted.description == "The messaging entity 'orders' could not be found. 'orders' was deleted"
    absent = refusal_of(EntityNotFoundError("there is no queue or topic 'orders'", "orders"))
    assert absent.description == "The messaging entity 'orders' could not be found. Create it, or check its name"


@pytest.mark.parametrize("error", [DecodeError("x"), InvalidFieldError("x")], ids=["decode", "field"])
def test_encoding_error_has_a_standard_condition(error: ProtocolError) -> None:
    refusal = refusal_of(error)
    assert (refusal.condition, refusal.status) == (error.condition, 400)


@pytest.mark.parametrize(
    ("error", "condition"),
    [
        (MessageTooLargeError("x"), "amqp:link:message-size-exceeded"),
        (LocalProtocolError("x"), "amqp:frame-size-too-small"),
    ],
    ids=["message", "frame"],
)
def test_error_of_a_peers_limit_has_its_condition(error: Exception, condition: str) -> None:
    assert refusal_of(error).condition == condition


def test_internal_error_is_reported_without_details() -> None:
    refusal = refusal_of(KeyError("secret"))
    assert (refusal.condition, refusal.status) == ("amqp:internal-error", 500)
    assert "secret" not in refusal.description
