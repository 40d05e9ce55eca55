"""Where a connection string is to be found: in a variable, in a file, or in the option itself."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, Self

from pairbus.client.connection_string import open_connection_string
from pairbus.spark.errors import ConnectionReferenceError

_OPTION: Final = "the option 'connection'"
_VARIABLE: Final = re.compile(r"[A-Za-z0-9_.-]+")
_QUOTED: Final = re.compile(r"(['\"]).{2,}\1", re.DOTALL)
_MOST_BYTES: Final = 64 * 1024
"""No connection string is that long; what a path leads to may be without end."""


class Place(Enum):
    """Where it is, with how the option begins then."""

    VARIABLE = "env:"
    FILE = "file:"
    OPTION = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionReference:
    """What the option ``connection`` says.

    It travels from the driver to the executors inside of plans and tasks, and what it refers to is read where it is
    used: so that of a variable or a file nothing secret gets into a plan, a log or a checkpoint.
    """

    place: Place
    text: str
    """The name of the variable, the path of the file, or the connection string."""

    @classmethod
    def parse(cls, option: str) -> Self:
        """Raises ``ConnectionReferenceError``. Only what is in the option itself is looked at closely here."""
        given = option.strip()
        for place in (Place.VARIABLE, Place.FILE):
            if given[: len(place.value)].lower() == place.value:
                return cls(place=place, text=_CHECKS[place](given[len(place.value) :].strip()))
        _check(_OPTION, given)
        return cls(place=Place.OPTION, text=given)

    def __str__(self) -> str:
        """Where it is; of a connection string that is here, no more than where it leads."""
        if self.place is Place.OPTION:
            return f"{open_connection_string(self.text)[0]}"
        return f"{self.place.value}{self.text}"

    def __repr__(self) -> str:
        return f"<ConnectionReference {self}>"

    def resolve(self) -> str:
        """The connection string, read now and here. Raises ``ConnectionReferenceError``."""
        if self.place is Place.OPTION:
            return self.text
        found = _read_variable(self.text) if self.place is Place.VARIABLE else _read_file(self.text)
        _check(f"{_OPTION} says {self}, and what is there", found)
        return found


def _variable_name(text: str) -> str:
    # Nothing of it is repeated: it may be a connection string, or a key.
    if not _VARIABLE.fullmatch(text):
        raise ConnectionReferenceError(
            f"{_OPTION} begins with 'env:', and what follows is no name of a variable: env:NAME"
        )
    return text


def _file_path(text: str) -> str:
    path = text.removeprefix("//") if text.startswith("///") else text
    is_secret = "=" in path and "sharedaccess" in path.lower()
    if not path or path.startswith("//") or is_secret or not path.isprintable():
        raise ConnectionReferenceError(
            f"{_OPTION} begins with 'file:', and what follows is no path of this machine: file:/path"
        )
    return path


_CHECKS: Final = {Place.VARIABLE: _variable_name, Place.FILE: _file_path}


def _read_variable(name: str) -> str:
    # No word of spark.executorEnv: what is set with that is configuration, which Spark shows and writes into its logs.
    found = os.environ.get(name, "").strip()
    if not found:
        raise ConnectionReferenceError(
            f"{_OPTION} says env:{name}, and that variable is not set here; it has to be in the environment that the"
            " driver and every executor are started in, before the Spark session is; or use file:/path"
        )
    return found


def _read_file(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            found = file.read(_MOST_BYTES + 1)
        text = found.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        # Without the cause: that one holds the bytes.
        raise ConnectionReferenceError(f"{_OPTION} says file:{path}, and that is no text in UTF-8") from None
    except OSError as error:
        raise ConnectionReferenceError(
            f"{_OPTION} says file:{path}, and that cannot be read here: {error.strerror};"
            " it has to be there for the driver and for every executor"
        ) from error
    if len(found) > _MOST_BYTES:
        raise ConnectionReferenceError(f"{_OPTION} says file:{path}, and that is too long for a connection string")
    return text


def _check(where: str, text: str) -> None:
    try:
        _, key, _ = open_connection_string(text)
    except ValueError as error:
        # What the error quotes may be a piece of the key, in a text that has a slip of the pen somewhere.
        told = _QUOTED.sub("…", " ".join(str(error).split()))
    else:
        if key is not None:
            return
        told = "it has neither a key nor a token"
    raise ConnectionReferenceError(
        f"{where} is no connection string: {told}; say env:NAME, file:/path,"
        " or Endpoint=sb://…;SharedAccessKeyName=…;SharedAccessKey=…"
    )
