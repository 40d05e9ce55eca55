"""Evaluates the PromQL of our alert rules against two scrapes, the times between which are what a range covers.

As in Prometheus, a series that is missing in the first scrape has not increased.
"""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from tests.deploy.promql import PromqlError, _Token, _tokens

Labels: TypeAlias = frozenset[tuple[str, str]]
Vector: TypeAlias = dict[Labels, float]
Scrape: TypeAlias = Mapping[tuple[str, Labels], float]

_RANGE_S: Final = 300.0
_COMPARISONS: Final[dict[str, Callable[[float, float], bool]]] = {
    "==": operator.eq, "!=": operator.ne, "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt,
}  # fmt: skip
_MATCHES: Final[dict[str, Callable[[str, str], bool]]] = {
    "=": lambda value, text: value == text,
    "!=": lambda value, text: value != text,
    "=~": lambda value, text: re.fullmatch(text, value) is not None,
    "!~": lambda value, text: re.fullmatch(text, value) is None,
}


@dataclass(slots=True)
class Evaluation:
    """An expression, and the scrapes that it is evaluated against."""

    text: str
    before: Scrape
    after: Scrape

    def firing(self) -> list[dict[str, str]]:
        """Return the labels of the alerts."""
        return [dict(labels) for labels in self.vector()]

    def vector(self) -> Vector:
        """Return the values of the alerts by their labels."""
        self._rest = [*_tokens(self.text)]
        found = self._or()
        if self._rest[0].kind != "end" or isinstance(found, float):
            raise PromqlError(f"{self.text!r} is not a condition")
        return found

    _rest: list[_Token] = None  # type: ignore[assignment]

    def _accept(self, *texts: str) -> str | None:
        if self._rest[0].kind in {"symbol", "name"} and self._rest[0].text in texts:
            return self._rest.pop(0).text
        return None

    def _or(self) -> Vector | float:
        left = self._and()
        while self._accept("or"):
            left = {**_vector(self._and()), **_vector(left)}
        return left

    def _and(self) -> Vector | float:
        left = self._compare()
        while self._accept("and"):
            by = self._names() if self._accept("on") else None
            right = {_kept(labels, by) for labels in _vector(self._compare())}
            left = {labels: value for labels, value in _vector(left).items() if _kept(labels, by) in right}
        return left

    def _compare(self) -> Vector | float:
        left = self._divide()
        while sign := self._accept(*_COMPARISONS):
            right = self._divide()
            assert isinstance(right, float)
            left = {labels: value for labels, value in _vector(left).items() if _COMPARISONS[sign](value, right)}
        return left

    def _divide(self) -> Vector | float:
        left = self._value()
        while self._accept("/"):
            right = _vector(self._value())
            left = {key: value / right[key] for key, value in _vector(left).items() if right.get(key)}
        return left

    def _value(self) -> Vector | float:
        token = self._rest.pop(0)
        if token.kind == "number":
            return float(token.text)
        if token.text in {"sum", "max"}:
            by = self._names() if self._accept("by") else set()
            groups: dict[Labels, list[float]] = defaultdict(list)
            for labels, value in _vector(self._argument()).items():
                groups[_kept(labels, by)].append(value)
            combine: Callable[[Iterable[float]], float] = sum if token.text == "sum" else max
            return {labels: combine(values) for labels, values in groups.items()}
        if token.text in {"increase", "rate"}:
            found = _vector(self._argument())
            return found if token.text == "increase" else {key: value / _RANGE_S for key, value in found.items()}
        if token.text == "histogram_quantile":
            self._accept("(")
            part = float(self._rest.pop(0).text)
            self._accept(",")
            return _quantile(part, _vector(self._argument(is_open=True)))
        return self._selector(token.text)

    def _argument(self, *, is_open: bool = False) -> Vector | float:
        if not is_open:
            self._accept("(")
        found = self._or()
        self._accept(")")
        return found

    def _names(self) -> set[str]:
        names = set()
        self._accept("(")
        while not self._accept(")"):
            names.add(self._rest.pop(0).text)
            self._accept(",")
        return names

    def _selector(self, name: str) -> Vector:
        conditions = []
        if self._accept("{"):
            while not self._accept("}"):
                label, sign, text = (self._rest.pop(0).text for _ in range(3))
                conditions.append((label, _MATCHES[sign], text.strip('"')))
                self._accept(",")
        is_range = bool(self._accept("["))
        if is_range:
            del self._rest[:2]
        is_earlier = bool(self._accept("offset"))
        if is_earlier:
            del self._rest[:1]
        found: Vector = {}
        for (metric, labels), value in (self.before if is_earlier else self.after).items():
            if metric != name or not all(holds(dict(labels).get(key, ""), text) for key, holds, text in conditions):
                continue
            if not is_range:
                found[labels] = value
            elif (metric, labels) in self.before:
                found[labels] = value - self.before[metric, labels]
        return found


def _vector(value: Vector | float) -> Vector:
    assert not isinstance(value, float)
    return value


def _kept(labels: Labels, by: set[str] | None) -> Labels:
    return labels if by is None else frozenset(label for label in labels if label[0] in by)


def _quantile(part: float, buckets: Vector) -> Vector:
    """Return the upper bounds of the buckets in which the quantile is; a group without values has none."""
    groups: dict[Labels, dict[float, float]] = defaultdict(dict)
    for labels, value in buckets.items():
        groups[frozenset(label for label in labels if label[0] != "le")][float(dict(labels)["le"])] = value
    return {
        labels: min(bound for bound, count in group.items() if count >= part * max(group.values()))
        for labels, group in groups.items()
        if max(group.values()) > 0
    }
