"""The rules of subscriptions."""

from __future__ import annotations

from http import HTTPStatus

from starlette.responses import Response

from pairbus.broker import EntityNotFoundError, Rule
from pairbus.dialect.atom import RULE, AtomEntry, AtomFeed
from pairbus.server.audit import AuditAction
from pairbus.server.http.answers import among, check_match, empty_answer, entry_answer, etag_of, feed_answer, page_of
from pairbus.server.http.call import HttpCall
from pairbus.server.http.descriptions import rule_of, rule_values
from pairbus.server.http.entities import address_of, topic_path


async def get_rule(call: HttpCall) -> Response:
    return _answer(call, _find(call))


async def put_rule(call: HttpCall) -> Response:
    _, values = call.description(RULE)
    description = rule_of(values, call.names["rule"])
    if_match = call.headers.get("if-match")
    topic, subscription = call.names["topic"], call.names["subscription"]
    if if_match is None:
        status, rule = HTTPStatus.CREATED, call.namespace.add_rule(topic, subscription, description, call.now_ms)
    else:
        check_match(if_match, _etag(_find(call)), description.name)
        status, rule = HTTPStatus.OK, call.namespace.update_rule(topic, subscription, description, call.now_ms)
    action = AuditAction.RULE_CREATED if if_match is None else AuditAction.RULE_UPDATED
    call.audit(action, entity=str(address_of(call)), rule=description.name)
    answer = _answer(call, rule, status)
    await call.host.durable()
    return answer


async def delete_rule(call: HttpCall) -> Response:
    if_match = call.headers.get("if-match")
    if if_match is not None:
        check_match(if_match, _etag(_find(call)), call.names["rule"])
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
            entries=[_entry(call, rule, f"{path}/{rule.description.name}") for rule in page.items],
        )
    )


def _rules(call: HttpCall) -> list[Rule]:
    return call.namespace.rules(call.names["topic"], call.names["subscription"], call.now_ms)


def _find(call: HttpCall) -> Rule:
    name = call.names["rule"]
    for rule in _rules(call):
        if rule.description.name.lower() == name.lower():
            return rule
    raise EntityNotFoundError(f"there is no rule '{name}'", f"{address_of(call)}/{name}")


def _subscription_path(call: HttpCall) -> str:
    info = call.namespace.entity(address_of(call), call.now_ms)
    return f"{topic_path(call)}/Subscriptions/{info.path}"


def _answer(call: HttpCall, rule: Rule, status: int = HTTPStatus.OK) -> Response:
    path = f"{_subscription_path(call)}/Rules/{rule.description.name}"
    return entry_answer(_entry(call, rule, path), _etag(rule), status)


def _entry(call: HttpCall, rule: Rule, path: str) -> AtomEntry:
    return AtomEntry(
        table=RULE,
        values={**rule_values(rule.description), "created_ms": rule.created_ms},
        title=rule.description.name,
        id=call.id_of(path),
        link=call.link_to(path),
        published_ms=rule.created_ms,
        updated_ms=rule.created_ms,
    )


def _etag(rule: Rule) -> str:
    return etag_of(rule_values(rule.description), rule.created_ms)
