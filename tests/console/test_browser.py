"""The console in a real browser: during an outage, by keyboard, on a small screen, in light and dark mode.

With ``PAIRBUS_IMAGES=docs/images``, the tests save screenshots for the documentation.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from pairbus.blocking import BrokeredMessage, MessagingFactory, NamespaceManager
from pairbus.dialect.connection_string import parse_connection_string
from tests.console.application import Application
from tests.console.browser import chromium, page_of, serious_findings
from tests.pairing.processes import NamespaceProcess
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PATIENCE_MS = 60_000
PAGES = ("", "/entity?entity=orders", "/entity?entity=orders&part=dead", "/pair", "/server")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


@pytest.fixture
def contoso(tmp_path: Path) -> Iterator[NamespaceProcess]:
    with NamespaceProcess(tmp_path / "contoso") as primary:
        create_entities(primary.connection_string)
        yield primary


@pytest.fixture
def fabrikam(tmp_path: Path) -> Iterator[NamespaceProcess]:
    with NamespaceProcess(tmp_path / "fabrikam") as secondary:
        yield secondary


def create_entities(connection_string: str) -> None:
    """Create a queue with messages and dead letters, and a topic."""
    with (
        NamespaceManager.from_connection_string(connection_string) as manager,
        MessagingFactory.from_connection_string(connection_string) as factory,
    ):
        manager.create_queue("orders")
        manager.create_topic("news")
        manager.create_subscription("news", "all")
        queue = factory.create_queue_client("orders")
        drinks = ("espresso", "latte", "a <b>large</b> tea")
        queue.send([BrokeredMessage(f'{{"drink": "{drink}"}}') for drink in drinks])
        for message in queue.receive(2):
            queue.dead_letter(message, "too hot", "the cup burns")


def address(server: NamespaceProcess, path: str = "") -> str:
    return f"http://localhost:{parse_connection_string(server.connection_string).port}/console{path}"


def log_in(page: Any, server: NamespaceProcess, path: str = "") -> None:
    page.goto(address(server, path))
    page.get_by_label("Connection string").fill(server.connection_string)
    page.get_by_role("button", name="Log in", exact=True).click()
    page.wait_for_url(address(server, path))


def live(page: Any, key: str) -> Any:
    return page.locator(f'[data-live="{key}"]').first


def number(page: Any, key: str) -> float:
    return float(live(page, key).inner_text().replace(",", ""))


def wait_for_count(found: Any, count: int = 1) -> None:
    """Wait until a page has a number of matching elements."""
    eventually(lambda: found.count() == count)


def reported(page: Any, column: str) -> str:
    """Return a column of the entity in the application's report."""
    cells = page.locator('[data-fragment="senders"] tr', has_text="checkout").locator(
        f'[data-live^="{column}:sender "]'
    )
    return str(cells.first.inner_text()) if cells.count() else ""


def screenshot(page: Any, name: str, *, is_full: bool = False) -> None:
    """Save a screenshot if ``PAIRBUS_IMAGES`` is set."""
    directory = os.environ.get("PAIRBUS_IMAGES")
    if directory:
        Path(directory).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(Path(directory) / f"console-{name}.png"), full_page=is_full)


def test_c19_outage_is_shown_live(
    browser: Any, contoso: NamespaceProcess, fabrikam: NamespaceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "web-1")  # for the screenshots
    with (
        Application(contoso.connection_string, fabrikam.connection_string, "orders") as application,
        page_of(browser) as primary,
        page_of(browser) as secondary,
    ):
        log_in(primary, contoso)
        log_in(secondary, fabrikam, "/pair")
        # Healthy: counts rise on the primary, and the secondary gets nothing.
        eventually(lambda: number(primary, "in:orders") > 1)
        first = number(primary, "active:orders")
        eventually(lambda: number(primary, "active:orders") > first)
        screenshot(primary, "entities")
        assert number(secondary, "depth") == 0
        eventually(lambda: reported(secondary, "state") == "healthy")
        # The primary is killed: messages are diverted.
        contoso.kill()
        primary.get_by_text("The server cannot be reached").wait_for(timeout=PATIENCE_MS)
        eventually(lambda: number(secondary, "depth") > 60)
        eventually(lambda: number(secondary, "diverted") > 1)
        eventually(lambda: reported(secondary, "state") == "failed over")
        eventually(lambda: int(reported(secondary, "diverted") or 0) > 20)
        eventually(lambda: int(reported(secondary, "pings") or 0) > 0)
        eventually(lambda: "localhost" in reported(secondary, "reason"))
        assert serious_findings(secondary) == []
        # The event log has the sender's report, and not the inference of the namespace as well.
        secondary.get_by_text("failed over to the backlog").wait_for(timeout=PATIENCE_MS)
        wait_for_count(secondary.get_by_text("Messages for contoso are diverted to the backlog"), 0)
        eventually(lambda: live(secondary, "state:contoso orders").inner_text() == "diverted")
        # The primary restarts without sessions: the page shows the login. A ping brings the senders back.
        contoso.start()
        primary.wait_for_url(f"{address(contoso)}/login**", timeout=PATIENCE_MS)
        wait_for_count(primary.get_by_text("The server was restarted; log in again."))
        log_in(primary, contoso, "/pair")
        for page in (secondary, primary):
            eventually(lambda page=page: reported(page, "state") == "healthy")  # type: ignore[misc]
            page.get_by_text("checkout (web-1, process").last.wait_for(timeout=PATIENCE_MS)
            wait_for_count(page.get_by_text("returned to the primary"))
        wait_for_count(primary.get_by_role("row", name="orders").first)
        eventually(lambda: primary.get_by_text("orders answered a ping").count() == 0)
        eventually(lambda: number(secondary, "diverted") == 0)
        before = number(secondary, "depth")
        assert before > 60
        # The syphon restores all messages.
        application.start_syphon()
        eventually(lambda: number(secondary, "depth") == 0)
        secondary.get_by_text("The backlog of contoso is empty").wait_for(timeout=PATIENCE_MS)
        wait_for_count(secondary.get_by_text("A syphon is restoring messages to contoso"))
        eventually(lambda: live(secondary, "state:contoso orders").inner_text() == "restored")
        secondary.emulate_media(color_scheme="light")
        waiting = secondary.locator(".legend b").first  # also in the screenshot
        eventually(lambda: waiting.inner_text() == "0")
        screenshot(secondary, "pair", is_full=True)
        secondary.emulate_media(color_scheme="dark")
        screenshot(secondary, "pair-dark", is_full=True)
        assert serious_findings(secondary) == []


def test_wrong_key_is_rejected_and_the_right_one_accepted(browser: Any, contoso: NamespaceProcess) -> None:
    with page_of(browser) as page:
        page.goto(address(contoso))
        page.get_by_label("Key name").fill("RootManageSharedAccessKey")
        page.get_by_label("Key", exact=True).fill("wrong")
        page.get_by_role("button", name="Log in with this key").click()
        alert = page.get_by_role("alert")
        alert.wait_for(timeout=PATIENCE_MS)
        assert "its value is wrong" in alert.inner_text()
        assert serious_findings(page) == []
        screenshot(page, "login")
        log_in(page, contoso)
        wait_for_count(page.get_by_role("heading", name="Entities"))
        page.get_by_role("button", name="Log out").click()
        page.wait_for_url(f"{address(contoso)}/login")


def test_logout_with_a_slow_response_shows_the_login_page(browser: Any, contoso: NamespaceProcess) -> None:
    """The end of the session ends the stream as well, which must not reload the page that is being left."""
    ended: list[str] = []
    with page_of(browser) as page:

        def respond_after_the_stream(route: Any) -> None:
            response = route.fetch(max_redirects=0)
            eventually(lambda: bool(ended), step=lambda: page.wait_for_timeout(50))
            page.wait_for_timeout(500)
            route.fulfill(response=response)

        log_in(page, contoso)
        live(page, "active:orders").wait_for(timeout=PATIENCE_MS)
        for kind in ("requestfinished", "requestfailed"):
            page.on(kind, lambda request: ended.append(request.url) if "/events?" in request.url else None)
        page.route("**/console/logout", respond_after_the_stream)
        page.get_by_role("button", name="Log out").click()
        page.wait_for_url(f"{address(contoso)}/login")


def test_dead_letter_is_resubmitted_and_the_rest_purged(browser: Any, contoso: NamespaceProcess) -> None:
    with page_of(browser) as page:
        log_in(page, contoso, "/entity?entity=orders&part=dead")
        wait_for_count(page.get_by_text("too hot"), 2)
        screenshot(page, "dead-letters")
        page.get_by_role("link", name="Message 1").click()
        eventually(lambda: page.locator("pre").inner_text() == '{\n  "drink": "espresso"\n}')
        page.get_by_role("link", name="Bytes").click()
        eventually(lambda: "7b 22 64 72" in page.locator("pre").inner_text())
        page.go_back()
        screenshot(page, "message")
        page.get_by_role("button", name="Resubmit").click()
        wait_for_count(page.get_by_text("Message 1 was resubmitted to orders."))
        wait_for_count(page.get_by_text("too hot"))
        eventually(lambda: live(page, "active").inner_text() == "2")
        page.get_by_text("Purge…").click()
        page.get_by_label("Type orders to confirm").fill("order")
        page.get_by_role("button", name="Purge").click()
        eventually(lambda: "Nothing was removed" in page.get_by_role("alert").inner_text())
        page.go_back()
        page.get_by_text("Purge…").click()
        page.get_by_label("Type orders to confirm").fill("orders")
        page.get_by_role("button", name="Purge").click()
        wait_for_count(page.get_by_text("1 message was removed from the dead letters of orders."))
        wait_for_count(page.get_by_text("No messages."))
        eventually(lambda: live(page, "active").inner_text() == "2")


def test_hostile_content_is_shown_as_text(browser: Any, contoso: NamespaceProcess) -> None:
    hostile = "\"'><img src=x onerror=alert(1)><script>alert(1)</script>{{ 7 * 7 }}"
    with MessagingFactory.from_connection_string(contoso.connection_string) as factory:
        queue = factory.create_queue_client("orders")
        (kept,) = queue.receive(1)
        queue.dead_letter(kept, hostile, hostile)
        message = BrokeredMessage(hostile, message_id=hostile)
        message.application_properties[hostile] = hostile
        queue.send(message)
    with page_of(browser) as page:
        log_in(page, contoso)
        for path in ("?q=" + quote(hostile), "/entity?entity=orders", "/entity?entity=orders&part=dead"):
            page.goto(address(contoso, path))
            assert page.locator("main").get_by_text("<script>alert(1)</script>{{ 7").count() > 0, path
            assert page.locator("main img, main script").count() == 0
        page.goto(address(contoso, "/entity?entity=orders"))
        page.get_by_role("link", name="Message").last.click()
        # The message id, the name and the value of the property, and the body.
        wait_for_count(page.get_by_text("alert(1)</script>{{ 7 * 7 }}"), 4)
        assert page.locator("main img, main script").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_violation_on_any_page(browser: Any, contoso: NamespaceProcess, scheme: str) -> None:
    with page_of(browser, scheme=scheme) as page:
        log_in(page, contoso)
        for path in (
            *PAGES,
            "/message?entity=orders&sequence=3",
            "/entity?entity=nothing",
            "/entity?entity=news",
            "/no",
        ):
            page.goto(address(contoso, path))
            assert serious_findings(page) == [], path
        page.goto(address(contoso, "/server"))
        if scheme == "dark":
            screenshot(page, "server-dark", is_full=True)


def test_pages_fit_a_small_screen(browser: Any, contoso: NamespaceProcess) -> None:
    with page_of(browser, width=320, height=600) as page:
        page.goto(address(contoso))
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
        log_in(page, contoso)
        for path in (*PAGES, "/message?entity=orders&sequence=3"):
            page.goto(address(contoso, path))
            assert page.evaluate("document.documentElement.scrollWidth") <= 320, path


@pytest.mark.parametrize("path", ["", "/entity?entity=news"])
def test_counts_are_visible_on_a_small_screen(browser: Any, contoso: NamespaceProcess, path: str) -> None:
    with page_of(browser, width=320, height=600) as page:
        log_in(page, contoso, path)
        live(page, "active:news/Subscriptions/all").wait_for(timeout=PATIENCE_MS)
        if not path:
            eventually(lambda: live(page, "dead:orders").inner_text() == "2")
            screenshot(page, "small", is_full=True)
        # All at once: the page replaces rows while it is open.
        boxes = "cells => cells.map(cell => [cell.getBoundingClientRect(), cell.innerText])"
        cells = page.locator("table.rows td, table.rows th[scope=row]").evaluate_all(boxes)
        assert len(cells) >= 8
        for box, text in cells:
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= 320, text
        column = page.locator('table.rows td[data-live^="dead:"]').first
        label = "getComputedStyle(element, '::before').content"
        assert "Dead letters" in column.evaluate(f"element => {label}")
        assert serious_findings(page) == []
        page.set_viewport_size({"width": 1000, "height": 700})
        assert column.evaluate(f"element => {label}") == "none"  # the heading is visible


def test_bare_address_and_unknown_page_lead_to_the_console(browser: Any, contoso: NamespaceProcess) -> None:
    with page_of(browser) as page:
        page.goto(address(contoso).removesuffix("/console"))
        page.wait_for_url(f"{address(contoso)}/login**")
        wait_for_count(page.get_by_text("log in again"), 0)
        log_in(page, contoso)
        answer = page.goto(address(contoso, "/nothing"))
        assert answer.status == 404
        wait_for_count(page.get_by_role("heading", name="Page not found"))
        page.get_by_role("link", name="All entities").click()
        page.wait_for_url(address(contoso))


def test_console_is_usable_by_keyboard(browser: Any, contoso: NamespaceProcess) -> None:
    with page_of(browser) as page:
        page.goto(address(contoso))
        page.keyboard.type(contoso.connection_string)  # the first field has the focus
        page.keyboard.press("Enter")
        page.wait_for_url(address(contoso))
        page.keyboard.press("Tab")
        assert focused(page) == "Skip to the content"
        page.get_by_role("link", name="orders").wait_for(timeout=PATIENCE_MS)  # the first sample may be older
        page.keyboard.press("Enter")
        page.wait_for_url(f"{address(contoso)}#main")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "q"
        for _ in range(3):  # the button, the table, the first row
            page.keyboard.press("Tab")
        assert focused(page) == "orders"
        # A new entity is added while a link has the focus: the link keeps it.
        make_queue(contoso.connection_string, "cups")
        page.get_by_role("link", name="cups").wait_for(timeout=PATIENCE_MS)
        assert focused(page) == "orders"
        page.keyboard.press("Enter")
        page.wait_for_url(address(contoso, "/entity?entity=orders"))


def test_focus_moves_to_the_result_of_an_action(browser: Any, contoso: NamespaceProcess) -> None:
    with page_of(browser) as page:
        log_in(page, contoso, "/entity?entity=orders&part=dead")
        page.get_by_role("button", name="Resubmit message 1").focus()
        page.keyboard.press("Enter")
        page.get_by_text("Message 1 was resubmitted to orders.").wait_for(timeout=PATIENCE_MS)
        eventually(lambda: focused(page) == "Message 1 was resubmitted to orders.")
        page.keyboard.press("Tab")
        assert focused(page) == "All entities"
        page.get_by_text("Purge…").click()
        page.get_by_label("Type orders to confirm").fill("order")
        page.keyboard.press("Enter")
        page.get_by_role("alert").wait_for(timeout=PATIENCE_MS)
        eventually(lambda: focused(page).startswith("Nothing was removed"))


def make_queue(connection_string: str, name: str) -> None:
    with NamespaceManager.from_connection_string(connection_string) as manager:
        manager.create_queue(name)


def focused(page: Any) -> str:
    return str(page.evaluate("document.activeElement.textContent"))
