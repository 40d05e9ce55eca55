"""Which failures of a send speak against the primary namespace, as one table."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final

from pairbus.client.errors import (
    ClosedError,
    EntityNotFoundError,
    InvalidMessageError,
    InvalidRequestError,
    MessageSizeExceededError,
    MessagingCommunicationError,
    MessagingError,
    MessagingTimeoutError,
    ServerBusyError,
    UnauthorizedError,
)
from pairbus.client.validation import shown


class Verdict(Enum):
    """What a failure says about an entity."""

    COUNTS = "counts"
    """It looks unavailable."""
    COUNTS_UNLESS_TRANSIENT = "counts unless transient"
    """It looks unavailable if that is for good, or if a send has come to nothing else until its time was up."""
    IGNORED = "ignored"
    """Nothing: it is there, or the fault is ours."""


FailureRules = Mapping[type[MessagingError], Verdict]

FAILURE_RULES: Final[FailureRules] = MappingProxyType(
    {
        MessagingError: Verdict.COUNTS_UNLESS_TRANSIENT,
        MessagingTimeoutError: Verdict.COUNTS,
        MessagingCommunicationError: Verdict.COUNTS,
        # It is there, and wants to be left alone for a while.
        ServerBusyError: Verdict.IGNORED,
        # A client that is misconfigured would be so elsewhere, too.
        UnauthorizedError: Verdict.IGNORED,
        EntityNotFoundError: Verdict.IGNORED,
        # Errors of the message, or of who sends it.
        MessageSizeExceededError: Verdict.IGNORED,
        InvalidMessageError: Verdict.IGNORED,
        InvalidRequestError: Verdict.IGNORED,
        ClosedError: Verdict.IGNORED,
    }
)
"""The rule that holds where no other is given. The most specific class that an error belongs to decides."""


def counts(error: MessagingError, rules: FailureRules = FAILURE_RULES, *, is_last: bool = False) -> bool:
    """Whether an attempt that came to this counts; or a whole send, if it was the last."""
    for kind in type(error).__mro__:
        verdict = rules.get(kind)
        if verdict is Verdict.COUNTS_UNLESS_TRANSIENT:
            return is_last or not error.is_transient
        if verdict is not None:
            return verdict is Verdict.COUNTS
    return False


def check_rules(rules: FailureRules) -> None:
    """Raise ``TypeError`` for what is no table of rules."""
    if not isinstance(rules, Mapping):
        raise TypeError(f"failure_rules is a mapping from error classes to Verdict, not {shown(rules)}")
    for kind, verdict in rules.items():
        if not (isinstance(kind, type) and issubclass(kind, MessagingError) and isinstance(verdict, Verdict)):
            raise TypeError(
                f"failure_rules maps classes of MessagingError to Verdict, not {kind!r:.50} to {verdict!r:.50}"
            )
