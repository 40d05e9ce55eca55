"""HTML that holds only what was meant to be HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from importlib.resources import files
from string import Template

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.console.chart import Line, draw
from pairbus.console.markup import Markup, escaped, fill, join
from pairbus.console.message import View, best_view, body_text
from pairbus.console.wording import clock_time, moment, number, rate, size, span

TEMPLATES = sorted((files("pairbus.console") / "templates").iterdir(), key=lambda path: path.name)


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, _attributes: object) -> None:
        self.tags.append(tag)


@given(st.text() | st.characters(categories=["Cs", "Cc"]))
def test_whatever_a_value_is_it_is_text(value: str) -> None:
    assert Tags(fill('<p title="$value">$value</p>', value=value)).tags == ["p"]
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", escaped(value))


def test_markup_is_not_escaped_again() -> None:
    assert fill("<b>$a$b</b>", a=Markup("<i>"), b="<i>") == "<b><i>&lt;i&gt;</b>"
    assert join([Markup("<i>"), Markup("</i>")]) == "<i></i>"


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_templates_are_well_formed_and_ask_for_values_only(template: object) -> None:
    text = template.read_text(encoding="utf-8")  # type: ignore[attr-defined]
    assert Template(text).is_valid()
    assert unescape(text) == text
    assert open_tags(text) == []


def open_tags(text: str) -> list[str]:
    """What is opened and not closed, the elements left out that have no end."""
    found: list[str] = []
    empty = {"meta", "link", "input", "br"}

    class Nesting(HTMLParser):
        def handle_starttag(self, tag: str, _attributes: object) -> None:
            if tag not in empty:
                found.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert found.pop() == tag

    Nesting().feed(text)
    return found


def points_of(text: str) -> Iterator[tuple[float, float]]:
    for line in re.findall(r'points="([^"]*)"', text):
        for each in line.split():
            x, y = each.split(",")
            yield float(x), float(y)


@given(st.lists(st.floats(0, 1e9), max_size=50), st.lists(st.floats(0, 1e9), max_size=50))
def test_a_chart_stays_within_its_frame(one: list[float], other: list[float]) -> None:
    length = min(len(one), len(other))
    times = [index * 5_000 for index in range(length)]
    lines = [Line(name="one", values=one[:length]), Line(name="<two>", values=other[:length])]
    chart = draw("Messages", "chart", times, lines)
    assert all(-0.1 <= x <= 720.1 and -0.1 <= y <= 180.1 for x, y in points_of(chart))
    assert "<two>" not in chart


def test_a_chart_is_told_in_words_too() -> None:
    chart = draw("Backlog", "backlog", [0, 5_000], [Line(name="waiting", values=[7, 3])])
    assert "waiting is 3 now, at most 7" in chart
    assert "has no values yet" in draw("Backlog", "backlog", [], [Line(name="waiting", values=[])])


def test_a_chart_says_which_zone_its_times_are_of() -> None:
    chart = draw("Backlog", "backlog", [0, 3_600_000], [Line(name="waiting", values=[7, 3])])
    assert re.findall(r'class="time [a-z]+"[^>]*>([^<]*)<', chart) == ["00:00:00 UTC", "01:00:00 UTC"]


@given(st.binary(max_size=2_000))
def test_any_body_can_be_shown_in_any_way(body: bytes) -> None:
    for view in View:
        assert isinstance(body_text(body, view), str)
    assert best_view(body) in View


@pytest.mark.parametrize(
    ("body", "view"),
    [(b'{"a": 1}', View.JSON), (b" [1]", View.JSON), (b"{", View.TEXT), (b"1", View.TEXT), (b"\xff", View.HEX)],
)
def test_a_body_is_shown_in_the_way_that_fits(body: bytes, view: View) -> None:
    assert best_view(body) is view


def test_numbers_are_for_people() -> None:
    assert number(1_234_567) == "1,234,567"
    assert [rate(value) for value in (0, 0.25, 9.96, 1234.5)] == ["0", "0.2", "10.0", "1,234"]
    assert [size(value) for value in (0, 1_023, 1_024, 15 * 1_024, 3 << 30, 5 << 50)] == [
        "0 bytes",
        "1,023 bytes",
        "1.0 KB",
        "15 KB",
        "3.0 GB",
        "5,120 TB",
    ]
    assert moment(0) == "1970-01-01 00:00:00 UTC"
    assert moment(2**63 - 1) == "a time that no calendar has"
    assert clock_time(3_661_000) == "01:01:01"
    assert [span(value) for value in (0, 59, 61, 3_600, 90_061)] == ["0 s", "59 s", "1 min 1 s", "1 h", "1 d 1 h"]
