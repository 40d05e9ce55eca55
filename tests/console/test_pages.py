"""The contents of the pages; hostile contents are escaped."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from pairbus.broker import (
    STANDARD,
    Address,
    CorrelationFilter,
    EntityDescription,
    FalseFilter,
    Instant,
    QueueDescription,
    QueuePart,
    RuleDescription,
    SqlActionDescription,
    SqlFilterDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.console.server_page import Operations, facet_rows
from pairbus.entity_settings import ENTITY_SETTINGS
from pairbus.ledger.events import Stage
from pairbus.server import Settings
from pairbus.server.errors import ServerBusyError
from pairbus.server.host import NamespaceHost
from pairbus.server.http.descriptions import settings_of
from pairbus.server.messages import received_message
from pairbus.server.throttle.throttle import FACETS, Throttle
from pairbus.wire import (
    AMQP_VALUE,
    Char,
    Decimal32,
    Float,
    Int,
    Symbol,
    Timestamp,
    ULong,
    encode_message,
)
from pairbus.wire import Message as AmqpMessage
from tests.console.site import Person, Site
from tests.waiting import eventually

HOSTILE = "<script>alert('1')</script>\"&\x00\x1b\udc80"


def entities_with(person: Person, text: str) -> bool:
    return text in person.get().text


def test_entities_are_shown_with_their_counts(site: Site) -> None:
    site.send("orders", b"espresso", b"latte")
    site.send("news", b"closed on Monday")
    site.dead_letter("payments", b"one cent")
    person = site.manager()
    with person.stream(page="entities"):  # an open page makes the sampler run every second
        reply = eventually(lambda: (page := person.get()).live("active:orders") == "2" and page)
    assert reply.live("active:news/Subscriptions/all") == "1"
    assert reply.live("dead:payments") == "1"
    assert reply.live("total:active") == "3"
    assert reply.live("total:dead") == "1"
    assert "/console/entity?entity=news&amp;subscription=all" in reply.text


def test_entities_are_filtered_by_name_and_paged(site: Site) -> None:
    def make(host: NamespaceHost) -> None:
        for number in range(250):
            host.use_namespace().create_queue(f"shelf/{number}", QueueDescription(), host.now_ms())

    site.call(make)
    person = site.manager()
    with person.stream(page="entities"):
        eventually(lambda: "of 254" in person.get().text)
    assert person.get().text.count('<th scope="row"') == 100
    assert person.get("/console", skip=200).text.count('<th scope="row"') == 54
    found = person.get("/console", q="SHELF/24")
    assert found.text.count('<th scope="row"') == 11
    assert "No entity has" in person.get("/console", q="nothing like it").text


def test_entity_is_shown_with_its_messages(site: Site) -> None:
    site.send("orders", *(f"cup {number}".encode() for number in range(30)))
    person = site.listener()
    first = person.get("/console/entity", entity="ORDERS")
    assert first.live("active") == "30"
    assert first.text.count('<th scope="row"') == 25
    assert "cup 24" in first.text
    second = person.get("/console/entity", entity="orders", **{"from": "26"})
    assert "from=26" in first.text
    assert (second.text.count('<th scope="row"'), "cup 29" in second.text) == (5, True)


def test_dead_letters_are_shown_with_their_reason(site: Site) -> None:
    site.dead_letter("orders", b"espresso")
    page = site.manager().get("/console/entity", entity="orders", part="dead")
    assert "too hot" in page.text
    assert "the &lt;b&gt;cup&lt;/b&gt; burns" in page.text
    assert "Resubmit all" in page.text


def test_topics_and_subscriptions_have_pages(site: Site) -> None:
    site.send("news", b"closed on Monday")
    person = site.manager()
    assert "Scheduled messages" in person.get("/console/entity", entity="news").text
    page = person.get("/console/entity", entity="news", subscription="all")
    assert "closed on Monday" in page.text
    assert page.live("active") == "1"


def shown_settings(page: str) -> dict[str, str]:
    _, _, section = page.partition('id="settings"')
    return {name: unescape(value) for name, value in re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", section)}


def test_settings_of_a_queue_are_shown_by_name(site: Site) -> None:
    description = QueueDescription(
        lock_duration_ms=90_000,
        default_time_to_live_ms=1_500,
        forward_dead_letters_to="payments",
        max_delivery_count=1_000,
    )
    site.call(lambda host: host.use_namespace().create_queue("kept", description, host.now_ms()))
    shown = shown_settings(site.listener().get("/console/entity", entity="kept").text)
    assert shown == {
        "Status": "Active",
        "Lock duration": "1 min 30 s",
        "Max delivery count": "1,000",
        "Default time to live": "1 s 500 ms",
        "Dead-letter expired messages": "no",
        "Requires sessions": "no",
        "Detects duplicates": "no",
        "Duplicate detection window": "10 min",
        "Max size": "1,024 MB",
        "Max message size": "256 KB",
        "Partitioned": "no",
        "Express": "no",
        "Forward to": "not set",
        "Forward dead letters to": "payments",
        "Auto-delete on idle": "never",
        "Batched operations": "yes",
        "User metadata": "not set",
    }


@pytest.mark.parametrize("description", [QueueDescription(), TopicDescription(), SubscriptionDescription()])
def test_every_setting_has_a_label(description: EntityDescription) -> None:
    names = {setting.value_name for setting in ENTITY_SETTINGS}
    assert settings_of(description, STANDARD).keys() - names <= {"authorization_rules"}


def test_rules_of_a_subscription_are_shown(site: Site) -> None:
    rules = [
        RuleDescription(
            name="large",
            filter=SqlFilterDescription("quantity > @least", {"@least": 10}),
            action=SqlActionDescription("SET colour = '<b>'"),
        ),
        RuleDescription(name="paid", filter=CorrelationFilter(label="paid", properties={"due": Instant(0)})),
        RuleDescription(name="none", filter=FalseFilter()),
    ]

    def add(host: NamespaceHost) -> None:
        for rule in rules:
            host.use_namespace().add_rule("news", "all", rule, host.now_ms())

    site.call(add)
    page = site.listener().get("/console/entity", entity="news", subscription="all").text
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', page)
    assert {name: re.findall(r"<td.*?>(.*?)</td>", cells) for name, cells in rows} == {
        "$Default": ["true", "all messages", "none"],
        "large": ["SQL", "quantity &gt; @least (@least = 10)", "SET colour = &#39;&lt;b&gt;&#39;"],
        "paid": [
            "correlation",
            "sys.Label = &#39;paid&#39; AND due = 1970-01-01T00:00:00Z (a time)",
            "none",
        ],
        "none": ["false", "no messages", "none"],
    }


def test_rules_are_limited_and_their_absence_is_stated(site: Site) -> None:
    def change(host: NamespaceHost) -> None:
        host.use_namespace().remove_rule("news", "all", "$Default", host.now_ms())
        host.use_namespace().create_subscription("news", "many", SubscriptionDescription(), host.now_ms())
        for number in range(100):
            host.use_namespace().add_rule("news", "many", RuleDescription(name=f"r{number}"), host.now_ms())

    site.call(change)
    person = site.manager()
    assert (
        "this subscription receives no messages"
        in person.get("/console/entity", entity="news", subscription="all").text
    )
    assert "1 more, not shown" in person.get("/console/entity", entity="news", subscription="many").text
    assert "Rules</h2>" not in person.get("/console/entity", entity="news").text


def test_counts_of_tabs_are_live(site: Site) -> None:
    person = site.manager()
    with person.stream(page="entity", entity="orders") as events:
        site.send("orders", b"espresso", b"latte")
        site.dead_letter("orders", b"tea")
        reported: dict[str, str] = {}
        for kind, data in events:
            reported |= json.loads(data) if kind == "patch" else {}
            if reported.get("tab:dead") == "1":
                break
    assert (reported["tab:messages"], reported["tab:transfer"]) == ("2", "0")
    assert person.get("/console/entity", entity="orders").live("tab:dead") == "1"


def test_topic_shows_its_subscriptions_with_their_counts(site: Site) -> None:
    def subscribe(host: NamespaceHost) -> None:
        host.use_namespace().create_topic("news2", TopicDescription(), host.now_ms())
        for topic, name in (("news", "Press"), ("news2", "others")):
            host.use_namespace().create_subscription(topic, name, SubscriptionDescription(), host.now_ms())

    site.call(subscribe)
    site.send("news", b"closed on Monday")
    site.dead_letter("news", b"open on Sunday", subscription="Press")
    person = site.manager()
    with person.stream(page="entity", entity="NEWS") as events:
        reported = json.loads(next(data for kind, data in events if kind == "patch"))
        page = eventually(
            lambda: (
                (reply := person.get("/console/entity", entity="NEWS")).live("dead:news/Subscriptions/Press") == "1"
                and reply
            )
        )
    assert "active:news/Subscriptions/all" in reported
    assert page.live("active:news/Subscriptions/all") == "2"
    assert page.live("active:news/Subscriptions/Press") == "1"
    assert '<a href="/console/entity?entity=news&amp;subscription=Press">Press</a>' in page.text
    assert "others" not in page.text
    assert "Subscriptions</h2>" not in person.get("/console/entity", entity="orders").text


def test_subscriptions_are_limited_and_their_absence_is_stated(site: Site) -> None:
    def subscribe(host: NamespaceHost) -> None:
        host.use_namespace().create_topic("quiet", TopicDescription(), host.now_ms())
        for number in range(101):
            host.use_namespace().create_subscription("news", f"s{number}", SubscriptionDescription(), host.now_ms())

    site.call(subscribe)
    person = site.manager()
    with person.stream(page="entities"):
        link = '<a href="/console?q=news%2FSubscriptions%2F">All 102 subscriptions</a>'
        page = eventually(lambda: link in (reply := person.get("/console/entity", entity="news")).text and reply)
    assert page.text.count('<th scope="row"') == 100
    assert "1 to 100 of 102" in person.get("/console?q=news%2FSubscriptions%2F").text
    assert "messages sent to this topic are dropped" in person.get("/console/entity", entity="quiet").text


def test_read_only_user_sees_no_actions(site: Site) -> None:
    site.dead_letter("orders", b"espresso")
    for query in ({}, {"part": "dead"}):
        page = site.listener().get("/console/entity", entity="orders", **query)
        assert "/console/purge" not in page.text
        assert "/console/resubmit" not in page.text


@pytest.mark.parametrize("part", ["", "dead"])
def test_hostile_message_is_escaped(site: Site, part: str) -> None:
    send = site.dead_letter if part else site.send
    send("orders", HOSTILE.encode("utf-8", "surrogatepass"), message_id="<script>alert('1')</script>", hostile="<i>")
    person = site.manager()
    sequence = site.sequences("orders", part=QueuePart.DEAD_LETTER if part else QueuePart.MAIN)[0]
    for view in ("text", "hex", "json", "nonsense"):
        page = person.get("/console/message", entity="orders", sequence=sequence, view=view, part=part)
        assert page.status == 200
        assert "<script>alert" not in page.text
        assert "<i>" not in page.text
        assert "\x00" not in page.text
    assert "<script>alert" not in person.get("/console/entity", entity="orders", part=part).text


def test_hostile_name_is_escaped(shared_site: Site) -> None:
    page = shared_site.manager().get("/console", q="\"><script>alert('1')</script>")
    assert "<script>alert" not in page.text
    page = shared_site.manager().get("/console/entity", entity="<script>alert('1')</script>")
    assert (page.status, "<script>alert" in page.text) == (404, False)


def test_json_is_indented_and_bytes_are_shown_in_hexadecimal(site: Site) -> None:
    site.send("orders", json.dumps({"drink": "espresso", "cups": [1, 2]}).encode(), bytes(range(40)), b"plain")
    person = site.manager()
    shown = [unescape(person.get("/console/message", entity="orders", sequence=number).text) for number in (1, 2, 3)]
    assert '{\n  "drink": "espresso",\n  "cups": [\n    1,\n    2\n  ]\n}' in shown[0]
    assert "00000010  10 11 12 13" in shown[1]
    assert ">plain</pre>" in shown[2]
    as_bytes = person.get("/console/message", entity="orders", sequence=3, view="hex").text
    assert "00000000  70 6c 61 69 6e" in as_bytes


VALUES = {
    "null": (None, "null", "null"),
    "boolean": (True, "true", "boolean"),
    "int": (Int(4), "4", "int"),
    "long": (-5, "-5", "long"),
    "ulong": (ULong(2**64 - 1), "18446744073709551615", "ulong"),
    "float": (Float(1.5), "1.5", "float"),
    "double": (float("inf"), "Infinity", "double"),
    "decimal": (Decimal32(b"\x22\x50\x00\x01"), "5.242881E-27", "decimal32"),
    "char": (Char("x"), "x", "char"),
    "timestamp": (Timestamp(1_893_553_445_678), "2030-01-02T03:04:05.678Z", "timestamp"),
    "uuid": (UUID(int=5), "00000000-0000-0000-0000-000000000005", "uuid"),
    "text": (b"espresso", "espresso", "binary"),
    "binary": (b"\xff\x00", "ff 00", "binary"),
    "string": ("one espresso", "one espresso", "string"),
    "symbol": (Symbol("s"), "s", "symbol"),
}


def test_properties_are_shown_as_amqp_values_with_their_types(site: Site) -> None:
    site.send("orders", b"x", **{name: value for name, (value, _, _) in VALUES.items()})
    page = site.manager().get("/console/message", entity="orders", sequence=1).text
    shown = re.findall(r'<dt>(.*?)</dt><dd>(.*?) <small class="type">(.*?)</small></dd>', page)
    assert {name: (text, kind) for name, text, kind in shown} == {
        name: (text, kind) for name, (_, text, kind) in VALUES.items()
    }


@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [
        (
            {"cups": Int(2), "milk": False, "sizes": [1.5, None]},
            "map",
            {"cups": 2, "milk": False, "sizes": [1.5, None]},
        ),
        ([Symbol("a"), b"\xff", {"b": UUID(int=5)}], "list", ["a", "/w==", {"b": str(UUID(int=5))}]),
    ],
)
def test_body_with_an_amqp_value_is_shown_as_json(site: Site, value: object, kind: str, shown: object) -> None:
    sent = received_message(encode_message(AmqpMessage(body=(value,), body_kind=AMQP_VALUE)))
    site.call(lambda host: host.use_namespace().send(Address.of("orders"), [sent], host.now_ms()))
    page = unescape(site.manager().get("/console/message", entity="orders", sequence=1).text)
    assert f"AMQP value, {kind}" in page
    assert f">{json.dumps(shown, indent=2)}</pre>" in page


def test_long_body_is_cut(site: Site) -> None:
    site.send("orders", b"x" * 200_000)
    page = site.manager().get("/console/message", entity="orders", sequence=1)
    assert "of which the first 64 KB are shown" in page.text
    assert len(page.text) < 80_000


def test_deeply_nested_json_is_shown_as_text(site: Site) -> None:
    site.send("orders", b"[" * 50_000)
    assert site.manager().get("/console/message", entity="orders", sequence=1).status == 200


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("/console/entity", {"entity": "nothing"}, 404),
        ("/console/entity", {}, 400),
        ("/console/entity", {"entity": "orders", "part": "nonsense"}, 400),
        ("/console/entity", {"entity": "orders", "from": "-1"}, 200),
        ("/console/entity", {"entity": "orders", "from": "9" * 30}, 200),
        ("/console/entity", {"entity": "orders", "from": "9" * 19}, 200),
        ("/console/message", {"entity": "orders", "sequence": "7"}, 404),
        ("/console/message", {"entity": "orders", "sequence": "x"}, 404),
        ("/console", {"skip": "99999999"}, 200),
    ],
)
def test_invalid_query_returns_an_error_page(shared_site: Site, path: str, query: dict[str, str], status: int) -> None:
    reply = shared_site.manager().get(path, **query)
    assert reply.status == status
    if status != 200:
        assert reply.alert


def test_e3_random_requests_cause_no_server_error(shared_site: Site) -> None:
    person = shared_site.manager()
    token = person.get().csrf_token
    random = Random(1)  # noqa: S311
    pages = ("", "/entity", "/message", "/pair", "/server", "/login", "/static/console.js", "/nothing", "/purge")
    values = ("", "orders", "news", "all", "dead", "0", "-1", "9" * 40, "½", "\x00", "a/b", "../..", "x" * 5_000, "%s")
    names = ("entity", "subscription", "part", "from", "sequence", "view", "q", "skip", "next", "page", "confirmation")
    for _ in range(200):
        given = {name: random.choice(values) for name in random.sample(names, 4)}
        page = f"/console{random.choice(pages)}"
        assert person.get(page, **given).status < 500, (page, given)
        assert person.post("/console/resubmit", csrf_token=token, **given).status < 500, given


def test_d3_server_page_mentions_the_ledger(tmp_path: Path) -> None:
    site = Site(tmp_path / "contoso", ledger=tmp_path / "ledger")
    site.start()
    try:
        assert "keeps a ledger" in site.manager().get("/console/server").text
    finally:
        site.close()


def test_b2_server_page_shows_facets_and_busy_state(site: Site) -> None:
    person = site.manager()
    page = person.get("/console/server")
    assert [page.live(f"denied:{facet.name}") for facet in FACETS] == ["0"] * len(FACETS)
    assert page.live("facet:connections").isdigit()
    assert page.live("state:connections") == "ok"
    assert page.live("facet:memory").endswith(" MB")
    assert page.live("state:memory") == ""
    assert page.live("entities") == "3 of 10,000"
    assert page.live("busy") == "Requests are accepted."
    site.call(lambda host: setattr(host, "deny", lambda _operation, _address: "too hot"))
    assert "server busy: too hot" in person.get("/console/server").live("busy")


def test_b2_server_page_shows_the_rejecting_facet_and_its_count(tmp_path: Path) -> None:
    site = Site(tmp_path / "contoso", throttle_memory_mb=1)
    site.start()
    try:
        for _ in range(2):
            with pytest.raises(ServerBusyError):
                site.call(lambda host: host.check_busy("send", Address.of("orders")))
        page = site.manager().get("/console/server")
        assert page.live("state:memory") == "rejecting"
        assert page.live("denied:memory") == "2"
        assert "'memory' is at " in page.live("busy")
        assert "its threshold is 1.0 MB" in page.live("busy")
        assert ">1.0 MB</td>" in page.text
    finally:
        site.close()


@pytest.mark.parametrize(("reading", "state"), [(70, "ok"), (80, "near the threshold"), (100, "rejecting"), (None, "")])
def test_b2_facet_state_depends_on_its_threshold(reading: float | None, state: str) -> None:
    throttle = Throttle(Settings(data=Path("there"), max_connections=100))
    throttle.update({"connections": reading})
    line = facet_rows(throttle)[0]
    assert (line.title, line.threshold, line.state) == ("Connections", "100", state)


def test_server_page_shows_billable_operations(shared_site: Site) -> None:
    page = shared_site.manager().get("/console/server")
    assert page.live("operations:direct") == "0"
    assert page.live("operations:ping") == "0"
    assert page.live("amount:ping") == "0.000000"
    assert "keeps no ledger" in page.text


def test_d3_operations_have_the_price_of_the_rate_card() -> None:
    assert Operations(stage=Stage.PING, count=1_000_000).amount == "0.800000"
    assert Operations(stage=Stage.PING, count=1).amount == "0.000001"


def test_c5_pair_page_shows_backlog_queues(site: Site) -> None:
    path = "fabrikam/x-servicebus-transfer/0"
    site.call(lambda host: host.use_namespace().create_queue(path, QueueDescription(), host.now_ms()))
    site.send(path, b"diverted", **{"x-ms-path": "bills"})
    person = site.manager()
    with person.stream(page="pair"):
        page = eventually(lambda: path in (reply := person.get("/console/pair")).text and reply)
    assert page.live(f"depth:{path}") == "1"
    assert page.live("state:fabrikam bills") == "diverted"
    assert "Messages for fabrikam are diverted" in page.text


def test_page_of_large_messages_is_limited_and_locks_none(site: Site) -> None:
    for _ in range(30):
        site.send("orders", b"x" * 250_000)
    page = site.manager().get("/console/entity", entity="orders")
    assert page.status == 200
    assert 'aria-label="Pages"' in page.text
    assert site.call(lambda host: host.use_namespace().entity(Address.of("orders"), host.now_ms())).ready_count == 30
