"""The keys to the whole namespace. Those of a queue or a topic are part of its description."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from starlette.responses import Response

from pairbus.broker import (
    AuthorizationRule,
    EntityExistsError,
    EntityNotFoundError,
    InvalidOperationError,
    Right,
)
from pairbus.dialect.atom import AUTHORIZATION_RULE, AtomEntry, AtomFeed
from pairbus.server.http.answers import among, check_match, empty_answer, entry_answer, etag_of, feed_answer, page_of
from pairbus.server.http.call import HttpCall
from pairbus.server.http.descriptions import key_of, key_values

PATH: Final = "$AuthorizationRules"


async def list_keys(call: HttpCall) -> Response:
    page = page_of(among(_rules(call)), call.query)
    return feed_answer(
        AtomFeed(
            title="Authorization Rules",
            id=call.id_of(PATH),
            link=call.link_to(PATH),
            next_link=call.link_to(PATH, skip=page.skip + page.top, top=page.top) if page.has_more else None,
            updated_ms=call.now_ms,
            entries=[_entry(call, rule) for rule in page.items],
        )
    )


async def get_key(call: HttpCall) -> Response:
    return _answer(call, _require(call))


async def put_key(call: HttpCall) -> Response:
    _, values = call.description(AUTHORIZATION_RULE)
    before, if_match = _find(call), call.headers.get("if-match")
    if if_match is None and before is not None:
        raise EntityExistsError(f"a key '{before.name}' already exists", before.name)
    if if_match is not None:
        before = _require(call)
        check_match(if_match, _etag(before), before.name)
    rule = key_of({**values, "name": call.names["key"] if before is None else before.name}, before)
    _set(call, [rule if known is before else known for known in _rules(call)] + [rule] * (before is None))
    await call.host.durable()
    return _answer(call, rule, HTTPStatus.CREATED if before is None else HTTPStatus.OK)


async def delete_key(call: HttpCall) -> Response:
    rule = _require(call)
    check_match(call.headers.get("if-match"), _etag(rule), rule.name)
    _set(call, [known for known in _rules(call) if known is not rule])
    await call.host.durable()
    return empty_answer()


def _rules(call: HttpCall) -> Sequence[AuthorizationRule]:
    return call.namespace.authorization_rules(call.now_ms)


def _find(call: HttpCall) -> AuthorizationRule | None:
    name = call.names["key"].lower()
    return next((rule for rule in _rules(call) if rule.name.lower() == name), None)


def _require(call: HttpCall) -> AuthorizationRule:
    rule = _find(call)
    if rule is None:
        raise EntityNotFoundError(f"there is no key '{call.names['key']}'", call.names["key"])
    return rule


def _set(call: HttpCall, rules: list[AuthorizationRule]) -> None:
    if not any(Right.MANAGE in rule.rights for rule in rules):
        # No client could ever add another one.
        raise InvalidOperationError("the namespace must keep a key with the right to manage it", PATH)
    before = [*_rules(call)]
    call.namespace.set_authorization_rules(rules, call.now_ms)
    call.audit_keys(before, rules)


def _answer(call: HttpCall, rule: AuthorizationRule, status: int = HTTPStatus.OK) -> Response:
    return entry_answer(_entry(call, rule), _etag(rule), status)


def _entry(call: HttpCall, rule: AuthorizationRule) -> AtomEntry:
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


def _etag(rule: AuthorizationRule) -> str:
    return etag_of(key_values(rule), 0)
