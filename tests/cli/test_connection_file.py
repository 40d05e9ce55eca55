"""`pairbus serve --connection-file`: the root key is in a file of its owner, and in no output."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pairbus.dialect.connection_string import parse_connection_string
from tests.cli.test_cli import ENVIRONMENT, PAIRBUS, PATIENCE_S, run


@contextmanager
def serving_with(data: Path, *options: object, **environment: str) -> Iterator[subprocess.Popen[str]]:
    command = [*PAIRBUS, "serve", "--data", str(data), "--port", "0", *map(str, options)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=ENVIRONMENT | environment) as process:
        try:
            yield process
        finally:
            process.kill()


def first_lines(process: subprocess.Popen[str]) -> list[str]:
    """Return the output up to the line that names the file, which is the last."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.strip())
        if line.startswith("connection: "):
            return lines
    assert process.stderr is not None
    raise AssertionError(process.stderr.read())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "contoso.txt"


def test_connection_string_is_in_the_file_and_the_key_in_no_output(tmp_path: Path, file: Path) -> None:
    before = os.umask(0)  # the mode does not depend on it
    try:
        with serving_with(tmp_path / "data", "--connection-file", file) as process:
            lines = first_lines(process)
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            text = file.read_text("ascii").strip()
            connection = parse_connection_string(text)
            done = run("entities", "create", "orders", "--connection", f"@{file}")
            assert done.returncode == 0, done.stderr
            process.send_signal(signal.SIGTERM)
            rest, complaints = process.communicate(timeout=PATIENCE_S)
    finally:
        os.umask(before)
    assert lines[-1] == f"connection: @{file}"
    output = "\n".join([*lines, rest, complaints])
    assert connection.key is not None
    assert connection.key not in output
    assert "SharedAccessKey=" not in output


def test_existing_file_is_replaced_as_a_whole(tmp_path: Path, file: Path) -> None:
    file.write_text("Endpoint=sb://old;" * 100)
    file.chmod(0o644)
    with serving_with(tmp_path / "data", "--connection-file", file) as process:
        first_lines(process)
        assert file.read_text("ascii").startswith("Endpoint=sb://localhost:")
        assert file.read_text("ascii").count("Endpoint=") == 1
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir() if "contoso" in path.name] == ["contoso.txt"]


def test_file_that_cannot_be_written_ends_the_server_with_the_reason(tmp_path: Path) -> None:
    with serving_with(tmp_path / "data", "--connection-file", tmp_path / "missing" / "contoso.txt") as process:
        output, complaints = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert "SharedAccessKey=" not in output
    assert "missing" in complaints


def test_variable_names_the_file_too(tmp_path: Path, file: Path) -> None:
    with serving_with(tmp_path / "data", PAIRBUS_SERVE_CONNECTION_FILE=str(file)) as process:
        first_lines(process)
        assert file.exists()
