"""Queues, topics and subscriptions, their rules, and the keys to the whole namespace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from starlette.responses import Response

from pairbus.broker import (
    Address,
    AuthorizationRule,
    EntityDescription,
    EntityExistsError,
    EntityInfo,
    EntityNotFoundError,
    InvalidOperationError,
    QueueDescription,
    Right,
    Rule,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.broker.descriptions import KIND_OF
from pairbus.dialect.atom import AUTHORIZATION_RULE, QUEUE, RULE, SUBSCRIPTION, TOPIC, AtomEntry, AtomFeed, Table
from pairbus.entity_settings import FORWARDING
from pairbus.server.audit import AuditAction, changed_settings, keys_of
from pairbus.server.http.answers import among, check_match, empty_answer, entry_answer, etag_of, feed_answer, page_of
from pairbus.server.http.call import HttpCall
from pairbus.server.http.descriptions import (
    TABLES,
    description_of,
    key_of,
    key_values,
    path_of_target,
    rule_of,
    rule_values,
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


async def get_rule(call: HttpCall) -> Response:
    return _rule_answer(call, _find_rule(call))


async def put_rule(call: HttpCall) -> Response:
    _, values = call.description(RULE)
    description = rule_of(values, call.names["rule"])
    if_match = call.headers.get("if-match")
    topic, subscription = call.names["topic"], call.names["subscription"]
    if if_match is None:
        status, rule = HTTPStatus.CREATED, call.namespace.add_rule(topic, subscription, description, call.now_ms)
    else:
        check_match(if_match, _rule_etag(_find_rule(call)), description.name)
        status, rule = HTTPStatus.OK, call.namespace.update_rule(topic, subscription, description, call.now_ms)
    action = AuditAction.RULE_CREATED if if_match is None else AuditAction.RULE_UPDATED
    call.audit(action, entity=str(address_of(call)), rule=description.name)
    answer = _rule_answer(call, rule, status)
    await call.host.durable()
    return answer


async def delete_rule(call: HttpCall) -> Response:
    if_match = call.headers.get("if-match")
    if if_match is not None:
        check_match(if_match, _rule_etag(_find_rule(call)), call.names["rule"])
    call.namespace.remove_rule(call.names["topic"], call.names["subscription"], call.names["rule"], call.now_ms)
    call.audit(AuditAction.RULE_DELETED, entity=str(address_of(call)), rule=call.names["rule"])
    await call.host.durable()
    return empty_answer()


async def list_rules(call: HttpCall) -> Response:
    path = f"{_subscription_path(call)}/Rules"
    page = page_of(among(_rules(call)), call.query)
    return feed_answer(
        AtomFeed(
            title="Rules",
            id=call.id_of(path),
            link=call.link_to(path),
            next_link=call.link_to(path, skip=page.skip + page.top, top=page.top) if page.has_more else None,
            updated_ms=call.now_ms,
            entries=[_rule_entry(call, rule, f"{path}/{rule.description.name}") for rule in page.items],
        )
    )


def _rules(call: HttpCall) -> list[Rule]:
    return call.namespace.rules(call.names["topic"], call.names["subscription"], call.now_ms)


def _find_rule(call: HttpCall) -> Rule:
    name = call.names["rule"]
    for rule in _rules(call):
        if rule.description.name.lower() == name.lower():
            return rule
    raise EntityNotFoundError(f"there is no rule '{name}'", f"{address_of(call)}/{name}")


def _subscription_path(call: HttpCall) -> str:
    info = call.namespace.entity(address_of(call), call.now_ms)
    return f"{topic_path(call)}/Subscriptions/{info.path}"


def _rule_answer(call: HttpCall, rule: Rule, status: int = HTTPStatus.OK) -> Response:
    path = f"{_subscription_path(call)}/Rules/{rule.description.name}"
    return entry_answer(_rule_entry(call, rule, path), _rule_etag(rule), status)


def _rule_entry(call: HttpCall, rule: Rule, path: str) -> AtomEntry:
    return AtomEntry(
        table=RULE,
        values={**rule_values(rule.description), "created_ms": rule.created_ms},
        title=rule.description.name,
        id=call.id_of(path),
        link=call.link_to(path),
        published_ms=rule.created_ms,
        updated_ms=rule.created_ms,
    )


def _rule_etag(rule: Rule) -> str:
    return etag_of(rule_values(rule.description), rule.created_ms)


PATH: Final = "$AuthorizationRules"


async def list_keys(call: HttpCall) -> Response:
    page = page_of(among(_namespace_keys(call)), call.query)
    return feed_answer(
        AtomFeed(
            title="Authorization Rules",
            id=call.id_of(PATH),
            link=call.link_to(PATH),
            next_link=call.link_to(PATH, skip=page.skip + page.top, top=page.top) if page.has_more else None,
            updated_ms=call.now_ms,
            entries=[_key_entry(call, rule) for rule in page.items],
        )
    )


async def get_key(call: HttpCall) -> Response:
    return _key_answer(call, _require(call))


async def put_key(call: HttpCall) -> Response:
    _, values = call.description(AUTHORIZATION_RULE)
    before, if_match = _find_key(call), call.headers.get("if-match")
    if if_match is None and before is not None:
        raise EntityExistsError(f"a key '{before.name}' already exists", before.name)
    if if_match is not None:
        before = _require(call)
        check_match(if_match, _key_etag(before), before.name)
    rule = key_of({**values, "name": call.names["key"] if before is None else before.name}, before)
    _set(call, [rule if known is before else known for known in _namespace_keys(call)] + [rule] * (before is None))
    await call.host.durable()
    return _key_answer(call, rule, HTTPStatus.CREATED if before is None else HTTPStatus.OK)


async def delete_key(call: HttpCall) -> Response:
    rule = _require(call)
    check_match(call.headers.get("if-match"), _key_etag(rule), rule.name)
    _set(call, [known for known in _namespace_keys(call) if known is not rule])
    await call.host.durable()
    return empty_answer()


def _namespace_keys(call: HttpCall) -> Sequence[AuthorizationRule]:
    return call.namespace.authorization_rules(call.now_ms)


def _find_key(call: HttpCall) -> AuthorizationRule | None:
    name = call.names["key"].lower()
    return next((rule for rule in _namespace_keys(call) if rule.name.lower() == name), None)


def _require(call: HttpCall) -> AuthorizationRule:
    rule = _find_key(call)
    if rule is None:
        raise EntityNotFoundError(f"there is no key '{call.names['key']}'", call.names["key"])
    return rule


def _set(call: HttpCall, rules: list[AuthorizationRule]) -> None:
    if not any(Right.MANAGE in rule.rights for rule in rules):
        # No client could ever add another one.
        raise InvalidOperationError("the namespace must keep a key with the right to manage it", PATH)
    before = [*_namespace_keys(call)]
    call.namespace.set_authorization_rules(rules, call.now_ms)
    call.audit_keys(before, rules)


def _key_answer(call: HttpCall, rule: AuthorizationRule, status: int = HTTPStatus.OK) -> Response:
    return entry_answer(_key_entry(call, rule), _key_etag(rule), status)


def _key_entry(call: HttpCall, rule: AuthorizationRule) -> AtomEntry:
    path = f"{PATH}/{rule.name}"
    return AtomEntry(
        table=AUTHORIZATION_RULE,
        values=key_values(rule),
        title=rule.name,
        id=call.id_of(path),
        link=call.link_to(path),
        author=call.host.name,
        updated_ms=call.now_ms,
    )


def _key_etag(rule: AuthorizationRule) -> str:
    return etag_of(key_values(rule), 0)
