"""A parser of PromQL, as far as our dashboards and alert rules use it: it finds errors, and the metrics and labels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NoReturn

FUNCTIONS: Final = {
    "rate": 1, "increase": 1, "irate": 1, "delta": 1, "max_over_time": 1, "avg_over_time": 1, "histogram_quantile": 2,
    "abs": 1, "clamp_min": 2, "time": 0, "absent": 1,
}  # fmt: skip
"""The functions, and the number of their arguments."""

_AGGREGATIONS: Final = {"sum": 1, "max": 1, "min": 1, "avg": 1, "count": 1, "topk": 2, "bottomk": 2, "quantile": 2}
_LEVELS: Final = (("or",), ("and", "unless"), ("==", "!=", "<=", ">=", "<", ">"), ("+", "-"), ("*", "/", "%"), ("^",))
"""The binary operators; the last bind closest."""

_RANGES: Final = frozenset({"rate", "increase", "irate", "delta", "max_over_time", "avg_over_time"})
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<number>\d+(?:\.\d+)?(?![\w.]))|(?P<duration>(?:\d+(?:ms|[smhdwy]))+)|(?P<name>[a-zA-Z_:][\w:]*)"""
    r"""|(?P<text>"(?:[^"\\]|\\.)*")|(?P<symbol>=~|!~|==|!=|<=|>=|[-+*/%^<>=(){}\[\],]))"""
)


class PromqlError(ValueError):
    """The expression is invalid."""


@dataclass(slots=True)
class Found:
    """Names in an expression."""

    metrics: dict[str, set[str]] = field(default_factory=dict)
    """The metrics, with the labels that are used with each."""


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str


def parse(text: str) -> Found:
    """Check an expression; return the metrics and labels in it; raise ``PromqlError``."""
    parser = _Parser([*_tokens(text)])
    parser.expression()
    if parser.here.kind != "end":
        parser.fail("the end")
    return parser.found


def _tokens(text: str) -> Iterator[_Token]:
    position, text = 0, text.strip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            raise PromqlError(f"unexpected {text[position:][:20]!r}")
        position = match.end()
        yield _Token(match.lastgroup, match[match.lastgroup])
    yield _Token("end", "")


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._position = 0
        self.found = Found()

    @property
    def here(self) -> _Token:
        return self._tokens[self._position]

    def fail(self, wanted: str) -> NoReturn:
        raise PromqlError(f"expected {wanted}, got {self.here.text!r}")

    def _accept(self, *texts: str) -> bool:
        is_there = self.here.text in texts and self.here.kind in {"symbol", "name"}
        self._position += is_there
        return is_there

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            self.fail(repr(text))

    def _take(self, kind: str) -> str:
        if self.here.kind != kind:
            self.fail(f"a {kind}")
        self._position += 1
        return self._tokens[self._position - 1].text

    def expression(self, level: int = 0) -> set[str]:
        """Parse an expression; return its metrics."""
        if level == len(_LEVELS):
            return self._unary()
        metrics = self.expression(level + 1)
        while self._accept(*_LEVELS[level]):
            labels = self._labels() if self._accept("on", "ignoring") else set()
            self._accept("bool")
            metrics = metrics | self.expression(level + 1)
            self._use(metrics, labels)
        return metrics

    def _unary(self) -> set[str]:
        self._accept("-")
        if self._accept("("):
            metrics = self.expression()
            self._expect(")")
            return metrics
        if self.here.kind == "number":
            self._take("number")
            return set()
        name = self._take("name")
        if name in _AGGREGATIONS:
            return self._aggregation(name)
        if self.here.text == "(":
            return self._call(name)
        return self._selector(name)

    def _aggregation(self, name: str) -> set[str]:
        labels = self._labels() if self._accept("by", "without") else set()
        metrics = self._arguments(name, _AGGREGATIONS[name])
        if self._accept("by", "without"):
            labels |= self._labels()
        self._use(metrics, labels)
        return metrics

    def _call(self, name: str) -> set[str]:
        if name not in FUNCTIONS:
            raise PromqlError(f"there is no function {name!r}")
        start = self._position
        metrics = self._arguments(name, FUNCTIONS[name])
        has_range = any(token.text == "[" for token in self._tokens[start : self._position])
        if name in _RANGES and not has_range:
            raise PromqlError(f"{name} needs a range, such as [5m]")
        return metrics

    def _arguments(self, name: str, count: int) -> set[str]:
        metrics: set[str] = set()
        self._expect("(")
        for number in range(count):
            if number:
                self._expect(",")
            metrics |= self.expression()
        if not self._accept(")"):
            self.fail(f"the end of the {count} arguments of {name}")
        return metrics

    def _labels(self) -> set[str]:
        labels = set()
        self._expect("(")
        while not self._accept(")"):
            labels.add(self._take("name"))
            if self.here.text != ")":
                self._expect(",")
        return labels

    def _selector(self, name: str) -> set[str]:
        labels = set()
        if self._accept("{"):
            while not self._accept("}"):
                labels.add(self._take("name"))
                if not self._accept("=", "!=", "=~", "!~"):
                    self.fail("a comparison of a label")
                self._take("text")
                if self.here.text != "}":
                    self._expect(",")
        if self._accept("["):
            self._take("duration")
            self._expect("]")
        if self._accept("offset"):
            self._take("duration")
        self._use({name}, labels)
        return {name}

    def _use(self, metrics: set[str], labels: set[str]) -> None:
        for metric in metrics:
            self.found.metrics.setdefault(metric, set()).update(labels)
