"""Commands are imported when they are asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pairbus.cli.command_group import LazyCommands
from pairbus.cli.extra import missing

COMMANDS = {"send": "pairbus.cli.send", "entities": "pairbus.cli.entities"}


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("command", ["send", "receive", "entities", "reconcile", "syphon"])
def test_who_talks_to_a_server_does_not_import_one(command: str) -> None:
    ended = run(
        "import sys; from pairbus.cli.main import app\n"
        f"app(['{command}', '--help'], standalone_mode=False)\n"
        "print('also', sorted({'pairbus.server', 'pairbus.console', 'lmdb', 'pyspark'} & {*sys.modules}))"
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith("also []\n")


def test_a_command_for_which_something_is_not_installed_says_what_to_install() -> None:
    ended = run("import sys; sys.modules['uvicorn'] = None; from pairbus.cli.main import app; app(['serve'])")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        "pairbus: uvicorn is not installed; install pairbus[server]; in the clone: pip install '.[server]'\n"
    )


@pytest.mark.parametrize("arguments", [["entities", "create", "--help"], ["--version"]], ids=" ".join)
def test_a_closed_output_is_status_141(arguments: list[str]) -> None:
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
def test_an_output_that_cannot_be_written_is_status_1_and_one_line() -> None:
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


def test_other_extras_are_named_with_the_one_that_the_commands_need() -> None:
    told = missing(ModuleNotFoundError("No module named 'pyspark.sql'", name="pyspark.sql"), "spark")
    assert told.startswith("pyspark is not installed; ")
    assert told.endswith(": pip install '.[server,spark]'")


def test_a_mistake_of_our_own_is_no_missing_extra() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"pairbus\.cli\.nothing"):
        LazyCommands({"nothing": "pairbus.cli.nothing"})["nothing"]


def test_they_are_a_mapping_like_that_of_any_group() -> None:
    commands = LazyCommands(COMMANDS)
    assert [*commands] == [*COMMANDS]
    assert len(commands) == 2
    assert commands.get("nothing") is None
    assert commands["send"] is commands["send"]
    assert {name: command.name for name, command in commands.items()} == {name: name for name in COMMANDS}
