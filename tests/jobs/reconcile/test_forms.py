"""Reports as text, JSON and HTML (D4)."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

from pairbus.html import Chart
from pairbus.jobs.reconcile.page import (
    as_document,
    as_page,
    as_text,
    format_duration,
    headline,
    timeline_chart,
    waits_chart,
)
from pairbus.jobs.reconcile.reconciliation import OutageSpan
from pairbus.jobs.reconcile.report import ReconcileReport, ReconcileVerdict
from tests.html.test_charts import svg
from tests.jobs.reconcile.sample import MINUTE, SAMPLE, point


class Outline(HTMLParser):
    """Collects the tags of a page, and their references."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attributes if name in {"src", "href", "xlink:href"}]
        if tag not in {"meta", "line", "rect", "polyline", "wbr"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            assert self.open.pop() == tag


def outline(report: ReconcileReport) -> Outline:
    found = Outline()
    found.feed(as_page(report))
    return found


def test_text_starts_with_verdict_and_lists_missing_messages() -> None:
    lines = as_text(SAMPLE).splitlines()
    assert "contoso, paired with fabrikam" in lines[0]
    assert lines[1] == "1 message is missing"
    assert any(line.split() == ["accepted", "from", "senders", "1,200"] for line in lines)
    assert any("not restored" in line and "2026-03-01 12:00:00.000 UTC" in line for line in lines)


def test_text_states_number_of_undelivered_messages() -> None:
    waits = replace(SAMPLE.waits, messages=SAMPLE.total.counts["diverted"])
    assert "\nfrom diverted to delivered: p50 " in as_text(replace(SAMPLE, waits=waits))
    some = as_text(replace(SAMPLE, waits=replace(waits, messages=waits.messages - 1)))
    assert "\nfrom diverted to delivered (without 1 not received yet): p50" in some


def test_text_and_page_state_the_outage() -> None:
    said = "diverted from 2026-03-01 12:00:00.000 UTC to 2026-03-01 12:01:00.000 UTC; "
    home = "the last one was restored at 2026-03-01 12:09:00.000 UTC"
    assert said + home in as_text(SAMPLE).splitlines()
    assert said + home in as_page(SAMPLE)
    assert as_document(SAMPLE)["diversion"]["last_restored_at"] == "2026-03-01T12:09:00+00:00"
    away = replace(SAMPLE, diversion=replace(SAMPLE.diversion, last_restored_at=None))
    assert said + "none has been restored" in as_text(away)
    healthy = replace(SAMPLE, diversion=OutageSpan(first_at=None, last_at=None, last_restored_at=None))
    assert "diverted from" not in as_text(healthy)
    assert "diverted from" not in as_page(healthy)


def test_ids_are_escaped_for_the_terminal() -> None:
    assert "\x1b" not in as_text(SAMPLE)
    assert r"\x1b" in as_text(SAMPLE)


def test_important_measures_are_shown_when_zero() -> None:
    text = as_text(SAMPLE)
    assert "still waiting in the backlog" in text
    assert "expired" not in text


@pytest.mark.parametrize("verdict", ReconcileVerdict)
def test_every_verdict_has_a_sentence(verdict: ReconcileVerdict) -> None:
    assert headline(replace(SAMPLE, verdict=verdict))


def test_document_is_json() -> None:
    document = json.loads(json.dumps(as_document(SAMPLE)))
    assert document["verdict"] == "missing"
    assert document["total"]["accepted"] == 1_200
    assert document["missing"][0]["accepted_at"] == "2026-03-01T12:00:00+00:00"
    assert document["diverted_to_delivered"]["p99"] == 5_400
    assert document["timeline"]["step"] == 60


def test_page_is_self_contained_and_well_formed() -> None:
    found = outline(SAMPLE)
    assert not found.open
    assert not found.addresses
    assert "script" not in found.tags
    assert {"main", "h1", "svg", "table", "th"} <= set(found.tags)


def test_page_supports_light_and_dark_schemes() -> None:
    assert "prefers-color-scheme: dark" in as_page(SAMPLE)


def test_ids_are_escaped_on_the_page() -> None:
    page = as_page(SAMPLE)
    assert "&lt;script&gt;" in page
    assert "&lt;by a bit&gt;" in page
    assert "orders &amp; more" in page


def test_empty_page_has_no_charts() -> None:
    empty = replace(
        SAMPLE, timeline=(), waits=replace(SAMPLE.waits, messages=0), missing=(), duplicated=(), entities=()
    )
    assert "svg" not in outline(empty).tags


@pytest.mark.parametrize("chart", [timeline_chart(SAMPLE.timeline, MINUTE), waits_chart(SAMPLE.waits.histogram)])
def test_chart_has_title_and_description(chart: Chart) -> None:
    image = ET.fromstring(svg(chart))  # noqa: S314 (it is ours)
    ids = {element.get("id") for element in image}
    assert image.get("role") == "img"
    assert set((image.get("aria-labelledby") or "").split()) <= ids


def test_minute_without_messages_is_drawn() -> None:
    chart = timeline_chart((point(0, direct=4), point(3, direct=4)), MINUTE)
    first = next(line for line in ET.fromstring(svg(chart)).iter("polyline"))  # noqa: S314
    heights = [spot.split(",")[1] for spot in (first.get("points") or "").split()]
    assert len(heights) == 4
    assert heights[0] == heights[3] != heights[1] == heights[2]


def test_chart_of_a_single_point_is_drawn() -> None:
    assert "polyline" in svg(timeline_chart((point(0),), MINUTE))


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(milliseconds=5), "0.005 s"),
        (timedelta(seconds=30), "30 s"),
        (timedelta(minutes=90), "1.5 h"),
        (timedelta(days=2), "2 d"),
        (timedelta(), "0 s"),
        (None, "-"),
    ],
)
def test_durations_are_formatted_with_their_unit(duration: timedelta | None, text: str) -> None:
    assert format_duration(duration) == text
