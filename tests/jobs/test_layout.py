"""Reports in a real browser: nothing is cut off, and nothing overlaps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from pairbus.jobs.cost.report import CostReport, Section, html_page
from pairbus.jobs.reconcile.page import as_page
from tests.console.browser import chromium
from tests.jobs.wide_reports import LONG, wide_report

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BILL: Final = CostReport(
    heading="A bill of 1.23 USD",
    sections=(
        Section(
            title="By entity",
            columns=("entity", "stage", "operations", "units", "amount (USD)"),
            texts=2,
            rows=((LONG, "receive from backlog", "1,234,567", "1,234,567", "0.123456789"),),
            total=("total", "", "1,234,567", "1,234,567", "0.123456789"),
        ),
    ),
    footnotes=(f"a file at /var/lib/{LONG}",),
)
PAGES: Final = {
    "usual": as_page(wide_report()),
    "every measure": as_page(wide_report(every_measure=True)),
    "bill": html_page(BILL),
}

LINES_OF_TEXT: Final = """
selector => [...document.querySelectorAll(selector)].map(cell => {
    const lines = [];
    const range = document.createRange();
    let last = null;
    const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode())
        for (let place = 0; place < node.length; place++) {
            range.setStart(node, place);
            range.setEnd(node, place + 1);
            const top = range.getBoundingClientRect().top;
            if (last === null || top > last + 4) lines.push("");
            last = top;
            lines[lines.length - 1] += node.data[place];
        }
    return lines;
})
"""
BOXES: Final = """
chart => [...chart.querySelectorAll("text")].map(text => {
    const box = text.getBoundingClientRect();
    return [box.left, box.top, box.right, box.bottom, text.textContent];
})
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(params=[1280, 390])
def width(request: pytest.FixtureRequest) -> int:
    chosen: int = request.param
    return chosen


@pytest.fixture
def page(browser: Any, width: int) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": width, "height": 900})
    yield context.new_page()
    context.close()


@pytest.mark.parametrize("name", PAGES)
def test_page_does_not_scroll_sideways_and_names_break_only_between_words(
    page: Any, tmp_path: Path, width: int, name: str
) -> None:
    file = tmp_path / "page.html"
    file.write_text(PAGES[name], encoding="utf-8")
    page.goto(file.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    if width > 1_000:
        boxes = page.evaluate("[...document.querySelectorAll('.wide')].map(box => [box.scrollWidth, box.clientWidth])")
        assert all(inside <= outside for inside, outside in boxes)
    cells = page.evaluate(LINES_OF_TEXT, "td:first-child, tbody th, h3")
    assert any("".join(lines) == LONG for lines in cells)
    for lines in cells:
        assert all(line.rstrip()[-1:] in "/-._" or line.endswith(" ") for line in lines[:-1]), lines


@pytest.mark.parametrize("name", ["usual", "every measure"])
def test_labels_of_charts_do_not_overlap(page: Any, tmp_path: Path, name: str) -> None:
    file = tmp_path / "page.html"
    file.write_text(PAGES[name], encoding="utf-8")
    page.goto(file.as_uri())
    charts = page.query_selector_all("svg[role=img]")
    assert len(charts) == 2
    for chart in charts:
        edges = chart.bounding_box()
        boxes = chart.evaluate(BOXES)
        assert len(boxes) > 5
        for number, (left, top, right, bottom, text) in enumerate(boxes):
            assert left >= edges["x"] - 1, text
            assert right <= edges["x"] + edges["width"] + 1, text
            for other in boxes[number + 1 :]:
                is_apart = right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
                assert is_apart, (text, other[4])
