"""Live numbers: only what has changed, for as long as somebody may see it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Literal

import pytest

from pairbus.broker import Address, QueueDescription
from pairbus.console import annex
from pairbus.console.events import event
from tests.console.site import PATIENCE_S, Person, Site, eventually


def patches(events: Iterator[tuple[str, str]]) -> Iterator[dict[str, str]]:
    for kind, data in events:
        assert kind == "patch"
        yield json.loads(data)


def test_the_first_event_tells_all_and_the_next_what_has_changed(site: Site) -> None:
    with site.listener().stream(page="entities") as events:
        told = patches(events)
        first = next(told)
        assert first["active:orders"] == "0"
        site.send("orders", b"espresso")
        patch = next(each for each in told if "active:orders" in each)
        assert patch["active:orders"] == "1"
        assert "active:payments" not in patch
        assert "shape" not in patch


def test_a_new_entity_changes_the_shape(site: Site) -> None:
    with site.listener().stream(page="entities") as events:
        told = patches(events)
        next(told)
        site.call(lambda host: host.namespace.create_queue("cups", QueueDescription(), host.now_ms()))
        patch = next(each for each in told if "shape" in each)
        assert patch["active:cups"] == "0"


def test_rates_are_told(site: Site) -> None:
    with site.listener().stream(page="entity", entity="orders") as events:
        told = patches(events)
        next(told)
        site.send("orders", *(b"x" for _ in range(100)))
        assert float(next(each for each in told if each.get("in", "0") != "0")["in"]) > 1


@pytest.mark.parametrize("page", ["entities", "entity", "pair", "server"])
def test_every_page_has_live_numbers_that_are_on_it(site: Site, page: str) -> None:
    person = site.listener()
    query = {"entity": "orders"} if page == "entity" else {}
    address = "/console" if page == "entities" else f"/console/{page}"
    text = person.get(address, **query)
    with person.stream(page=page, **query) as events:
        keys = set(next(patches(events))) - {"shape", "timeline", "diary", "senders"}
    for key in keys:
        text.live(key)


def test_an_entity_that_is_deleted_has_nothing_more_to_tell(site: Site) -> None:
    with site.listener().stream(page="entity", entity="orders") as events:
        next(events)
        site.call(lambda host: host.namespace.delete(Address.of("orders"), host.now_ms()))
        kind, data = next((kind, data) for kind, data in events if kind != "patch")
        assert kind == "gone"
        assert "orders" in data


def test_who_logs_out_is_told_nothing_more(site: Site) -> None:
    person = site.listener()
    with person.stream(page="entities") as events:
        next(events)
        person.act("/console/logout")
        assert "over" in [kind for kind, _ in events]


def test_a_server_stops_though_pages_are_open(tmp_path: Path) -> None:
    site = Site(tmp_path / "contoso", drain_s=10 * PATIENCE_S)  # so long it would wait for them
    site.start()
    person = site.manager()
    with person.stream(page="entities") as events, person.stream(page="pair") as others:
        next(events)
        next(others)
        site.close()


def test_there_are_only_so_many_streams_and_whoever_goes_makes_room(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(annex, "MOST_STREAMS", 1)
    person = site.manager()
    for _ in range(3):
        with eventually(lambda: opened(person)) as events:
            next(events)
            assert person.get("/console/events", page="pair").status == 503


def opened(person: Person) -> AbstractContextManager[Iterator[tuple[str, str]]] | Literal[False]:
    """A stream, if there is room for one."""
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
def test_a_stream_of_nothing_is_not_there(site: Site, query: dict[str, str]) -> None:
    assert site.manager().get("/console/events", **query).status == 404


def test_an_event_may_have_lines() -> None:
    assert event("gone", "one\ntwo") == "event: gone\ndata: one\ndata: two\n\n"
