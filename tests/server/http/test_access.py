"""No request succeeds without the claim, or reveals what exists: for every route."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from pairbus.broker import Right
from pairbus.dialect.sas import make_sas_token
from pairbus.server.http.routes import ROUTES, ManagementRoute, MatchedRoute, find, segments_of
from tests.server.http.site import HOST, LISTENER, ROOT, SENDER, Reply, Site, basic, token

GUARDED = [route for route in ROUTES if route.right is not None]
SOON_S = 1_700_003_600

CREDENTIALS: dict[str, Callable[[], str | None]] = {
    "none": lambda: None,
    "empty": lambda: " ",
    "nonsense": lambda: "let me in",
    "scheme alone": lambda: "SharedAccessSignature",
    "nothing in it": lambda: "SharedAccessSignature sr=&sig=&se=&skn=",
    "unknown key": lambda: make_sas_token(f"https://{HOST}/", "nobody", "key", SOON_S),
    "wrong signature": lambda: make_sas_token(f"https://{HOST}/", ROOT.name, "wrong key", SOON_S),
    "expired": lambda: token(expires_ms=1_699_999_999_000),
    "expires now": lambda: token(expires_ms=1_700_000_000_000),
    "other address": lambda: token(resource="elsewhere"),
    "claim to send": lambda: token(SENDER),
    "claim to listen": lambda: token(LISTENER),
    "bearer of nothing": lambda: "Bearer ",
    "bearer of another issuer": lambda: "Bearer eyJhbGciOiJub25lIn0.e30.",
    "bearer who may send": lambda: f"Bearer {token(SENDER)}",
    "basic that is none": lambda: "Basic !!!",
    "basic without a key": lambda: "Basic " + "cm9vdA==",
    "basic with a wrong key": lambda: basic(ROOT.name, "wrong key"),
    "basic that may send": lambda: basic(SENDER.name, SENDER.primary_key),
    "not ascii": lambda: "SharedAccessSignature sr=\xe9&sig=\xe9&se=1&skn=\xe9",
}
GOOD: dict[str, Callable[[], str]] = {
    "token": token,
    "token with the second key": lambda: make_sas_token(f"https://{HOST}/", ROOT.name, ROOT.secondary_key, SOON_S),
    "bearer": lambda: f"Bearer {token()}",
    "bearer in lower case": lambda: f"bearer {token()}",
    "basic": lambda: basic(ROOT.name, ROOT.primary_key),
}


def is_for(route: ManagementRoute) -> str:
    return route.operation


def fill(site: Site) -> None:
    """Create everything that the examples of the routes name."""
    site.put("/orders", "<QueueDescription/>")
    site.put("/news", "<TopicDescription/>")
    site.put("/news/Subscriptions/all", "<SubscriptionDescription/>")


def ask(site: Site, route: ManagementRoute, authorization: str | None) -> Reply:
    return site(route.method, f"{route.example}?api-version=2021-05", authorization=authorization)


def without_chance(reply: Reply) -> tuple[int, dict[str, str], bytes]:
    return reply.status, dict(reply.headers), re.sub(rb"TrackingId:[0-9a-f-]{36}", b"", reply.body)


@pytest.mark.parametrize("credentials", CREDENTIALS)
@pytest.mark.parametrize("route", GUARDED, ids=is_for)
def test_no_access_without_the_claim(site: Site, route: ManagementRoute, credentials: str) -> None:
    missing = ask(site, route, CREDENTIALS[credentials]())
    assert missing.status == 401
    assert missing.detail.startswith("SubCode=40103. Unauthorized. ")
    fill(site)
    before = site.get("/$Resources/Queues").body + site.get("/$Resources/Topics").body
    present = ask(site, route, CREDENTIALS[credentials]())
    assert without_chance(present) == without_chance(missing)
    assert site.get("/$Resources/Queues").body + site.get("/$Resources/Topics").body == before


ANSWERED = frozenset({200, 400, 501})
"""A PUT without a body is a bad request; a namespace without a data directory keeps no diagnostic bundles."""


@pytest.mark.parametrize("credentials", GOOD)
@pytest.mark.parametrize("route", GUARDED, ids=is_for)
def test_access_with_the_claim(site: Site, route: ManagementRoute, credentials: str) -> None:
    fill(site)
    assert ask(site, route, GOOD[credentials]()).status in ANSWERED


@pytest.mark.parametrize("route", GUARDED, ids=is_for)
def test_token_for_the_address_itself_is_enough(site: Site, route: ManagementRoute) -> None:
    """Sign like JavaScript: the whole address, with its query, all in lower case."""
    fill(site)
    address = f"{route.example.lstrip('/')}?api-version=2021-05".lower()
    assert ask(site, route, token(resource=address)).status in ANSWERED


@pytest.mark.parametrize("route", ROUTES, ids=is_for)
def test_example_leads_to_its_route(route: ManagementRoute) -> None:
    segments = segments_of(route.example, route.method)
    found = find(route.method, segments, is_plain=True)
    assert isinstance(found, MatchedRoute)
    assert found.route is route


def test_every_route_is_guarded_but_two() -> None:
    assert {route.operation for route in ROUTES if route.right is None} == {"health", "metrics"}
    assert {route.right for route in GUARDED} == {Right.MANAGE}
    assert len({route.operation for route in ROUTES}) == len(ROUTES)


def test_key_of_a_topic_opens_its_subscriptions_and_their_rules(site: Site) -> None:
    fill(site)
    site.update(
        "/news",
        "<TopicDescription><AuthorizationRules><AuthorizationRule><Rights><AccessRights>Manage</AccessRights></Rights>"
        "<KeyName>k</KeyName><PrimaryKey>p</PrimaryKey></AuthorizationRule></AuthorizationRules></TopicDescription>",
    )
    mine = make_sas_token(f"https://{HOST}/news", "k", "p", SOON_S)
    for path in ("/news", "/news/Subscriptions", "/news/Subscriptions/all", "/news/Subscriptions/all/Rules",
                 "/news/Subscriptions/all/Rules/$Default"):  # fmt: skip
        assert site.get(path, authorization=mine).status == 200
    assert site.get("/news/Subscriptions/none", authorization=mine).status == 404
    assert site.get("/newsroom", authorization=mine).status == 401


@pytest.mark.parametrize(
    "path",
    ["/news/../orders", "/news%2F..%2Forders", "//orders", "/news/%2e%2e/orders", "/news://x/orders", "/news%3F"],
)
def test_token_for_one_entity_does_not_cover_another(site: Site, path: str) -> None:
    fill(site)
    assert site.get(path, authorization=token(resource="news")).status in {401, 404}
    assert site.delete(path, authorization=token(resource="news")).status in {401, 404}
    assert site.get("/orders").status == 200


def test_busy_server_sends_retry_after(site: Site) -> None:
    fill(site)
    site.host.deny = lambda operation, address: f"{operation} of {address} has to wait"
    reply = site.get("/orders")
    assert (reply.status, reply.headers["retry-after"]) == (503, "10")
    assert "get-entity of orders has to wait" in reply.detail
    assert site.get("/orders", authorization=None).status == 401
    assert site.get("/health", authorization=None).status == 200
