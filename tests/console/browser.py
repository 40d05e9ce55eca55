"""A real browser: Debian's chromium, driven by Playwright, and axe-core in its pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.peers.presence import absent, import_peer

_AXE: Final = Path(__file__).parents[1] / "peers" / "node_modules" / "axe-core" / "axe.min.js"
_PATIENCE_MS: Final = 60_000
_SERIOUS: Final = {"serious", "critical"}


@contextmanager
def chromium() -> Iterator[Any]:
    """Yield the browser; skip the test if it is not installed. ``.ci/run`` installs it if possible."""
    playwright = import_peer("playwright.sync_api", "playwright")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed (Debian: chromium)")
    # Chromium has no sandbox for root; it loads only the pages under test.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def page_of(browser: Any, *, scheme: str = "light", width: int = 1000, height: int = 700) -> Iterator[Any]:
    """Yield a page; fail if it has script errors, violates its policy, or sends requests to other machines."""
    if not _AXE.exists():
        absent("axe-core")
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": height})
    context.add_init_script(path=str(_AXE))
    context.set_default_timeout(_PATIENCE_MS)
    page = context.new_page()
    urls: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if "Content Security Policy" in message.text else 0)
    try:
        yield page
    finally:
        context.close()
    assert [url for url in urls if not url.startswith("http://localhost:")] == []
    assert errors == []


def serious_findings(page: Any) -> list[str]:
    """Return the serious violations that axe-core finds."""
    found = page.evaluate("async () => (await axe.run(document, {resultTypes: ['violations']})).violations")
    return [f"{each['id']}: {each['help']}: {_places(each)}" for each in found if each["impact"] in _SERIOUS]


def _places(finding: dict[str, Any]) -> list[str]:
    return [str(node["target"]) for node in finding["nodes"]][:5]
