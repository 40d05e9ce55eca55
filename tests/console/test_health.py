"""The console shows the health of the server, and the faults that are injected."""

from __future__ import annotations

import re
from pathlib import Path

from pairbus.fault_kinds import FaultKind, FaultRequest
from pairbus.server.fault_injection import inject_fault
from pairbus.server.supervision.supervisor import Component, Problem
from tests.console.conftest import opened
from tests.console.site import Person
from tests.waiting import eventually

PAGES = ("/console", "/console/pair", "/console/server", "/console/entity?entity=orders", "/console/entity?entity=none")
HOSTILE = "<script>alert(1)</script>"


def health_section(person: Person) -> str:
    """Return the health on the page of the server, as one line."""
    text = person.get("/console/server").text.partition('<h2 id="health">')[2].partition("</section>")[0]
    return " ".join(text.split())


def test_d5_injected_faults_and_problems_are_shown_until_they_end(tmp_path: Path) -> None:
    with opened(tmp_path, allow_faults=True) as site:
        admin, reader = site.manager(), site.listener()
        assert [admin.get(page).live("banner") for page in PAGES] == [""] * len(PAGES)
        assert "<b>ok</b>" in health_section(admin)
        busy = site.call(lambda host: inject_fault(host, FaultRequest(kind=FaultKind.SERVER_BUSY)))
        request = FaultRequest(kind=FaultKind.CANNOT_SEND, entity="news", duration_ms=3_600_000)
        other = site.call(lambda host: inject_fault(host, request))
        for person in (admin, reader):
            banners = {person.get(page).live("banner") for page in PAGES}
            assert banners == {"The server is degraded (1 problem): see the page Server"}
            shown = health_section(person)
            assert "injected faults: 2" in shown
            rows = re.findall(r"<tr>(<th scope=\"row\">.*?)</tr>", shown)
            first, second = [[*filter(None, re.split(r"<[^>]*>", row))] for row in rows]
            assert first == [
                f"{busy.id} server-busy",
                "requests are denied with server busy",
                "the namespace",
                "when it is cleared",
                f"pairbus fault clear {busy.id}",
            ]
            assert (second[0], second[2]) == (f"{other.id} cannot-send", "news")
            assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", second[3])
        page = admin.get("/console/server")
        assert page.live("busy") == (
            f"Requests are rejected with server busy: fault {busy.id} (server-busy) is injected at the namespace"
        )
        site.call(lambda host: host.faults.clear(busy.id, host.now_ms()) if host.faults is not None else None)
        assert "except where an injected fault applies" in admin.get("/console/server").live("busy")
        site.call(lambda host: host.faults.clear_all(host.now_ms()) if host.faults is not None else None)
        assert "Injected faults" not in health_section(admin)
        assert admin.get("/console/server").live("busy") == "Requests are accepted."


def test_d5_banner_is_updated_live(tmp_path: Path) -> None:
    with opened(tmp_path, allow_faults=True) as site, site.listener().stream(page="entities") as events:
        next(events)
        site.call(lambda host: inject_fault(host, FaultRequest(kind=FaultKind.CANNOT_SEND)))
        assert "The server is degraded" in next(data for _, data in events if '"banner"' in data)


def test_d5_problems_are_escaped(tmp_path: Path) -> None:
    failing = Component(name="stub", check=lambda: Problem(reason=HOSTILE), restart=lambda: None)
    with opened(tmp_path) as site:
        person = site.manager()
        site.call(lambda _host: site.server._running.services.supervisor.add(failing))
        eventually(lambda: "component stub is stopped" in health_section(person))
        page = person.get("/console/server").text
        assert "&lt;script&gt;alert(1)" in page
        assert HOSTILE not in page
