"""Reports of applications: authorization, limits, expiry, and how the pages show them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from html import unescape
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from pairbus import (
    BrokeredMessage,
    EntityState,
    MessagingFactory,
    NamespaceManager,
    NamespacePair,
    SendAvailabilityPairedNamespaceOptions,
)
from pairbus.broker import QueueDescription
from pairbus.console.pair_events import PairEventLog, Switch
from pairbus.console.pair_page import sender_live_values, sender_values, unhealthy_text
from pairbus.console.reports import EXPIRES_MS, MAX_APPLICATIONS, MAX_ENTITIES, Reports
from pairbus.dialect.sas import make_sas_token
from pairbus.pairing.report import MOST_BYTES, EntityReport, PairReport, ReportRecipient, SwitchReport, write_report
from pairbus.server.errors import ServerBusyError
from tests.console.conftest import opened
from tests.console.site import LISTENER, PATIENCE_S, SENDER, Person, Reply, Site
from tests.pairing.processes import NamespaceProcess
from tests.waiting import eventually

ORDERS = EntityReport(
    path="orders", state=EntityState.FAILED_OVER, since_ms=1_000, reason="it cannot be reached", diverted=3, pings=2
)
REPORT = PairReport(
    pair_id="a1",
    number=1,
    application="checkout",
    host="web-1",
    process=4711,
    primary="contoso",
    receiver=ReportRecipient.SECONDARY,
    sent_ms=10_000,
    entities=(ORDERS,),
    more=0,
    switches=(),
    switched=0,
)
FOREVER_S = 2**33


def switch(number: int, state: EntityState = EntityState.FAILED_OVER, at_ms: int = 9_000) -> SwitchReport:
    return SwitchReport(number=number, path="orders", state=state, at_ms=at_ms, reason="away")


# Storage.


def test_c19_newer_report_replaces_the_last_one() -> None:
    reports = Reports()
    reports.add(REPORT, 10_000)
    healthy = replace(ORDERS, state=EntityState.HEALTHY)
    reports.add(replace(REPORT, number=2, entities=(healthy,)), 11_000)
    assert reports.add(replace(REPORT, number=2), 12_000) is None  # an older report
    assert [(last.received_ms, one.state) for last, one in reports.rows] == [(11_000, EntityState.HEALTHY)]


def test_report_expires_without_heartbeats() -> None:
    reports = Reports()
    reports.add(REPORT, 10_000)
    reports.expire(10_000 + EXPIRES_MS - 1)
    assert (len(reports), len(reports.rows)) == (1, 1)
    reports.expire(10_000 + EXPIRES_MS)
    assert (len(reports), len(reports.rows)) == (0, 0)


def test_e3_applications_are_limited_and_known_ones_may_report() -> None:
    reports = Reports()
    for number in range(MAX_APPLICATIONS):
        reports.add(replace(REPORT, pair_id=f"a{number}"), 10_000)
    with pytest.raises(ServerBusyError):
        reports.add(replace(REPORT, pair_id="new"), 10_000)
    assert reports.add(replace(REPORT, pair_id="a7", number=2), 10_000) is not None
    assert reports.add(replace(REPORT, pair_id="new"), 10_000 + EXPIRES_MS) is not None


def test_e3_entities_are_limited() -> None:
    reports = Reports()
    many = replace(REPORT, entities=(ORDERS,) * 1_000)
    for number in range(MAX_ENTITIES // 1_000):
        reports.add(replace(many, pair_id=f"a{number}"), 10_000)
    with pytest.raises(ServerBusyError):
        reports.add(replace(REPORT, pair_id="new"), 10_000)
    assert reports.add(replace(many, pair_id="a7", number=2), 10_000) is not None


@pytest.mark.parametrize(
    ("sent_ms", "since_ms"), [(10_000, 1_000), (9_000, 1_000), (3_610_000, 3_601_000), (5_000, -4_000)]
)
def test_times_are_converted_to_the_clock_of_the_namespace(sent_ms: int, since_ms: int) -> None:
    reports = Reports()
    reports.add(replace(REPORT, sent_ms=sent_ms), 10_000)
    [(last, _)] = reports.rows
    assert last.local_ms(since_ms) == 1_000
    assert last.local_ms(2**53) == 10_000  # not after its arrival
    assert last.local_ms(-(2**60)) == 0


def test_clock_offset_ignores_transmission_times() -> None:
    reports = Reports()
    for number, delay_ms in enumerate((5_000, 5_900, 4_100), 1):
        reports.add(replace(REPORT, number=number, sent_ms=number * 10_000), number * 10_000 + delay_ms)
        assert [last.offset_ms for last in reports] == [5_000]


def test_c19_switches_are_new_once_and_missed_ones_are_counted() -> None:
    reports = Reports()
    first = reports.add(replace(REPORT, switches=(switch(6), switch(7)), switched=7), 10_000)
    again = reports.add(replace(REPORT, number=2, switches=(switch(6), switch(7)), switched=7), 10_000)
    later = reports.add(replace(REPORT, number=3, switches=(switch(7), switch(10)), switched=10), 10_000)
    assert first is not None
    assert again is not None
    assert later is not None
    assert ([one.number for one in first.switches], first.missed) == ([6, 7], 0)
    assert (again.switches, again.missed) == ((), 0)
    assert ([one.number for one in later.switches], later.missed) == ([10], 2)


def test_c19_reported_diversion_is_found_by_primary() -> None:
    reports = Reports()
    reports.add(REPORT, 10_000)
    assert reports.has_diversion("Contoso")
    assert not reports.has_diversion("fabrikam")
    reports.add(replace(REPORT, number=2, entities=(replace(ORDERS, state=EntityState.FAILING),)), 10_000)
    assert not reports.has_diversion("contoso")


# Events.


def reported_switch(
    state: EntityState = EntityState.FAILED_OVER, process: str = "web-1, process 1", *, is_local: bool = False
) -> Switch:
    return Switch(
        application="checkout",
        processes=frozenset({process}),
        primary="contoso",
        path="orders",
        state=state,
        reason="away",
        is_local=is_local,
    )


def texts(log: PairEventLog) -> list[str]:
    return [entry.text for entry in log][::-1][1:]


def test_c19_event_log_has_reported_switches() -> None:
    log = PairEventLog(0)
    log.add_switch(reported_switch(), 1_000)
    log.add_switch(reported_switch(EntityState.HELD_OVER), 2_000)
    log.add_switch(reported_switch(EntityState.HEALTHY), 3_000)
    who = "orders of contoso: checkout (web-1, process 1)"
    assert texts(log) == [
        f"{who} failed over to the backlog: away",
        f"{who} was switched to the backlog manually.",
        f"{who} returned to the primary.",
    ]


def test_c19_switches_of_several_processes_are_joined() -> None:
    log = PairEventLog(0)
    for number in range(5):
        log.add_switch(reported_switch(process=f"web-{number}, process 1"), 1_000 + number)
    edition = log.version
    assert texts(log) == ["orders of contoso: checkout (5 processes) failed over to the backlog: away"]
    log.add_switch(reported_switch(process="web-9, process 1"), 1_100)
    assert log.version > edition
    log.add_switch(reported_switch(process="web-9, process 1"), 1_200)  # the process had returned in between
    assert len(texts(log)) == 2


@pytest.mark.parametrize("is_reported_first", [True, False])
def test_c19_reported_switch_replaces_the_inference(is_reported_first: bool) -> None:
    log = PairEventLog(0)
    notes: list[Callable[[], None]] = [
        lambda: log.add_switch(reported_switch(is_local=True), 2_000),
        lambda: log.add_backlog("contoso", 5, 5, 0, 1_500),
        lambda: log.add_switch(reported_switch(EntityState.HEALTHY, is_local=True), 30_000),
        lambda: log.add_pings("orders", 1, 30_500),
    ]
    if not is_reported_first:
        notes = [notes[1], notes[0], notes[3], notes[2]]
    for note in notes:
        note()
    assert [text.rpartition(") ")[2] for text in texts(log)] == [
        "failed over to the backlog: away",
        "returned to the primary.",
    ]
    assert "orders" in log.pinged


def test_c19_unreported_diversion_is_inferred() -> None:
    log = PairEventLog(0)
    log.add_switch(reported_switch(), 1_000)
    log.add_backlog("contoso", 5, 5, 0, 60_000, is_reported=True)
    log.add_backlog("fabrikam", 5, 5, 0, 60_000)
    log.add_switch(reported_switch(EntityState.HEALTHY), 61_000)  # an entity of another namespace
    log.add_pings("orders", 1, 61_500)
    assert [text.partition(":")[0] for text in texts(log)] == [
        "orders of contoso",
        "Messages for fabrikam are diverted to the backlog",
        "orders of contoso",
        "orders answered a ping",
    ]


def test_late_report_is_sorted_by_its_time() -> None:
    log = PairEventLog(0)
    log.add_pings("cups", 1, 50_000)
    log.add_switch(reported_switch(), 20_000)
    assert [entry.at_ms for entry in log] == [50_000, 20_000, 0]


# The table.


def test_c19_sender_table_is_limited_and_counts_the_rest() -> None:
    reports = Reports()
    healthy = tuple(replace(ORDERS, path=f"queue-{number}", state=EntityState.HEALTHY) for number in range(500))
    reports.add(replace(REPORT, entities=(*healthy, ORDERS), more=3), 10_000)
    live, table = sender_live_values(reports), sender_values(reports)
    assert (len(table["rows"]), table["more"]) == (200, "304")
    assert table["rows"][0]["path"] == "orders"
    assert all(f"state:{row['key']}" in live for row in table["rows"])
    assert unhealthy_text(reports) == ", 1 entity is not healthy"


# Authorization.


def token_of(site: Site, name: str, key: str, path: str = "") -> str:
    return make_sas_token(f"sb://localhost/{path}", name, key, FOREVER_S)


def root(site: Site) -> str:
    return token_of(site, site.settings.key_name, site.server.key)


def report_to(site: Site, body: bytes, authorization: str | None = None, **headers: str) -> Reply:
    given = {"Content-Type": "application/json", **headers}
    if authorization is not None:
        given["Authorization"] = authorization
    connection = HTTPConnection("127.0.0.1", site.port, timeout=PATIENCE_S)
    try:
        connection.request("POST", "/console/api/pair", body, given)
        response = connection.getresponse()
        return Reply(response.status, dict(response.getheaders()), response.read().decode())
    finally:
        connection.close()


def test_a8_report_requires_send_on_the_namespace(site: Site) -> None:
    body = write_report(REPORT)
    entity_token = token_of(site, site.settings.key_name, site.server.key, "orders")
    for authorization, status, words in (
        (None, 401, "the request has no authorization"),
        ("nonsense", 401, "not a shared access signature"),
        (token_of(site, SENDER.name, "another key"), 401, "invalid token signature"),
        (make_sas_token("sb://localhost/", SENDER.name, SENDER.primary_key, 1), 401, "expired"),
        (entity_token, 401, "issued for another address"),
        (token_of(site, LISTENER.name, LISTENER.primary_key), 403, "does not include the claim 'Send'"),
        (token_of(site, SENDER.name, SENDER.primary_key), 204, ""),
        (root(site), 204, ""),
    ):
        reply = report_to(site, body, authorization)
        assert (reply.status, words in reply.text) == (status, True), reply.text
    # A session does not suffice either: a page of another server could use it.
    cookies = "; ".join(f"{name}={value}" for name, value in site.manager().cookies.items())
    assert report_to(site, body, Cookie=cookies).status == 401


def test_e3_invalid_report_is_rejected(site: Site) -> None:
    for body, status, words in (
        (b"", 400, "not valid JSON"),
        (b"{}", 400, "has no 'pair_id'"),
        (b"x" * (MOST_BYTES + 1), 413, f"more than {MOST_BYTES} bytes"),
        (b" " * 1_000_000, 413, f"more than {MOST_BYTES} bytes"),
        (write_report(REPORT).replace(b"failed over", b"asleep"), 400, "'state' of 'entities[0]'"),
    ):
        reply = report_to(site, body, root(site))
        assert (reply.status, words in reply.text) == (status, True), reply.text
    assert "No application reports its pair to this namespace." in site.manager().get("/console/pair").text


def test_report_requires_post_without_api_version(site: Site) -> None:
    assert site.manager().get("/console/api/pair").status in {401, 404, 405}
    connection = HTTPConnection("127.0.0.1", site.port, timeout=PATIENCE_S)
    connection.request("PUT", "/console/api/pair?api-version=2021-05", headers={"Authorization": root(site)})
    assert connection.getresponse().status != 204  # an entity may have this name
    connection.close()


def test_healthy_entity_has_no_reason(site: Site) -> None:
    person = site.manager()
    for number, state, shown in (
        (1, EntityState.FAILED_OVER, "it cannot be reached"),
        (2, EntityState.HEALTHY, ""),
    ):
        report = replace(REPORT, number=number, entities=(replace(ORDERS, state=state),))
        assert report_to(site, write_report(report), root(site)).status == 204
        page = person.get("/console/pair")
        assert page.live(f"reason:sender {REPORT.pair_id} orders") == shown


def test_c21_reported_drill_is_marked_as_a_drill(site: Site) -> None:
    path = "x-pairbus-drill/1"
    tried = replace(ORDERS, path=path, state=EntityState.HELD_OVER)
    begun = replace(switch(1), path=path, state=EntityState.HELD_OVER)
    report = replace(REPORT, entities=(tried,), switches=(begun,), switched=1)
    assert report_to(site, write_report(report), root(site)).status == 204
    page = site.manager().get("/console/pair")
    assert page.live(f"state:sender {REPORT.pair_id} {path}") == "drill"
    assert "started a drill." in page.text
    assert "manually" not in page.text
    assert "not healthy" not in page.live("summary")


def test_hostile_report_is_escaped(site: Site) -> None:
    hostile = "<script>alert('1')</script>\"&\x00\x1b\ud800"
    entity = replace(ORDERS, path=hostile, reason=hostile)
    report = replace(REPORT, pair_id=hostile, application=hostile, host=hostile, primary=hostile, entities=(entity,))
    events = replace(report, switches=(replace(switch(1), path=hostile, reason=hostile),), switched=1)
    assert report_to(site, write_report(events), root(site)).status == 204
    person = site.manager()
    page = person.get("/console/pair")
    assert page.status == 200
    assert "<script>alert" not in page.text
    assert "\x00" not in page.text
    with person.stream(page="pair") as stream:
        assert json.loads(next(stream)[1])


@pytest.mark.parametrize("field", ["sent_ms", "number", "process", "switched", "more"])
def test_e3_report_with_large_numbers_is_shown(site: Site, field: str) -> None:
    huge = 2**53 - 1
    changes: dict[str, Any] = {field: huge}
    entity = replace(ORDERS, since_ms=huge, diverted=huge, pings=huge)
    report = replace(REPORT, entities=(entity,), switches=(switch(huge, at_ms=huge), switch(1, at_ms=0)), **changes)
    assert report_to(site, write_report(report), root(site)).status == 204
    assert site.manager().get("/console/pair").status == 200


def test_reports_are_not_billed(tmp_path: Path) -> None:
    site = Site(tmp_path / "contoso", ledger=tmp_path / "ledger")
    site.start()
    try:
        person = site.manager()
        for number in range(1, 20):
            assert report_to(site, write_report(replace(REPORT, number=number)), root(site)).status == 204
        page = person.get("/console/server")
        assert {page.live(f"operations:{stage}") for stage in ("direct", "backlog", "management", "ping")} == {"0"}
    finally:
        site.close()


# The page.


def row_of(page: Reply, application: str) -> str:
    """Return the text of the first row of an application."""
    rows = re.findall(r"<tr><td>.*?</tr>", page.text)
    found = next((row for row in rows if f"<td>{application}<" in row), "")
    return unescape(re.sub(r"<[^>]+>", " | ", found))


def test_c19_pair_page_shows_reported_states(site: Site) -> None:
    person = site.manager()
    now_ms = site.call(lambda host: host.now_ms())
    report = replace(REPORT, sent_ms=now_ms, entities=(replace(ORDERS, since_ms=now_ms),))
    with person.stream(page="pair") as stream:
        next(stream)
        assert "No application reports its pair to this namespace." in person.get("/console/pair").text
        assert report_to(site, write_report(report), root(site)).status == 204
        patch = next(found for _, data in stream if "senders" in (found := json.loads(data)))
        assert "1 entity is not healthy" in patch["summary"]
        row = row_of(person.get("/console/pair"), "checkout")
        for text in ("checkout", "web-1, process 4711", "orders", "contoso", "failed over", "it cannot be reached"):
            assert text in row
        page = person.get("/console/pair")
        assert page.live("diverted:sender a1 orders") == "3"
        assert page.live("pings:sender a1 orders") == "2"
        # The next report changes the values without loading the page.
        later = replace(report, number=2, entities=(replace(report.entities[0], diverted=99),))
        assert report_to(site, write_report(later), root(site)).status == 204
        patch = next(found for _, data in stream if "diverted:sender a1 orders" in (found := json.loads(data)))
        assert patch["diverted:sender a1 orders"] == "99"
        assert "senders" not in patch


@pytest.mark.parametrize("is_reported", [True, False])
def test_c19_reported_diversion_is_not_inferred(site: Site, is_reported: bool) -> None:
    path = "contoso/x-servicebus-transfer/0"
    site.call(lambda host: host.use_namespace().create_queue(path, QueueDescription(), host.now_ms()))
    state = EntityState.FAILED_OVER if is_reported else EntityState.HEALTHY
    assert (
        report_to(site, write_report(replace(REPORT, entities=(replace(ORDERS, state=state),))), root(site)).status
        == 204
    )
    person = site.manager()
    with person.stream(page="pair"):
        site.send(path, b"diverted", **{"x-ms-path": "orders"})
        eventually(lambda: f"depth:{path}" in person.get("/console/pair").text)
        page = eventually(lambda: (reply := person.get("/console/pair")).live(f"depth:{path}") == "1" and reply)
    assert ("senders have failed over" in page.text) is not is_reported


def test_read_only_user_sees_reports(site: Site) -> None:
    assert report_to(site, write_report(REPORT), root(site)).status == 204
    assert "checkout" in site.listener().get("/console/pair").text


# A pair of real namespaces.


@asynccontextmanager
async def paired(primary: str, secondary: str) -> AsyncIterator[tuple[MessagingFactory, NamespacePair]]:
    async with (
        NamespaceManager.from_connection_string(secondary) as manager,
        MessagingFactory.from_connection_string(secondary) as backup,
        MessagingFactory.from_connection_string(primary) as factory,
    ):
        options = SendAvailabilityPairedNamespaceOptions(
            manager,
            backup,
            2,
            timedelta(),
            ping_interval=timedelta(seconds=1),
            attempt_timeout=timedelta(seconds=20),  # a slow namespace must not count as failed
            primary_name="contoso",
        )
        yield factory, await factory.pair_namespace(options)


async def shows(person: Person, *words: str) -> Reply:
    """Wait until the row of the application has the words; return the page."""
    ends_s = asyncio.get_running_loop().time() + PATIENCE_S
    while True:
        page = await asyncio.to_thread(person.get, "/console/pair")
        if all(word in row_of(page, "checkout") for word in words):
            return page
        assert asyncio.get_running_loop().time() < ends_s, f"{words} not shown: {row_of(page, 'checkout')}"
        await asyncio.sleep(0.1)


def test_c21_manual_switch_is_shown_on_both_consoles(site: Site, tmp_path: Path) -> None:
    async def switch_by_hand(other: Site) -> None:
        primary, secondary = site.server.connection_string, other.server.connection_string
        async with paired(primary, secondary) as (factory, pair):
            pair.report("checkout")
            sender = await factory.create_message_sender("orders")
            people = [await asyncio.to_thread(one.manager) for one in (site, other)]
            for person in people:
                await shows(person, "orders", "healthy")
            pair.engage("orders")
            await sender.send(BrokeredMessage("one espresso"))
            for person in people:
                await shows(person, "orders", "held over")
            pair.release("orders")
            for person in people:
                page = await shows(person, "orders", "healthy", " 1 ")
                assert page.text.count("was switched to the backlog manually.") == 1
                assert page.text.count("returned to the primary.") == 1
                assert "senders have failed over" not in page.text
                assert site.server.key not in page.text

    with opened(tmp_path / "other") as other:
        asyncio.run(switch_by_hand(other))


@pytest.mark.slow
def test_c19_outage_is_reported_to_reachable_namespaces(tmp_path: Path) -> None:
    """Check the same as in the browser, on machines without one."""

    async def run(contoso: NamespaceProcess, fabrikam: NamespaceProcess) -> None:
        async with NamespaceManager.from_connection_string(contoso.connection_string) as manager:
            await manager.create_queue("orders")
        async with paired(contoso.connection_string, fabrikam.connection_string) as (factory, pair):
            pair.report("checkout")
            sender = await factory.create_message_sender("orders")
            await sender.send(BrokeredMessage("one espresso"))
            secondary = await asyncio.to_thread(logged_in, fabrikam)
            await shows(secondary, "orders", "healthy")
            contoso.kill()
            await sender.send(BrokeredMessage("one latte"))
            page = await shows(secondary, "orders", "failed over")
            assert page.text.count("failed over to the backlog") == 1
            await asyncio.to_thread(contoso.start)
            await shows(secondary, "orders", "healthy", " 1 ")
            primary = await asyncio.to_thread(logged_in, contoso)
            page = await shows(primary, "orders", "healthy", " 1 ")
            # It gets the reports that it missed, and does not log the return of its senders twice.
            assert page.text.count("failed over to the backlog") == 1
            assert page.text.count("returned to the primary") == 1
            await asyncio.to_thread(eventually, lambda: "answered a ping" not in primary.get("/console/pair").text)

    with NamespaceProcess(tmp_path / "contoso") as contoso, NamespaceProcess(tmp_path / "fabrikam") as fabrikam:
        asyncio.run(run(contoso, fabrikam))


def logged_in(namespace: NamespaceProcess) -> Person:
    port = int(namespace.connection_string.split(";")[0].rpartition(":")[2].strip("/"))
    person = Person(port)
    assert person.post("/console/login", connection_string=namespace.connection_string).status == 303
    return person
