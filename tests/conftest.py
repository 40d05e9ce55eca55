"""What holds for all tests."""

from __future__ import annotations

import signal

import pytest
from hypothesis import settings

from tests.thoroughness import times

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As a job in the background this process ignores Ctrl-C, and so would all that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


settings.register_profile("pairbus", max_examples=times(100))
settings.load_profile("pairbus")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first: else all wait for it in the end."""
    items.sort(key=lambda item: item.get_closest_marker("timeout") is None)
