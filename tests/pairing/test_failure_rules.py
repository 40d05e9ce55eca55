"""Which failures speak against the primary namespace: each class of error, and tables of the user's own."""

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
from pairbus.pairing.failure_rules import FAILURE_RULES, FailureRules, Verdict, check_rules, counts

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


def test_c7_there_is_no_error_that_these_tests_do_not_know() -> None:
    known = {kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, MessagingError)}
    assert known == {*ALWAYS, *NEVER, *UNLESS_TRANSIENT}
    assert len(known) == len(ALWAYS) + len(NEVER) + len(UNLESS_TRANSIENT)


# The rule that holds where no other is given


@kinds(*ALWAYS)
@pytest.mark.parametrize("is_transient", [True, False])
@pytest.mark.parametrize("is_last", [True, False])
def test_c6_what_cannot_be_reached_or_does_not_answer_counts(
    kind: type[MessagingError], is_transient: bool, is_last: bool
) -> None:
    assert counts(kind("silence", is_transient=is_transient), is_last=is_last)


@kinds(*NEVER)
@pytest.mark.parametrize("is_transient", [True, False])
@pytest.mark.parametrize("is_last", [True, False])
def test_c7_busy_and_the_faults_of_the_client_or_its_message_do_not_count(
    kind: type[MessagingError], is_transient: bool, is_last: bool
) -> None:
    assert not counts(kind("no", is_transient=is_transient), is_last=is_last)


@kinds(*UNLESS_TRANSIENT)
def test_c6_another_error_counts_when_it_is_not_transient(kind: type[MessagingError]) -> None:
    assert counts(kind("broken", is_transient=False))
    assert counts(kind("broken", is_transient=False), is_last=True)


@kinds(*UNLESS_TRANSIENT)
def test_c6_an_error_that_may_pass_counts_when_a_whole_send_has_come_to_it(kind: type[MessagingError]) -> None:
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
def test_c6_errors_as_they_come_are_judged_by_whether_they_are_transient(error: MessagingError, expected: bool) -> None:
    assert counts(error) is expected


def test_c7_the_table_cannot_be_changed_for_everybody() -> None:
    table: Any = FAILURE_RULES
    with pytest.raises(TypeError):
        table[ServerBusyError] = Verdict.COUNTS


# A table of the user's own


class OverloadedError(ServerBusyError):
    """A kind of error that the library does not know."""


def test_c7_the_most_specific_class_decides() -> None:
    assert not counts(OverloadedError("much to do"))
    rules = {MessagingError: Verdict.COUNTS, ServerBusyError: Verdict.IGNORED, OverloadedError: Verdict.COUNTS}
    assert counts(OverloadedError("much to do"), rules)
    assert not counts(ServerBusyError("much to do"), rules)
    assert counts(UnauthorizedError("no"), rules)
    assert not counts(FactoryFaultedError("over"), {MessagingError: Verdict.COUNTS, ClosedError: Verdict.IGNORED})


def test_c7_the_order_of_a_table_means_nothing() -> None:
    rules = {ServerBusyError: Verdict.IGNORED, MessagingError: Verdict.COUNTS}
    for table in (rules, dict(reversed(rules.items()))):
        assert not counts(ServerBusyError("much to do"), table)
        assert counts(MessagingTimeoutError("silence"), table)


@pytest.mark.parametrize("is_last", [True, False])
def test_c7_what_a_table_does_not_name_does_not_count(is_last: bool) -> None:
    rules: FailureRules = {MessagingTimeoutError: Verdict.COUNTS}
    assert not counts(MessagingCommunicationError("refused"), rules, is_last=is_last)
    assert not counts(MessagingError("broken"), {}, is_last=is_last)


def test_c7_a_table_may_ask_whether_an_error_is_transient() -> None:
    rules: FailureRules = {MessagingTimeoutError: Verdict.COUNTS_UNLESS_TRANSIENT}
    assert not counts(MessagingTimeoutError("silence"), rules)
    assert counts(MessagingTimeoutError("silence"), rules, is_last=True)
    assert counts(MessagingTimeoutError("silence", is_transient=False), rules)


def test_c7_a_table_may_be_made_from_the_other_one() -> None:
    rules = {**FAILURE_RULES, ServerBusyError: Verdict.COUNTS}
    check_rules(rules)
    assert counts(ServerBusyError("much to do"), rules)
    assert not counts(UnauthorizedError("no"), rules)


# What is no table


@pytest.mark.parametrize("rules", [FAILURE_RULES, {}, {MessagingError: Verdict.IGNORED}, MappingProxyType({})], ids=len)
def test_c7_tables_are_taken(rules: Any) -> None:
    check_rules(rules)


@pytest.mark.parametrize("rules", [None, 5, "counts", [(MessagingError, Verdict.COUNTS)], MessagingError], ids=repr)
def test_c7_what_is_no_mapping_is_refused(rules: Any) -> None:
    with pytest.raises(TypeError, match="failure_rules is a mapping from error classes to Verdict, not"):
        check_rules(rules)


@pytest.mark.parametrize(
    "rules",
    [
        {ValueError: Verdict.COUNTS},
        {TimeoutError: Verdict.COUNTS},
        {"MessagingError": Verdict.COUNTS},
        {MessagingError("an error, and no class"): Verdict.COUNTS},
        {MessagingError: True},
        {MessagingError: "counts"},
        {MessagingError: None},
        {MessagingError: Verdict},
        {MessagingTimeoutError: Verdict.COUNTS, None: Verdict.COUNTS},
    ],
    ids=repr,
)
def test_c7_what_maps_anything_else_is_refused(rules: Any) -> None:
    with pytest.raises(TypeError, match=r"failure_rules maps classes of MessagingError to Verdict, not .* to "):
        check_rules(rules)


def test_e3_what_is_refused_is_not_repeated_at_length() -> None:
    rules: Any = {"x" * 10_000: "y" * 10_000}
    with pytest.raises(TypeError) as caught:
        check_rules(rules)
    assert len(str(caught.value)) < 250
