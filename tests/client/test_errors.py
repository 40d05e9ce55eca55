"""The errors of the client."""

from __future__ import annotations

import inspect

import pytest

from pairbus.client import errors
from pairbus.client.errors import (
    BacklogUnavailableError,
    ClosedError,
    EntityNotFoundError,
    FactoryFaultedError,
    InternalServerError,
    InvalidMessageError,
    LockLostError,
    MessageLockLostError,
    MessagingCommunicationError,
    MessagingError,
    MessagingTimeoutError,
    QuotaExceededError,
    ServerBusyError,
    SessionLockLostError,
    UnauthorizedError,
)

ALL = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, MessagingError)]
TRANSIENT = {
    BacklogUnavailableError,
    InternalServerError,
    MessagingCommunicationError,
    MessagingTimeoutError,
    ServerBusyError,
}


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_e4_every_error_has_a_reason_and_an_entity(kind: type[MessagingError]) -> None:
    error = kind("it broke", entity="orders", condition="amqp:broken")
    assert str(error).startswith("'orders': it broke (amqp:broken)")
    assert (error.entity, error.condition, error.message) == ("orders", "amqp:broken", "it broke")
    assert error.is_transient is (kind in TRANSIENT)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_copied_error_has_same_kind(kind: type[MessagingError]) -> None:
    error = kind("it broke", condition="amqp:broken", is_transient=not kind.transient)
    error.__cause__ = OSError("why")
    twin = error.copy("orders")
    assert twin is not error
    assert type(twin) is kind
    assert (twin.message, twin.condition, twin.is_transient) == ("it broke", "amqp:broken", not kind.transient)
    assert twin.__cause__ is error.__cause__
    assert (error.entity, twin.entity) == (None, "orders")


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_error_is_in_docstring_tree(kind: type[MessagingError]) -> None:
    assert kind.__name__ in (errors.__doc__ or "")
    assert kind.__doc__


def test_known_entity_is_kept() -> None:
    error = EntityNotFoundError("gone", entity="orders")
    assert error.at("other") is error
    assert error.copy("other").entity == "orders"
    assert EntityNotFoundError("gone").at("orders").entity == "orders"


def test_entity_in_text_is_not_repeated() -> None:
    assert str(EntityNotFoundError("there is no 'orders'", entity="orders")) == "there is no 'orders'"


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        (UnauthorizedError, "Send, Listen or Manage"),
        (ServerBusyError, "10 seconds"),
        (MessageLockLostError, "max_auto_lock_renewal"),
        (SessionLockLostError, "accept the session again"),
    ],
)
def test_e4_advice_is_shown(kind: type[MessagingError], hint: str) -> None:
    assert hint in str(kind("it broke"))


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (SessionLockLostError("it has ended: accept the session again"), "accept the session again"),
        (
            QuotaExceededError("it is full: receive messages, its dead letters too"),
            "receive messages",
        ),
        (QuotaExceededError("it is full"), "receive messages"),
    ],
)
def test_e4_advice_of_namespace_is_not_repeated(error: MessagingError, advice: str) -> None:
    assert str(error).count(advice) == 1


def test_errors_are_builtin_errors_too() -> None:
    assert issubclass(MessagingTimeoutError, TimeoutError)
    assert issubclass(InvalidMessageError, ValueError)
    assert issubclass(MessageLockLostError, LockLostError)
    assert issubclass(SessionLockLostError, LockLostError)
    assert issubclass(FactoryFaultedError, ClosedError)
