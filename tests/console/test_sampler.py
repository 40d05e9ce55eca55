"""The sampler: counts, rates, the last hour, and the events of the pair."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from pairbus import (
    BrokeredMessage,
    MessagingFactory,
    NamespaceManager,
    SendAvailabilityPairedNamespaceOptions,
)
from pairbus.broker import Address, QueueDescription
from pairbus.console import sampler
from pairbus.console.counts import (
    RECENT_MS,
    BacklogDestination,
    DestinationState,
    EntityCount,
    EntityCounts,
    count_entities,
)
from pairbus.console.pair_events import PairEventLog
from pairbus.console.sampler import KEPT_MS, STEP_MS, Point, Rates, SamplerReading, Timeline
from pairbus.server import NamespaceServer, Settings
from pairbus.testing import running_namespace
from tests.console.conftest import opened
from tests.console.site import Site, message
from tests.waiting import eventually


def count(path: str = "orders", *, arrived: int, active: int, kind: str = "queue") -> EntityCount:
    return EntityCount(
        kind=kind,
        path=path,
        address=Address.of(path),
        status="active",
        active=active,
        scheduled=0,
        dead_letters=0,
        failed_transfers=0,
        size_bytes=0,
        arrived=arrived,
    )


def reading(
    at_s: float, *entities: EntityCount, sent: int = 0, commits: int = 0, commit_s: float = 0.0
) -> SamplerReading:
    counts = EntityCounts(at_ms=int(at_s * 1_000), entities={entity.path: entity for entity in entities})
    return SamplerReading(
        counts=counts,
        sent=sent,
        received=0,
        pings=Counter(),
        commits=commits,
        commit_s=commit_s,
        at_s=at_s,
    )


def test_rates_are_differences_of_arrivals_and_departures() -> None:
    rates = Rates(
        before=reading(10, count(arrived=100, active=50), sent=7, commits=1, commit_s=1.0),
        after=reading(12, count(arrived=140, active=30), sent=47, commits=5, commit_s=1.2),
    )
    assert rates.arriving("orders") == 20
    assert rates.leaving("orders") == 30
    assert rates.sent == 20
    assert rates.commit_ms == pytest.approx(50)


def test_recreated_entity_has_no_negative_rates() -> None:
    rates = Rates(before=reading(10, count(arrived=100, active=50)), after=reading(12, count(arrived=4, active=4)))
    assert (rates.arriving("orders"), rates.leaving("orders")) == (0, 0)
    assert (rates.arriving("nothing"), rates.leaving("nothing")) == (0, 0)


def test_messages_of_a_new_entity_count_as_arrived() -> None:
    rates = Rates(before=reading(10), after=reading(12, count(arrived=4, active=1)))
    assert (rates.arrived("orders"), rates.left("orders")) == (4, 3)


@pytest.mark.parametrize(
    ("path", "primary"),
    [
        ("contoso/x-servicebus-transfer/0", "contoso"),
        ("Contoso/X-ServiceBus-Transfer/12", "Contoso"),
        ("a/b/x-servicebus-transfer/3", "a/b"),
        ("contoso/x-servicebus-transfer/x", None),
        ("x-servicebus-transfer/0", None),
        ("orders", None),
    ],
)
def test_c5_backlog_queue_is_recognized_by_its_name(path: str, primary: str | None) -> None:
    assert count(path, arrived=0, active=0).primary == primary
    assert count(path, arrived=0, active=0, kind="topic").primary is None


def test_c19_destination_is_diverted_then_waiting_then_restored() -> None:
    destination = BacklogDestination(primary="contoso", path="orders", first_ms=0, last_ms=1_000)
    assert destination.state(RECENT_MS, has_backlog=True) is DestinationState.DIVERTED
    assert destination.state(RECENT_MS + 1_000, has_backlog=True) is DestinationState.WAITING
    assert destination.state(2_000, has_backlog=False) is DestinationState.RESTORED
    drill_destination = BacklogDestination(primary="contoso", path="x-pairbus-drill/1", first_ms=0, last_ms=1_000)
    assert drill_destination.state(RECENT_MS, has_backlog=True) is DestinationState.DRILL


def point(at_ms: int) -> Point:
    return Point(at_ms=at_ms, waiting=0, dead_letters=0, sent=0, received=0, backlog=0, diverted=0, syphoned=0, pings=0)


def test_timeline_keeps_one_hour() -> None:
    timeline = Timeline()
    assert timeline.is_due(0)
    for at_ms in range(0, 2 * KEPT_MS, STEP_MS):
        assert timeline.is_due(at_ms)
        timeline.add(point(at_ms))
        assert not timeline.is_due(at_ms + STEP_MS - 1)
    times = [each.at_ms for each in timeline]
    assert len(timeline) == KEPT_MS // STEP_MS
    assert times[-1] - times[0] == KEPT_MS - STEP_MS


def texts(log: PairEventLog) -> list[str]:
    return [entry.text for entry in log][::-1]


def test_c19_event_log_records_an_outage() -> None:
    log = PairEventLog(0)
    log.add_backlog("contoso", 0, 0, 0, 1_000)
    for second in range(2, 10):
        log.add_backlog("contoso", second * 10, 10, 0, second * 1_000)
    log.add_backlog("contoso", 40, 0, 40, 60_000)
    log.add_backlog("contoso", 0, 0, 40, 61_000)
    log.add_backlog("contoso", 0, 0, 0, 62_000)
    assert texts(log)[1:] == [
        "Messages for contoso are diverted to the backlog: senders have failed over.",
        "A syphon is restoring messages to contoso.",
        "The backlog of contoso is empty: all messages have been restored.",
    ]


def test_c21_drill_is_not_logged_as_an_outage() -> None:
    log = PairEventLog(0)
    log.add_backlog("contoso", 1, 0, 0, 1_000, drills=1)
    log.add_backlog("contoso", 0, 0, 1, 2_000)
    log.add_backlog("contoso", 2, 2, 0, 3_000, drills=2)
    assert texts(log)[1:] == [
        "A drill diverted a message for contoso to the backlog. No sender has failed over.",
        "A syphon is restoring messages to contoso.",
        "The backlog of contoso is empty: all messages have been restored.",
        "Drills diverted 2 messages for contoso to the backlog. No sender has failed over.",
        "Messages for contoso are diverted to the backlog: senders have failed over.",
    ]


async def drill(primary: str, secondary: str) -> None:
    async with (
        NamespaceManager.from_connection_string(primary) as manager,
        NamespaceManager.from_connection_string(secondary) as secondary_manager,
        MessagingFactory.from_connection_string(secondary) as backlog,
        MessagingFactory.from_connection_string(primary) as factory,
    ):
        options = SendAvailabilityPairedNamespaceOptions(
            secondary_manager, backlog, 2, enable_syphon=True, primary_name="adatum"
        )
        pair = await factory.pair_namespace(options)
        await pair.drill(manager)


def test_c21_pair_page_marks_a_drill(site: Site) -> None:
    """The syphon restores the message before the sampler can peek it."""
    with running_namespace("adatum") as primary:
        asyncio.run(drill(primary.connection_string, site.server.connection_string))
    person = site.manager()
    with person.stream(page="pair"):
        page = eventually(lambda: "A drill diverted" in (reply := person.get("/console/pair")).text and reply)
    assert "A drill diverted a message for adatum to the backlog. No sender has failed over." in page.text
    assert "senders have failed over" not in page.text


def test_second_outage_is_logged_again() -> None:
    log = PairEventLog(0)
    for at_ms in (0, 5_000, 10_000, 600_000):
        log.add_backlog("contoso", 1, 1, 0, at_ms)
    assert len(texts(log)) == 1 + 2


def test_event_log_is_limited() -> None:
    log = PairEventLog(0)
    for number in range(10_000):
        log.add_pings("orders", 1, number)
    assert len(log) == 200


async def count_many(data: Path) -> EntityCounts:
    async with NamespaceServer(Settings(data=data, port=(0,))) as server:
        namespace, now_ms = server.host.use_namespace(), server.host.now_ms()
        for number in range(320):
            namespace.create_queue(f"queue/{number}", QueueDescription(), now_ms)
        namespace.send(Address.of("queue/319"), [message(b"espresso")], now_ms)
        return await count_entities(server.host)


def test_counts_include_every_entity(tmp_path: Path) -> None:
    census = asyncio.run(count_many(tmp_path / "contoso"))
    assert len(census.entities) == 320
    assert census.entities["queue/319"].active == 1
    assert census.entities["queue/319"].arrived == 1


def test_c13_pings_are_counted_and_logged(site: Site) -> None:
    ping = BrokeredMessage(b"", content_type="application/vnd.ms-servicebus-ping")

    async def send() -> None:
        async with MessagingFactory.from_connection_string(site.server.connection_string) as factory:
            sender = await factory.create_message_sender("orders")
            await sender.send(ping)

    asyncio.run(send())
    person = site.manager()
    with person.stream(page="pair"):
        page = eventually(lambda: (reply := person.get("/console/pair")).live("pings") == "1" and reply)
    assert "orders answered a ping" in page.text
    assert site.sequences("orders") == []
    assert person.get("/console/server").live("operations:ping") == "1"


def test_d3_operations_come_from_the_ledger(tmp_path: Path) -> None:
    site = Site(tmp_path / "contoso", ledger=tmp_path / "ledger")
    site.start()
    try:

        async def send() -> None:
            async with MessagingFactory.from_connection_string(site.server.connection_string) as factory:
                sender = await factory.create_message_sender("orders")
                await sender.send([BrokeredMessage(b"x"), BrokeredMessage(b"y" * 100_000)])

        asyncio.run(send())
        page = site.manager().get("/console/server")
        assert page.live("operations:direct") == "3"  # 100,000 bytes are two units of 64 KB
        assert page.live("operations:idle") == "0"
        assert "keeps a ledger" in page.text
    finally:
        site.close()


def test_open_page_wakes_the_sampler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampler is slow without open pages, and runs at once when a page is opened."""
    monkeypatch.setattr(sampler, "_UNVIEWED_S", 3_600.0)
    with opened(tmp_path) as site:
        person = site.manager()
        site.send("orders", b"espresso")
        with person.stream(page="entities") as events:
            next(events)
            eventually(lambda: person.get().live("active:orders") == "1")
