"""What holds for all tests."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.order import ordered
from tests.spark.class_archive import java_options
from tests.thoroughness import times

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As a job in the background this process ignores Ctrl-C, and so would all that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


_COMPATIBILITY = Path(__file__).parent / "compatibility"

# Those who start Spark in a process of its own have it from here, too.
os.environ.setdefault("SPARK_SUBMIT_OPTS", java_options())

settings.register_profile("pairbus", max_examples=times(100), deadline=None)
settings.load_profile("pairbus")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Tests that are found stay: it would take long to look through all of them whenever garbage is collected."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        _set_aside()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """Nor need those of other modules be looked through, what they have imported, and what is known of them."""
    yield
    is_last = nextitem is None or nextitem.path != item.path
    if is_last and _COMPATIBILITY not in item.path.parents:  # clients that the SDK leaves unclosed are to be collected
        _set_aside()


def _set_aside() -> None:
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)  # when it is known which of them are run
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = ordered(items, _long, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def _long(item: pytest.Item) -> str | None:
    """What one that takes long shares with others: the Spark of its module, or nothing."""
    if "spark" in getattr(item, "fixturenames", ()):
        return str(item.path)
    return None if item.get_closest_marker("timeout") is None else item.nodeid
