"""A connection string is found where the option says, when it is needed, and nobody else gets to see it."""

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

from pairbus.spark.connection_reference import ConnectionReference, Place
from pairbus.spark.errors import ConnectionReferenceError, SparkOptionError

KEY: Final = "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2U="
PIECE: Final = KEY[:8].lower()
"""So much of it is too much already."""

TEXT: Final = f"Endpoint=sb://contoso.example;SharedAccessKeyName=app;SharedAccessKey={KEY}"
VARIABLE: Final = "PAIRBUS_TEST_CONNECTION"


def refused(option: str) -> str:
    """What is said about an option, which is nothing of the key."""
    with pytest.raises(ConnectionReferenceError) as caught:
        ConnectionReference.parse(option).resolve()
    said = "".join(traceback.format_exception(caught.value))
    assert PIECE not in said.lower()
    return str(caught.value)


# Where it can be


def test_it_is_in_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"  {TEXT}\n")
    found = ConnectionReference.parse(f" env:{VARIABLE} ")
    assert found.place is Place.VARIABLE
    assert found.resolve() == TEXT


def test_it_is_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "connection").write_text(f"\ufeff{TEXT}\r\n", "utf-8")
    for option in (f"file:{tmp_path}/connection", f"file://{tmp_path}/connection", f"FILE:{tmp_path}/connection"):
        found = ConnectionReference.parse(option)
        assert found.place is Place.FILE
        assert found.resolve() == TEXT


def test_it_is_in_a_file_beside_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As are those that ``spark-submit --files`` brings to the executors."""
    (tmp_path / "SharedAccessKey.txt").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    assert ConnectionReference.parse("file:SharedAccessKey.txt").resolve() == TEXT


def test_it_is_in_the_option() -> None:
    found = ConnectionReference.parse(f"\n{TEXT} ")
    assert found.place is Place.OPTION
    assert found.resolve() == TEXT


def test_it_is_read_anew_each_time(tmp_path: Path) -> None:
    """A key that is changed is used without a new start."""
    file = tmp_path / "connection"
    file.write_text(TEXT)
    found = ConnectionReference.parse(f"file:{file}")
    assert found.resolve() == TEXT
    file.write_text(TEXT.replace("contoso", "fabrikam"))
    assert "fabrikam" in found.resolve()


def test_it_is_read_in_the_process_that_uses_it() -> None:
    """The driver has neither the variable nor the key; the executor has both."""
    assert VARIABLE not in os.environ
    pickled = pickle.dumps(ConnectionReference.parse(f"env:{VARIABLE}"))
    program = "import pickle, sys; print(pickle.load(sys.stdin.buffer).resolve(), end='')"
    environment = {**os.environ, VARIABLE: TEXT}
    answer = subprocess.run(
        [sys.executable, "-c", program], input=pickled, env=environment, capture_output=True, check=True, timeout=60
    )
    assert answer.stdout.decode() == TEXT


# Where it is not


def test_a_variable_that_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    said = refused(f"env:{VARIABLE}")
    assert f"env:{VARIABLE}, and that variable is not set here" in said
    assert "the driver and every executor are started in" in said
    monkeypatch.setenv(VARIABLE, " ")
    assert refused(f"env:{VARIABLE}") == said


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert "cannot be read here: No such file or directory" in refused(f"file:{tmp_path}/none")
    assert "cannot be read here: Is a directory" in refused(f"file:{tmp_path}")
    assert "every executor" in refused(f"file:{tmp_path}/none")


def test_a_file_that_holds_something_else(tmp_path: Path) -> None:
    file = tmp_path / "connection"
    file.write_bytes(b"\xff\xfe" + TEXT.encode("utf-16-le"))
    assert "is no text in UTF-8" in refused(f"file:{file}")
    file.write_text("")
    assert f"says file:{file}, and what is there is no connection string" in refused(f"file:{file}")
    file.write_text(KEY)
    assert "no connection string" in refused(f"file:{file}")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no file without an end here")
def test_a_file_without_an_end() -> None:
    assert "too long for a connection string" in refused("file:/dev/zero")


def test_a_variable_that_holds_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"SharedAccessKeyName=app;SharedAccessKey={KEY}")
    assert f"says env:{VARIABLE}, and what is there is no connection string" in refused(f"env:{VARIABLE}")


@pytest.mark.parametrize("option", ["env:", "env: ", f"env:{TEXT}", f"env:{KEY}", "env:A B", "env:$NAME"])
def test_no_name_of_a_variable(option: str) -> None:
    assert "no name of a variable: env:NAME" in refused(option)


@pytest.mark.parametrize("option", ["file:", "file:///", "file://host/x", f"file:{TEXT}", "file:/a\0b", "file:/a\nb"])
def test_no_path(option: str) -> None:
    assert re.search("no path of this machine: file:/path|cannot be read", refused(option))


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
def test_no_connection_string(option: str) -> None:
    said = refused(option)
    assert "the option 'connection' is no connection string" in said
    assert "say env:NAME, file:/path, or Endpoint=" in said


def test_it_is_an_error_of_the_options() -> None:
    with pytest.raises(SparkOptionError):
        ConnectionReference.parse("nothing")


# Who gets to see it


@pytest.mark.parametrize("option", [f"env:{VARIABLE}", "file:/run/secrets/connection"])
def test_no_secret_travels_with_a_reference(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, TEXT)
    found = ConnectionReference.parse(option)
    if found.place is Place.VARIABLE:
        assert found.resolve() == TEXT  # and it is not kept
    assert str(found) == option
    assert option in repr(found)
    pickled = pickle.dumps(found)
    assert KEY.encode() not in pickled
    assert pickle.loads(pickled) == found  # noqa: S301


def test_a_connection_string_does_not_show_its_key() -> None:
    found = ConnectionReference.parse(TEXT)
    for shown in (str(found), repr(found), f"{found}", repr([found]), repr({"connection": found})):
        assert PIECE not in shown.lower()
        assert "sb://contoso.example" in shown
    assert pickle.loads(pickle.dumps(found)).resolve() == TEXT  # noqa: S301


def test_equal_references_are_one_key_of_a_cache() -> None:
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
def test_whatever_is_given_has_an_answer(prefix: str, before: str, between: str, after: str) -> None:
    option = f"{prefix}{before}{between}{after}"
    try:
        found = ConnectionReference.parse(option)
    except ConnectionReferenceError as error:
        assert PIECE not in "".join(traceback.format_exception(error)).lower()  # noqa: PT017
    else:
        assert found.place is Place.FILE or PIECE not in repr(found).lower()
