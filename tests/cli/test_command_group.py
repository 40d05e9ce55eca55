"""Commands are imported on first use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pairbus.cli.command_group import LazyCommand, LazyCommands
from pairbus.cli.failure import missing

COMMANDS = {"send": LazyCommand("pairbus.cli.send", "…"), "entities": LazyCommand("pairbus.cli.entities", "…")}


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("command", ["send", "receive", "entities", "fault", "drill", "reconcile", "syphon"])
def test_client_command_does_not_import_the_server(command: str) -> None:
    ended = run(
        "import sys; from pairbus.cli.main import app\n"
        f"app(['{command}', '--help'], standalone_mode=False)\n"
        "print('also', sorted({'pairbus.server', 'pairbus.console', 'lmdb', 'pyspark'} & {*sys.modules}))"
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith("also []\n")


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [(["--help"], {}), ([], {"_PAIRBUS_COMPLETE": "complete_bash", "COMP_WORDS": "pairbus s", "COMP_CWORD": "1"})],
    ids=["help", "completion"],
)
def test_list_of_commands_imports_none_of_them(arguments: list[str], variables: dict[str, str]) -> None:
    ended = run(
        "import atexit, os, sys; from pairbus.cli.main import app\n"
        "atexit.register(lambda: print('also', sorted({'pairbus.wire', 'pairbus.cli.send'} & {*sys.modules})))\n"
        f"os.environ.update({variables!r}); app({arguments!r}, prog_name='pairbus')"
    )
    assert ended.returncode == 0, ended.stderr
    assert {"send", "serve", "syphon"} <= {*ended.stdout.split()}
    assert ended.stdout.endswith("also []\n")


def test_missing_dependency_names_the_extra_to_install() -> None:
    ended = run("import sys; sys.modules['uvicorn'] = None; from pairbus.cli.main import app; app(['serve'])")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        "pairbus: uvicorn is not installed; install pairbus[server]; in the clone: pip install '.[server]'\n"
    )


@pytest.mark.parametrize("arguments", [["entities", "create", "--help"], ["--version"]], ids=" ".join)
def test_closed_output_exits_with_141(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "pairbus", *arguments], stdout=writer, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk that is always full")
def test_unwritable_output_prints_one_line_and_exits_with_1() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-m", "pairbus", "--version"]
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=environment, check=False)
    assert ended.returncode == 1
    assert ended.stderr == b"pairbus: standard output cannot be written: No space left on device\n"


_SOURCE = "Endpoint=sb://localhost;SharedAccessKeyName=some;SharedAccessKey=c2VjcmV0;UseDevelopmentEmulator=true"
_NAMESPACES = ["--primary", _SOURCE, "--secondary", _SOURCE.replace("localhost", "localhost:5673")]


@pytest.mark.parametrize(
    "arguments",
    [
        ["capture", "--source", _SOURCE, "--entity", "orders", "--to", "files"],
        ["syphon", *_NAMESPACES, "--name", "contoso"],
        ["cost", "--ledger", "."],
        ["reconcile", "--primary", ".", "--secondary", "."],
        ["demo"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_command_without_spark_names_pyspark_and_the_extra(arguments: list[str]) -> None:
    ended = run(
        "import sys\n"
        "for name in ('pyspark', 'py4j', 'pyarrow', 'pandas'): sys.modules[name] = None\n"
        f"from pairbus.cli.main import app; app({arguments!r})"
    )
    assert ended.returncode != 0
    assert "pairbus: pyspark is not installed; install pairbus[" in ended.stderr
    assert "spark]; in the clone: " in ended.stderr


def test_missing_extra_is_named_together_with_server() -> None:
    reported = missing(ModuleNotFoundError("No module named 'pyspark.sql'", name="pyspark.sql"), "spark")
    assert reported.startswith("pyspark is not installed; ")
    assert reported.endswith(": pip install '.[server,spark]'")


def test_failed_import_of_pairbus_is_not_reported_as_missing_extra() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"pairbus\.cli\.nothing"):
        LazyCommands({"nothing": LazyCommand("pairbus.cli.nothing", "…")})["nothing"]


def test_lazy_commands_are_a_mapping() -> None:
    commands = LazyCommands(COMMANDS)
    assert [*commands] == [*COMMANDS]
    assert len(commands) == 2
    assert commands.get("nothing") is None
    assert commands["send"] is commands["send"]
    assert {name: command.name for name, command in commands.items()} == {name: name for name in COMMANDS}
