"""Requests: valid ones of the SDKs, invalid ones, and their counts."""

from __future__ import annotations

import json
import logging
import time
from urllib.parse import unquote

import pytest

from pairbus.broker import Address, NewMessage, QueueDescription
from pairbus.dialect.atom import QUEUE, RULE, SUBSCRIPTION, TOPIC
from pairbus.server.http.routes import MAX_ENTITY_BYTES
from pairbus.store import keys
from pairbus.store.keyvalue import apply
from tests.broker.broker import Broker
from tests.dialect.test_atom_document import HOSTILE
from tests.server.http.site import ATOM, CONNECT, HOST, Site, entry, token

XSI = "http://www.w3.org/2001/XMLSchema-instance"
XS = "http://www.w3.org/2001/XMLSchema"

PYTHON_QUEUE = (
    f"<?xml version='1.0' encoding='utf-8'?>\n<ns0:entry xmlns:ns0=\"{ATOM}\" xmlns=\"{CONNECT}\">"
    '<ns0:content type="application/xml"><QueueDescription><LockDuration>PT13S</LockDuration>'
    "<DefaultMessageTimeToLive>P10675199DT2H48M5.477539S</DefaultMessageTimeToLive><SizeInBytes>9</SizeInBytes>"
    "<MessageCount>-1</MessageCount><CreatedAt>nonsense</CreatedAt></QueueDescription></ns0:content></ns0:entry>"
)
JS_QUEUE = (
    f'<entry xmlns="{ATOM}"><updated>2024-01-01T00:00:00.000Z</updated><content type="application/xml">'
    f'<QueueDescription xmlns="{CONNECT}" xmlns:i="{XSI}"><LockDuration>PT13S</LockDuration><AuthorizationRules>'
    f'<AuthorizationRule p5:type="SharedAccessAuthorizationRule" xmlns:p5="{XSI}">'
    "<ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue><Rights><AccessRights>Send</AccessRights></Rights><KeyName>k</KeyName>"
    "<PrimaryKey>p</PrimaryKey><SecondaryKey>s</SecondaryKey></AuthorizationRule></AuthorizationRules>"
    "</QueueDescription></content></entry>"
)
PYTHON_RULE = (
    f'<ns0:entry xmlns:ns0="{ATOM}" xmlns="{CONNECT}" xmlns:xsi="{XSI}"><ns0:content type="application/xml">'
    '<RuleDescription><Filter xsi:type="SqlFilter"><SqlExpression>a=@p</SqlExpression>'
    "<CompatibilityLevel>20</CompatibilityLevel><Parameters><KeyValueOfstringanyType><Key>@p</Key>"
    f'<Value xsi:type="d6p1:int" xmlns:d6p1="{XS}">2</Value></KeyValueOfstringanyType></Parameters>'
    '<RequiresPreprocessing>true</RequiresPreprocessing></Filter><Action xsi:type="SqlRuleAction">'
    "<SqlExpression>SET b=1</SqlExpression><CompatibilityLevel>20</CompatibilityLevel>"
    "<RequiresPreprocessing>true</RequiresPreprocessing></Action><Name>r</Name></RuleDescription>"
    "</ns0:content></ns0:entry>"
)
JS_RULE = (
    f'<entry xmlns="{ATOM}"><updated>2024-01-01T00:00:00.000Z</updated><content type="application/xml">'
    f'<RuleDescription xmlns="{CONNECT}" xmlns:i="{XSI}"><Filter p4:type="SqlFilter" xmlns:p4="{XSI}">'
    "<SqlExpression>a=@p</SqlExpression><Parameters><KeyValueOfstringanyType><Key>@p</Key>"
    f'<Value p4:type="l28:double" xmlns:l28="{XS}">2</Value></KeyValueOfstringanyType></Parameters></Filter>'
    f'<Action p4:type="SqlRuleAction" xmlns:p4="{XSI}"><SqlExpression>SET b=1</SqlExpression></Action><Name>r</Name>'
    "</RuleDescription></content></entry>"
)


@pytest.mark.parametrize("document", [PYTHON_QUEUE, JS_QUEUE], ids=["python", "javascript"])
def test_sdks_make_queues(site: Site, document: str) -> None:
    assert site.put("/q", document.encode()).status == 201
    description = site.namespace.entity(Address.of("q"), site.now_ms).description
    assert isinstance(description, QueueDescription)
    assert description.lock_duration_ms == 13_000
    assert description.default_time_to_live_ms is None


@pytest.mark.parametrize("document", [PYTHON_RULE, JS_RULE], ids=["python", "javascript"])
def test_sdks_make_rules(site: Site, document: str) -> None:
    site.put("/t", "<TopicDescription/>")
    site.put("/t/Subscriptions/s", "<SubscriptionDescription/>")
    created = site.put("/t/Subscriptions/s/Rules/r", document.encode())
    assert created.status == 201
    values = created.entry(RULE).values
    assert values["filter"]["expression"] == "a=@p"
    assert values["filter"]["parameters"]["@p"].value == 2
    assert values["action"]["expression"] == "SET b=1"


@pytest.mark.parametrize("document", HOSTILE.values(), ids=HOSTILE)
def test_hostile_documents_are_bad_requests(site: Site, document: bytes) -> None:
    started = time.process_time()
    reply = site.put("/q", document)
    assert reply.status in {400, 413}
    assert "/etc" not in reply.body.decode()
    assert site.get("/q").status == 404
    assert time.process_time() - started < 2


@pytest.mark.parametrize("says_so", [True, False])
def test_body_is_bounded(site: Site, says_so: bool) -> None:
    body = b"<a>" + b" " * MAX_ENTITY_BYTES + b"</a>"
    headers = {} if says_so else {"content-length": "5"}
    assert site.put("/q", body, headers=headers).status == 413
    assert site.put("/q", entry("<QueueDescription/>") + b" " * 100_000).status == 201


@pytest.mark.parametrize(
    "path",
    ["/", "/%2F", "/a/", "/a%2F", "/%2Fa", "//a", "/a//b", "/a%40b", "/a%3Fb", "/a%23b", "/a*b", "/a%5Cb", "/a%00b",
     "/a%0Ab", "/%20", "/.", "/a/../b", "/$a", "/$Resources/Queues", "/subscriptions", "/a/Subscriptions", "/rules",
     f"/{'x' * 261}", f"/{'%C3%A9' * 261}", "/a://b"],
)  # fmt: skip
def test_invalid_names_are_refused(site: Site, path: str) -> None:
    for content in ("<QueueDescription/>", "<TopicDescription/>"):
        reply = site.put(path, content)
        assert reply.status == 400
        assert reply.detail.startswith("SubCode=40000. ")
    assert site.get("/$Resources/Queues").feed(QUEUE).entries == ()


@pytest.mark.parametrize("name", ["a/", "a%2Fb", "x" * 51, "a%3F", "$a", "%20", ""])
def test_invalid_names_of_subscriptions_and_rules_are_refused(site: Site, name: str) -> None:
    site.put("/t", "<TopicDescription/>")
    site.put("/t/Subscriptions/s", "<SubscriptionDescription/>")
    assert site.put(f"/t/Subscriptions/{name}", "<SubscriptionDescription/>").status == 400
    rule = "<RuleDescription><Filter i:type='TrueFilter'/></RuleDescription>"
    assert site.put(f"/t/Subscriptions/s/Rules/{name}", rule).status == 400


@pytest.mark.parametrize(
    "name",
    ["q", "a/b/c", "a%2Fb", "with.dots-and_lines", "a%7Eb", "x" * 260, "health", "metrics"],
)
def test_valid_names_are_accepted(site: Site, name: str) -> None:
    version = "?api-version=2021-05"
    assert site.put(f"/{name}{version}", "<QueueDescription/>").status == 201
    assert site.get(f"/{name}{version}").status == 200
    (listed,) = site.get("/$Resources/Queues").feed(QUEUE).entries
    assert listed.title == unquote(name)
    assert listed.id == f"https://{HOST}/{unquote(name)}{version}"
    assert site.delete(f"/{name}{version}").status == 200


@pytest.mark.parametrize("name", ["caf%C3%A9", "50%25", "a%20b"])
def test_entity_with_a_name_that_an_earlier_version_allowed_is_served(site: Site, name: str) -> None:
    version = "?api-version=2021-05"
    site.put("/plain", "<QueueDescription/>")
    ((key, raw),) = site.store.scan(keys.ENTITY, keys.after(keys.ENTITY))
    apply(site.store, {key: raw.replace(b'"plain"', json.dumps(unquote(name)).encode())})
    with Site(store=site.store) as reopened:
        assert reopened.get(f"/{name}{version}").status == 200
        (listed,) = reopened.get("/$Resources/Queues").feed(QUEUE).entries
        assert listed.title == unquote(name)
        assert listed.id == f"https://{HOST}/{unquote(name)}{version}"
        assert reopened.update(f"/{name}{version}", "<QueueDescription/>").status == 200
        assert reopened.delete(f"/{name}{version}").status == 200


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/q/messages", "DELETE, GET, PUT"),
        ("HEAD", "/q", "DELETE, GET, PUT"),
        ("PATCH", "/t/Subscriptions/s", "DELETE, GET, PUT"),
        ("BREW", "/q", "DELETE, GET, PUT"),
    ],
)
def test_other_methods(site: Site, method: str, path: str, allowed: str) -> None:
    reply = site(method, path)
    assert (reply.status, reply.headers["allow"]) == (405, allowed)


def test_internal_error_is_reported_without_details(
    site: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("the inside")

    monkeypatch.setattr(site.namespace, "entity", fail)
    with caplog.at_level(logging.ERROR):
        reply = site.get("/q")
    assert reply.status == 500
    assert b"inside" not in reply.body
    assert "the inside" in caplog.text
    tracking_id = reply.detail.partition("TrackingId:")[2].partition(",")[0]
    assert tracking_id in caplog.text


# Pages


def test_lists_are_paged(site: Site) -> None:
    for number in range(250):
        site.namespace.create_queue(f"q{number}", QueueDescription(), site.now_ms)
    names: list[str] = []
    link: str | None = f"https://{HOST}/$Resources/queues/?api-version=2021-05"
    sizes = []
    while link is not None:
        page = site.get(link.removeprefix(f"https://{HOST}")).feed(QUEUE)
        sizes.append(len(page.entries))
        names += [found.title for found in page.entries]
        link = page.next_link
    assert sizes == [100, 100, 50]
    assert names == [f"q{number}" for number in range(250)]


@pytest.mark.parametrize(
    ("query", "count", "following"),
    [
        ("", 3, None),
        ("$top=2", 2, "$skip=2&$top=2"),
        ("%24skip=1&%24top=1", 1, "$skip=2&$top=1"),
        ("$skip=2&$top=1", 1, None),
        ("$skip=99", 0, None),
        ("$top=0", 0, None),
    ],
)
def test_skip_and_top(site: Site, query: str, count: int, following: str | None) -> None:
    site.put("/t", "<TopicDescription/>")
    for number in range(3):
        site.put(f"/t/Subscriptions/s{number}", "<SubscriptionDescription/>")
    page = site.get(f"/t/Subscriptions?{query}").feed(SUBSCRIPTION)
    assert len(page.entries) == count
    path = f"https://{HOST}/t/Subscriptions"
    assert page.next_link == (None if following is None else f"{path}?{following}&api-version=2021-05")


@pytest.mark.parametrize("query", ["$skip=-1", "$skip=x", "$top=1.5", "$top=", "$skip=99999999999999999999"])
def test_invalid_pages_are_refused(site: Site, query: str) -> None:
    assert site.get(f"/$Resources/Topics?{query}").status == 400


def test_empty_list_is_returned(site: Site) -> None:
    reply = site.get("/$RESOURCES/topics")
    assert reply.headers["content-type"] == "application/atom+xml;type=feed;charset=utf-8"
    assert reply.feed(TOPIC).entries == ()
    assert site.get("/$Resources/EventHubs").status == 404


# Versions


def test_etag_is_valid_until_the_entity_changes(site: Site) -> None:
    site.put("/other", "<QueueDescription/>")
    first = site.put("/q", "<QueueDescription/>").headers["etag"]
    assert site.get("/q").headers["etag"] == first
    site.now_ms += 1
    site.namespace.send(Address.of("q"), [NewMessage(b"")], site.now_ms)
    assert site("GET", "/q", headers={"host": "elsewhere"}).headers["etag"] == first
    second = site.update("/q", "<QueueDescription/>", first).headers["etag"]
    assert second != first
    stale = site.update("/q", "<QueueDescription><MaxDeliveryCount>3</MaxDeliveryCount></QueueDescription>", first)
    assert stale.status == 412
    assert stale.detail.startswith("SubCode=41200. ")
    assert site.delete("/q", headers={"If-Match": first}).status == 412
    assert site.get("/q").headers["etag"] == second
    assert site.update("/q", "<QueueDescription/>", f'"x", W/{second}').status == 200


def test_change_in_the_same_millisecond_is_a_change(site: Site) -> None:
    first = site.put("/q", "<QueueDescription/>").headers["etag"]
    changed = site.update("/q", "<QueueDescription><MaxDeliveryCount>3</MaxDeliveryCount></QueueDescription>", first)
    assert changed.headers["etag"] != first
    assert site.delete("/q", headers={"If-Match": changed.headers["etag"]}).status == 200


def test_rules_have_versions(site: Site) -> None:
    site.put("/t", "<TopicDescription/>")
    site.put("/t/Subscriptions/s", "<SubscriptionDescription/>")
    path = "/t/Subscriptions/s/Rules/$Default"
    first = site.get(path).headers["etag"]
    never = "<RuleDescription><Filter i:type='FalseFilter'/></RuleDescription>"
    assert site.update(path, never, first).status == 200
    assert site.update(path, never, first).status == 412
    assert site.delete(path, headers={"If-Match": first}).status == 412
    assert site.delete(path, headers={"If-Match": "*"}).status == 200
    assert site.delete(path, headers={"If-Match": "*"}).status == 404


def test_change_that_is_answered_is_durable(site: Site) -> None:
    """Check that the store has it at the time of the response, and not only the namespace in memory."""
    site.put("/q", "<QueueDescription/>", authorization=token())
    again = Broker(store=site.store)
    assert [info.path for info in again.namespace.queues(site.now_ms)] == ["q"]
