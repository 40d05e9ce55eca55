"""Failure rules: each class of error, and custom rules."""

from __future__ import annotations

import inspect
from types import MappingProxyType
from typing import Any, Final

import pytest

from pairbus.client import errors
from pairbus.client.errors import (
    BacklogUnavailableError,
    ClosedError,
    EntityAlreadyExistsError,
    EntityDisabledError,
    EntityNotFoundError,
    FactoryFaultedError,
    InternalServerError,
    InvalidMessageError,
    InvalidRequestError,
    LockLostError,
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
from pairbus.pairing.policy import FAILURE_RULES, FailureRules, FailureVerdict, check_rules, counts

ALWAYS: Final = (MessagingCommunicationError, MessagingTimeoutError)
NEVER: Final = (
    ServerBusyError,
    UnauthorizedError,
    EntityNotFoundError,
    MessageSizeExceededError,
    InvalidMessageError,
    InvalidRequestError,
    ClosedError,
    FactoryFaultedError,
)
UNLESS_TRANSIENT: Final = (
    MessagingError,
    InternalServerError,
    EntityAlreadyExistsError,
    EntityDisabledError,
    QuotaExceededError,
    PreconditionFailedError,
    MessageNotFoundError,
    LockLostError,
    MessageLockLostError,
    SessionLockLostError,
    SessionCannotBeLockedError,
    BacklogUnavailableError,
)


def kinds(*chosen: type[MessagingError]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", chosen, ids=lambda kind: kind.__name__)


def test_c7_every_error_class_is_covered() -> None:
    known = {kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, MessagingError)}
    assert known == {*ALWAYS, *NEVER, *UNLESS_TRANSIENT}
    assert len(known) == len(ALWAYS) + len(NEVER) + len(UNLESS_TRANSIENT)


# The default rules


@kinds(*ALWAYS)
@pytest.mark.parametrize("is_transient", [True, False])
@pytest.mark.parametrize("is_last", [True, False])
def test_c6_communication_errors_and_timeouts_count(
    kind: type[MessagingError], is_transient: bool, is_last: bool
) -> None:
    assert counts(kind("silence", is_transient=is_transient), is_last=is_last)


@kinds(*NEVER)
@pytest.mark.parametrize("is_transient", [True, False])
@pytest.mark.parametrize("is_last", [True, False])
def test_c7_busy_and_client_errors_do_not_count(kind: type[MessagingError], is_transient: bool, is_last: bool) -> None:
    assert not counts(kind("no", is_transient=is_transient), is_last=is_last)


@kinds(*UNLESS_TRANSIENT)
def test_c6_other_error_counts_if_it_is_not_transient(kind: type[MessagingError]) -> None:
    assert counts(kind("broken", is_transient=False))
    assert counts(kind("broken", is_transient=False), is_last=True)


@kinds(*UNLESS_TRANSIENT)
def test_c6_transient_error_counts_as_the_last_of_a_send(kind: type[MessagingError]) -> None:
    assert not counts(kind("broken", is_transient=True))
    assert counts(kind("broken", is_transient=True), is_last=True)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (InternalServerError("broken"), False),
        (EntityDisabledError("off"), True),
        (QuotaExceededError("full"), True),
    ],
    ids=lambda one: type(one).__name__,
)
def test_c6_errors_of_the_service_are_judged_by_is_transient(error: MessagingError, expected: bool) -> None:
    assert counts(error) is expected


def test_c7_default_rules_are_immutable() -> None:
    table: Any = FAILURE_RULES
    with pytest.raises(TypeError):
        table[ServerBusyError] = FailureVerdict.COUNTS


# Custom rules


class OverloadedError(ServerBusyError):
    """An error class that is not part of the library."""


def test_c7_most_specific_class_decides() -> None:
    assert not counts(OverloadedError("much to do"))
    rules = {
        MessagingError: FailureVerdict.COUNTS,
        ServerBusyError: FailureVerdict.IGNORED,
        OverloadedError: FailureVerdict.COUNTS,
    }
    assert counts(OverloadedError("much to do"), rules)
    assert not counts(ServerBusyError("much to do"), rules)
    assert counts(UnauthorizedError("no"), rules)
    assert not counts(
        FactoryFaultedError("over"), {MessagingError: FailureVerdict.COUNTS, ClosedError: FailureVerdict.IGNORED}
    )


def test_c7_order_of_the_rules_is_irrelevant() -> None:
    rules = {ServerBusyError: FailureVerdict.IGNORED, MessagingError: FailureVerdict.COUNTS}
    for table in (rules, dict(reversed(rules.items()))):
        assert not counts(ServerBusyError("much to do"), table)
        assert counts(MessagingTimeoutError("silence"), table)


@pytest.mark.parametrize("is_last", [True, False])
def test_c7_class_without_a_rule_does_not_count(is_last: bool) -> None:
    rules: FailureRules = {MessagingTimeoutError: FailureVerdict.COUNTS}
    assert not counts(MessagingCommunicationError("refused"), rules, is_last=is_last)
    assert not counts(MessagingError("broken"), {}, is_last=is_last)


def test_c7_rule_may_depend_on_is_transient() -> None:
    rules: FailureRules = {MessagingTimeoutError: FailureVerdict.COUNTS_UNLESS_TRANSIENT}
    assert not counts(MessagingTimeoutError("silence"), rules)
    assert counts(MessagingTimeoutError("silence"), rules, is_last=True)
    assert counts(MessagingTimeoutError("silence", is_transient=False), rules)


def test_c7_rules_may_extend_the_default_rules() -> None:
    rules = {**FAILURE_RULES, ServerBusyError: FailureVerdict.COUNTS}
    check_rules(rules)
    assert counts(ServerBusyError("much to do"), rules)
    assert not counts(UnauthorizedError("no"), rules)


# Invalid rules


@pytest.mark.parametrize(
    "rules", [FAILURE_RULES, {}, {MessagingError: FailureVerdict.IGNORED}, MappingProxyType({})], ids=len
)
def test_c7_valid_rules_are_accepted(rules: Any) -> None:
    check_rules(rules)


@pytest.mark.parametrize(
    "rules", [None, 5, "counts", [(MessagingError, FailureVerdict.COUNTS)], MessagingError], ids=repr
)
def test_c7_rules_that_are_no_mapping_are_rejected(rules: Any) -> None:
    with pytest.raises(TypeError, match="failure_rules must be a mapping of error classes to FailureVerdict, got"):
        check_rules(rules)


@pytest.mark.parametrize(
    "rules",
    [
        {ValueError: FailureVerdict.COUNTS},
        {TimeoutError: FailureVerdict.COUNTS},
        {"MessagingError": FailureVerdict.COUNTS},
        {MessagingError("an error, and no class"): FailureVerdict.COUNTS},
        {MessagingError: True},
        {MessagingError: "counts"},
        {MessagingError: None},
        {MessagingError: FailureVerdict},
        {MessagingTimeoutError: FailureVerdict.COUNTS, None: FailureVerdict.COUNTS},
    ],
    ids=repr,
)
def test_c7_rules_with_invalid_entries_are_rejected(rules: Any) -> None:
    with pytest.raises(
        TypeError, match=r"failure_rules must map subclasses of MessagingError to FailureVerdict, got .*: "
    ):
        check_rules(rules)


def test_e3_error_shortens_the_rejected_value() -> None:
    rules: Any = {"x" * 10_000: "y" * 10_000}
    with pytest.raises(TypeError) as caught:
        check_rules(rules)
    assert len(str(caught.value)) < 250
