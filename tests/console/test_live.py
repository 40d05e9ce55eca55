"""Live values: events have only the changed ones, and end with the session."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Literal

import pytest

from pairbus.broker import Address, QueueDescription
from pairbus.console import routes
from pairbus.console.live import event
from tests.console.site import PATIENCE_S, Person, Site
from tests.waiting import eventually


def patches(events: Iterator[tuple[str, str]]) -> Iterator[dict[str, str]]:
    for kind, data in events:
        assert kind == "patch"
        yield json.loads(data)


def test_first_event_has_all_values_and_the_next_the_changed_ones(site: Site) -> None:
    with site.listener().stream(page="entities") as events:
        received = patches(events)
        first = next(received)
        assert first["active:orders"] == "0"
        site.send("orders", b"espresso")
        patch = next(each for each in received if "active:orders" in each)
        assert patch["active:orders"] == "1"
        assert "active:payments" not in patch
        assert "shape" not in patch


def test_new_entity_changes_the_shape(site: Site) -> None:
    with site.listener().stream(page="entities") as events:
        received = patches(events)
        next(received)
        site.call(lambda host: host.use_namespace().create_queue("cups", QueueDescription(), host.now_ms()))
        patch = next(each for each in received if "shape" in each)
        assert patch["active:cups"] == "0"


def test_rates_are_sent(site: Site) -> None:
    with site.listener().stream(page="entity", entity="orders") as events:
        received = patches(events)
        next(received)
        site.send("orders", *(b"x" for _ in range(100)))
        assert float(next(each for each in received if each.get("in", "0") != "0")["in"]) > 1


@pytest.mark.parametrize("page", ["entities", "entity", "pair", "server"])
def test_every_live_value_is_on_its_page(site: Site, page: str) -> None:
    person = site.listener()
    query = {"entity": "orders"} if page == "entity" else {}
    address = "/console" if page == "entities" else f"/console/{page}"
    text = person.get(address, **query)
    with person.stream(page=page, **query) as events:
        keys = set(next(patches(events))) - {"shape", "repairs", "problems", "timeline", "pair-events", "senders"}
    for key in keys:
        text.live(key)


def test_stream_of_a_deleted_entity_ends(site: Site) -> None:
    with site.listener().stream(page="entity", entity="orders") as events:
        next(events)
        site.call(lambda host: host.use_namespace().delete(Address.of("orders"), host.now_ms()))
        kind, data = next((kind, data) for kind, data in events if kind != "patch")
        assert kind == "gone"
        assert "orders" in data


def test_logout_ends_the_stream(site: Site) -> None:
    person = site.listener()
    with person.stream(page="entities") as events:
        next(events)
        person.act("/console/logout")
        assert "logout" in [kind for kind, _ in events]


def test_server_stops_while_pages_are_open(tmp_path: Path) -> None:
    site = Site(tmp_path / "contoso", drain_s=10 * PATIENCE_S)  # it would wait for the streams this long
    site.start()
    person = site.manager()
    with person.stream(page="entities") as events, person.stream(page="pair") as others:
        next(events)
        next(others)
        site.close()


def test_streams_are_limited_and_closing_one_frees_its_place(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MAX_STREAMS", 1)
    person = site.manager()
    for _ in range(3):
        with eventually(lambda: opened(person)) as events:
            next(events)
            assert person.get("/console/events", page="pair").status == 503


def opened(person: Person) -> AbstractContextManager[Iterator[tuple[str, str]]] | Literal[False]:
    """Return a stream, or False if there are too many."""
    stream = ExitStack()
    try:
        events = stream.enter_context(person.stream(page="pair"))
        first = next(events)
    except AssertionError:
        stream.close()
        return False
    return _kept(stream, chain([first], events))


@contextmanager
def _kept(stream: ExitStack, events: Iterator[tuple[str, str]]) -> Iterator[Iterator[tuple[str, str]]]:
    with stream:
        yield events


@pytest.mark.parametrize("query", [{}, {"page": "nonsense"}])
def test_stream_of_an_unknown_page_is_not_found(site: Site, query: dict[str, str]) -> None:
    assert site.manager().get("/console/events", **query).status == 404


def test_event_data_may_have_several_lines() -> None:
    assert event("gone", "one\ntwo") == "event: gone\ndata: one\ndata: two\n\n"
