"""The pages are a site: MkDocs makes it without a warning, and it can be read without a network."""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.docs.snippets import ROOT

REFERENCE = ROOT / "docs" / "reference"
IS_CI = os.environ.get("CI") == "true"
FETCHED = {"script": "src", "img": "src", "link": "href", "iframe": "src"}


class Fetched(HTMLParser):
    """What a browser fetches by itself to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get(FETCHED.get(tag, ""))
        if address:
            self.addresses.append(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("mkdocs") is None and not IS_CI:
        pytest.skip("mkdocs is not installed")
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert made.returncode == 0, made.stderr
    return folder


def test_every_page_is_in_the_site(site: Path) -> None:
    pages = {page.relative_to(ROOT / "docs").with_suffix(".html") for page in (ROOT / "docs").rglob("*.md")}
    assert pages <= {page.relative_to(site) for page in site.rglob("*.html")}


def test_no_page_needs_another_server(site: Path) -> None:
    for page in site.rglob("*.html"):
        fetched = Fetched()
        fetched.feed(page.read_text("utf-8"))
        assert fetched.addresses
        for address in fetched.addresses:
            assert not address.startswith(("http:", "https:", "//")), f"{page.name} fetches {address}"
            file = page.parent / address.partition("?")[0].partition("#")[0]
            assert file.exists() or page.name == "404.html", f"{page.name} fetches {address}, which is not there"


def test_lists_within_lists_are_such(site: Path) -> None:
    text = (site / "reference" / "api-client.html").read_text("utf-8")
    assert re.search(r"<li><code>MessagingFactory</code>: [^\n<]*<ul>", text)


def test_no_program_is_in_the_site(site: Path) -> None:
    assert [*site.rglob("*.py")] == []


def test_the_index_of_the_reference_has_every_page_of_it() -> None:
    linked = set(re.findall(r"\]\(([\w-]+[.]md)\)", (REFERENCE / "index.md").read_text("utf-8")))
    assert linked == {page.name for page in REFERENCE.glob("*.md")} - {"index.md"}


def test_the_index_of_the_reference_has_a_star_for_what_is_generated() -> None:
    starred = set(re.findall(r"\]\(([\w-]+[.]md)\) \*", (REFERENCE / "index.md").read_text("utf-8")))
    generated = {page.name for page in REFERENCE.glob("*.md") if "\nGenerated from " in page.read_text("utf-8")}
    assert starred == {name for name in generated if not name.startswith("api-")}


def test_a_page_of_all_errors_leaves_none_out() -> None:
    listed = set(re.findall(r"^\| `(\w+)` \|", (REFERENCE / "all-errors.md").read_text("utf-8"), re.MULTILINE))
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "src" / "pairbus").rglob("*.py"))
    raised = set(re.findall(r"^class ([A-Z]\w*Error)\b", sources, re.MULTILINE))
    assert raised <= listed


def test_the_site_reads_headings_as_links_name_them() -> None:
    slug = runpy.run_path(str(ROOT / "docs" / "github_markdown.py"))["_slug"]
    assert slug("Use the emulator's Config.json", "-") == "use-the-emulators-configjson"
