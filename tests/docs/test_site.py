"""The site: MkDocs builds it without a warning, and a browser can read and search it from disk, without a network."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.console.browser import chromium
from tests.docs.snippets import ROOT
from tests.peers.presence import absent, import_peer

DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
DIAGRAMS = {page: page.read_text("utf-8").count("\n```mermaid\n") for page in sorted(DOCS.rglob("*.md"))}
WITH_DIAGRAMS = [page.relative_to(DOCS) for page, count in DIAGRAMS.items() if count]
OPEN_SHADOWS = """
    const attach = Element.prototype.attachShadow;
    Element.prototype.attachShadow = function (options) { return attach.call(this, { ...options, mode: "open" }); };
"""
PATIENCE_MS = 60_000
FETCHED = {"script": "src", "img": "src", "link": "href", "iframe": "src"}


class Fetched(HTMLParser):
    """Collects the resources that a browser loads to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get(FETCHED.get(tag, ""))
        if address:
            self.addresses.append(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    build(ROOT, folder)
    return folder


def build(root: Path, folder: Path) -> str:
    """Build the site of a tree into a folder, and return what MkDocs logs."""
    import_peer("material", "mkdocs-material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120, check=False)
    assert built.returncode == 0, built.stderr
    return built.stderr


@pytest.fixture
def tab(site: Path) -> Iterator[Any]:
    """A browser tab that may load the files of the site, and nothing else."""
    with chromium() as browser:
        context = browser.new_context()
        context.set_default_timeout(PATIENCE_MS)
        context.add_init_script(OPEN_SHADOWS)  # the theme hides what it draws from scripts
        tab = context.new_page()
        requested: list[str] = []
        errors: list[str] = []
        tab.on("request", lambda request: requested.append(request.url))
        tab.on("pageerror", lambda error: errors.append(str(error)))
        yield tab
        context.close()
    assert [url for url in requested if not url.startswith(site.as_uri())] == []
    assert errors == []


@pytest.mark.slow
@pytest.mark.parametrize("source", WITH_DIAGRAMS, ids=str)
def test_diagrams_are_drawn_from_disk(source: Path, site: Path, tab: Any) -> None:
    if not (site / "site" / "mermaid.js").exists():
        absent("Mermaid")
    tab.goto((site / source.with_suffix(".html")).as_uri())
    drawn = tab.locator("div.mermaid svg")
    drawn.nth(DIAGRAMS[DOCS / source] - 1).wait_for()
    assert drawn.count() == DIAGRAMS[DOCS / source]
    assert tab.locator("pre.mermaid").count() == 0
    assert tab.locator("svg[aria-roledescription=error]").count() == 0


@pytest.mark.slow
def test_search_from_disk_finds_a_page(site: Path, tab: Any) -> None:
    tab.goto((site / "tutorial" / "first-messages.html").as_uri())
    tab.locator("input[name=query]").click()
    tab.keyboard.type("syphon")
    result = tab.locator(".md-search-result__link").first
    result.wait_for()
    assert "syphon" in result.inner_text().lower()
    result.click()
    tab.wait_for_url(lambda url: not url.endswith("first-messages.html"))
    assert "syphon" in tab.locator("article").inner_text().lower()


def test_site_without_mermaid_shows_diagrams_as_text(tmp_path: Path) -> None:
    shutil.copytree(DOCS, tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    log = build(tmp_path, tmp_path / "site")
    assert "Mermaid is not installed" in log
    text = (tmp_path / "site" / WITH_DIAGRAMS[0].with_suffix(".html")).read_text("utf-8")
    source = (DOCS / WITH_DIAGRAMS[0]).read_text("utf-8").partition("```mermaid\n")[2]
    assert source.splitlines()[0] in text
    assert 'class="mermaid"' not in text  # the theme would load Mermaid from another server


def test_every_page_is_in_the_site(site: Path) -> None:
    pages = {page.relative_to(DOCS).with_suffix(".html") for page in DOCS.rglob("*.md")}
    assert pages <= {page.relative_to(site) for page in site.rglob("*.html")}


def test_no_page_loads_from_another_server(site: Path) -> None:
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


def test_index_of_the_reference_has_every_page_of_it() -> None:
    linked = set(re.findall(r"\]\(([\w-]+[.]md)\)", (REFERENCE / "index.md").read_text("utf-8")))
    assert linked == {page.name for page in REFERENCE.glob("*.md")} - {"index.md"}


def test_index_of_the_reference_marks_generated_pages() -> None:
    starred = set(re.findall(r"\]\(([\w-]+[.]md)\) \*", (REFERENCE / "index.md").read_text("utf-8")))
    texts = {page.name: " ".join(page.read_text("utf-8").split()) for page in REFERENCE.glob("*.md")}
    generated = {name for name, text in texts.items() if re.search(r"Generated from|, generated from the code", text)}
    assert starred == {name for name in generated if not name.startswith("api-")}


def test_page_of_all_errors_is_complete() -> None:
    listed = set(re.findall(r"^\| `(\w+)` \|", (REFERENCE / "all-errors.md").read_text("utf-8"), re.MULTILINE))
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "src" / "pairbus").rglob("*.py"))
    raised = set(re.findall(r"^class ([A-Z]\w*Error)\b", sources, re.MULTILINE))
    assert raised <= listed


def test_anchors_of_the_site_match_the_links() -> None:
    slug = runpy.run_path(str(DOCS / "github_markdown.py"))["_slug"]
    assert slug("Use the emulator's Config.json", "-") == "use-the-emulators-configjson"
