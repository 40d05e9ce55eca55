"""Queues, topics and subscriptions: made, changed, read, listed, deleted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from starlette.responses import Response

from pairbus.broker import (
    Address,
    EntityDescription,
    EntityInfo,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.dialect.atom import QUEUE, SUBSCRIPTION, TOPIC, Entry, Feed, Table
from pairbus.server.http.answers import empty_answer, entry_answer, feed_answer
from pairbus.server.http.call import Call
from pairbus.server.http.descriptions import (
    FORWARDING,
    TABLES,
    description_of,
    path_of_target,
    settings_of,
    state_of,
)
from pairbus.server.http.etag import check_match, etag_of
from pairbus.server.http.paging import page_of
from pairbus.server.http.rule_descriptions import rule_of

SUPPLEMENTS: Final = {
    "forward_to": "ServiceBusSupplementaryAuthorization",
    "forward_dead_letters_to": "ServiceBusDlqSupplementaryAuthorization",
}
"""Where the token is that opens the entity to forward to."""


# One entity. Its address is made of the names in the path, which tell a subscription from a queue or a topic.


async def get_entity(call: Call) -> Response:
    return _answer(call, call.namespace.entity(address_of(call), call.now_ms))


async def delete_entity(call: Call) -> Response:
    address = address_of(call)
    if_match = call.headers.get("if-match")
    if if_match is not None:
        check_match(if_match, _etag(call, call.namespace.entity(address, call.now_ms)), str(address))
    call.namespace.delete(address, call.now_ms)
    await call.host.durable()
    return empty_answer()


async def put_entity(call: Call) -> Response:
    return await _put(call, *call.description(QUEUE, TOPIC))


async def put_subscription(call: Call) -> Response:
    return await _put(call, *call.description(SUBSCRIPTION))


async def _put(call: Call, table: Table, values: Mapping[str, Any]) -> Response:
    if_match = call.headers.get("if-match")
    _require_forwarding(call, values)
    if if_match is None:
        status, info = HTTPStatus.CREATED, _create(call, table, values)
    else:
        status, info = HTTPStatus.OK, _update(call, table, values, if_match)
    answer = _answer(call, info, status)
    await call.host.durable()
    return answer


def _create(call: Call, table: Table, values: Mapping[str, Any]) -> EntityInfo:
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


def _update(call: Call, table: Table, values: Mapping[str, Any], if_match: str) -> EntityInfo:
    address = address_of(call)
    before = call.namespace.entity(address, call.now_ms)
    check_match(if_match, _etag(call, before), str(address))
    description = description_of(table, values, call.host.limits, str(address), before.description)
    return call.namespace.update(address, description, call.now_ms)


def _require_forwarding(call: Call, values: Mapping[str, Any]) -> None:
    for name, header in SUPPLEMENTS.items():
        target = path_of_target(values.get(name, ""))
        if target is not None:
            call.require_forwarding(target, header)


def address_of(call: Call) -> Address:
    subscription = call.names.get("subscription")
    return Address.of(call.names["entity" if subscription is None else "topic"], subscription)


# Lists


Find = Callable[[int, int], Sequence[EntityInfo]]
"""So many entities, after the first few: told how many to skip, and how many to give."""


async def list_queues(call: Call) -> Response:
    return _list(call, "Queues", "$Resources/Queues", partial(call.namespace.queues, call.now_ms))


async def list_topics(call: Call) -> Response:
    return _list(call, "Topics", "$Resources/Topics", partial(call.namespace.topics, call.now_ms))


async def list_subscriptions(call: Call) -> Response:
    topic = topic_path(call)
    found = partial(call.namespace.subscriptions, topic, call.now_ms)
    return _list(call, "Subscriptions", f"{topic}/Subscriptions", found, f"{topic}/Subscriptions/")


def topic_path(call: Call) -> str:
    """The topic as it was named when it was made."""
    return call.namespace.entity(Address.of(call.names["topic"]), call.now_ms).path


def _list(call: Call, title: str, path: str, found: Find, parent: str = "") -> Response:
    page = page_of(found, call.query)
    return feed_answer(
        Feed(
            title=title,
            id=call.id_of(path),
            link=call.link_to(path),
            next_link=call.link_to(path, skip=page.skip + page.top, top=page.top) if page.has_more else None,
            updated_ms=call.now_ms,
            entries=[_entry(call, info, f"{parent}{info.path}") for info in page.items],
        )
    )


# Entries


def _answer(call: Call, info: EntityInfo, status: int = HTTPStatus.OK) -> Response:
    is_subscription = isinstance(info.description, SubscriptionDescription)
    path = f"{topic_path(call)}/Subscriptions/{info.path}" if is_subscription else info.path
    return entry_answer(_entry(call, info, path), _etag(call, info), status)


def _entry(call: Call, info: EntityInfo, path: str) -> Entry:
    settings = settings_of(info.description, call.host.limits)
    return Entry(
        table=_table(info.description),
        values={**settings, **_absolute(call, settings), **state_of(info, call.api_version)},
        title=info.path,
        id=call.id_of(path),
        link=call.link_to(path),
        author=call.host.name,
        published_ms=info.created_ms,
        updated_ms=info.updated_ms,
    )


def _absolute(call: Call, settings: Mapping[str, Any]) -> dict[str, str]:
    """The entities to forward to, as the service names them."""
    return {name: call.address_of(settings[name]) for name in FORWARDING if settings.get(name) is not None}


def _table(description: EntityDescription) -> Table:
    return TABLES[type(description)]


def _etag(call: Call, info: EntityInfo) -> str:
    return etag_of(settings_of(info.description, call.host.limits), info.updated_ms)
