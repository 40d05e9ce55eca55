"""Spark's workers run a Python that can import pairbus, or the registration of the data source says what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import pairbus
from pairbus.spark.java import java_home, packaged_java_home
from pairbus.spark.session import WorkerPythonError, prepare_workers
from pairbus.testing import running_namespace
from tests.client.stage import make_queue


@dataclass
class Session:
    """The part of a ``SparkContext`` that concerns workers."""

    master: str | None
    pythonExec: str = "python3"  # noqa: N815 (Spark's name)
    _python_includes: list[str] | None = field(default_factory=list)


@pytest.fixture
def other_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a ``python3`` that is the first of the PATH, and cannot import anything."""
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setenv("PATH", f"{python.parent}{os.pathsep}{os.environ['PATH']}")
    return python


@pytest.mark.usefixtures("other_python")
@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]"])
def test_local_workers_run_this_python(master: str) -> None:
    session = Session(master)
    prepare_workers(session)
    assert session.pythonExec == sys.executable


def test_configured_python_is_kept() -> None:
    session = Session("local[2]", pythonExec=sys.executable)
    prepare_workers(session)
    assert session.pythonExec == sys.executable


@pytest.mark.parametrize("master", ["spark://localhost:7077", "yarn"])
def test_cluster_workers_without_pairbus_are_rejected_with_advice(master: str, other_python: Path) -> None:
    with pytest.raises(WorkerPythonError, match=rf"{other_python}, which cannot import pairbus; .* PYSPARK_PYTHON .*"):
        prepare_workers(Session(master))
    with pytest.raises(WorkerPythonError, match="before the session is created"):
        prepare_workers(Session("local[2]", pythonExec=str(other_python)))


@pytest.mark.usefixtures("other_python")
def test_cluster_workers_that_may_have_pairbus_are_accepted() -> None:
    for session in (
        Session("yarn", pythonExec=sys.executable),
        Session("yarn", pythonExec="./environment/bin/python"),
        Session("yarn", _python_includes=["pairbus.zip"]),
    ):
        before = session.pythonExec
        prepare_workers(session)
        assert session.pythonExec == before


_SCRIPT = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
from pairbus.spark.data_source import PairbusDataSource
spark.dataSource.register(PairbusDataSource)
rows = spark.read.format("pairbus").option("connection", "env:SOURCE").load(sys.argv[1])
print("rows", rows.count())
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("other_python")
def test_script_of_inactive_environment_reads_messages(tmp_path: Path) -> None:
    """The session was created by the user, before pairbus was imported."""
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    java = java_home(os.environ, packaged_java_home())
    with running_namespace() as namespace:
        environment = {
            **{name: value for name, value in os.environ.items() if name not in ("PYSPARK_PYTHON", "JAVA_HOME")},
            **({} if java is None else {"JAVA_HOME": str(java)}),
            "PYTHONPATH": str(Path(pairbus.__file__).resolve().parents[1]),
            "SOURCE": namespace.connection_string,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        ran = subprocess.run(
            [sys.executable, str(script), make_queue(namespace)],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr[-2_000:]
    assert "rows 0" in ran.stdout
