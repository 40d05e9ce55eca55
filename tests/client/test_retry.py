"""Retry policies."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.client.errors import (
    EntityNotFoundError,
    InternalServerError,
    MessagingCommunicationError,
    MessagingError,
    MessagingTimeoutError,
    ServerBusyError,
    UnauthorizedError,
)
from pairbus.client.settings import NO_RETRY, RetryPolicy

LOST = MessagingCommunicationError("lost")


@given(st.integers(1, 10_000), st.randoms(use_true_random=False))
def test_backoff_grows_to_its_limit_with_jitter(failures: int, random: Random) -> None:
    policy = RetryPolicy(minimum_backoff=timedelta(seconds=1), maximum_backoff=timedelta(seconds=30))
    delay_s = policy.delay_s(failures, LOST, random)
    longest_s = min(30.0, 2.0 ** min(failures - 1, 10))
    assert delay_s is not None
    assert longest_s / 2 <= delay_s <= longest_s


@pytest.mark.parametrize("kind", [MessagingCommunicationError, MessagingTimeoutError, InternalServerError])
def test_transient_error_is_retried(kind: type[MessagingError]) -> None:
    assert RetryPolicy().delay_s(1, kind("again")) is not None


@pytest.mark.parametrize("kind", [EntityNotFoundError, UnauthorizedError, MessagingError])
def test_permanent_error_is_not_retried(kind: type[MessagingError]) -> None:
    assert RetryPolicy().delay_s(1, kind("never")) is None


def test_error_instance_can_be_transient_against_its_class() -> None:
    assert RetryPolicy().delay_s(1, EntityNotFoundError("soon", is_transient=True)) is not None
    assert RetryPolicy().delay_s(1, MessagingCommunicationError("never", is_transient=False)) is None


@given(st.integers(1, 100), st.randoms(use_true_random=False))
def test_b2_busy_namespace_gets_ten_seconds(failures: int, random: Random) -> None:
    delay_s = RetryPolicy().delay_s(failures, ServerBusyError("busy"), random)
    assert delay_s is not None
    assert delay_s >= 10


def test_maximum_retries_limits_retries() -> None:
    policy = RetryPolicy(maximum_retries=2)
    assert [policy.delay_s(failures, LOST) is None for failures in (1, 2, 3)] == [False, False, True]
    assert NO_RETRY.delay_s(1, LOST) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"minimum_backoff": timedelta()},
        {"minimum_backoff": timedelta(seconds=2), "maximum_backoff": timedelta(seconds=1)},
        {"server_busy_backoff": timedelta(seconds=-1)},
        {"maximum_retries": -1},
    ],
)
def test_e4_invalid_value_is_rejected_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RetryPolicy(**wrong)
