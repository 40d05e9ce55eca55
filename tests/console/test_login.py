"""Who is let in, what with, for how long, and what nobody else can make their browser do."""

from __future__ import annotations

import re
import select
import ssl
import time
from collections.abc import Callable
from functools import partial
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from pairbus.console import annex
from pairbus.console.session import IDLE_MS, LONGEST_MS, Sessions
from pairbus.dialect.sas import make_sas_token
from pairbus.server.access import Grant
from pairbus.server.host import NamespaceHost
from tests.console.site import LISTENER, PATIENCE_S, SENDER, Site

DELAY_S = annex.WRONG_KEY_DELAY_S
PAGES = ("/console", "/console/entity?entity=orders", "/console/pair", "/console/server")


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """One test waits as long as somebody who guesses has to; the others do not."""
    monkeypatch.setattr(annex, "WRONG_KEY_DELAY_S", 0.01)


@pytest.mark.parametrize("page", [*PAGES, "/console/message?entity=orders&sequence=1"])
def test_whoever_is_not_known_is_sent_to_the_login(shared_site: Site, page: str) -> None:
    reply = shared_site.person().get(page)
    assert (reply.status, reply.location.startswith("/console/login?next=")) == (303, True)
    assert "orders" not in reply.text


def test_live_numbers_are_for_those_who_are_known(shared_site: Site) -> None:
    assert shared_site.person().get("/console/events", page="entities").status == 403


def test_a_connection_string_opens_the_console(shared_site: Site) -> None:
    person = shared_site.person()
    reply = person.post("/console/login", connection_string=shared_site.server.connection_string, next="/console/pair")
    assert (reply.status, reply.location) == (303, "/console/pair")
    assert "may change things" in person.get().text


def test_a_key_that_listens_may_look_only(shared_site: Site) -> None:
    assert "may look only" in shared_site.listener().get().text


def test_a_token_for_the_namespace_opens_it_until_it_ends(site: Site) -> None:
    expires_s = int(time.time()) + 3_600
    token = make_sas_token("sb://localhost/", site.settings.key_name, site.server.key, expires_s)
    person = site.person()
    text = f"Endpoint=sb://localhost;SharedAccessSignature={token}"
    assert person.post("/console/login", connection_string=text).status == 303
    assert person.get().status == 200
    site.call(lambda host: setattr(host, "wall_ms", lambda: (expires_s + 1) * 1_000))
    assert person.get().status == 303


@pytest.mark.parametrize(
    ("form", "complaint"),
    [
        ({"key_name": "RootManageSharedAccessKey", "key": "wrong"}, "has another value"),
        ({"key_name": "nobody", "key": "wrong"}, "is no key of this namespace"),
        ({"key_name": SENDER.name, "key": SENDER.primary_key}, "can only send"),
        ({"key_name": "RootManageSharedAccessKey", "key": ""}, "type a connection string"),
        ({}, "type a connection string"),
        ({"connection_string": "nonsense"}, "the connection string"),
        ({"connection_string": "@contoso.txt"}, "paste the connection string that is in it"),
        ({"connection_string": "Endpont=sb://localhost"}, "is Endpoint meant?"),
        ({"connection_string": "Endpoint=sb://localhost"}, "has no key"),
        (
            {"connection_string": "Endpoint=sb://x;SharedAccessKeyName=a;SharedAccessKey=b;EntityPath=orders"},
            "of one entity",
        ),
        ({"connection_string": "Endpoint=sb://x;SharedAccessSignature=SharedAccessSignature nonsense"}, "token"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value,
)
def test_a_wrong_key_is_refused_with_a_clear_text(shared_site: Site, form: dict[str, str], complaint: str) -> None:
    person = shared_site.person()
    reply = person.post("/console/login", **form)
    assert (reply.status, person.cookies) == (401, {})
    assert complaint.lower() in reply.alert.lower()
    assert re.search(r"\w'?[.?]$", reply.alert)


def test_what_was_typed_is_not_repeated(shared_site: Site) -> None:
    reply = shared_site.person().post("/console/login", connection_string="Endpoint=sb://x;SharedAccessKey=secret;x")
    assert (reply.status, "secret" in reply.text) == (401, False)


def test_who_guesses_has_to_wait_and_holds_up_nobody_else(shared_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(annex, "WRONG_KEY_DELAY_S", DELAY_S)
    began = time.monotonic()
    assert shared_site.person().post("/console/login", key_name="nobody", key="wrong").status == 401
    assert time.monotonic() - began >= DELAY_S

    monkeypatch.setattr(annex, "WRONG_KEY_DELAY_S", 10.0 * PATIENCE_S)
    guesser = HTTPConnection("127.0.0.1", shared_site.port, timeout=PATIENCE_S)
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    guesser.request("POST", "/console/login", urlencode({"key_name": "nobody", "key": "wrong"}), form)
    assert shared_site.manager().get().status == 200
    assert select.select([guesser.sock], [], [], 0)[0] == []
    guesser.close()


WITH_ANOTHER_KEY = "Endpoint=sb://{};SharedAccessKeyName=nobody;SharedAccessKey=wrong"


def test_a_connection_string_of_another_server_is_told_as_such(shared_site: Site) -> None:
    text = WITH_ANOTHER_KEY.format("localhost:1")
    reply = shared_site.person().post("/console/login", connection_string=text)
    assert "is no key of this namespace" in reply.alert
    assert reply.alert.endswith(
        "; the Endpoint of the connection string is another one: "
        f"it is localhost:1, and this is 127.0.0.1:{shared_site.port}."
    )


@pytest.mark.parametrize("endpoint", ["localhost:{}", "127.0.0.1:{}", "LOCALHOST", "[::1]:{}"])
def test_a_wrong_key_with_the_right_endpoint_is_just_wrong(shared_site: Site, endpoint: str) -> None:
    text = WITH_ANOTHER_KEY.format(endpoint.format(shared_site.port))
    reply = shared_site.person().post("/console/login", connection_string=text)
    assert "is no key of this namespace" in reply.alert
    assert "Endpoint" not in reply.alert


def test_the_endpoint_does_not_matter_where_the_key_is_right(shared_site: Site) -> None:
    text = f"Endpoint=sb://elsewhere;SharedAccessKeyName={LISTENER.name};SharedAccessKey={LISTENER.primary_key}"
    assert shared_site.person().post("/console/login", connection_string=text).status == 303


def test_the_cookie_is_for_this_server_and_no_script(shared_site: Site) -> None:
    person = shared_site.person()
    reply = person.post("/console/login", connection_string=shared_site.server.connection_string)
    cookie = reply.headers["set-cookie"].lower()
    assert cookie.startswith("pairbus-contoso=")
    assert {"httponly", "samesite=strict", "path=/console"} <= {part.strip() for part in cookie.split(";")}
    assert f"max-age={LONGEST_MS // 1_000}" in cookie
    assert shared_site.server.key not in reply.headers["set-cookie"]


def test_over_tls_the_cookie_comes_back_over_tls_only(shared_site: Site) -> None:
    assert shared_site.server.ca_file is not None
    context = ssl.create_default_context(cafile=str(shared_site.server.ca_file))
    connection = HTTPSConnection("localhost", shared_site.port, timeout=PATIENCE_S, context=context)
    body = urlencode({"connection_string": shared_site.server.connection_string})
    connection.request("POST", "/console/login", body, {"Content-Type": "application/x-www-form-urlencoded"})
    response = connection.getresponse()
    assert response.status == 303
    assert "secure" in (response.headers["set-cookie"] or "").lower().split("; ")
    connection.close()


def test_a_cookie_that_was_made_up_opens_nothing(shared_site: Site) -> None:
    person = shared_site.person()
    person.cookies["pairbus-contoso"] = "made up"
    assert person.get().status == 303


def test_who_was_never_here_is_told_nothing_at_the_login(shared_site: Site) -> None:
    assert "log in again" not in shared_site.person().get("/console/login").text


def test_who_is_logged_in_is_told_nothing_at_the_login(shared_site: Site) -> None:
    assert "log in again" not in shared_site.manager().get("/console/login").text


def test_after_a_restart_the_login_says_why_one_is_there(site: Site) -> None:
    person = site.manager()
    site.stop()
    site._await(site.server.start())
    person.port = site.port
    reply = person.get(person.get("/console/pair").location)
    assert "The server was started anew; log in again." in reply.text
    assert person.post("/console/login", key_name=LISTENER.name, key=LISTENER.primary_key).status == 303
    assert "log in again" not in person.get("/console/login").text


def test_who_was_away_for_long_is_told_that_the_login_has_ended(site: Site) -> None:
    person = site.manager()
    site.call(lambda host: setattr(host, "now_ms", partial(later, host.now_ms)))
    reply = person.get(person.get("/console/pair").location)
    assert "Your login has ended; log in again." in reply.text
    wrong = person.post("/console/login", key_name="nobody", key="wrong")
    assert "log in again" not in wrong.text


def later(now_ms: Callable[[], int]) -> int:
    return now_ms() + IDLE_MS


@pytest.mark.parametrize(
    "wanted", ["//evil.example/console", "https://evil.example", "/console/../evil", "javascript:alert(1)", "/orders"]
)
def test_after_the_login_nobody_is_sent_elsewhere(shared_site: Site, wanted: str) -> None:
    reply = shared_site.person().post(
        "/console/login", connection_string=shared_site.server.connection_string, next=wanted
    )
    assert (reply.status, reply.location) == (303, "/console")


def test_who_logs_out_is_out(shared_site: Site) -> None:
    person = shared_site.manager()
    kept = dict(person.cookies)
    assert person.act("/console/logout").location == "/console/login"
    person.cookies = kept
    assert person.get().status == 303


def test_a_page_of_others_can_log_nobody_out(shared_site: Site) -> None:
    person = shared_site.manager()
    person.post("/console/logout", seal="made up")
    assert person.get().status == 200


def test_a_key_that_is_removed_ends_its_sessions(site: Site) -> None:
    person = site.listener()

    def remove(host: NamespaceHost) -> None:
        rules = host.namespace.authorization_rules(host.now_ms())
        others = [rule for rule in rules if rule.name != LISTENER.name]
        host.namespace.set_authorization_rules(others, host.now_ms())

    with person.stream(page="entities") as events:
        next(events)
        site.call(remove)
        assert [kind for kind, _ in events][-1] == "over"
    assert person.get().status == 303


def test_sessions_end_when_nobody_uses_them_and_after_some_hours() -> None:
    sessions = Sessions()
    idle = sessions.open("idle", lambda: Grant("", frozenset()), 0)
    assert sessions.find(idle.id, IDLE_MS - 1, by_itself=True) is idle
    assert sessions.find(idle.id, IDLE_MS) is None
    used = sessions.open("used", lambda: Grant("", frozenset()), 0)
    for at_ms in range(0, LONGEST_MS, IDLE_MS // 2):
        assert sessions.find(used.id, at_ms) is used
    assert sessions.find(used.id, LONGEST_MS) is None
    assert len(sessions) == 0


def test_there_are_only_so_many_sessions() -> None:
    sessions = Sessions()
    first = sessions.open("first", lambda: Grant("", frozenset()), 0)
    for _ in range(1_000):
        last = sessions.open("other", lambda: Grant("", frozenset()), 0)
    assert len(sessions) <= 200
    assert sessions.find(first.id, 0) is None
    assert sessions.find(last.id, 0) is last


def test_a_session_tells_no_secret() -> None:
    session = Sessions().open("who", lambda: Grant("", frozenset()), 0)
    assert session.id not in repr(session)
    assert session.seal not in repr(session)


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://evil.example"}, {"Origin": "null"}], ids=["another", "one that is hidden"]
)
def test_a_form_of_another_origin_is_refused(shared_site: Site, headers: dict[str, str]) -> None:
    person = shared_site.manager()
    form = {"seal": person.get().seal, "entity": "orders", "confirmation": "orders"}
    reply = person.request("POST", "/console/purge", form, headers)
    assert (reply.status, "not made by a page of this console" in reply.text) == (403, True)
    login = {"connection_string": shared_site.server.connection_string}
    assert shared_site.person().request("POST", "/console/login", login, headers).status == 401


@pytest.mark.parametrize("form", [{}, {"seal": ""}, {"seal": "made up"}, {"seal": "\N{GRINNING FACE}"}])
def test_a_form_without_the_seal_of_the_session_changes_nothing(site: Site, form: dict[str, Any]) -> None:
    site.send("orders", b"espresso")
    reply = site.manager().post("/console/purge", entity="orders", confirmation="orders", **form)
    assert reply.status == 403
    assert len(site.sequences("orders")) == 1


def test_the_seal_of_another_session_does_not_do(site: Site) -> None:
    site.send("orders", b"espresso")
    seal = site.manager().get().seal
    assert site.manager().post("/console/purge", seal=seal, entity="orders", confirmation="orders").status == 403


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        ("x" * 100_000, "application/x-www-form-urlencoded", 413),
        ("seal=%ff", "application/x-www-form-urlencoded", 400),
        ("&".join(f"a{number}=1" for number in range(100)), "application/x-www-form-urlencoded", 400),
        ("{}", "application/json", 400),
    ],
    ids=["too long", "no text", "too many fields", "no form"],
)
def test_a_form_that_is_none_is_refused(shared_site: Site, body: str, kind: str, status: int) -> None:
    connection = HTTPConnection("127.0.0.1", shared_site.port, timeout=PATIENCE_S)
    connection.request("POST", "/console/login", body, {"Content-Type": kind})
    assert connection.getresponse().status == status
    connection.close()


@pytest.mark.parametrize(
    "path", [*PAGES, "/console/login", "/console/static/console.js", "/console/static/console.css", "/console/events"]
)
def test_every_answer_says_that_nothing_comes_from_elsewhere(shared_site: Site, path: str) -> None:
    person = shared_site.manager()
    if path.endswith("events"):
        reply = person.get(path, page="nonsense")
        assert reply.status == 404
    else:
        reply = person.get(path)
        assert reply.status == 200
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert reply.headers["x-frame-options"] == "DENY"
    assert reply.headers["cache-control"] == "no-store"
    assert reply.headers["x-content-type-options"] == "nosniff"


def test_pages_have_nothing_inline(shared_site: Site) -> None:
    person = shared_site.manager()
    for page in (*PAGES, "/console/login"):
        text = person.get(page).text
        assert " style=" not in text
        assert "<style" not in text
        assert " onclick=" not in text
        assert text.count("<script") == text.count('<script type="module" src="/console/static/console.js"></script>')
        assert "http://" not in text
        assert "https://" not in text


def test_an_entity_may_be_called_console(shared_site: Site) -> None:
    reply = shared_site.person().get("/console?api-version=2021-05")
    assert (reply.status, "SubCode=40103" in reply.text) == (401, True)
    assert shared_site.person().request("PUT", "/console").status == 401


def test_a_server_can_do_without_a_console(tmp_path: Path) -> None:
    site = Site(tmp_path / "fabrikam", console=False)
    site.start()
    try:
        assert site.person().get().status == 401
        assert site.person().get("/console/login").status == 401
    finally:
        site.close()
