"""The syphon as `spark-submit` runs it: a file, with arguments that reference the connection strings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from uuid import uuid4

import pyspark
import pytest

from pairbus.jobs.syphon import main
from pairbus.spark.java import java_home, packaged_java_home
from pairbus.testing import running_namespace
from tests.cli.test_cli import ENVIRONMENT
from tests.cli.test_drill import count_in, make_backlog
from tests.cli.test_pair import Namespaces
from tests.cli.test_syphon import SPARK_PATIENCE_S, divert, received

KEY = "Endpoint=sb://localhost;SharedAccessKeyName=some;SharedAccessKey=c2VjcmV0"


@pytest.fixture(scope="module")
def namespaces() -> Iterator[Namespaces]:
    with running_namespace("contoso", queues=["orders"]) as primary, running_namespace("fabrikam") as secondary:
        yield Namespaces(primary, secondary)


@pytest.fixture
def name() -> str:
    return f"contoso-{uuid4().hex[:8]}"


def environment(namespaces: Namespaces) -> dict[str, str]:
    return {
        **ENVIRONMENT,
        "PAIRBUS_PRIMARY": namespaces.primary.connection_string,
        "PAIRBUS_SECONDARY": namespaces.secondary.connection_string,
    }


def run(command: list[str], variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=SPARK_PATIENCE_S, env=dict(variables)
    )


@pytest.mark.parametrize("how", [["-m", main.__name__], [str(main.__file__)]], ids=["module", "file"])
def test_syphon_runs_as_module_and_as_file(namespaces: Namespaces, name: str, how: list[str]) -> None:
    make_backlog(namespaces, name, 1)
    done = run([sys.executable, *how, "--name", name, "--once"], environment(namespaces))
    assert (done.returncode, done.stderr) == (0, "")
    assert "event=ended delivered=0" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--primary", KEY],
            "must be a reference to a connection string, not the string itself: env:NAME or file:/path",
        ),
        ([KEY], "unknown argument"),
        (
            ["--primary", "env:NOBODY_HAS_SET_IT"],
            "a connection is env:NOBODY_HAS_SET_IT, but that variable is not set",
        ),
        (["--primary", "@/nowhere/at/all"], "a connection is file:/nowhere/at/all, but that file cannot be read"),
        (["--long-poll", "soon"], "a time from 1 second to 1 day"),
        (["--backlog-queues", "0"], "must be a number from 1 to 10,000,000, got '0'"),
        (["--time-to-live", "half"], "--time-to-live"),
    ],
    ids=["string", "loose string", "variable", "file", "time", "count", "time to live"],
)
def test_invalid_arguments_exit_with_code_2_and_show_no_key(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(arguments)
    assert ended.value.code == 2
    reported = capsys.readouterr().err
    assert said in reported
    assert "c2VjcmV0" not in reported


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_d2_syphon_runs_with_spark_submit(namespaces: Namespaces, name: str, tmp_path: Path) -> None:
    divert(namespaces, name, "orders", 100)
    java = java_home(os.environ, packaged_java_home())
    variables = {
        **environment(namespaces),
        **({} if java is None else {"JAVA_HOME": str(java)}),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    submit = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2]"]
    arguments = ["--name", name, "--checkpoint", str(tmp_path / "checkpoint"), "--once", "--json"]
    quiet = ["--conf", "spark.ui.enabled=false", "--conf", "spark.log.level=ERROR"]
    done = run([*submit, *quiet, str(main.__file__), *arguments], variables)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(received(namespaces.primary, "orders")) == 100
    assert count_in(namespaces.secondary, name) == 0
    assert " INFO MicroBatchExecution" not in done.stderr  # Spark's log is verbose otherwise
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events[-1]["event"] == "ended"
    assert events[-1]["delivered"] == events[-1]["brought_home"] == 100
    for namespace in (namespaces.primary, namespaces.secondary):
        assert namespace.key not in done.stdout + done.stderr
