"""Health and metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pairbus.broker import Address, NewMessage
from pairbus.store import GroupCommitter, StoreFailedError
from tests.server.http.site import LISTENER, SENDER, Site, basic, token


def filled(site: Site) -> Site:
    site.put("/secret/queue", "<QueueDescription/>")
    site.put("/secret/topic", "<TopicDescription/>")
    site.put("/secret/topic/Subscriptions/hidden", "<SubscriptionDescription/>")
    site.namespace.send(Address.of("secret/queue"), [NewMessage(b"x"), NewMessage(b"y")], site.now_ms)
    return site


def text(site: Site, authorization: str | None = None) -> str:
    reply = site.get("/metrics", authorization=authorization)
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    return reply.body.decode()


def test_health_is_for_everyone(site: Site) -> None:
    reply = site.get("/health", authorization=None)
    assert (reply.status, json.loads(reply.body)) == (200, {"status": "ok", "name": "bus", "problems": []})


def test_health_while_the_server_drains() -> None:
    with Site(is_draining=lambda: True) as site:
        reply = site.get("/health", authorization=None)
        assert (reply.status, json.loads(reply.body)["status"]) == (503, "draining")


@contextmanager
def unreadable(committer: GroupCommitter) -> Iterator[None]:
    """Leave a committer without a namespace, as while it tries again to read a store that it could not read."""
    namespace = committer._namespace
    committer._namespace, committer.load_error = None, StoreFailedError("the store", "no")
    committer._is_committing = True
    try:
        yield
    finally:
        committer._namespace, committer.load_error, committer._is_committing = namespace, None, False


def test_health_and_metrics_while_the_store_cannot_be_read(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    with unreadable(site.host.committer):
        for _ in range(3):
            assert site.get("/health", authorization=None).status == 503
            assert "pairbus_http_requests_total" in text(site)
            assert site.get("/q").status == 500
    assert site.get("/health", authorization=None).status == 200
    assert site.get("/q").status == 404
    reported = [line for line in caplog.messages if line.startswith("storage ")]
    assert [line.partition(" error=")[0] for line in reported] == [
        'storage failed namespace=bus reason="the store cannot be read"',
        "storage recovered namespace=bus",
    ]


def test_unauthorized_clients_see_totals_without_entity_names(site: Site) -> None:
    shown = text(filled(site), None)
    assert 'pairbus_messages{state="active"}' in shown
    assert 'pairbus_entities{kind="queue"} 1.0' in shown
    assert "secret" not in shown
    assert "hidden" not in shown


@pytest.mark.parametrize(
    "authorization",
    ["nonsense", token(SENDER), token(LISTENER, "secret/queue"), basic("listener", "wrong")],
    ids=["nonsense", "another claim", "another entity", "another key"],
)
def test_invalid_credential_is_rejected(site: Site, authorization: str) -> None:
    assert filled(site).get("/metrics", authorization=authorization).status == 401


@pytest.mark.parametrize(
    "authorization", [token(), token(LISTENER), basic("listener", "l1")], ids=["manage", "listen", "basic"]
)
def test_authorized_clients_see_entity_metrics(site: Site, authorization: str) -> None:
    shown = text(filled(site), authorization)
    assert 'pairbus_entity_messages{entity="secret/queue",kind="queue",state="active"} 2.0' in shown
    assert 'pairbus_entity_size_bytes{entity="secret/topic/Subscriptions/hidden",kind="subscription"} 0.0' in shown


def test_metrics_can_be_open() -> None:
    with Site(open_metrics=True) as site:
        assert 'entity="secret/queue"' in text(filled(site))


def test_requests_are_counted(site: Site) -> None:
    site.get("/q")
    site.get("/q", authorization=None)
    site("BREW", "/q")
    site("STEEP", "/q")
    shown = text(site)
    assert 'pairbus_http_requests_total{method="GET",route="get-entity",status="404"} 1.0' in shown
    assert 'pairbus_http_requests_total{method="other",route="none",status="405"} 2.0' in shown
    assert 'pairbus_management_operations_total{operation="get-entity",status="401"} 1.0' in shown
    assert 'pairbus_requests_refused_total{condition="amqp:unauthorized-access"} 1.0' in shown
    assert 'pairbus_http_request_seconds_count{route="get-entity"} 2.0' in shown


def test_amqp_traffic_is_counted(site: Site) -> None:
    counters = site.counters
    counters.connections["amqp"] += 1
    counters.links["sender"] += 1
    counters.messages_sent += 2
    counters.messages_delivered += 1
    counters.settled["complete"] += 1
    counters.requests["com.microsoft:peek-message", 200] += 3
    site.host.committer.commit_histogram[0] += 1
    shown = text(site)
    assert 'pairbus_connections_open{protocol="amqp"} 1.0' in shown
    assert 'pairbus_links_open{kind="sender"} 1.0' in shown
    assert 'pairbus_messages_settled_total{outcome="complete"} 1.0' in shown
    assert 'pairbus_management_operations_total{operation="com.microsoft:peek-message",status="200"} 3.0' in shown
    shown_count = next(line for line in shown.splitlines() if line.startswith("pairbus_commit_seconds_count "))
    assert 0 < float(shown_count.rpartition(" ")[2]) <= sum(site.host.committer.commit_histogram)


def test_messages_are_counted_from_the_side_of_the_application(site: Site) -> None:
    counters = site.counters
    counters.messages_sent, counters.messages_delivered = 2, 1
    counters.bytes_sent, counters.bytes_delivered = 20, 10
    shown = text(site).splitlines()
    assert "pairbus_application_messages_sent_total 2.0" in shown
    assert "pairbus_application_messages_received_total 1.0" in shown
    assert "pairbus_application_sent_bytes_total 20.0" in shown
    assert "pairbus_application_received_bytes_total 10.0" in shown


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("messages_received", "application_messages_sent"),
        ("messages_sent", "application_messages_received"),
        ("received_bytes", "application_sent_bytes"),
        ("sent_bytes", "application_received_bytes"),
    ],
)
def test_old_names_keep_their_meaning_and_are_deprecated(site: Site, old: str, new: str) -> None:
    counters = site.counters
    counters.messages_sent, counters.messages_delivered, counters.bytes_sent, counters.bytes_delivered = 1, 2, 3, 4
    shown = dict(line.rsplit(" ", 1) for line in text(site).splitlines())
    assert shown[f"pairbus_{old}_total"] == shown[f"pairbus_{new}_total"]
    assert f"# HELP pairbus_{old}_total Deprecated, use pairbus_{new}_total: " in text(site)


def test_entity_may_have_the_name_of_a_monitoring_path(site: Site) -> None:
    for name in ("health", "metrics"):
        assert site.put(f"/{name}?api-version=2021-05", "<QueueDescription/>").status == 201
        assert b"QueueDescription" in site.get(f"/{name}?api-version=2021-05").body
        assert b"QueueDescription" not in site.get(f"/{name}").body
        assert site.get(f"/{name}?api-version=2021-05", authorization=None).status == 401


def test_page_for_operators_names_every_metric(site: Site) -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "operate.md").read_text(encoding="utf-8")
    site.get("/q")
    families = re.findall(r"^# TYPE (\S+) (\S+)", text(filled(site), token()), re.MULTILINE)
    assert len(families) > 12
    for name, _ in families:
        assert f"`{name}" in page, name
