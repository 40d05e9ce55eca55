"""Queues, topics and subscriptions over HTTP."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from xml.sax.saxutils import escape

import pytest

from pairbus.broker import (
    PREMIUM,
    RELAXED,
    STANDARD,
    Address,
    Limits,
    NewMessage,
    QueueDescription,
    SubscriptionDescription,
)
from pairbus.dialect.atom import QUEUE, SUBSCRIPTION, TOPIC
from pairbus.dialect.sas import make_sas_token
from tests.server.http.site import HOST, SENDER, Site, token

NEVER = "P10675199DT2H48M5.4775807S"
QUEUE_SETTINGS = {
    "LockDuration": "PT13S",
    "MaxSizeInMegabytes": "3072",
    "RequiresDuplicateDetection": "true",
    "RequiresSession": "true",
    "DefaultMessageTimeToLive": "P1DT2H",
    "DeadLetteringOnMessageExpiration": "true",
    "DuplicateDetectionHistoryTimeWindow": "PT12M",
    "MaxDeliveryCount": "14",
    "EnableBatchedOperations": "false",
    "Status": "ReceiveDisabled",
    "UserMetadata": "said & done",
    "AutoDeleteOnIdle": "PT10M",
    "EnablePartitioning": "false",
    "EnableExpress": "true",
    "MaxMessageSizeInKilobytes": "100",
}
TOPIC_SETTINGS = {
    "DefaultMessageTimeToLive": "PT11M",
    "MaxSizeInMegabytes": "2048",
    "RequiresDuplicateDetection": "true",
    "DuplicateDetectionHistoryTimeWindow": "PT12M",
    "EnableBatchedOperations": "false",
    "Status": "SendDisabled",
    "UserMetadata": "m",
    "SupportOrdering": "false",
    "AutoDeleteOnIdle": "P1D",
    "EnablePartitioning": "false",
    "EnableExpress": "true",
    "MaxMessageSizeInKilobytes": "64",
}
SUBSCRIPTION_SETTINGS = {
    "LockDuration": "PT5M",
    "RequiresSession": "true",
    "DefaultMessageTimeToLive": "PT1S",
    "DeadLetteringOnMessageExpiration": "true",
    "DeadLetteringOnFilterEvaluationExceptions": "false",
    "MaxDeliveryCount": "3",
    "EnableBatchedOperations": "false",
    "Status": "Disabled",
    "UserMetadata": "m",
    "AutoDeleteOnIdle": "PT5M",
}
KINDS = {
    "/orders": ("QueueDescription", QUEUE_SETTINGS),
    "/news": ("TopicDescription", TOPIC_SETTINGS),
    "/base/Subscriptions/all": ("SubscriptionDescription", SUBSCRIPTION_SETTINGS),
}
FIXED = {"RequiresDuplicateDetection", "RequiresSession", "EnablePartitioning"}


def body(kind: str, settings: dict[str, str]) -> str:
    return f"<{kind}>" + "".join(f"<{name}>{escape(text)}</{name}>" for name, text in settings.items()) + f"</{kind}>"


def shown(site: Site, path: str) -> dict[str, str | None]:
    reply = site.get(path)
    assert reply.status == 200
    return {element.tag.rpartition("}")[2]: element.text for element in reply.description()}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, site: Site) -> tuple[str, str, dict[str, str]]:
    site.put("/base", "<TopicDescription/>")
    path: str = request.param
    return path, *KINDS[path]


def test_every_setting_is_accepted_and_returned(site: Site, kind: tuple[str, str, dict[str, str]]) -> None:
    path, name, settings = kind
    created = site.put(path, body(name, settings))
    assert created.status == 201
    assert created.headers["content-type"] == "application/atom+xml;type=entry;charset=utf-8"
    assert shown(site, path).items() >= settings.items()
    assert site.get(path).body == created.body


def test_each_setting_can_be_changed_alone(site: Site, kind: tuple[str, str, dict[str, str]]) -> None:
    path, name, settings = kind
    site.put(path, f"<{name}/>")
    for setting in settings.keys() - FIXED:
        updated = site.update(path, body(name, {setting: settings[setting]}))
        assert updated.status == 200
        assert shown(site, path)[setting] == settings[setting]


def test_settings_fixed_at_creation_cannot_change(site: Site, kind: tuple[str, str, dict[str, str]]) -> None:
    path, name, settings = kind
    site.put(path, f"<{name}/>")
    for setting in settings.keys() & FIXED:
        reply = site.update(path, body(name, {setting: "true"}))
        assert reply.status == 400
        assert reply.detail.startswith("SubCode=40000. Bad Request. ")


def test_update_without_fixed_settings_keeps_them(site: Site) -> None:
    site.put("/q", body("QueueDescription", {"RequiresSession": "true", "UserMetadata": "m"}))
    assert site.update("/q", "<QueueDescription/>").status == 200
    assert shown(site, "/q")["RequiresSession"] == "true"
    assert "UserMetadata" not in shown(site, "/q")


def test_response_can_be_sent_back_unchanged(site: Site, kind: tuple[str, str, dict[str, str]]) -> None:
    path, name, settings = kind
    created = site.put(path, body(name, settings))
    assert site.update(path, created.body).status == 200
    assert shown(site, path).items() >= settings.items()


def test_defaults(site: Site) -> None:
    site.put("/q", "<QueueDescription/>")
    assert shown(site, "/q") == {
        "LockDuration": "PT1M",
        "MaxSizeInMegabytes": "1024",
        "RequiresDuplicateDetection": "false",
        "RequiresSession": "false",
        "DefaultMessageTimeToLive": NEVER,
        "DeadLetteringOnMessageExpiration": "false",
        "DuplicateDetectionHistoryTimeWindow": "PT10M",
        "MaxDeliveryCount": "10",
        "EnableBatchedOperations": "true",
        "SizeInBytes": "0",
        "MessageCount": "0",
        "IsAnonymousAccessible": "false",
        "AuthorizationRules": None,
        "Status": "Active",
        "CreatedAt": "2023-11-14T22:13:20Z",
        "UpdatedAt": "2023-11-14T22:13:20Z",
        "AccessedAt": "2023-11-14T22:13:20Z",
        "SupportOrdering": "true",
        "CountDetails": None,
        "AutoDeleteOnIdle": NEVER,
        "EnablePartitioning": "false",
        "EntityAvailabilityStatus": "Available",
        "EnableExpress": "false",
        "MaxMessageSizeInKilobytes": "256",
    }


def test_names_and_addresses_are_as_they_were_given(site: Site) -> None:
    site.put("/Big%2Fnews?api-version=2021-05", "<TopicDescription/>")
    site.put("/big/NEWS/subscriptions/All", "<SubscriptionDescription/>")
    topic = site.get("/BIG/news?api-version=2024-05").entry(TOPIC)
    assert topic.title == "Big/news"
    assert topic.id == f"https://{HOST}/Big/news?api-version=2024-05"
    subscription = site.get("/big%2fnews/SUBSCRIPTIONS/ALL/").entry(SUBSCRIPTION)
    assert subscription.title == "All"
    assert subscription.id == f"https://{HOST}/Big/news/Subscriptions/All?api-version=2021-05"
    listed = site.get("/big/news/subscriptions/").feed(SUBSCRIPTION)
    assert [entry.id for entry in listed.entries] == [subscription.id]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", "https://localhost/q"),
        ("[::1]:5671", "https://[::1]:5671/q"),
        ('evil"><script>', "https://bus/q"),
        ("a b", "https://bus/q"),
    ],
)
def test_links_use_the_host_of_the_request(site: Site, host: str, expected: str) -> None:
    site.put("/q", "<QueueDescription/>")
    found = site("GET", "/q", headers={"host": host}).entry(QUEUE)
    assert found.id.partition("?")[0] == expected


def test_links_use_the_configured_base_url() -> None:
    with Site(base_url="https://bus.example.org:443/") as site:
        site.put("/q", "<QueueDescription/>")
        assert site.get("/q").entry(QUEUE).id.startswith("https://bus.example.org:443/q?")


def test_counts(site: Site) -> None:
    site.put("/q", "<QueueDescription/>")
    queue = Address.of("q")
    site.namespace.send(queue, [NewMessage(b"1"), NewMessage(b"2"), NewMessage(b"3")], site.now_ms)
    site.namespace.send(queue, [NewMessage(b"later", scheduled_ms=site.now_ms + 1_000)], site.now_ms)
    values = site.get("/q").entry(QUEUE).values
    assert values["message_count"] == 4
    assert values["counts"] == {
        "active": 3,
        "dead_letter": 0,
        "scheduled": 1,
        "transfer": 0,
        "transfer_dead_letter": 0,
    }
    assert values["size_bytes"] > 0


@pytest.mark.parametrize(("version", "are_shown"), [("2017-04", False), ("2021-05", False), ("2024-05", True)])
def test_filter_counts_are_returned_to_newer_api_versions(site: Site, version: str, are_shown: bool) -> None:
    site.put("/t", "<TopicDescription/>")
    site.put("/t/Subscriptions/s", "<SubscriptionDescription/>")
    values = site.get(f"/t?api-version={version}").entry(TOPIC).values
    assert values["subscription_count"] == 1
    assert values.get("sql_filter_count") == (1 if are_shown else None)
    assert values.get("correlation_filter_count") == (0 if are_shown else None)


def test_partitioned_entity_is_shown_with_the_size_of_all_its_parts(site: Site) -> None:
    settings = {"EnablePartitioning": "true", "MaxSizeInMegabytes": "2048"}
    created = site.put("/q", body("QueueDescription", settings))
    assert shown(site, "/q")["MaxSizeInMegabytes"] == "32768"
    assert site.update("/q", created.body).status == 200
    assert shown(site, "/q")["MaxSizeInMegabytes"] == "32768"
    assert site.namespace.entity(Address.of("q"), site.now_ms).description == QueueDescription(
        partitioned=True, max_size_megabytes=2048
    )


@pytest.mark.parametrize("limits", [PREMIUM, RELAXED], ids=["premium", "relaxed"])
def test_ambiguous_size_is_reported_unscaled(limits: Limits) -> None:
    with Site(limits) as site:
        created = site.put("/q", "<QueueDescription><EnablePartitioning>true</EnablePartitioning></QueueDescription>")
        assert shown(site, "/q")["MaxSizeInMegabytes"] == "1024"
        assert site.update("/q", created.body).status == 200


def test_deleting(site: Site) -> None:
    site.put("/t", "<TopicDescription/>")
    site.put("/t/Subscriptions/s", "<SubscriptionDescription/>")
    for path in ("/t/Subscriptions/s", "/t"):
        deleted = site.delete(path)
        assert (deleted.status, deleted.body) == (200, b"")
        for again in (site.get(path), site.delete(path), site.update(path, "<TopicDescription/>")):
            assert again.status in {400, 404}
        assert site.get(path).detail.startswith("SubCode=40400. Not Found. ")


def test_creating_an_existing_entity_is_refused(site: Site, kind: tuple[str, str, dict[str, str]]) -> None:
    path, name, _ = kind
    assert site.put(path, f"<{name}/>").status == 201
    again = site.put(path.upper().replace("SUBSCRIPTIONS", "Subscriptions"), f"<{name}/>")
    assert again.status == 409
    assert again.headers["content-type"] == "application/xml; charset=utf-8"
    assert again.detail.startswith("SubCode=40900. Conflict. ")
    assert "TrackingId:" in again.detail


def test_updating_a_missing_entity_is_refused(site: Site, kind: tuple[str, str, dict[str, str]]) -> None:
    path, name, _ = kind
    assert site.update(path, f"<{name}/>").status == 404
    assert site.get(path).status == 404


def test_queue_does_not_become_a_topic(site: Site) -> None:
    site.put("/q", "<QueueDescription/>")
    assert site.update("/q", "<TopicDescription/>").status == 400
    assert site.put("/q/Subscriptions/s", "<SubscriptionDescription/>").status == 404
    assert site.get("/q/Subscriptions").status == 404


@pytest.mark.parametrize(
    ("setting", "text"),
    [("LockDuration", "PT4S"), ("LockDuration", "PT6M"), ("LockDuration", NEVER), ("LockDuration", "one minute"),
     ("MaxDeliveryCount", "0"), ("MaxDeliveryCount", "ten"), ("MaxSizeInMegabytes", "1"), ("Status", "Unknown"),
     ("DefaultMessageTimeToLive", "PT0S"), ("AutoDeleteOnIdle", "PT1M"), ("RequiresSession", "perhaps"),
     ("ForwardTo", "nowhere"), ("MaxMessageSizeInKilobytes", "1000000"), ("DuplicateDetectionHistoryTimeWindow", "P8D"),
     ("DuplicateDetectionHistoryTimeWindow", "PT1S")],
)  # fmt: skip
def test_wrong_settings(site: Site, setting: str, text: str) -> None:
    content = body("QueueDescription", {setting: text})
    created = site.put("/q", content)
    assert created.status == 400
    assert created.detail.startswith("SubCode=40000. Bad Request. ")
    assert site.get("/q").status == 404
    site.put("/q", "<QueueDescription/>")
    before = site.get("/q").body
    assert site.update("/q", content).status == 400
    assert site.get("/q").body == before


def test_full_namespace_is_not_a_server_error() -> None:
    with Site(replace(STANDARD, entities=1)) as site:
        site.put("/a", "<QueueDescription/>")
        full = site.put("/b", "<QueueDescription/>")
        assert full.status == 403
        assert full.detail.startswith("SubCode=40300. ")


# Forwarding


@pytest.mark.parametrize("element", ["ForwardTo", "ForwardDeadLetteredMessagesTo"])
@pytest.mark.parametrize(
    "target", ["Big/Target", "sb://bus.example:5671/big/target", "sb://elsewhere/BIG/target/", "https://x/big/target"]
)
def test_forwarding_is_kept_as_a_path_and_shown_as_an_address(site: Site, element: str, target: str) -> None:
    site.put("/big/target", "<QueueDescription/>")
    assert site.put("/q", body("QueueDescription", {element: target})).status == 201
    assert shown(site, "/q")[element] == f"sb://{HOST}/big/target"
    info = site.namespace.entity(Address.of("q"), site.now_ms).description
    assert isinstance(info, QueueDescription)
    assert "big/target" in {info.forward_to, info.forward_dead_letters_to}
    assert site.update("/q", "<QueueDescription/>").status == 200
    assert element not in shown(site, "/q")


def test_queue_with_sessions_is_created_with_a_target_and_updated_to_forward_to_itself(site: Site) -> None:
    site.put("/target", "<QueueDescription/>")
    settings = {"RequiresSession": "true", "ForwardTo": "target"}
    created = site.put("/q", body("QueueDescription", settings))
    assert created.status == 201
    assert site.update("/q", created.body).status == 200
    itself = {"ForwardTo": f"sb://{HOST}/q", "ForwardDeadLetteredMessagesTo": f"sb://{HOST}/q"}
    assert site.put("/new", body("QueueDescription", {"ForwardTo": "new"})).status == 400
    assert site.update("/q", body("QueueDescription", itself)).status == 200
    assert shown(site, "/q").items() >= itself.items()


@pytest.mark.parametrize("path", ["/bad%20name!!", "/news/Subscriptions/a~b", "/news/Subscriptions/s/Rules/a%20b"])
def test_invalid_name_is_refused_with_what_is_allowed(site: Site, path: str) -> None:
    site.put("/news", "<TopicDescription/>")
    site.put("/news/Subscriptions/s", "<SubscriptionDescription/>")
    kinds = {"Rules": "RuleDescription", "Subscriptions": "SubscriptionDescription"}
    refused = site.put(path, f"<{kinds.get(path.split('/')[-2], 'QueueDescription')}/>")
    assert refused.status == 400
    assert "letters (a-z, A-Z), digits, '.', '-'" in refused.detail
    assert site.get(path).status == 404


def test_subscriptions_forward_too(site: Site) -> None:
    site.put("/q", "<QueueDescription/>")
    site.put("/t", "<TopicDescription/>")
    site.put("/t/Subscriptions/s", body("SubscriptionDescription", {"ForwardTo": "q"}))
    info = site.namespace.entity(Address.of("t", "s"), site.now_ms).description
    assert isinstance(info, SubscriptionDescription)
    assert info.forward_to == "q"


@pytest.mark.parametrize(
    ("element", "header", "other"),
    [
        ("ForwardTo", "ServiceBusSupplementaryAuthorization", "ServiceBusDlqSupplementaryAuthorization"),
        (
            "ForwardDeadLetteredMessagesTo",
            "ServiceBusDlqSupplementaryAuthorization",
            "ServiceBusSupplementaryAuthorization",
        ),
    ],
)
def test_forwarding_needs_a_token_for_the_target(site: Site, element: str, header: str, other: str) -> None:
    site.put("/target", "<QueueDescription/>")
    content = body("QueueDescription", {element: "target"})
    mine = token(resource="q")

    def attempt(**headers: str) -> int:
        return site.put("/q", content, authorization=mine, headers=headers).status

    assert attempt() == 401
    assert attempt(**{other: token(SENDER)}) == 401
    assert attempt(**{header: token(SENDER, "elsewhere")}) == 401
    assert attempt(**{header: token(SENDER, expires_ms=site.now_ms)}) == 401
    assert attempt(**{header: "nonsense"}) == 401
    assert site.get("/q").status == 404
    assert attempt(**{header: token(SENDER, "target")}) == 201


# Keys of entities

KEYS = (
    "<QueueDescription><AuthorizationRules><AuthorizationRule i:type='SharedAccessAuthorizationRule'>"
    "<ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue><Rights><AccessRights>Manage</AccessRights>"
    "<AccessRights>Listen</AccessRights></Rights><KeyName>k</KeyName>{}</AuthorizationRule></AuthorizationRules>"
    "</QueueDescription>"
)


def keys(site: Site) -> Any:
    return site.get("/q").entry(QUEUE).values["authorization_rules"]


def test_keys_of_an_entity(site: Site) -> None:
    site.put("/q", KEYS.format("<PrimaryKey>p</PrimaryKey><SecondaryKey>s</SecondaryKey>"))
    (key,) = keys(site)
    assert key == {"rights": ("Manage", "Listen"), "name": "k", "primary_key": "p", "secondary_key": "s"}


def test_omitted_keys_are_generated_once(site: Site) -> None:
    site.put("/q", KEYS.format(""))
    (made,) = keys(site)
    assert made["primary_key"] != made["secondary_key"]
    assert len(made["primary_key"]) == 44
    site.update("/q", KEYS.format("<PrimaryKey>p</PrimaryKey>"))
    (key,) = keys(site)
    assert (key["primary_key"], key["secondary_key"]) == ("p", made["secondary_key"])
    site.update("/q", "<QueueDescription/>")
    assert keys(site) == ()


def test_key_of_an_entity_manages_that_entity_only(site: Site) -> None:
    site.put("/q", KEYS.format("<PrimaryKey>p</PrimaryKey>"))
    site.put("/other", "<QueueDescription/>")
    mine = make_sas_token(f"https://{HOST}/", "k", "p", site.now_ms // 1_000 + 60)
    assert site.get("/q", authorization=mine).status == 200
    for path in ("/other", "/$Resources/Queues", "/$AuthorizationRules", "/$namespaceinfo", "/missing"):
        assert site.get(path, authorization=mine).status == 401
    assert site.put("/q2", "<QueueDescription/>", authorization=mine).status == 401
