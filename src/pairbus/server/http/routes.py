"""The table of all routes: the pattern, the handler, and the right that each needs; and the handlers of operators."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from starlette.responses import JSONResponse, Response

from pairbus.broker import EntityNotFoundError, Right
from pairbus.dialect.atom import NAMESPACE, AtomEntry
from pairbus.fault_kinds import FaultKind, FaultRequest
from pairbus.server.errors import BadRequestError, FaultsNotAllowedError, NotSupportedError
from pairbus.server.fault_injection import inject_fault
from pairbus.server.faults import FAULTS_PATH, Fault, Faults
from pairbus.server.http.answers import entry_answer
from pairbus.server.http.call import MAX_BODY_BYTES, HttpCall
from pairbus.server.http.entities import (
    delete_entity,
    delete_key,
    delete_rule,
    get_entity,
    get_key,
    get_rule,
    list_keys,
    list_queues,
    list_rules,
    list_subscriptions,
    list_topics,
    put_entity,
    put_key,
    put_rule,
    put_subscription,
)
from pairbus.server.supervision.diagnostics import Diagnostics


async def list_faults(call: HttpCall) -> Response:
    return _answer(_faults(call).engaged(call.now_ms))


async def add_fault(call: HttpCall) -> Response:
    _faults(call)
    try:
        request = FaultRequest.of_document(json.loads(call.body))
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"the fault cannot be injected: {error}") from error
    fault = inject_fault(call.host, request, call.actor)
    if fault.kind is FaultKind.QUARANTINE:
        await call.host.durable()
    return JSONResponse(fault.document(), HTTPStatus.CREATED)


async def clear_faults(call: HttpCall) -> Response:
    return _answer(_faults(call).clear_all(call.now_ms, call.actor))


async def clear_fault(call: HttpCall) -> Response:
    faults, fault_id = _faults(call), call.names["fault"]
    if not (fault_id.isascii() and fault_id.isdecimal() and len(fault_id) <= 18):
        raise BadRequestError(f"the id of a fault must be a whole number, got {fault_id[:64]!r}")
    return _answer([faults.clear(int(fault_id), call.now_ms, call.actor)])


def _faults(call: HttpCall) -> Faults:
    if call.host.faults is None:
        raise FaultsNotAllowedError
    return call.host.faults


def _answer(faults: list[Fault]) -> Response:
    return JSONResponse({"faults": [fault.document() for fault in faults]})


PATH: Final = "$diagnostics"


async def collect_bundle(call: HttpCall) -> Response:
    """Collect a bundle now, keep it, and return it."""
    name, content = _diagnostics(call).collect()
    location = {"Location": f"/{PATH}/{name}"}
    return Response(content, HTTPStatus.CREATED, location, media_type="application/json")


async def list_bundles(call: HttpCall) -> Response:
    found = _diagnostics(call).kept
    return JSONResponse({"bundles": [{"name": info.name, "size_bytes": info.size_bytes} for info in found]})


async def get_bundle(call: HttpCall) -> Response:
    name = call.names["bundle"]
    content = await _diagnostics(call).read(name)
    if content is None:
        raise EntityNotFoundError(f"there is no bundle '{name}'", name)
    return Response(content, media_type="application/json")


def _diagnostics(call: HttpCall) -> Diagnostics:
    if call.diagnostics is None:
        raise NotSupportedError("this server keeps no diagnostic bundles")
    return call.diagnostics


async def get_namespace(call: HttpCall) -> Response:
    return entry_answer(
        AtomEntry(
            table=NAMESPACE,
            values={
                **_tier(call),
                "name": call.host.name,
                "type": "Messaging",
                "created_ms": call.created_ms,
                "updated_ms": call.created_ms,
            },
            title=call.host.name,
            id=call.id_of("$namespaceinfo"),
            link=call.link_to("$namespaceinfo"),
            author=call.host.name,
            updated_ms=call.created_ms,
        )
    )


def _tier(call: HttpCall) -> dict[str, Any]:
    """Return the tier: only the premium tier accepts large messages; it is sold in units."""
    if call.host.limits.large_message_bytes:
        return {"sku": "Premium", "messaging_units": 1}
    return {"sku": "Standard"}


Handler: TypeAlias = Callable[[HttpCall], Awaitable[Response]]

MAX_KEY_BYTES: Final = 16 * 1024
"""The largest description of a key."""

MAX_ENTITY_BYTES: Final = 256 * 1024
"""The largest description of a queue or topic: a dozen keys, and nothing else that is long."""

MAX_FAULT_BYTES: Final = 16 * 1024
"""The largest description of a fault."""

_WITH_BODY: Final = frozenset({"PUT", "POST"})

_MANY: Final = frozenset({"entity", "topic"})
"""Names that may contain slashes, and so match one segment or more; they come first in a pattern."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagementRoute:
    """A kind of request. Words of the pattern match in any case; ``{…}`` are variables for names."""

    operation: str
    method: str
    pattern: str
    right: Right | None
    """The right needed at the path of the request; ``None``: it is open to everyone."""

    handler: Handler
    example: str
    """A path that matches."""

    enclosing: str | None = None
    """The right to manage this entity also suffices: the keys of a topic grant access to all below it, existing or not.
    """

    max_body_bytes: int = 0
    """The largest body; 0 for a route that accepts none, and does not read one."""

    is_plain: bool = False
    """Only matches without ``api-version``, which every SDK sends: an entity may have the same name."""

    @property
    def is_change(self) -> bool:
        return self.method != "GET"

    def match(self, segments: Sequence[str]) -> dict[str, str] | None:
        """Return the names in a path, if it matches the pattern."""
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


async def _health(call: HttpCall) -> Response:
    return call.monitoring.health()


async def _metrics(call: HttpCall) -> Response:
    return call.monitoring.metrics(call.credentials)


def _managed(
    operation: str,
    method: str,
    pattern: str,
    handler: Handler,
    example: str,
    enclosing: str | None = None,
    *,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> ManagementRoute:
    return ManagementRoute(
        operation=operation,
        method=method,
        pattern=pattern,
        right=Right.MANAGE,
        handler=handler,
        example=example,
        enclosing=enclosing,
        max_body_bytes=max_body_bytes if method in _WITH_BODY else 0,
    )


def _open(operation: str, pattern: str, handler: Handler) -> ManagementRoute:
    return ManagementRoute(
        operation=operation, method="GET", pattern=pattern, right=None, handler=handler, example=pattern, is_plain=True
    )


_TOPIC: Final = "/{topic}"
_SUBSCRIPTION: Final = f"{_TOPIC}/Subscriptions/{{subscription}}"
_RULE: Final = f"{_SUBSCRIPTION}/Rules/{{rule}}"
_FAULT: Final = f"{FAULTS_PATH}/{{fault}}"

# The first match counts, so specific routes come before general ones.
ROUTES: Final[tuple[ManagementRoute, ...]] = (
    _open("health", "/health", _health),
    _open("metrics", "/metrics", _metrics),
    _managed("get-namespace", "GET", "/$namespaceinfo", get_namespace, "/$namespaceinfo"),
    _managed("collect-bundle", "POST", "/$diagnostics", collect_bundle, "/$diagnostics"),
    _managed("list-bundles", "GET", "/$diagnostics", list_bundles, "/$diagnostics"),
    _managed(
        "get-bundle", "GET", "/$diagnostics/{bundle}", get_bundle, "/$diagnostics/20261118T040122.123Z-dispatcher"
    ),
    _managed("list-queues", "GET", "/$Resources/Queues", list_queues, "/$Resources/Queues"),
    _managed("list-topics", "GET", "/$Resources/Topics", list_topics, "/$Resources/Topics"),
    _managed("list-keys", "GET", "/$AuthorizationRules", list_keys, "/$AuthorizationRules"),
    _managed("get-key", "GET", "/$AuthorizationRules/{key}", get_key, "/$AuthorizationRules/sender"),
    _managed(
        "put-key",
        "PUT",
        "/$AuthorizationRules/{key}",
        put_key,
        "/$AuthorizationRules/sender",
        max_body_bytes=MAX_KEY_BYTES,
    ),
    _managed("delete-key", "DELETE", "/$AuthorizationRules/{key}", delete_key, "/$AuthorizationRules/sender"),
    _managed("list-faults", "GET", FAULTS_PATH, list_faults, FAULTS_PATH),
    _managed("add-fault", "POST", FAULTS_PATH, add_fault, FAULTS_PATH, max_body_bytes=MAX_FAULT_BYTES),
    _managed("clear-faults", "DELETE", FAULTS_PATH, clear_faults, FAULTS_PATH),
    _managed("clear-fault", "DELETE", _FAULT, clear_fault, f"{FAULTS_PATH}/1"),
    _managed("get-rule", "GET", _RULE, get_rule, "/news/Subscriptions/all/Rules/$Default", _TOPIC),
    _managed("put-rule", "PUT", _RULE, put_rule, "/news/Subscriptions/all/Rules/red", _TOPIC),
    _managed("delete-rule", "DELETE", _RULE, delete_rule, "/news/Subscriptions/all/Rules/$Default", _TOPIC),
    _managed("list-rules", "GET", f"{_SUBSCRIPTION}/Rules", list_rules, "/news/Subscriptions/all/Rules", _TOPIC),
    _managed("get-subscription", "GET", _SUBSCRIPTION, get_entity, "/news/Subscriptions/all", _TOPIC),
    _managed("put-subscription", "PUT", _SUBSCRIPTION, put_subscription, "/news/Subscriptions/all", _TOPIC),
    _managed("delete-subscription", "DELETE", _SUBSCRIPTION, delete_entity, "/news/Subscriptions/all", _TOPIC),
    _managed("list-subscriptions", "GET", f"{_TOPIC}/Subscriptions", list_subscriptions, "/news/Subscriptions", _TOPIC),
    _managed("get-entity", "GET", "/{entity}", get_entity, "/orders"),
    _managed("put-entity", "PUT", "/{entity}", put_entity, "/orders", max_body_bytes=MAX_ENTITY_BYTES),
    _managed("delete-entity", "DELETE", "/{entity}", delete_entity, "/orders"),
)


@dataclass(frozen=True, slots=True)
class MatchedRoute:
    """A route with the names in a path."""

    route: ManagementRoute
    names: dict[str, str]


def segments_of(raw_path: str, method: str) -> list[str]:
    """Return the decoded segments of an encoded path. The slash at the end of a name is kept: it is no valid name."""
    segments = raw_path.removeprefix("/").split("/")
    if method != "PUT" and len(segments) > 1 and not segments[-1]:
        segments.pop()
    return [unquote(segment) for segment in segments]


def find(method: str, segments: Sequence[str], *, is_plain: bool) -> MatchedRoute | frozenset[str]:
    """Return the route of a request; or the methods that its path supports, if the method is none of them."""
    methods: set[str] = set()
    for route in ROUTES:
        if route.is_plain and not is_plain:
            continue
        names = route.match(segments)
        if names is not None:
            if route.method == method:
                return MatchedRoute(route, names)
            methods.add(route.method)
    return frozenset(methods)
