"""A connection string is resolved where and when it is used, and never shown."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.spark.connections import ConnectionReference, ReferenceKind
from pairbus.spark.errors import ConnectionReferenceError, SparkOptionError

KEY: Final = "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2U="
PIECE: Final = KEY[:8].lower()
"""A part of the key that must not be shown."""

TEXT: Final = f"Endpoint=sb://contoso.example;SharedAccessKeyName=app;SharedAccessKey={KEY}"
VARIABLE: Final = "PAIRBUS_TEST_CONNECTION"


def refused(option: str) -> str:
    """Return the error of an option, which must not contain the key."""
    with pytest.raises(ConnectionReferenceError) as caught:
        ConnectionReference.parse(option).resolve()
    said = "".join(traceback.format_exception(caught.value))
    assert PIECE not in said.lower()
    return str(caught.value)


# Valid references


def test_variable_is_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"  {TEXT}\n")
    found = ConnectionReference.parse(f" env:{VARIABLE} ")
    assert found.place is ReferenceKind.VARIABLE
    assert found.resolve() == TEXT


def test_file_is_resolved(tmp_path: Path) -> None:
    (tmp_path / "connection").write_text(f"\ufeff{TEXT}\r\n", "utf-8")
    for option in (f"file:{tmp_path}/connection", f"file://{tmp_path}/connection", f"FILE:{tmp_path}/connection"):
        found = ConnectionReference.parse(option)
        assert found.place is ReferenceKind.FILE
        assert found.resolve() == TEXT


def test_relative_file_is_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of ``spark-submit --files`` are in the working directory of executors."""
    (tmp_path / "SharedAccessKey.txt").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    assert ConnectionReference.parse("file:SharedAccessKey.txt").resolve() == TEXT


def test_connection_string_in_option_is_resolved() -> None:
    found = ConnectionReference.parse(f"\n{TEXT} ")
    assert found.place is ReferenceKind.OPTION
    assert found.resolve() == TEXT


def test_reference_is_read_on_each_resolve(tmp_path: Path) -> None:
    """A changed key is used without a restart."""
    file = tmp_path / "connection"
    file.write_text(TEXT)
    found = ConnectionReference.parse(f"file:{file}")
    assert found.resolve() == TEXT
    file.write_text(TEXT.replace("contoso", "fabrikam"))
    assert "fabrikam" in found.resolve()


def test_reference_is_resolved_in_the_using_process() -> None:
    """The driver has neither the variable nor the key; the executor has both."""
    assert VARIABLE not in os.environ
    pickled = pickle.dumps(ConnectionReference.parse(f"env:{VARIABLE}"))
    program = "import pickle, sys; print(pickle.load(sys.stdin.buffer).resolve(), end='')"
    environment = {**os.environ, VARIABLE: TEXT}
    answer = subprocess.run(
        [sys.executable, "-c", program], input=pickled, env=environment, capture_output=True, check=True, timeout=60
    )
    assert answer.stdout.decode() == TEXT


# Invalid references


def test_unset_variable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    said = refused(f"env:{VARIABLE}")
    assert f"env:{VARIABLE}, but that variable is not set here" in said
    assert "the driver and of every executor" in said
    monkeypatch.setenv(VARIABLE, " ")
    assert refused(f"env:{VARIABLE}") == said


def test_unreadable_file_is_an_error(tmp_path: Path) -> None:
    assert "cannot be read here: No such file or directory" in refused(f"file:{tmp_path}/none")
    assert "cannot be read here: Is a directory" in refused(f"file:{tmp_path}")
    assert "every executor" in refused(f"file:{tmp_path}/none")


def test_file_without_connection_string_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "connection"
    file.write_bytes(b"\xff\xfe" + TEXT.encode("utf-16-le"))
    assert "is not UTF-8 text" in refused(f"file:{file}")
    file.write_text("")
    assert f"the content of file:{file}, named by the option 'connection', is not a connection string" in refused(
        f"file:{file}"
    )
    file.write_text(KEY)
    assert "is not a connection string" in refused(f"file:{file}")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no file without an end here")
def test_endless_file_is_an_error() -> None:
    assert "too long for a connection string" in refused("file:/dev/zero")


def test_variable_without_connection_string_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"SharedAccessKeyName=app;SharedAccessKey={KEY}")
    assert f"the content of env:{VARIABLE}, named by the option 'connection', is not a connection string" in refused(
        f"env:{VARIABLE}"
    )


@pytest.mark.parametrize("option", ["env:", "env: ", f"env:{TEXT}", f"env:{KEY}", "env:A B", "env:$NAME"])
def test_invalid_variable_name_is_rejected(option: str) -> None:
    assert "not the name of a variable; use env:NAME" in refused(option)


@pytest.mark.parametrize("option", ["file:", "file:///", "file://host/x", f"file:{TEXT}", "file:/a\0b", "file:/a\nb"])
def test_invalid_path_is_rejected(option: str) -> None:
    assert re.search("not a local path; use file:/path|cannot be read", refused(option))


@pytest.mark.parametrize(
    "option",
    [
        "",
        "contoso",
        KEY,
        f"SharedAccessKeyName=app;SharedAccessKey={KEY}",
        f"Endpoint=sb://contoso;SharedAccessKey={KEY}",
        f"Endpoint=sb://contoso;{KEY}",
        f"Endpoint=sb://contoso;SharedAccessKeyName=app;SharedAccessKey={KEY};{KEY}",
        "Endpoint=sb://contoso",
        f"Endpoint=sb://contoso/SharedAccessKey={KEY}:x",
        f"Endpoint=sb://{KEY};SharedAccessKeyName=app",
        f"envNAME={TEXT}",
    ],
)
def test_invalid_connection_string_is_rejected(option: str) -> None:
    said = refused(option)
    assert "the option 'connection' is not a connection string" in said
    assert "use env:NAME, file:/path, or Endpoint=" in said


def test_reference_error_is_an_option_error() -> None:
    with pytest.raises(SparkOptionError):
        ConnectionReference.parse("nothing")


# Visibility of secrets


@pytest.mark.parametrize("option", [f"env:{VARIABLE}", "file:/run/secrets/connection"])
def test_pickled_reference_contains_no_secret(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, TEXT)
    found = ConnectionReference.parse(option)
    if found.place is ReferenceKind.VARIABLE:
        assert found.resolve() == TEXT  # not cached
    assert str(found) == option
    assert option in repr(found)
    pickled = pickle.dumps(found)
    assert KEY.encode() not in pickled
    assert pickle.loads(pickled) == found  # noqa: S301


def test_connection_string_does_not_show_its_key() -> None:
    found = ConnectionReference.parse(TEXT)
    for shown in (str(found), repr(found), f"{found}", repr([found]), repr({"connection": found})):
        assert PIECE not in shown.lower()
        assert "sb://contoso.example" in shown
    assert pickle.loads(pickle.dumps(found)).resolve() == TEXT  # noqa: S301


def test_equal_references_have_equal_hashes() -> None:
    options = (f"env:{VARIABLE}", "file:/a", TEXT)
    cache = {ConnectionReference.parse(option): option for option in options}
    assert len(cache) == 3
    assert [cache[ConnectionReference.parse(option)] for option in options] == list(options)


@given(
    prefix=st.sampled_from(["", "env:", "file:", "Endpoint=", "Endpoint=sb://contoso;", "file:///", " "]),
    before=st.text(max_size=12),
    between=st.sampled_from([KEY, f"SharedAccessKey={KEY}", f";SharedAccessKeyName=app;SharedAccessKey={KEY}"]),
    after=st.text(max_size=12),
)
def test_any_option_is_parsed_or_rejected(prefix: str, before: str, between: str, after: str) -> None:
    option = f"{prefix}{before}{between}{after}"
    try:
        found = ConnectionReference.parse(option)
    except ConnectionReferenceError as error:
        assert PIECE not in "".join(traceback.format_exception(error)).lower()  # noqa: PT017
    else:
        assert found.place is ReferenceKind.FILE or PIECE not in repr(found).lower()
