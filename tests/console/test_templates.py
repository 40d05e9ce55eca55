"""Pages as HTML: their structure, the formats of bodies and numbers, and the charts of the last hour."""

from __future__ import annotations

import threading
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Environment

from pairbus.broker import QueueDescription
from pairbus.console import http
from pairbus.console.formatting import clock_time, date_time, duration, number, rate, size, uptime
from pairbus.console.message_page import BodyView, best_view, body_text
from pairbus.console.pair_page import time_chart
from pairbus.html import COMPACT, ChartSeries, compile_templates
from tests.console.conftest import opened
from tests.console.site import Site


def open_tags(text: str) -> list[str]:
    """Return the elements that are not closed, without those that have no end tag."""
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


def test_every_page_is_well_formed(site: Site) -> None:
    backlog = "fabrikam/x-servicebus-transfer/0"
    site.call(lambda host: host.use_namespace().create_queue(backlog, QueueDescription(), host.now_ms()))
    site.send("orders", *(b"espresso" for _ in range(30)))
    site.send("news", b"closed on Monday")
    site.dead_letter("payments", b"one cent", drink="hot")
    manager = site.manager()
    addresses = (
        "",
        "?q=nothing",
        "/entity?entity=orders",
        "/entity?entity=payments&part=dead",
        "/entity?entity=news",
        "/entity?entity=news&subscription=all",
        "/entity?entity=nothing",
        "/message?entity=orders&sequence=1",
        "/message?entity=payments&sequence=1&part=dead",
        "/pair",
        "/server",
        "/login",
    )
    for person in (manager, site.listener()):
        for address in addresses:
            page = person.get(f"/console{address}").text
            assert page.startswith("<!doctype html>"), address
            assert open_tags(page) == [], address


def test_templates_are_compiled_once_outside_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def compile_and_record(templates: Environment) -> None:
        threads.append(threading.current_thread())
        compile_templates(templates)

    monkeypatch.setattr(http, "compile_templates", compile_and_record)
    with opened(tmp_path) as site:
        assert threads == []  # the start of the server does not wait for it
        for _ in range(2):
            assert site.person().get("/console/login").status == 200
        assert len(threads) == 1
        assert threads[0] is not site._thread


def test_failed_compilation_is_repeated_by_the_next_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[Environment] = []

    def compile_at_second_attempt(templates: Environment) -> None:
        attempts.append(templates)
        if len(attempts) == 1:
            raise OSError("too many open files")
        compile_templates(templates)

    monkeypatch.setattr(http, "compile_templates", compile_at_second_attempt)
    with opened(tmp_path) as site:
        assert [site.person().get("/console/login").status for _ in range(3)] == [500, 200, 200]
        assert len(attempts) == 2


def test_chart_has_a_description() -> None:
    chart = time_chart("backlog", "Backlog", [0, 5_000], [ChartSeries(name="waiting", values=[7, 3])])
    assert chart.description == "waiting: 3 now, 7 at most"
    empty = time_chart("backlog", "Backlog", [], [ChartSeries(name="waiting", values=[])])
    assert (empty.description, empty.lines[0].last) == ("waiting: no values yet", "none")


def test_times_of_a_chart_have_their_zone() -> None:
    chart = time_chart("backlog", "Backlog", [0, 3_600_000], [ChartSeries(name="waiting", values=[7, 3])])
    assert [label.text for label in chart.labels if "UTC" in label.text] == ["00:00:00 UTC", "01:00:00 UTC"]


@given(st.lists(st.integers(0, 10_000), max_size=50, unique=True))
def test_times_of_a_chart_stay_inside_its_frame(steps: list[int]) -> None:
    times_ms = [step * 360 for step in sorted(steps)]
    chart = time_chart("backlog", "Backlog", times_ms, [ChartSeries(name="waiting", values=times_ms)])
    xs = [float(point.split(",")[0]) for point in chart.lines[0].points.split()]
    assert all(COMPACT.left - 0.1 <= x <= COMPACT.width - COMPACT.right + 0.1 for x in xs)
    assert xs == sorted(xs)


@given(st.binary(max_size=2_000))
def test_any_body_has_a_text_in_every_view(body: bytes) -> None:
    for view in BodyView:
        assert isinstance(body_text(body, view), str)
    assert best_view(body) in BodyView


@pytest.mark.parametrize(
    ("body", "view"),
    [
        (b'{"a": 1}', BodyView.JSON),
        (b" [1]", BodyView.JSON),
        (b"{", BodyView.TEXT),
        (b"1", BodyView.TEXT),
        (b"\xff", BodyView.HEX),
    ],
)
def test_default_view_depends_on_the_body(body: bytes, view: BodyView) -> None:
    assert best_view(body) is view


def test_numbers_sizes_and_times_are_formatted() -> None:
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
    assert date_time(0) == "1970-01-01 00:00:00 UTC"
    assert date_time(2**63 - 1) == "out of range"
    assert clock_time(3_661_000) == "01:01:01"
    assert [uptime(value) for value in (0, 59, 61, 3_600, 90_061)] == ["0 s", "59 s", "1 min 1 s", "1 h", "1 d 1 h"]
    assert [duration(value) for value in (None, 0, 90_000, 1_500)] == ["never", "0 s", "1 min 30 s", "1 s 500 ms"]
