"""E5: every route of the server limits the size of bodies, and rejects a larger one before it has arrived."""

from __future__ import annotations

import base64
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from pairbus.console.actions import ACTIONS
from pairbus.console.http import FORM_BYTES
from pairbus.pairing.report import MOST_BYTES
from pairbus.server.http.call import MAX_BODY_BYTES
from pairbus.server.http.routes import ROUTES
from tests.console.site import PATIENCE_S, Site

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "http.md"
REPORT: Final = "/console/api/pair"
FORMS: Final = ("/console/login", "/console/logout", *ACTIONS)
LIMITS: Final = {
    **{(route.method, route.example): route.max_body_bytes for route in ROUTES if route.max_body_bytes},
    **{("POST", path): FORM_BYTES for path in FORMS},
    ("POST", REPORT): MOST_BYTES,
}


def asked(site: Site, method: str, path: str, *headers: str, body: bytes = b"") -> Iterator[str]:
    """Send a request, with or without its body, and yield the response; the connection stays open until then."""
    key = base64.b64encode(f"{site.settings.key_name}:{site.server.key}".encode()).decode()
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Authorization: Basic {key}", *headers, "", ""]
    with socket.create_connection(("127.0.0.1", site.port), timeout=PATIENCE_S) as stream:
        stream.sendall("\r\n".join(lines).encode() + body)
        answer = b""
        while b"\r\n\r\n" not in answer:
            part = stream.recv(1 << 16)
            assert part, answer
            answer += part
        yield answer.decode()


def status(answers: Iterator[str]) -> int:
    return int(next(answers).split(" ")[1])


@pytest.mark.parametrize(("route", "limit"), LIMITS.items(), ids=str)
def test_body_beyond_the_limit_of_its_route_is_rejected(shared_site: Site, route: tuple[str, str], limit: int) -> None:
    form = "Content-Type: application/x-www-form-urlencoded"
    too_large = f"Content-Length: {limit + 1}"
    assert status(asked(shared_site, *route, form, too_large)) == 413, "the body is rejected before it has arrived"
    chunk = b"%x\r\n" % (limit + 1) + b" " * (limit + 1) + b"\r\n0\r\n\r\n"
    assert status(asked(shared_site, *route, form, "Transfer-Encoding: chunked", body=chunk)) == 413
    fitting = asked(shared_site, *route, form, f"Content-Length: {limit}", body=b" " * limit)
    assert status(fitting) != 413


@pytest.mark.parametrize(
    "route",
    [*LIMITS, ("GET", "/health"), ("GET", "/metrics"), ("GET", "/console"), ("GET", "/orders"), ("POST", "/nowhere")],
    ids=" ".join,
)
def test_no_route_accepts_a_body_of_a_hundred_megabytes(shared_site: Site, route: tuple[str, str]) -> None:
    for length in (MAX_BODY_BYTES + 1, 100 << 20, 10**40):
        assert status(asked(shared_site, *route, f"Content-Length: {length}")) in {400, 413}


@pytest.mark.parametrize("route", LIMITS, ids=" ".join)
def test_compressed_body_is_rejected(shared_site: Site, route: tuple[str, str]) -> None:
    bomb = ("Content-Encoding: gzip", "Content-Length: 4")
    assert status(asked(shared_site, *route, *bomb, body=b"\x1f\x8b\x08\0")) == 415


def test_reference_lists_the_limits_of_bodies() -> None:
    text = PAGE.read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `([A-Z]+ /\S+)` \| ([\d,]+ [KM]B) \|$", text, re.MULTILINE))
    sizes = {1 << 20: "1 MB", 256 << 10: "256 KB", 64 << 10: "64 KB", 16 << 10: "16 KB"}
    taken = {f"{route.method} {route.pattern}": sizes[route.max_body_bytes] for route in ROUTES if route.max_body_bytes}
    assert listed == taken | {f"POST {REPORT}": sizes[MOST_BYTES]}
    assert f"| forms of the console, `POST /console/login` among them | {sizes[FORM_BYTES]} |" in text
