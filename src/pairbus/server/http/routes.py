"""Which request means what, and what its sender has to be allowed: one table for all of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import unquote

from starlette.responses import Response

from pairbus.broker import Right
from pairbus.server.http.call import Call
from pairbus.server.http.entities import (
    delete_entity,
    get_entity,
    list_queues,
    list_subscriptions,
    list_topics,
    put_entity,
    put_subscription,
)
from pairbus.server.http.keys import delete_key, get_key, list_keys, put_key
from pairbus.server.http.namespace_info import get_namespace
from pairbus.server.http.rules import delete_rule, get_rule, list_rules, put_rule

Handler: TypeAlias = Callable[[Call], Awaitable[Response]]

_MANY: Final = frozenset({"entity", "topic"})
"""Names that may have slashes, and so take one segment or more; they come first in a pattern."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A kind of request. Words of the pattern match in any case; ``{…}`` stand for names."""

    operation: str
    method: str
    pattern: str
    right: Right | None
    """What is needed at the path of the request; ``None``: it is open to everyone."""

    handler: Handler
    example: str
    """A path that leads here."""

    enclosing: str | None = None
    """Who may manage this entity may do it too: the keys of a topic open all that is below it, there or not."""

    is_plain: bool = False
    """Only without ``api-version``, which every SDK gives: an entity may have the same name."""

    def match(self, segments: Sequence[str]) -> dict[str, str] | None:
        """The names in a path, if it is of this pattern."""
        words = self.pattern.split("/")[1:]
        names: dict[str, str] = {}
        first = words[0].strip("{}")
        if words[0] != first and first in _MANY:
            taken = len(segments) - len(words) + 1
            if taken < 1:
                return None
            names[first] = "/".join(segments[:taken])
            words, segments = words[1:], segments[taken:]
        if len(words) != len(segments):
            return None
        for word, segment in zip(words, segments, strict=True):
            if word.startswith("{"):
                names[word.strip("{}")] = segment
            elif word.lower() != segment.lower():
                return None
        return names


async def _health(call: Call) -> Response:
    return call.monitoring.health()


async def _metrics(call: Call) -> Response:
    return call.monitoring.metrics(call.credentials)


def _managed(
    operation: str, method: str, pattern: str, handler: Handler, example: str, enclosing: str | None = None
) -> Route:
    return Route(
        operation=operation,
        method=method,
        pattern=pattern,
        right=Right.MANAGE,
        handler=handler,
        example=example,
        enclosing=enclosing,
    )


def _open(operation: str, pattern: str, handler: Handler) -> Route:
    return Route(
        operation=operation, method="GET", pattern=pattern, right=None, handler=handler, example=pattern, is_plain=True
    )


_TOPIC: Final = "/{topic}"
_SUBSCRIPTION: Final = f"{_TOPIC}/Subscriptions/{{subscription}}"
_RULE: Final = f"{_SUBSCRIPTION}/Rules/{{rule}}"

# The first that matches counts, so what is special comes before what is general.
ROUTES: Final[tuple[Route, ...]] = (
    _open("health", "/health", _health),
    _open("metrics", "/metrics", _metrics),
    _managed("get-namespace", "GET", "/$namespaceinfo", get_namespace, "/$namespaceinfo"),
    _managed("list-queues", "GET", "/$Resources/Queues", list_queues, "/$Resources/Queues"),
    _managed("list-topics", "GET", "/$Resources/Topics", list_topics, "/$Resources/Topics"),
    _managed("list-keys", "GET", "/$AuthorizationRules", list_keys, "/$AuthorizationRules"),
    _managed("get-key", "GET", "/$AuthorizationRules/{key}", get_key, "/$AuthorizationRules/sender"),
    _managed("put-key", "PUT", "/$AuthorizationRules/{key}", put_key, "/$AuthorizationRules/sender"),
    _managed("delete-key", "DELETE", "/$AuthorizationRules/{key}", delete_key, "/$AuthorizationRules/sender"),
    _managed("get-rule", "GET", _RULE, get_rule, "/news/Subscriptions/all/Rules/$Default", _TOPIC),
    _managed("put-rule", "PUT", _RULE, put_rule, "/news/Subscriptions/all/Rules/red", _TOPIC),
    _managed("delete-rule", "DELETE", _RULE, delete_rule, "/news/Subscriptions/all/Rules/$Default", _TOPIC),
    _managed("list-rules", "GET", f"{_SUBSCRIPTION}/Rules", list_rules, "/news/Subscriptions/all/Rules", _TOPIC),
    _managed("get-subscription", "GET", _SUBSCRIPTION, get_entity, "/news/Subscriptions/all", _TOPIC),
    _managed("put-subscription", "PUT", _SUBSCRIPTION, put_subscription, "/news/Subscriptions/all", _TOPIC),
    _managed("delete-subscription", "DELETE", _SUBSCRIPTION, delete_entity, "/news/Subscriptions/all", _TOPIC),
    _managed("list-subscriptions", "GET", f"{_TOPIC}/Subscriptions", list_subscriptions, "/news/Subscriptions", _TOPIC),
    _managed("get-entity", "GET", "/{entity}", get_entity, "/orders"),
    _managed("put-entity", "PUT", "/{entity}", put_entity, "/orders"),
    _managed("delete-entity", "DELETE", "/{entity}", delete_entity, "/orders"),
)


@dataclass(frozen=True, slots=True)
class Found:
    """A route with the names that a path gives."""

    route: Route
    names: dict[str, str]


def segments_of(raw_path: str, method: str) -> list[str]:
    """The decoded segments of an encoded path. A name that ends with a slash is kept so: it is no name to give."""
    segments = raw_path.removeprefix("/").split("/")
    if method != "PUT" and len(segments) > 1 and not segments[-1]:
        segments.pop()
    return [unquote(segment) for segment in segments]


def find(method: str, segments: Sequence[str], *, is_plain: bool) -> Found | frozenset[str]:
    """The route of a request; or the methods that its path has, if the method is none of them."""
    methods: set[str] = set()
    for route in ROUTES:
        if route.is_plain and not is_plain:
            continue
        names = route.match(segments)
        if names is not None:
            if route.method == method:
                return Found(route, names)
            methods.add(route.method)
    return frozenset(methods)
