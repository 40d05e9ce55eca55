"""An option of a query, and how the text that Spark hands over becomes its value."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from enum import Enum
from typing import Any, Final, TypeVar

from pairbus.client.validation import shown
from pairbus.spark.errors import SparkOptionError

E = TypeVar("E", bound=Enum)

_PATH: Final = "path"
"""What ``load("orders")``, ``save("orders")`` and ``start("orders")`` give."""

_PATHS: Final = "paths"
"""What ``load(["orders", "news/subscriptions/audit"])`` gives: a list in JSON."""

_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})
"""What is said to a stream writer itself; Spark gives it to the sink as well."""

_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_DURATION: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) *([a-z]+)")
_UNITS: Final = {
    "milliseconds": ("ms", "millisecond", "milliseconds"),
    "seconds": ("s", "sec", "second", "seconds"),
    "minutes": ("m", "min", "minute", "minutes"),
    "hours": ("h", "hour", "hours"),
    "days": ("d", "day", "days"),
}
_UNIT_OF: Final = {name: unit for unit, names in _UNITS.items() for name in names}


@dataclass(frozen=True, slots=True)
class Form:
    """What the value of an option looks like."""

    text: str
    read: Callable[[str], Any]
    """Makes the value of the text; raises ``ValueError`` if it has not this form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One thing that can be said with ``.option(…)``."""

    name: str
    """As Spark's users write it; it is read without regard to case."""

    form: Form
    default: str | None = None
    """What holds where nothing is said, as it would be written; ``None`` for nothing."""

    required: bool = False
    doc: str

    @property
    def field(self) -> str:
        """What the dataclass calls it."""
        return re.sub(r"[A-Z]", lambda letter: f"_{letter.group().lower()}", self.name)

    def read(self, text: str | None) -> Any:
        """Raises ``SparkOptionError``."""
        given = self.default if text is None else text
        if given is None:
            return None
        try:
            return self.form.read(given.strip())
        except SparkOptionError:
            raise
        except ValueError:
            raise SparkOptionError(f"the option '{self.name}' is {shown(given)}; it is {self.form.text}") from None


def number(least: int, most: int) -> Form:
    def read(text: str) -> int:
        if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
            raise ValueError
        return int(text)

    return Form(f"a number from {least:,} to {most:,}", read)


def duration(least: timedelta, most: timedelta, text: str, *, unit: str = "") -> Form:
    """Read what Spark's own intervals look like: a number and a unit, short or in full.

    A number alone is taken in ``unit``, if there is one.
    """

    def read(text: str) -> timedelta:
        found = _DURATION.fullmatch(text.lower()) or _DURATION.fullmatch(f"{text}{unit}")
        if found is None or found[2] not in _UNIT_OF:
            raise ValueError
        length = timedelta(**{_UNIT_OF[found[2]]: float(found[1])})
        if not least <= length <= most:
            raise ValueError
        return length

    return Form(text, read)


def one_of(kind: type[E]) -> Form:
    return Form(" or ".join(str(one.value) for one in kind), lambda text: kind(text.lower()))


def read_names(options: Mapping[str, str], table: Sequence[Option], path_means: str) -> dict[str, str]:
    """What is given, by the names of the table; ``path_means`` is the option that a path stands for.

    Raises ``SparkOptionError`` for what the table does not have, and for what is missing.
    """
    names = {option.name.lower(): option.name for option in table}
    given: dict[str, str] = {}
    for key, text in options.items():
        if key.lower() in _OF_SPARK:
            continue
        name, value = _unfold(key, text, path_means)
        if name.lower() not in names:
            raise SparkOptionError(_unknown(name, names))
        name = names[name.lower()]
        if name in given:
            raise SparkOptionError(
                f"the option '{name}' is given twice; a path says the same, so leave one of them out"
            )
        given[name] = value
    for option in table:
        if option.required and not given.get(option.name, "").strip():
            raise SparkOptionError(f"the option '{option.name}' is missing; it is {option.form.text}")
    return given


def read_values(given: Mapping[str, str], table: Sequence[Option]) -> dict[str, Any]:
    """The value of every option of the table, by field. Raises ``SparkOptionError``."""
    return {option.field: option.read(given.get(option.name)) for option in table}


def _unfold(key: str, text: str, path_means: str) -> tuple[str, str]:
    if key.lower() == _PATH:
        return path_means, text
    if key.lower() == _PATHS:
        return path_means, ",".join(_strings(text))
    return key, text


def _strings(text: str) -> list[str]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise SparkOptionError(f"the option '{_PATHS}' is {shown(text)}; it is a list of texts in JSON")
    return found


def _unknown(key: str, names: Mapping[str, str]) -> str:
    nearest = get_close_matches(key.lower(), names, n=1)
    advice = f"is '{names[nearest[0]]}' meant?" if nearest else f"there are {', '.join(names.values())}"
    return f"there is no option {shown(key)}; {advice}"
