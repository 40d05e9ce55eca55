"""B4 on the console: its sampler is supervised, and the server page lists components and diagnostic bundles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pairbus.console import sampler
from pairbus.console.counts import EntityCounts, count_entities
from pairbus.fault_kinds import CrashComponent, FaultKind, FaultRequest
from pairbus.server.fault_injection import inject_fault
from pairbus.server.host import NamespaceHost
from tests.console.conftest import opened
from tests.waiting import eventually


def test_sampler_that_failed_is_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = iter([False, True, True])  # the first sample is taken before the task starts

    async def count(host: NamespaceHost) -> EntityCounts:
        if next(failures, False):
            raise RuntimeError("defect")
        return await count_entities(host)

    monkeypatch.setattr(sampler, "count_entities", count)
    with opened(tmp_path) as site:
        person = site.manager()
        with person.stream(page="entities") as events:
            next(events)
            site.send("orders", b"espresso")
            next(data for _, data in events if '"active:orders": "1"' in data)
        assert person.get().live("active:orders") == "1"
        (console,) = (status for status in site.server.components if status.name == "console")
        assert console.state == "running"
        assert 1 <= console.restarts <= 2
    messages = [record.getMessage() for record in caplog.records if "component failed" in record.getMessage()]
    assert messages
    assert all('component=console reason="its task failed with RuntimeError"' in message for message in messages)
    assert next(failures, None) is None


def test_injected_crash_of_the_console_restarts_its_sampler(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path, allow_faults=True) as site:
        person = site.manager()
        request = FaultRequest(kind=FaultKind.COMPONENT_CRASH, component=CrashComponent.CONSOLE)
        site.call(lambda host: inject_fault(host, request))
        eventually(lambda: " component=console restarts=1" in caplog.text)
        assert 'reason="its task failed with ComponentCrashError"' in caplog.text
        with person.stream(page="entities") as events:
            next(events)
            site.send("orders", b"espresso")
            next(data for _, data in events if '"active:orders": "1"' in data)


def test_server_page_lists_components_and_an_admin_downloads_bundles(tmp_path: Path) -> None:
    with opened(tmp_path) as site:
        admin, reader = site.manager(), site.listener()
        page = admin.get("/console/server").text
        assert '<th scope="row">dispatcher</th><td>running</td><td class="number">0</td>' in page
        assert "No component has failed" in page
        diagnostics = site.server._running.services.diagnostics
        assert diagnostics is not None
        name, _ = site.call(lambda _host: diagnostics.collect())
        eventually(lambda: diagnostics.kept)
        link = f"/console/bundle?name={name}"
        assert f'href="{link}"' in admin.get("/console/server").text
        reply = admin.get(link)
        assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
        assert reply.headers["content-disposition"] == f'attachment; filename="{name}.json"'
        assert json.loads(reply.text)["component"] == "request"
        assert admin.get("/console/bundle?name=../format").status == 404
        shown = reader.get("/console/server").text
        assert name in shown
        assert link not in shown
        assert reader.get(link).status == 403
        assert site.person().get(link).status == 303
