"""The syphon with the Spark of another process, through Spark Connect (D2)."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final

import pyspark
import pytest

from pairbus import EntityStatus, NamespaceManager
from pairbus.spark.java import java_home, packaged_java_home
from pairbus.testing import running_namespace
from tests.jobs.sent_messages import SentMessages, Strings, make_backlog, make_queues

SPARK: Final = Path(pyspark.__file__).parent
START_S: Final = 120.0
STARTED: Final = re.compile(r"Spark Connect server started at: \S+:(\d+)")


@contextmanager
def connect_server(environment: dict[str, str], log: Path) -> Iterator[str]:
    """Spark with a server for clients, in a process of its own; its address."""
    [jar] = (SPARK / "jars").glob("spark-connect_*.jar")
    command = [
        str(SPARK / "bin" / "spark-submit"),
        *("--master", "local[2]", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *("--conf", "spark.connect.grpc.binding.port=0"),
        *("--conf", "spark.connect.grpc.binding.address=127.0.0.1"),
        *("--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1"),
        str(jar),
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, cwd=log.parent)
        try:
            deadline_s = time.monotonic() + START_S
            while (found := STARTED.search(log.read_text())) is None:
                assert process.poll() is None, log.read_text()[-2_000:]
                assert time.monotonic() < deadline_s, log.read_text()[-2_000:]
                time.sleep(0.2)
            yield f"sc://127.0.0.1:{found[1]}"
        finally:
            process.terminate()
            process.wait(60)


def spark_environment(strings: Strings) -> dict[str, str]:
    """Return the environment of Spark's processes: a Java, a Python, and the connection strings."""
    home = java_home(os.environ, packaged_java_home())
    return {
        **{name: value for name, value in os.environ.items() if name != "JAVA_HOME"},
        **({} if home is None else {"JAVA_HOME": str(home)}),
        "PAIRBUS_PRIMARY": strings.primary,
        "PAIRBUS_SECONDARY": strings.secondary,
        "PYSPARK_PYTHON": sys.executable,
    }


def syphon_once(address: str, environment: dict[str, str]) -> tuple[int, list[dict[str, object]]]:
    """Run the command with the address; return its exit code and output."""
    command = [sys.executable, "-m", "pairbus.jobs.syphon.main", "--master", address, "--name", "contoso"]
    found = subprocess.run(
        [*command, "--once", "--json"], env=environment, capture_output=True, text=True, timeout=150, check=False
    )
    return found.returncode, [json.loads(line) for line in found.stdout.splitlines()]


async def set_status(primary: str, path: str, status: EntityStatus) -> None:
    async with NamespaceManager.from_connection_string(primary) as manager:
        await manager.update_queue(replace(await manager.get_queue(path), status=status))


_QUERY: Final = """
import sys
import pairbus.spark
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
spark.read.format("pairbus").option("connection", "env:PAIRBUS_PRIMARY").load("nothing").collect()
"""


def assert_error_is_the_last_line(address: str, environment: dict[str, str]) -> None:
    """Run a query on an entity that does not exist; the data source is not registered."""
    command = [sys.executable, "-c", _QUERY, address]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert found.returncode == 1
    assert found.stderr.splitlines()[-1].startswith("pairbus: The messaging entity 'nothing' could not be found.")
    assert "pairbus/spark" not in found.stderr, "there is no traceback of the data source"


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_d2_syphon_over_spark_connect_delivers_parked_messages_in_the_next_run(tmp_path: Path) -> None:
    with running_namespace("contoso") as primary, running_namespace("fabrikam") as secondary:
        strings = Strings(primary=primary.connection_string, secondary=secondary.connection_string)

        async def prepare() -> tuple[SentMessages, str]:
            up, down = await make_queues(strings.primary, "orders", 2)
            queues = await make_backlog(strings.secondary, 2, timedelta(minutes=1))
            sent_messages = SentMessages([up, down], queues)
            async with strings.factories() as (_, away):
                await sent_messages.load(away, 200)
            await set_status(strings.primary, down, EntityStatus.SEND_DISABLED)
            return sent_messages, down

        async def check(sent_messages: SentMessages) -> None:
            async with strings.factories() as (home, _):
                (await sent_messages.arrivals(home)).assert_exact()

        sent_messages, down = asyncio.run(prepare())
        environment = spark_environment(strings)
        with connect_server(environment, tmp_path / "spark.log") as address:
            assert_error_is_the_last_line(address, environment)
            code, reported = syphon_once(address, environment)
            batches = [line for line in reported if line["event"] == "batch"]
            assert (sum(int(str(line["delivered"])) for line in batches), code) == (100, 3)
            assert sum(int(str(line["parked"])) for line in batches) == 100
            assert [line["destination"] for line in reported if line["event"] == "waiting"] == [down]
            asyncio.run(set_status(strings.primary, down, EntityStatus.ACTIVE))
            code, reported = syphon_once(address, environment)
            assert code == 0, reported
        asyncio.run(check(sent_messages))
