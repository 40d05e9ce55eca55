"""Errors as users see them: one sentence, which is the last line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from pyspark.errors import AnalysisException

from pairbus.client.errors import EntityNotFoundError
from pairbus.spark.errors import SparkOptionError, our_reason, plain_errors, reason_of, reports_plainly

HIDES = "SPARK_HIDE_TRACEBACK"


@pytest.fixture
def _worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be a worker of Spark."""
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_SECRET", "x")
    monkeypatch.setenv(HIDES, "")


@pytest.mark.usefixtures("_worker")
@pytest.mark.parametrize("error", [SparkOptionError("x"), EntityNotFoundError("x")])
def test_worker_reports_errors_of_the_package_without_traceback(error: Exception) -> None:
    with pytest.raises(type(error)), plain_errors():
        raise error
    assert os.environ[HIDES] == "1"


@pytest.mark.usefixtures("_worker")
def test_worker_reports_other_errors_with_traceback() -> None:
    with pytest.raises(KeyError), plain_errors():
        raise KeyError
    assert os.environ[HIDES] == ""


def test_process_of_the_user_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HIDES, raising=False)
    with pytest.raises(SparkOptionError), plain_errors():
        raise SparkOptionError
    assert HIDES not in os.environ


@pytest.mark.usefixtures("_worker")
def test_errors_of_an_iterator_are_plain_too() -> None:
    @reports_plainly
    class Reader:
        def read(self, count: int) -> Iterator[int]:
            yield from range(count)
            raise SparkOptionError

    rows = Reader().read(2)
    assert (next(rows), next(rows), os.environ[HIDES]) == (0, 1, "")
    with pytest.raises(SparkOptionError):
        next(rows)
    assert os.environ[HIDES] == "1"


@pytest.mark.parametrize(
    "text",
    [
        "[STREAM_FAILED] … latestOffset: pairbus.client.errors.EntityNotFoundError: no 'x' SQLSTATE\n=== Query",
        "Traceback (most recent call):\n  File\npairbus.client.errors.EntityNotFoundError: no 'x' SQLSTATE\nat java",
    ],
)
def test_reason_is_found_wherever_spark_puts_it(text: str) -> None:
    assert our_reason(text) == "no 'x' SQLSTATE"
    assert reason_of(RuntimeError(text)) == "no 'x' SQLSTATE"
    assert our_reason("ValueError: no 'x'") is None


_SCRIPT = """
import sys
import pairbus.spark
from pairbus.spark.errors import show_reasons_last
assert "pyspark" not in sys.modules
from pyspark.errors import AnalysisException
show_reasons_last()
raise {error}
"""
_OURS = "[FAILED] in Python: pairbus.spark.errors.SparkOptionError: the option 'x'\\n=== Plan ===\\nand so on"


@pytest.mark.parametrize(
    ("error", "last"),
    [
        (f"AnalysisException('{_OURS}')".replace("'x'", "`x`"), "pairbus: the option `x`"),
        ("AnalysisException('other')", "other"),
        ("ValueError('pairbus.a.BError: mine')", "ValueError: pairbus.a.BError: mine"),
    ],
)
def test_e4_last_line_of_an_uncaught_error_is_the_reason(error: str, last: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _SCRIPT.format(error=error)], capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1].endswith(last)
    assert ran.stderr.count("pairbus: ") <= 1
    assert AnalysisException.__module__.startswith("pyspark.")
