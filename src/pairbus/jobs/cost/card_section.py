"""A part of a rate card, read key by key, with errors that say which."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final, TypeVar

Choice = TypeVar("Choice", bound=StrEnum)

_TOO_DEAR: Final = 10**9
_TOO_MANY: Final = 10**18
"""Nothing is meant to be as much as this. Amounts that have more digits would not fit into their column."""


class RateCardError(ValueError):
    """A rate card cannot be read: a key is missing, unknown, or has a value that cannot be meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSection:
    """A table of a rate card."""

    place: str
    """What the card is called in errors."""

    path: str
    """Where in the card this is; empty for the whole."""

    values: Mapping[str, Any]

    def wrong(self, key: str, reason: str) -> RateCardError:
        return RateCardError(f"the rate card {self.place} is wrong at {self._at(key)}: {reason}")

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, f"a text is expected, and {value!r} is there")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        return tuple(
            CardSection(place=self.place, path=self.path, values={key: one}).text(key) for one in self._all(key)
        )

    def date(self, key: str) -> dt.date:
        value = self._value(key)
        if type(value) is not dt.date:
            raise self.wrong(key, f"a date like 2026-01-31 is expected, and {value!r} is there")
        return value

    def amount(self, key: str, default: Decimal | None = None) -> Decimal:
        """A number that is not below zero, and could be a price."""
        number = self._number(key, default)
        if number >= _TOO_DEAR:
            raise self.wrong(key, f"a number below {_TOO_DEAR:,} is expected, and {number} is there")
        return number

    def positive(self, key: str) -> Decimal:
        number = self._number(key)
        if number != number.to_integral_value() or not 1 <= number < _TOO_MANY:
            raise self.wrong(
                key, f"a whole number of 1 or more is expected, below {_TOO_MANY:,}, and {number} is there"
            )
        return number

    def _number(self, key: str, default: Decimal | None = None) -> Decimal:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
            raise self.wrong(key, f"a number is expected, and {value!r} is there")
        number = Decimal(value)
        if not number.is_finite() or number < 0:
            raise self.wrong(key, f"a number of 0 or more is expected, and {value} is there")
        return number

    def choice(self, key: str, kinds: type[Choice]) -> Choice:
        return self._chosen(key, self._value(key), kinds)

    def choices(self, key: str, kinds: type[Choice]) -> list[Choice]:
        return [self._chosen(key, one, kinds) for one in self._all(key)]

    def section(self, key: str) -> CardSection:
        value = self._value(key)
        if not isinstance(value, dict):
            raise self.wrong(key, "a table is expected")
        return CardSection(place=self.place, path=self._at(key), values=value)

    def sections(self, key: str) -> list[CardSection]:
        """Several tables; at least one."""
        found = self._all(key)
        if not found or not all(isinstance(one, dict) for one in found):
            raise self.wrong(key, "a list of tables is expected, with at least one")
        return [
            CardSection(place=self.place, path=f"{self._at(key)}[{number}]", values=one)
            for number, one in enumerate(found)
        ]

    def refuse_others(self, known: Iterable[str]) -> None:
        """A key that is misspelt would be passed over otherwise."""
        for key in self.values:
            if key not in known:
                raise RateCardError(f"the rate card {self.place} has an unknown key: {self._at(key)}")

    def _at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def _value(self, key: str, default: Any = None) -> Any:
        if key in self.values:
            return self.values[key]
        if default is None:
            raise RateCardError(f"the rate card {self.place} lacks the key {self._at(key)}")
        return default

    def _all(self, key: str) -> list[Any]:
        value = self._value(key)
        if not isinstance(value, list):
            raise self.wrong(key, f"a list is expected, and {value!r} is there")
        return value

    def _chosen(self, key: str, value: Any, kinds: type[Choice]) -> Choice:
        try:
            return kinds(value)
        except ValueError:
            known = ", ".join(repr(one.value) for one in kinds)
            raise self.wrong(key, f"{value!r} is none of {known}") from None
