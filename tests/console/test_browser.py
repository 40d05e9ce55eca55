"""The console in a real browser: through a whole outage, by keyboard, on a small screen, light and dark.

With ``PAIRBUS_IMAGES=docs/images`` it keeps what the pages look like, for the documentation.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pairbus.blocking import BrokeredMessage, MessagingFactory, NamespaceManager
from pairbus.dialect.connection_string import parse_connection_string
from tests.console.application import Application
from tests.console.browser import chromium, page_of, serious_findings
from tests.console.site import eventually
from tests.pairing.processes import NamespaceProcess

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
        furnish(primary.connection_string)
        yield primary


@pytest.fixture
def fabrikam(tmp_path: Path) -> Iterator[NamespaceProcess]:
    with NamespaceProcess(tmp_path / "fabrikam") as secondary:
        yield secondary


def furnish(connection_string: str) -> None:
    """A queue with messages and dead letters, and a topic."""
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


def there(found: Any, count: int = 1) -> None:
    """Wait until so many of something are on a page."""
    eventually(lambda: found.count() == count)


def told(page: Any, column: str) -> str:
    """A column of the entity as the application has reported it."""
    cells = page.locator('[data-fragment="senders"] tr', has_text="checkout").locator(
        f'[data-live^="{column}:sender "]'
    )
    return str(cells.first.inner_text()) if cells.count() else ""


def keep(page: Any, name: str, *, is_whole: bool = False) -> None:
    """A picture for the documentation, where one is wanted."""
    directory = os.environ.get("PAIRBUS_IMAGES")
    if directory:
        Path(directory).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(Path(directory) / f"console-{name}.png"), full_page=is_whole)


def test_c19_an_outage_is_seen_as_it_happens(
    browser: Any, contoso: NamespaceProcess, fabrikam: NamespaceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "web-1")  # for the pictures
    with (
        Application(contoso.connection_string, fabrikam.connection_string, "orders") as application,
        page_of(browser) as primary,
        page_of(browser) as secondary,
    ):
        log_in(primary, contoso)
        log_in(secondary, fabrikam, "/pair")
        # Healthy: counts go up on the one, nothing comes to the other.
        eventually(lambda: number(primary, "in:orders") > 1)
        first = number(primary, "active:orders")
        eventually(lambda: number(primary, "active:orders") > first)
        keep(primary, "entities")
        assert number(secondary, "depth") == 0
        eventually(lambda: told(secondary, "state") == "healthy")
        # The primary dies: messages are diverted.
        contoso.kill()
        primary.get_by_text("The server cannot be reached").wait_for(timeout=PATIENCE_MS)
        eventually(lambda: number(secondary, "depth") > 60)
        eventually(lambda: number(secondary, "diverted") > 1)
        eventually(lambda: told(secondary, "state") == "failed over")
        eventually(lambda: int(told(secondary, "diverted") or 0) > 20)
        eventually(lambda: int(told(secondary, "pings") or 0) > 0)
        eventually(lambda: "localhost" in told(secondary, "reason"))
        assert serious_findings(secondary) == []
        # The sender's own words stand in the timeline, and not what the namespace concludes as well.
        secondary.get_by_text("has failed over to the backlog").wait_for(timeout=PATIENCE_MS)
        there(secondary.get_by_text("Messages for contoso are diverted to the backlog"), 0)
        eventually(lambda: live(secondary, "state:contoso orders").inner_text() == "diverted")
        # It comes back, and knows nobody: the page asks for the key again. A ping calls the senders home.
        contoso.start()
        primary.wait_for_url(f"{address(contoso)}/login**", timeout=PATIENCE_MS)
        there(primary.get_by_text("The server was started anew; log in again."))
        log_in(primary, contoso, "/pair")
        for page in (secondary, primary):
            eventually(lambda page=page: told(page, "state") == "healthy")  # type: ignore[misc]
            page.get_by_text("checkout (web-1, process").last.wait_for(timeout=PATIENCE_MS)
            there(page.get_by_text("has come back to the primary"))
        there(primary.get_by_role("row", name="orders").first)
        eventually(lambda: primary.get_by_text("orders was pinged and answered").count() == 0)
        eventually(lambda: number(secondary, "diverted") == 0)
        before = number(secondary, "depth")
        assert before > 60
        # The syphon brings everything home.
        application.start_syphon()
        eventually(lambda: number(secondary, "depth") == 0)
        secondary.get_by_text("The backlog of contoso is empty").wait_for(timeout=PATIENCE_MS)
        there(secondary.get_by_text("A syphon brings messages home to contoso"))
        eventually(lambda: live(secondary, "state:contoso orders").inner_text() == "brought home")
        secondary.emulate_media(color_scheme="light")
        waiting = secondary.locator(".legend b").first  # in the picture, too
        eventually(lambda: waiting.inner_text() == "0")
        keep(secondary, "pair", is_whole=True)
        secondary.emulate_media(color_scheme="dark")
        keep(secondary, "pair-dark", is_whole=True)
        assert serious_findings(secondary) == []


def test_a_wrong_key_is_refused_and_the_right_one_is_not(browser: Any, contoso: NamespaceProcess) -> None:
    with page_of(browser) as page:
        page.goto(address(contoso))
        page.get_by_label("Name of the key").fill("RootManageSharedAccessKey")
        page.get_by_label("Key", exact=True).fill("wrong")
        page.get_by_role("button", name="Log in with this key").click()
        alert = page.get_by_role("alert")
        alert.wait_for(timeout=PATIENCE_MS)
        assert "has another value" in alert.inner_text()
        assert serious_findings(page) == []
        keep(page, "login")
        log_in(page, contoso)
        there(page.get_by_role("heading", name="Entities"))
        page.get_by_role("button", name="Log out").click()
        page.wait_for_url(f"{address(contoso)}/login")


def test_a_dead_letter_is_sent_again_and_the_rest_is_purged(browser: Any, contoso: NamespaceProcess) -> None:
    with page_of(browser) as page:
        log_in(page, contoso, "/entity?entity=orders&part=dead")
        there(page.get_by_text("too hot"), 2)
        keep(page, "dead-letters")
        page.get_by_role("link", name="Message 1").click()
        eventually(lambda: page.locator("pre").inner_text() == '{\n  "drink": "espresso"\n}')
        page.get_by_role("link", name="Bytes").click()
        eventually(lambda: "7b 22 64 72" in page.locator("pre").inner_text())
        page.go_back()
        keep(page, "message")
        page.get_by_role("button", name="Resubmit").click()
        there(page.get_by_text("Message 1 was sent again to orders."))
        there(page.get_by_text("too hot"))
        eventually(lambda: live(page, "active").inner_text() == "2")
        page.get_by_text("Purge…").click()
        page.get_by_label("Type orders to confirm").fill("order")
        page.get_by_role("button", name="Purge").click()
        eventually(lambda: "Nothing was removed" in page.get_by_role("alert").inner_text())
        page.go_back()
        page.get_by_text("Purge…").click()
        page.get_by_label("Type orders to confirm").fill("orders")
        page.get_by_role("button", name="Purge").click()
        there(page.get_by_text("One message was removed from the dead letters of orders."))
        there(page.get_by_text("There are none."))
        eventually(lambda: live(page, "active").inner_text() == "2")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_on_any_page(browser: Any, contoso: NamespaceProcess, scheme: str) -> None:
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
            keep(page, "server-dark", is_whole=True)


def test_a_small_screen_is_enough(browser: Any, contoso: NamespaceProcess) -> None:
    with page_of(browser, width=320, height=600) as page:
        page.goto(address(contoso))
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
        log_in(page, contoso)
        for path in (*PAGES, "/message?entity=orders&sequence=3"):
            page.goto(address(contoso, path))
            assert page.evaluate("document.documentElement.scrollWidth") <= 320, path


@pytest.mark.parametrize("path", ["", "/entity?entity=news"])
def test_counts_are_in_sight_on_a_small_screen(browser: Any, contoso: NamespaceProcess, path: str) -> None:
    with page_of(browser, width=320, height=600) as page:
        log_in(page, contoso, path)
        live(page, "active:news/Subscriptions/all").wait_for(timeout=PATIENCE_MS)
        if not path:
            eventually(lambda: live(page, "dead:orders").inner_text() == "2")
            keep(page, "small", is_whole=True)
        cells = page.locator("table.rows td, table.rows th[scope=row]").all()
        assert len(cells) >= 8
        for cell in cells:
            box = cell.bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= 320, cell.inner_text()
        column = page.locator('table.rows td[data-live^="dead:"]').first
        label = "getComputedStyle(element, '::before').content"
        assert "Dead letters" in column.evaluate(f"element => {label}")
        assert serious_findings(page) == []
        page.set_viewport_size({"width": 1000, "height": 700})
        assert column.evaluate(f"element => {label}") == "none"  # the heading above says it


def test_a_browser_finds_the_console_and_a_way_back_to_it(browser: Any, contoso: NamespaceProcess) -> None:
    with page_of(browser) as page:
        page.goto(address(contoso).removesuffix("/console"))
        page.wait_for_url(f"{address(contoso)}/login**")
        there(page.get_by_text("log in again"), 0)
        log_in(page, contoso)
        answer = page.goto(address(contoso, "/nothing"))
        assert answer.status == 404
        there(page.get_by_role("heading", name="There is no such page"))
        page.get_by_role("link", name="All entities").click()
        page.wait_for_url(address(contoso))


def test_the_keyboard_is_enough(browser: Any, contoso: NamespaceProcess) -> None:
    with page_of(browser) as page:
        page.goto(address(contoso))
        page.keyboard.type(contoso.connection_string)  # the first field has the focus
        page.keyboard.press("Enter")
        page.wait_for_url(address(contoso))
        page.keyboard.press("Tab")
        assert focused(page) == "Skip to the content"
        page.keyboard.press("Enter")
        page.wait_for_url(f"{address(contoso)}#main")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "q"
        for _ in range(3):  # the button, the table, the first row
            page.keyboard.press("Tab")
        assert focused(page) == "orders"
        # A new entity comes while somebody is on a link: they stay there.
        make_queue(contoso.connection_string, "cups")
        page.get_by_role("link", name="cups").wait_for(timeout=PATIENCE_MS)
        assert focused(page) == "orders"
        page.keyboard.press("Enter")
        page.wait_for_url(address(contoso, "/entity?entity=orders"))


def test_the_keyboard_goes_on_from_what_was_done(browser: Any, contoso: NamespaceProcess) -> None:
    with page_of(browser) as page:
        log_in(page, contoso, "/entity?entity=orders&part=dead")
        page.get_by_role("button", name="Resubmit message 1").focus()
        page.keyboard.press("Enter")
        page.get_by_text("Message 1 was sent again to orders.").wait_for(timeout=PATIENCE_MS)
        eventually(lambda: focused(page) == "Message 1 was sent again to orders.")
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
