"""Configuration of all tests."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import settings

from tests.order import ordered
from tests.spark.class_archive import java_options
from tests.spark.ledger_session import LedgerSession
from tests.thoroughness import times

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As a job in the background this process ignores Ctrl-C, and so would all that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


_COMPATIBILITY = Path(__file__).parent / "compatibility"
_LEDGER_SESSION: Final = LedgerSession()

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
    if is_last and not _uses_ledger_session(nextitem):
        _LEDGER_SESSION.close()  # other modules start sessions of their own, or expect none
    if is_last and _COMPATIBILITY not in item.path.parents:  # clients that the SDK leaves unclosed are to be collected
        _set_aside()


@pytest.fixture(scope="module")
def ledger_session() -> SparkSession:
    """Return the Spark session for small ledgers, which the modules with such tests share."""
    return _LEDGER_SESSION.get()


def _uses_ledger_session(item: pytest.Item | None) -> bool:
    return "ledger_session" in getattr(item, "fixturenames", ())


def _set_aside() -> None:
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)  # when it is known which of them are run
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = ordered(items, _long, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def _long(item: pytest.Item) -> str | None:
    """Return the group of a slow test: those that share a Spark session, or none."""
    if _uses_ledger_session(item):
        return "ledger_session"
    if "spark" in getattr(item, "fixturenames", ()):
        return str(item.path)
    return None if item.get_closest_marker("timeout") is None else item.nodeid
