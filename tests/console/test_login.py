"""Logins: accepted credentials, the lifetime of sessions, and protection against requests of other pages."""

from __future__ import annotations

import gc
import logging
import re
import select
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from urllib.parse import urlencode

import pytest
from uvicorn.protocols.http.h11_impl import RequestResponseCycle

from pairbus.console import routes
from pairbus.console.auth import IDLE_MS, MAX_SESSION_MS, ConsoleLogins
from pairbus.dialect.sas import make_sas_token
from pairbus.server.access import Grant
from pairbus.server.host import NamespaceHost
from tests.console.site import LISTENER, PATIENCE_S, SENDER, Site
from tests.waiting import eventually

DELAY_S = routes.WRONG_KEY_DELAY_S
PAGES = ("/console", "/console/entity?entity=orders", "/console/pair", "/console/server")


@pytest.fixture(autouse=True)
def _short_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the delay after a wrong key; one test sets the real one."""
    monkeypatch.setattr(routes, "WRONG_KEY_DELAY_S", 0.01)


@pytest.mark.parametrize("page", [*PAGES, "/console/message?entity=orders&sequence=1"])
def test_page_without_login_redirects_to_the_login(shared_site: Site, page: str) -> None:
    reply = shared_site.person().get(page)
    assert (reply.status, reply.location.startswith("/console/login?next=")) == (303, True)
    assert "orders" not in reply.text


def test_stream_without_login_is_forbidden(shared_site: Site) -> None:
    assert shared_site.person().get("/console/events", page="entities").status == 403


def test_login_with_a_connection_string_succeeds(shared_site: Site) -> None:
    person = shared_site.person()
    reply = person.post("/console/login", connection_string=shared_site.server.connection_string, next="/console/pair")
    assert (reply.status, reply.location) == (303, "/console/pair")
    assert ">admin<" in person.get().text


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/console/api/pair"),
        ("POST", "/console/login"),
        ("POST", "/console/purge"),
        ("GET", "/console/events"),
        ("GET", "/console"),
        ("PUT", "/orders"),
        ("GET", "/$Resources/queues"),
        ("GET", "/metrics"),
    ],
)
def test_e5_refused_request_is_freed_without_the_garbage_collector(shared_site: Site, method: str, path: str) -> None:
    """An error that a handler keeps refers to the handler's frame, and that to the request and its body."""

    def requests() -> int:
        return shared_site.call(lambda _host: sum(type(each) is RequestResponseCycle for each in gc.get_objects()))

    logging.disable()  # pytest keeps log records, and the errors in them
    gc.collect()
    gc.disable()
    try:
        for authorization in ("", "SharedAccessSignature sr=x&sig=x&se=4000000000&skn=x", "Basic eDp5"):
            headers = {"authorization": authorization} if authorization else {}
            shared_site.person().request(method, path, headers={**headers, "content-length": "9"})
        eventually(lambda: not requests(), PATIENCE_S)
    finally:
        gc.enable()
        logging.disable(logging.NOTSET)


def test_key_with_listen_gives_read_only_access(shared_site: Site) -> None:
    assert ">read-only<" in shared_site.listener().get().text


def test_session_of_a_token_ends_when_the_token_expires(site: Site) -> None:
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
        ({"key_name": "RootManageSharedAccessKey", "key": "wrong"}, "its value is wrong"),
        ({"key_name": "unknown", "key": "wrong"}, "is not a key of this namespace"),
        ({"key_name": SENDER.name, "key": SENDER.primary_key}, "only the claim 'Send'"),
        ({"key_name": "RootManageSharedAccessKey", "key": ""}, "enter a connection string"),
        ({}, "enter a connection string"),
        ({"connection_string": "nonsense"}, "the connection string"),
        ({"connection_string": "@contoso.txt"}, "paste the connection string that is in the file"),
        ({"connection_string": "Endpont=sb://localhost"}, "is Endpoint meant?"),
        ({"connection_string": "Endpoint=sb://localhost"}, "has no key"),
        (
            {"connection_string": "Endpoint=sb://x;SharedAccessKeyName=a;SharedAccessKey=b;EntityPath=orders"},
            "for a single entity",
        ),
        ({"connection_string": "Endpoint=sb://x;SharedAccessSignature=SharedAccessSignature nonsense"}, "token"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value,
)
def test_invalid_login_is_rejected_with_its_reason(shared_site: Site, form: dict[str, str], complaint: str) -> None:
    person = shared_site.person()
    reply = person.post("/console/login", **form)
    assert (reply.status, person.cookies) == (401, {})
    assert complaint.lower() in reply.alert.lower()
    assert re.search(r"\w'?[.?]$", reply.alert)


def test_error_does_not_repeat_the_key(shared_site: Site) -> None:
    reply = shared_site.person().post("/console/login", connection_string="Endpoint=sb://x;SharedAccessKey=secret;x")
    assert (reply.status, "secret" in reply.text) == (401, False)


def test_wrong_key_is_delayed_without_delaying_others(shared_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "WRONG_KEY_DELAY_S", DELAY_S)
    began = time.monotonic()
    assert shared_site.person().post("/console/login", key_name="unknown", key="wrong").status == 401
    assert time.monotonic() - began >= DELAY_S

    monkeypatch.setattr(routes, "WRONG_KEY_DELAY_S", 10.0 * PATIENCE_S)
    guesser = HTTPConnection("127.0.0.1", shared_site.port, timeout=PATIENCE_S)
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    guesser.request("POST", "/console/login", urlencode({"key_name": "unknown", "key": "wrong"}), form)
    assert shared_site.manager().get().status == 200
    assert select.select([guesser.sock], [], [], 0)[0] == []
    guesser.close()


WITH_ANOTHER_KEY = "Endpoint=sb://{};SharedAccessKeyName=unknown;SharedAccessKey=wrong"


def test_error_names_the_endpoint_of_another_server(shared_site: Site) -> None:
    text = WITH_ANOTHER_KEY.format("localhost:1")
    reply = shared_site.person().post("/console/login", connection_string=text)
    assert "is not a key of this namespace" in reply.alert
    assert reply.alert.endswith(
        f"; the Endpoint of the connection string is localhost:1, but this server is 127.0.0.1:{shared_site.port}."
    )


@pytest.mark.parametrize("endpoint", ["localhost:{}", "127.0.0.1:{}", "LOCALHOST", "[::1]:{}"])
def test_error_does_not_name_the_endpoint_of_this_server(shared_site: Site, endpoint: str) -> None:
    text = WITH_ANOTHER_KEY.format(endpoint.format(shared_site.port))
    reply = shared_site.person().post("/console/login", connection_string=text)
    assert "is not a key of this namespace" in reply.alert
    assert "Endpoint" not in reply.alert


def test_endpoint_is_ignored_if_the_key_is_valid(shared_site: Site) -> None:
    text = f"Endpoint=sb://elsewhere;SharedAccessKeyName={LISTENER.name};SharedAccessKey={LISTENER.primary_key}"
    assert shared_site.person().post("/console/login", connection_string=text).status == 303


def test_cookie_is_http_only_and_same_site(shared_site: Site) -> None:
    person = shared_site.person()
    reply = person.post("/console/login", connection_string=shared_site.server.connection_string)
    cookie = reply.headers["set-cookie"].lower()
    assert cookie.startswith("pairbus-contoso=")
    assert {"httponly", "samesite=strict", "path=/console"} <= {part.strip() for part in cookie.split(";")}
    assert f"max-age={MAX_SESSION_MS // 1_000}" in cookie
    assert shared_site.server.key not in reply.headers["set-cookie"]


def test_cookie_over_tls_is_secure(shared_site: Site) -> None:
    assert shared_site.server.ca_file is not None
    context = ssl.create_default_context(cafile=str(shared_site.server.ca_file))
    connection = HTTPSConnection("localhost", shared_site.port, timeout=PATIENCE_S, context=context)
    body = urlencode({"connection_string": shared_site.server.connection_string})
    connection.request("POST", "/console/login", body, {"Content-Type": "application/x-www-form-urlencoded"})
    response = connection.getresponse()
    assert response.status == 303
    assert "secure" in (response.headers["set-cookie"] or "").lower().split("; ")
    connection.close()


def test_forged_cookie_is_rejected(shared_site: Site) -> None:
    person = shared_site.person()
    person.cookies["pairbus-contoso"] = "made up"
    assert person.get().status == 303


def test_login_without_a_session_shows_no_reason(shared_site: Site) -> None:
    assert "log in again" not in shared_site.person().get("/console/login").text


def test_login_with_an_open_session_shows_no_reason(shared_site: Site) -> None:
    assert "log in again" not in shared_site.manager().get("/console/login").text


def test_login_after_a_restart_shows_the_reason(site: Site) -> None:
    person = site.manager()
    site.stop()
    site._await(site.server.start())
    person.port = site.port
    reply = person.get(person.get("/console/pair").location)
    assert "The server was restarted; log in again." in reply.text
    assert person.post("/console/login", key_name=LISTENER.name, key=LISTENER.primary_key).status == 303
    assert "log in again" not in person.get("/console/login").text


def test_login_after_expiry_shows_the_reason(site: Site) -> None:
    person = site.manager()
    site.call(lambda host: setattr(host, "_clock", partial(later, host._clock)))
    reply = person.get(person.get("/console/pair").location)
    assert "Your session has expired; log in again." in reply.text
    wrong = person.post("/console/login", key_name="unknown", key="wrong")
    assert "log in again" not in wrong.text


def later(now_ms: Callable[[], int]) -> int:
    return now_ms() + IDLE_MS


@pytest.mark.parametrize(
    "wanted", ["//evil.example/console", "https://evil.example", "/console/../evil", "javascript:alert(1)", "/orders"]
)
def test_login_redirects_only_to_pages_of_the_console(shared_site: Site, wanted: str) -> None:
    reply = shared_site.person().post(
        "/console/login", connection_string=shared_site.server.connection_string, next=wanted
    )
    assert (reply.status, reply.location) == (303, "/console")


def test_logout_ends_the_session(shared_site: Site) -> None:
    person = shared_site.manager()
    kept = dict(person.cookies)
    assert person.act("/console/logout").location == "/console/login"
    person.cookies = kept
    assert person.get().status == 303


def test_logout_without_the_csrf_token_is_ignored(shared_site: Site) -> None:
    person = shared_site.manager()
    person.request("POST", "/console/logout", {"csrf_token": "made up"})
    assert person.get().status == 200


def test_removed_key_ends_its_sessions(site: Site) -> None:
    person = site.listener()

    def remove(host: NamespaceHost) -> None:
        rules = host.use_namespace().authorization_rules(host.now_ms())
        others = [rule for rule in rules if rule.name != LISTENER.name]
        host.use_namespace().set_authorization_rules(others, host.now_ms())

    with person.stream(page="entities") as events:
        next(events)
        site.call(remove)
        assert [kind for kind, _ in events][-1] == "logout"
    assert person.get().status == 303


def test_sessions_expire_when_idle_and_after_the_maximum_time() -> None:
    sessions = ConsoleLogins()
    idle = sessions.open("idle", lambda: Grant("", frozenset()), 0)
    assert sessions.find(idle.id, IDLE_MS - 1, is_automatic=True) is idle
    assert sessions.find(idle.id, IDLE_MS) is None
    used = sessions.open("used", lambda: Grant("", frozenset()), 0)
    for at_ms in range(0, MAX_SESSION_MS, IDLE_MS // 2):
        assert sessions.find(used.id, at_ms) is used
    assert sessions.find(used.id, MAX_SESSION_MS) is None
    assert len(sessions) == 0


def test_sessions_are_limited() -> None:
    limits: Counter[str] = Counter()
    sessions = ConsoleLogins(limits)
    first = sessions.open("first", lambda: Grant("", frozenset()), 0)
    for _ in range(1_000):
        last = sessions.open("other", lambda: Grant("", frozenset()), 0)
    assert len(sessions) <= 200
    assert sessions.find(first.id, 0) is None
    assert sessions.find(last.id, 0) is last
    assert limits["console_logins"] == 801


def test_repr_of_a_session_has_no_secret() -> None:
    session = ConsoleLogins().open("who", lambda: Grant("", frozenset()), 0)
    assert session.id not in repr(session)
    assert session.csrf_token not in repr(session)


@pytest.mark.parametrize("headers", [{"Origin": "http://evil.example"}, {"Origin": "null"}], ids=["another", "hidden"])
def test_form_of_another_origin_is_rejected(shared_site: Site, headers: dict[str, str]) -> None:
    person = shared_site.manager()
    form = {"csrf_token": person.get().csrf_token, "entity": "orders", "confirmation": "orders"}
    reply = person.request("POST", "/console/purge", form, headers)
    assert (reply.status, "does not belong to your session" in reply.text) == (403, True)
    login = {"connection_string": shared_site.server.connection_string}
    assert shared_site.person().request("POST", "/console/login", login, headers).status == 401


@pytest.mark.parametrize("token", [None, "", "made up", "\N{GRINNING FACE}"])
def test_form_without_the_csrf_token_of_the_session_is_rejected(site: Site, token: str | None) -> None:
    form = {} if token is None else {"csrf_token": token}
    site.send("orders", b"espresso")
    reply = site.manager().post("/console/purge", entity="orders", confirmation="orders", **form)
    assert reply.status == 403
    assert len(site.sequences("orders")) == 1


def test_csrf_token_of_another_session_is_rejected(site: Site) -> None:
    site.send("orders", b"espresso")
    token = site.manager().get().csrf_token
    assert site.manager().post("/console/purge", csrf_token=token, entity="orders", confirmation="orders").status == 403


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        ("x" * 100_000, "application/x-www-form-urlencoded", 413),
        ("csrf_token=%ff", "application/x-www-form-urlencoded", 400),
        ("&".join(f"a{number}=1" for number in range(100)), "application/x-www-form-urlencoded", 400),
        ("{}", "application/json", 400),
    ],
    ids=["too long", "not text", "too many fields", "not a form"],
)
def test_invalid_form_is_rejected(shared_site: Site, body: str, kind: str, status: int) -> None:
    connection = HTTPConnection("127.0.0.1", shared_site.port, timeout=PATIENCE_S)
    connection.request("POST", "/console/login", body, {"Content-Type": kind})
    assert connection.getresponse().status == status
    connection.close()


@pytest.mark.parametrize(
    "path", [*PAGES, "/console/login", "/console/static/console.js", "/console/static/console.css", "/console/events"]
)
def test_every_response_has_the_security_headers(shared_site: Site, path: str) -> None:
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


def test_pages_have_no_inline_scripts_or_styles(shared_site: Site) -> None:
    person = shared_site.manager()
    for page in (*PAGES, "/console/login"):
        text = person.get(page).text
        assert " style=" not in text
        assert "<style" not in text
        assert " onclick=" not in text
        assert text.count("<script") == text.count('<script type="module" src="/console/static/console.js"></script>')
        assert "http://" not in text
        assert "https://" not in text


def test_entity_may_be_named_console(shared_site: Site) -> None:
    reply = shared_site.person().get("/console?api-version=2021-05")
    assert (reply.status, "SubCode=40103" in reply.text) == (401, True)
    assert shared_site.person().request("PUT", "/console").status == 401


def test_server_without_console_has_no_pages(tmp_path: Path) -> None:
    site = Site(tmp_path / "fabrikam", console=False)
    site.start()
    try:
        assert site.person().get().status == 401
        assert site.person().get("/console/login").status == 401
    finally:
        site.close()


# Requests that are no requests


CHUNKED = b"Host: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n"


def answer_to(site: Site, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", site.port), timeout=PATIENCE_S) as stream:
        stream.sendall(data)
        answer = b""
        while part := stream.recv(1 << 16):
            answer += part
        return answer


def test_e5_form_in_chunks_of_one_byte_is_answered(shared_site: Site) -> None:
    form = b"key_name=app&key=" + b"a" * 5_000
    chunks = b"".join(b"1\r\n%c\r\n" % octet for octet in form) + b"0\r\n\r\n"
    head = b"POST /console/login HTTP/1.1\r\nContent-Type: application/x-www-form-urlencoded\r\n" + CHUNKED + b"\r\n"
    assert answer_to(shared_site, head + chunks).startswith(b"HTTP/1.1 401 ")


def test_e3_request_with_an_invalid_chunk_is_answered_once(shared_site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """The application, which is about to answer as well, must not fail."""
    for _ in range(2):  # the first request may compile the templates
        answer = answer_to(shared_site, b"GET /console/login HTTP/1.1\r\n" + CHUNKED + b"\r\nZZ\r\n")
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1 ") == 1
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []
