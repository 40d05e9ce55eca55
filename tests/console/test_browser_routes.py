"""Addresses that are not pages: browsers are redirected or get an error page; other clients are not affected."""

from __future__ import annotations

import pytest

from tests.console.site import Person, Reply, Site

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
IMAGE = "image/avif,image/webp,image/png,image/svg+xml,image/*;q=0.8,*/*;q=0.5"
ADDRESSES = (
    "/",
    "/Console",
    "/favicon.ico",
    "/console/nothing",
    "/Console/Pair",
    "/console/purge",
    "/console/pair/more",
)


def browse(person: Person, path: str, accept: str = BROWSER) -> Reply:
    return person.request("GET", path, headers={"Accept": accept})


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("/", "/console"),
        ("/?from=somewhere", "/console"),
        ("/Console", "/console"),
        ("/CONSOLE/Pair", "/console/pair"),
        ("/Console/Entity?entity=Orders", "/console/entity?entity=Orders"),
        ("/Console/Login", "/console/login"),
    ],
)
def test_similar_address_redirects_a_browser_to_the_console(shared_site: Site, path: str, location: str) -> None:
    reply = browse(shared_site.person(), path)
    assert (reply.status, reply.location) == (303, location)


@pytest.mark.parametrize("path", ["/console/nothing", "/console/pair/more", "/Console/nothing", "/console/purge"])
def test_unknown_address_returns_an_error_page(shared_site: Site, path: str) -> None:
    unauthorized = browse(shared_site.person(), path)
    assert (unauthorized.status, unauthorized.location.startswith("/console/login?next=/console")) == (303, True)
    reply = browse(shared_site.manager(), path)
    assert (reply.status, reply.alert) == (404, "The console has no page at this address.")
    assert reply.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    assert 'href="/console/pair"' in reply.text


@pytest.mark.parametrize("headers", [{}, {"Accept": "*/*"}])
def test_d17_unknown_page_is_answered_by_the_console_whatever_the_client_accepts(
    shared_site: Site, headers: dict[str, str]
) -> None:
    reply = shared_site.person().request("GET", "/console/nothing", headers=headers)
    assert (reply.status, reply.location) == (303, "/console/login?next=/console/nothing")
    reply = shared_site.manager().request("GET", "/console/nothing", headers=headers)
    assert (reply.status, reply.alert) == (404, "The console has no page at this address.")


@pytest.mark.parametrize("accept", [IMAGE, BROWSER])
def test_favicon_is_served_to_browsers(shared_site: Site, accept: str) -> None:
    reply = browse(shared_site.person(), "/favicon.ico", accept)
    assert (reply.status, reply.headers["content-type"]) == (200, "image/svg+xml")
    assert reply.text.startswith("<svg ")


@pytest.mark.parametrize("path", ADDRESSES)
@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ({"Accept": "application/atom+xml"}, ""),
        ({"Accept": BROWSER}, "?api-version=2021-05"),
        ({"Accept": BROWSER, "Authorization": "SharedAccessSignature nonsense"}, ""),
    ],
    ids=["accepts Atom", "has an api-version", "has a token"],
)
def test_program_gets_the_answer_of_the_management_api(
    shared_site: Site, path: str, headers: dict[str, str], query: str
) -> None:
    reply = shared_site.person().request("GET", f"{path}{query}", headers=headers)
    assert (reply.status, "SubCode=40103" in reply.text) == (401, True)
    assert reply.headers["content-type"].startswith("application/xml")


@pytest.mark.parametrize("path", ["/", "/favicon.ico"])
@pytest.mark.parametrize("headers", [{}, {"Accept": "*/*"}])
def test_address_outside_the_console_needs_a_browser(shared_site: Site, path: str, headers: dict[str, str]) -> None:
    reply = shared_site.person().request("GET", path, headers=headers)
    assert (reply.status, "SubCode=40103" in reply.text) == (401, True)


@pytest.mark.parametrize("path", ["/orders", "/consoles", "/console.txt", "/$Resources/Queues"])
def test_address_outside_the_console_is_not_a_page(shared_site: Site, path: str) -> None:
    assert browse(shared_site.manager(), path).status == 401


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_request_with_another_method_is_not_a_page(shared_site: Site, method: str) -> None:
    for path in ("/", "/Console", "/console/nothing"):
        reply = shared_site.manager().request(method, path, headers={"Accept": BROWSER})
        assert reply.headers["content-type"].startswith("application/xml")
