"""What goes wrong, as an application sees it."""

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
def test_e4_every_error_says_what_happened_and_where(kind: type[MessagingError]) -> None:
    error = kind("it broke", entity="orders", condition="amqp:broken")
    assert str(error).startswith("'orders': it broke (amqp:broken)")
    assert (error.entity, error.condition, error.message) == ("orders", "amqp:broken", "it broke")
    assert error.is_transient is (kind in TRANSIENT)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_what_many_wait_for_fails_for_each_with_an_error_of_the_same_kind(kind: type[MessagingError]) -> None:
    error = kind("it broke", condition="amqp:broken", is_transient=not kind.transient)
    error.__cause__ = OSError("why")
    twin = error.copy("orders")
    assert twin is not error
    assert type(twin) is kind
    assert (twin.message, twin.condition, twin.is_transient) == ("it broke", "amqp:broken", not kind.transient)
    assert twin.__cause__ is error.__cause__
    assert (error.entity, twin.entity) == (None, "orders")


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_error_is_explained_in_the_tree(kind: type[MessagingError]) -> None:
    assert kind.__name__ in (errors.__doc__ or "")
    assert kind.__doc__


def test_the_entity_that_is_known_stays() -> None:
    error = EntityNotFoundError("gone", entity="orders")
    assert error.at("other") is error
    assert error.copy("other").entity == "orders"
    assert EntityNotFoundError("gone").at("orders").entity == "orders"


def test_an_entity_that_the_text_names_is_not_named_twice() -> None:
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
def test_e4_what_to_do_is_said_where_there_is_something_to_do(kind: type[MessagingError], hint: str) -> None:
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
def test_e4_what_the_namespace_advises_is_not_said_twice(error: MessagingError, advice: str) -> None:
    assert str(error).count(advice) == 1


def test_errors_are_what_python_calls_them_too() -> None:
    assert issubclass(MessagingTimeoutError, TimeoutError)
    assert issubclass(InvalidMessageError, ValueError)
    assert issubclass(MessageLockLostError, LockLostError)
    assert issubclass(SessionLockLostError, LockLostError)
    assert issubclass(FactoryFaultedError, ClosedError)
