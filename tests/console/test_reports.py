"""What applications report of their pairs: who may, what is kept of it and for how long, and where it is shown."""

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
from pairbus.console.diary import Diary, Switch
from pairbus.console.pages import senders
from pairbus.console.reports import EXPIRES_MS, MOST_APPLICATIONS, MOST_ENTITIES, Reports
from pairbus.dialect.sas import make_sas_token
from pairbus.pairing.report import EntityReport, PairReport, Receiver, SwitchReport
from pairbus.pairing.report_json import MOST_BYTES, write_report
from pairbus.server.errors import ServerBusyError
from tests.console.conftest import opened
from tests.console.site import LISTENER, PATIENCE_S, SENDER, Person, Reply, Site, eventually
from tests.pairing.processes import NamespaceProcess

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
    receiver=Receiver.SECONDARY,
    sent_ms=10_000,
    entities=(ORDERS,),
    more=0,
    switches=(),
    switched=0,
)
FOREVER_S = 2**33


def switch(number: int, state: EntityState = EntityState.FAILED_OVER, at_ms: int = 9_000) -> SwitchReport:
    return SwitchReport(number=number, path="orders", state=state, at_ms=at_ms, reason="away")


# What is kept.


def test_c19_the_last_report_of_an_application_counts() -> None:
    reports = Reports()
    reports.take(REPORT, 10_000)
    healthy = replace(ORDERS, state=EntityState.HEALTHY)
    reports.take(replace(REPORT, number=2, entities=(healthy,)), 11_000)
    assert reports.take(replace(REPORT, number=2), 12_000) is None  # it was late
    assert [(heard.heard_ms, one.state) for heard, one in reports.rows] == [(11_000, EntityState.HEALTHY)]


def test_who_is_not_heard_of_is_forgotten() -> None:
    reports = Reports()
    reports.take(REPORT, 10_000)
    reports.expire(10_000 + EXPIRES_MS - 1)
    assert (len(reports), len(reports.rows)) == (1, 1)
    reports.expire(10_000 + EXPIRES_MS)
    assert (len(reports), len(reports.rows)) == (0, 0)


def test_e3_only_so_many_applications_are_kept_and_those_that_are_go_on() -> None:
    reports = Reports()
    for number in range(MOST_APPLICATIONS):
        reports.take(replace(REPORT, pair_id=f"a{number}"), 10_000)
    with pytest.raises(ServerBusyError):
        reports.take(replace(REPORT, pair_id="new"), 10_000)
    assert reports.take(replace(REPORT, pair_id="a7", number=2), 10_000) is not None
    assert reports.take(replace(REPORT, pair_id="new"), 10_000 + EXPIRES_MS) is not None


def test_e3_only_so_many_entities_are_kept() -> None:
    reports = Reports()
    many = replace(REPORT, entities=(ORDERS,) * 1_000)
    for number in range(MOST_ENTITIES // 1_000):
        reports.take(replace(many, pair_id=f"a{number}"), 10_000)
    with pytest.raises(ServerBusyError):
        reports.take(replace(REPORT, pair_id="new"), 10_000)
    assert reports.take(replace(many, pair_id="a7", number=2), 10_000) is not None


@pytest.mark.parametrize(
    ("sent_ms", "since_ms"), [(10_000, 1_000), (9_000, 1_000), (3_610_000, 3_601_000), (5_000, -4_000)]
)
def test_times_are_told_by_the_clock_of_the_namespace(sent_ms: int, since_ms: int) -> None:
    reports = Reports()
    reports.take(replace(REPORT, sent_ms=sent_ms), 10_000)
    [(heard, _)] = reports.rows
    assert heard.here_ms(since_ms) == 1_000
    assert heard.here_ms(2**53) == 10_000  # nothing has happened later than it was told
    assert heard.here_ms(-(2**60)) == 0


def test_a_clock_does_not_jump_with_the_time_on_the_way() -> None:
    reports = Reports()
    for number, delay_ms in enumerate((5_000, 5_900, 4_100), 1):
        reports.take(replace(REPORT, number=number, sent_ms=number * 10_000), number * 10_000 + delay_ms)
        assert [heard.ahead_ms for heard in reports] == [5_000]


def test_c19_switches_are_news_once_and_those_that_are_missing_are_counted() -> None:
    reports = Reports()
    first = reports.take(replace(REPORT, switches=(switch(6), switch(7)), switched=7), 10_000)
    again = reports.take(replace(REPORT, number=2, switches=(switch(6), switch(7)), switched=7), 10_000)
    later = reports.take(replace(REPORT, number=3, switches=(switch(7), switch(10)), switched=10), 10_000)
    assert first is not None
    assert again is not None
    assert later is not None
    assert ([one.number for one in first.switches], first.missed) == ([6, 7], 0)
    assert (again.switches, again.missed) == ((), 0)
    assert ([one.number for one in later.switches], later.missed) == ([10], 2)


def test_c19_a_primary_is_known_whose_messages_are_diverted() -> None:
    reports = Reports()
    reports.take(REPORT, 10_000)
    assert reports.tells_of_diversion("Contoso")
    assert not reports.tells_of_diversion("fabrikam")
    reports.take(replace(REPORT, number=2, entities=(replace(ORDERS, state=EntityState.FAILING),)), 10_000)
    assert not reports.tells_of_diversion("contoso")


# What is told of it.


def told(
    state: EntityState = EntityState.FAILED_OVER, process: str = "web-1, process 1", *, is_of_ours: bool = False
) -> Switch:
    return Switch(
        application="checkout",
        processes=frozenset({process}),
        primary="contoso",
        path="orders",
        state=state,
        reason="away",
        is_of_ours=is_of_ours,
    )


def texts(diary: Diary) -> list[str]:
    return [entry.text for entry in diary][::-1][1:]


def test_c19_the_diary_has_what_senders_tell() -> None:
    diary = Diary(0)
    diary.note_switch(told(), 1_000)
    diary.note_switch(told(EntityState.HELD_OVER), 2_000)
    diary.note_switch(told(EntityState.HEALTHY), 3_000)
    who = "orders of contoso: checkout (web-1, process 1)"
    assert texts(diary) == [
        f"{who} has failed over to the backlog: away",
        f"{who} was switched to the backlog by hand.",
        f"{who} has come back to the primary.",
    ]


def test_c19_many_processes_make_one_sentence() -> None:
    diary = Diary(0)
    for number in range(5):
        diary.note_switch(told(process=f"web-{number}, process 1"), 1_000 + number)
    edition = diary.edition
    assert texts(diary) == ["orders of contoso: checkout (5 processes) has failed over to the backlog: away"]
    diary.note_switch(told(process="web-9, process 1"), 1_100)
    assert diary.edition > edition
    diary.note_switch(told(process="web-9, process 1"), 1_200)  # it was back in between
    assert len(texts(diary)) == 2


@pytest.mark.parametrize("is_told_first", [True, False])
def test_c19_what_a_sender_tells_takes_the_place_of_what_was_concluded(is_told_first: bool) -> None:
    diary = Diary(0)
    notes: list[Callable[[], None]] = [
        lambda: diary.note_switch(told(is_of_ours=True), 2_000),
        lambda: diary.note_backlog("contoso", 5, 5, 0, 1_500),
        lambda: diary.note_switch(told(EntityState.HEALTHY, is_of_ours=True), 30_000),
        lambda: diary.note_pings("orders", 1, 30_500),
    ]
    if not is_told_first:
        notes = [notes[1], notes[0], notes[3], notes[2]]
    for note in notes:
        note()
    assert [text.rpartition(") ")[2] for text in texts(diary)] == [
        "has failed over to the backlog: away",
        "has come back to the primary.",
    ]
    assert "orders" in diary.pinged


def test_c19_what_nobody_tells_is_concluded() -> None:
    diary = Diary(0)
    diary.note_switch(told(), 1_000)
    diary.note_backlog("contoso", 5, 5, 0, 60_000, is_told=True)
    diary.note_backlog("fabrikam", 5, 5, 0, 60_000)
    diary.note_switch(told(EntityState.HEALTHY), 61_000)  # of another namespace
    diary.note_pings("orders", 1, 61_500)
    assert [text.partition(":")[0] for text in texts(diary)] == [
        "orders of contoso",
        "Messages for fabrikam are diverted to the backlog",
        "orders of contoso",
        "orders was pinged and answered",
    ]


def test_what_is_told_late_stands_where_it_belongs() -> None:
    diary = Diary(0)
    diary.note_pings("cups", 1, 50_000)
    diary.note_switch(told(), 20_000)
    assert [entry.at_ms for entry in diary] == [50_000, 20_000, 0]


# The table.


def test_c19_the_table_is_bounded_and_counts_the_rest() -> None:
    reports = Reports()
    healthy = tuple(replace(ORDERS, path=f"queue-{number}", state=EntityState.HEALTHY) for number in range(500))
    reports.take(replace(REPORT, entities=(*healthy, ORDERS), more=3), 10_000)
    live = senders.live_values(reports)
    table = senders.table(reports, live)
    assert table.count("<tr>") == 1 + 200 + 1
    assert "304 more, not shown." in table
    assert table.index(">orders<") < table.index(">queue-0<")
    assert senders.told(reports) == ", one entity is not healthy"


# Who may report.


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


def test_a8_who_may_send_to_the_whole_namespace_may_report(site: Site) -> None:
    body = write_report(REPORT)
    entity_token = token_of(site, site.settings.key_name, site.server.key, "orders")
    for authorization, status, words in (
        (None, 401, "the request has no authorization"),
        ("nonsense", 401, "no shared access signature"),
        (token_of(site, SENDER.name, "another key"), 401, "invalid token signature"),
        (make_sas_token("sb://localhost/", SENDER.name, SENDER.primary_key, 1), 401, "expired"),
        (entity_token, 401, "made for another address"),
        (token_of(site, LISTENER.name, LISTENER.primary_key), 403, "does not include the claim 'Send'"),
        (token_of(site, SENDER.name, SENDER.primary_key), 204, ""),
        (root(site), 204, ""),
    ):
        reply = report_to(site, body, authorization)
        assert (reply.status, words in reply.text) == (status, True), reply.text
    # Neither does a session of somebody who is logged in, which a page of another server could use.
    cookies = "; ".join(f"{name}={value}" for name, value in site.manager().cookies.items())
    assert report_to(site, body, Cookie=cookies).status == 401


def test_e3_what_is_no_report_is_refused_and_nothing_is_shown_of_it(site: Site) -> None:
    for body, status, words in (
        (b"", 400, "no JSON"),
        (b"{}", 400, "has no 'pair_id'"),
        (b"x" * (MOST_BYTES + 1), 413, f"more than {MOST_BYTES} bytes"),
        (b" " * 1_000_000, 413, f"more than {MOST_BYTES} bytes"),
        (write_report(REPORT).replace(b"failed over", b"asleep"), 400, "'state' of 'entities[0]'"),
    ):
        reply = report_to(site, body, root(site))
        assert (reply.status, words in reply.text) == (status, True), reply.text
    assert "No application reports its pair here." in site.manager().get("/console/pair").text


def test_a_request_without_a_body_is_no_report_and_get_is_none(site: Site) -> None:
    assert site.manager().get("/console/api/pair").status in {401, 404, 405}
    connection = HTTPConnection("127.0.0.1", site.port, timeout=PATIENCE_S)
    connection.request("PUT", "/console/api/pair?api-version=2021-05", headers={"Authorization": root(site)})
    assert connection.getresponse().status != 204  # an entity may have that name
    connection.close()


def test_a_healthy_entity_has_no_reason(site: Site) -> None:
    person = site.manager()
    for number, state, shown in (
        (1, EntityState.FAILED_OVER, "it cannot be reached"),
        (2, EntityState.HEALTHY, ""),
    ):
        report = replace(REPORT, number=number, entities=(replace(ORDERS, state=state),))
        assert report_to(site, write_report(report), root(site)).status == 204
        page = person.get("/console/pair")
        assert page.live(f"reason:sender {REPORT.pair_id} orders") == shown


def test_c21_a_reported_drill_is_marked_as_one(site: Site) -> None:
    path = "x-pairbus-drill/1"
    tried = replace(ORDERS, path=path, state=EntityState.HELD_OVER)
    begun = replace(switch(1), path=path, state=EntityState.HELD_OVER)
    report = replace(REPORT, entities=(tried,), switches=(begun,), switched=1)
    assert report_to(site, write_report(report), root(site)).status == 204
    page = site.manager().get("/console/pair")
    assert page.live(f"state:sender {REPORT.pair_id} {path}") == "drill"
    assert "has begun a drill." in page.text
    assert "by hand" not in page.text
    assert "not healthy" not in page.live("summary")


def test_a_report_cannot_be_more_than_text(site: Site) -> None:
    nasty = "<script>alert('1')</script>\"&\x00\x1b\ud800"
    entity = replace(ORDERS, path=nasty, reason=nasty)
    report = replace(REPORT, pair_id=nasty, application=nasty, host=nasty, primary=nasty, entities=(entity,))
    events = replace(report, switches=(replace(switch(1), path=nasty, reason=nasty),), switched=1)
    assert report_to(site, write_report(events), root(site)).status == 204
    person = site.manager()
    page = person.get("/console/pair")
    assert page.status == 200
    assert "<script>alert" not in page.text
    assert "\x00" not in page.text
    with person.stream(page="pair") as stream:
        assert json.loads(next(stream)[1])


@pytest.mark.parametrize("field", ["sent_ms", "number", "process", "switched", "more"])
def test_e3_numbers_may_be_large(site: Site, field: str) -> None:
    huge = 2**53 - 1
    changes: dict[str, Any] = {field: huge}
    entity = replace(ORDERS, since_ms=huge, diverted=huge, pings=huge)
    report = replace(REPORT, entities=(entity,), switches=(switch(huge, at_ms=huge), switch(1, at_ms=0)), **changes)
    assert report_to(site, write_report(report), root(site)).status == 204
    assert site.manager().get("/console/pair").status == 200


def test_reports_cost_nothing(tmp_path: Path) -> None:
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


# What a person sees.


def row_of(page: Reply, application: str) -> str:
    """What a screen reader reads of the first row of an application."""
    rows = re.findall(r"<tr><td>.*?</tr>", page.text)
    found = next((row for row in rows if f"<td>{application}<" in row), "")
    return unescape(re.sub(r"<[^>]+>", " | ", found))


def test_c19_the_page_of_the_pair_shows_the_state_of_each_entity(site: Site) -> None:
    person = site.manager()
    now_ms = site.call(lambda host: host.now_ms())
    report = replace(REPORT, sent_ms=now_ms, entities=(replace(ORDERS, since_ms=now_ms),))
    with person.stream(page="pair") as stream:
        next(stream)
        assert "No application reports its pair here." in person.get("/console/pair").text
        assert report_to(site, write_report(report), root(site)).status == 204
        patch = next(found for _, data in stream if "senders" in (found := json.loads(data)))
        assert "one entity is not healthy" in patch["summary"]
        row = row_of(person.get("/console/pair"), "checkout")
        for text in ("checkout", "web-1, process 4711", "orders", "contoso", "failed over", "it cannot be reached"):
            assert text in row
        page = person.get("/console/pair")
        assert page.live("diverted:sender a1 orders") == "3"
        assert page.live("pings:sender a1 orders") == "2"
        # The next one changes what is there, without a page being loaded.
        later = replace(report, number=2, entities=(replace(report.entities[0], diverted=99),))
        assert report_to(site, write_report(later), root(site)).status == 204
        patch = next(found for _, data in stream if "diverted:sender a1 orders" in (found := json.loads(data)))
        assert patch["diverted:sender a1 orders"] == "99"
        assert "senders" not in patch


@pytest.mark.parametrize("is_told", [True, False])
def test_c19_nothing_is_concluded_while_senders_tell_it(site: Site, is_told: bool) -> None:
    path = "contoso/x-servicebus-transfer/0"
    site.call(lambda host: host.namespace.create_queue(path, QueueDescription(), host.now_ms()))
    state = EntityState.FAILED_OVER if is_told else EntityState.HEALTHY
    assert (
        report_to(site, write_report(replace(REPORT, entities=(replace(ORDERS, state=state),))), root(site)).status
        == 204
    )
    person = site.manager()
    with person.stream(page="pair"):
        site.send(path, b"diverted", **{"x-ms-path": "orders"})
        eventually(lambda: f"depth:{path}" in person.get("/console/pair").text)
        page = eventually(lambda: (reply := person.get("/console/pair")).live(f"depth:{path}") == "1" and reply)
    assert ("senders have failed over" in page.text) is not is_told


def test_who_may_look_only_sees_it_too(site: Site) -> None:
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
            attempt_timeout=timedelta(seconds=20),  # a namespace that is slow has not failed
            primary_name="contoso",
        )
        yield factory, await factory.pair_namespace(options)


async def shows(person: Person, *words: str) -> Reply:
    """The page of the pair, as soon as it has the words in the row of the application."""
    ends_s = asyncio.get_running_loop().time() + PATIENCE_S
    while True:
        page = await asyncio.to_thread(person.get, "/console/pair")
        if all(word in row_of(page, "checkout") for word in words):
            return page
        assert asyncio.get_running_loop().time() < ends_s, f"{words} never came: {row_of(page, 'checkout')}"
        await asyncio.sleep(0.1)


def test_c21_a_switch_by_hand_is_seen_on_both_consoles(site: Site, tmp_path: Path) -> None:
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
                assert page.text.count("was switched to the backlog by hand.") == 1
                assert page.text.count("has come back to the primary.") == 1
                assert "senders have failed over" not in page.text
                assert site.server.key not in page.text

    with opened(tmp_path / "other") as other:
        asyncio.run(switch_by_hand(other))


@pytest.mark.slow
def test_c19_an_outage_is_reported_to_whoever_is_there(tmp_path: Path) -> None:
    """The same as in the browser, for machines that have none."""

    async def live_through(contoso: NamespaceProcess, fabrikam: NamespaceProcess) -> None:
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
            assert page.text.count("has failed over to the backlog") == 1
            await asyncio.to_thread(contoso.start)
            await shows(secondary, "orders", "healthy", " 1 ")
            primary = await asyncio.to_thread(logged_in, contoso)
            page = await shows(primary, "orders", "healthy", " 1 ")
            # It has heard of all that it has missed, and does not tell twice that its senders are back.
            assert page.text.count("has failed over to the backlog") == 1
            assert page.text.count("has come back to the primary") == 1
            await asyncio.to_thread(eventually, lambda: "was pinged" not in primary.get("/console/pair").text)

    with NamespaceProcess(tmp_path / "contoso") as contoso, NamespaceProcess(tmp_path / "fabrikam") as fabrikam:
        asyncio.run(live_through(contoso, fabrikam))


def logged_in(namespace: NamespaceProcess) -> Person:
    port = int(namespace.connection_string.split(";")[0].rpartition(":")[2].strip("/"))
    person = Person(port)
    assert person.post("/console/login", connection_string=namespace.connection_string).status == 303
    return person
