"""Queues, topics and subscriptions: create, update, read, list, delete."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from pairbus.broker import (
    Address,
    EntityDescription,
    EntityInfo,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.broker.descriptions import KIND_OF
from pairbus.dialect.atom import QUEUE, SUBSCRIPTION, TOPIC, AtomEntry, AtomFeed, Table
from pairbus.entity_settings import FORWARDING
from pairbus.server.audit import AuditAction, changed_settings, keys_of
from pairbus.server.http.answers import check_match, empty_answer, entry_answer, etag_of, feed_answer, page_of
from pairbus.server.http.call import HttpCall
from pairbus.server.http.descriptions import (
    TABLES,
    description_of,
    path_of_target,
    rule_of,
    settings_of,
    state_of,
)

# Single entities. The names in the path form the address, and distinguish a subscription from a queue or a topic.


async def get_entity(call: HttpCall) -> Response:
    return _answer(call, call.namespace.entity(address_of(call), call.now_ms))


async def delete_entity(call: HttpCall) -> Response:
    address = address_of(call)
    if_match = call.headers.get("if-match")
    if if_match is not None:
        check_match(if_match, _etag(call, call.namespace.entity(address, call.now_ms)), str(address))
    call.namespace.delete(address, call.now_ms)
    call.audit(AuditAction.ENTITY_DELETED, entity=str(address))
    await call.host.durable()
    return empty_answer()


async def put_entity(call: HttpCall) -> Response:
    return await _put(call, *call.description(QUEUE, TOPIC))


async def put_subscription(call: HttpCall) -> Response:
    return await _put(call, *call.description(SUBSCRIPTION))


async def _put(call: HttpCall, table: Table, values: Mapping[str, Any]) -> Response:
    if_match = call.headers.get("if-match")
    _require_forwarding(call, values)
    if if_match is None:
        status, info = HTTPStatus.CREATED, _create(call, table, values)
        call.audit(AuditAction.ENTITY_CREATED, entity=str(address_of(call)), kind=KIND_OF[type(info.description)].value)
        call.audit_keys((), keys_of(info.description), str(address_of(call)))
    else:
        status, info = HTTPStatus.OK, _update(call, table, values, if_match)
    answer = _answer(call, info, status)
    await call.host.durable()
    return answer


def _create(call: HttpCall, table: Table, values: Mapping[str, Any]) -> EntityInfo:
    path = address_of(call)
    description = description_of(table, values, call.host.limits, str(path))
    match description:
        case QueueDescription():
            return call.namespace.create_queue(call.names["entity"], description, call.now_ms)
        case TopicDescription():
            return call.namespace.create_topic(call.names["entity"], description, call.now_ms)
        case SubscriptionDescription():
            rule = rule_of(values["default_rule"]) if "default_rule" in values else None
            topic, name = call.names["topic"], call.names["subscription"]
            return call.namespace.create_subscription(topic, name, description, call.now_ms, rule)


def _update(call: HttpCall, table: Table, values: Mapping[str, Any], if_match: str) -> EntityInfo:
    address = address_of(call)
    before = call.namespace.entity(address, call.now_ms)
    check_match(if_match, _etag(call, before), str(address))
    description = description_of(table, values, call.host.limits, str(address), before.description)
    after = call.namespace.update(address, description, call.now_ms)
    changed = changed_settings(before.description, after.description)
    call.audit(AuditAction.ENTITY_UPDATED, entity=str(address), changed=changed)
    call.audit_keys(keys_of(before.description), keys_of(after.description), str(address))
    return after


def _require_forwarding(call: HttpCall, values: Mapping[str, Any]) -> None:
    for name, header in FORWARDING.items():
        target = path_of_target(values.get(name, ""))
        if target is not None:
            call.require_forwarding(target, header)


def address_of(call: HttpCall) -> Address:
    subscription = call.names.get("subscription")
    return Address.of(call.names["entity" if subscription is None else "topic"], subscription)


# Lists


Find = Callable[[int, int], Sequence[EntityInfo]]
"""Returns entities, given the number to skip and the number to return."""


async def list_queues(call: HttpCall) -> Response:
    return _list(call, "Queues", "$Resources/Queues", partial(call.namespace.queues, call.now_ms))


async def list_topics(call: HttpCall) -> Response:
    return _list(call, "Topics", "$Resources/Topics", partial(call.namespace.topics, call.now_ms))


async def list_subscriptions(call: HttpCall) -> Response:
    topic = topic_path(call)
    found = partial(call.namespace.subscriptions, topic, call.now_ms)
    return _list(call, "Subscriptions", f"{topic}/Subscriptions", found, f"{topic}/Subscriptions/")


def topic_path(call: HttpCall) -> str:
    """Return the topic's name as it was created."""
    return call.namespace.entity(Address.of(call.names["topic"]), call.now_ms).path


def _list(call: HttpCall, title: str, path: str, found: Find, parent: str = "") -> Response:
    page = page_of(found, call.query)
    return feed_answer(
        AtomFeed(
            title=title,
            id=call.id_of(path),
            link=call.link_to(path),
            next_link=call.link_to(path, skip=page.skip + page.top, top=page.top) if page.has_more else None,
            updated_ms=call.now_ms,
            entries=[_entry(call, info, f"{parent}{info.path}") for info in page.items],
        )
    )


# Entries


def _answer(call: HttpCall, info: EntityInfo, status: int = HTTPStatus.OK) -> Response:
    is_subscription = isinstance(info.description, SubscriptionDescription)
    path = f"{topic_path(call)}/Subscriptions/{info.path}" if is_subscription else info.path
    return entry_answer(_entry(call, info, path), _etag(call, info), status)


def _entry(call: HttpCall, info: EntityInfo, path: str) -> AtomEntry:
    settings = settings_of(info.description, call.host.limits)
    return AtomEntry(
        table=_table(info.description),
        values={**settings, **_absolute(call, settings), **state_of(info, call.api_version)},
        title=info.path,
        id=call.id_of(path),
        link=call.link_to(path),
        author=call.host.name,
        published_ms=info.created_ms,
        updated_ms=info.updated_ms,
    )


def _absolute(call: HttpCall, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the forwarding targets as the service names them."""
    return {name: call.address_of(settings[name]) for name in FORWARDING if settings.get(name) is not None}


def _table(description: EntityDescription) -> Table:
    return TABLES[type(description)]


def _etag(call: HttpCall, info: EntityInfo) -> str:
    return etag_of(settings_of(info.description, call.host.limits), info.updated_ms)
