"""The settings of an entity, and the rules of a subscription."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pairbus.broker import EntityInfo
from pairbus.console.markup import Markup, fill, join, render
from pairbus.console.place import Place
from pairbus.console.visit import Visit
from pairbus.console.wording import length, number
from pairbus.dialect.atom.rule_text import action_text, filter_text
from pairbus.server.http.descriptions import settings_of
from pairbus.server.http.rule_descriptions import rule_values

_MOST_RULES: Final = 100


def _switch(value: bool) -> str:
    return "yes" if value else "no"


def _text(value: str | None) -> str:
    return value or "not set"


def _count(unit: str = "") -> Callable[[int], str]:
    return lambda value: f"{number(value)}{unit}"


SETTINGS: Final[dict[str, tuple[str, Callable[[Any], str]]]] = {
    "status": ("Status", str),
    "lock_duration_ms": ("Lock duration", length),
    "max_delivery_count": ("Max delivery count", _count()),
    "default_time_to_live_ms": ("Default time to live", length),
    "dead_letter_on_expiration": ("Dead-letter expired messages", _switch),
    "dead_letter_on_filter_errors": ("Dead-letter on filter errors", _switch),
    "requires_session": ("Requires sessions", _switch),
    "requires_duplicate_detection": ("Detects duplicates", _switch),
    "duplicate_window_ms": ("Duplicate detection window", length),
    "max_size_megabytes": ("Max size", _count(" MB")),
    "max_message_kilobytes": ("Max message size", _count(" KB")),
    "partitioned": ("Partitioned", _switch),
    "express": ("Express", _switch),
    "forward_to": ("Forward to", _text),
    "forward_dead_letters_to": ("Forward dead letters to", _text),
    "auto_delete_on_idle_ms": ("Auto-delete on idle", length),
    "batched_operations": ("Batched operations", _switch),
    "support_ordering": ("Supports ordering", _switch),
    "user_metadata": ("User metadata", _text),
}
"""The label of each setting, and how its value is written. Keys of entities are not shown."""


def settings_list(visit: Visit, info: EntityInfo) -> Markup:
    values = settings_of(info.description, visit.host.limits)
    return join(
        fill("<div><dt>$label</dt><dd>$value</dd></div>", label=label, value=write(values[name]))
        for name, (label, write) in SETTINGS.items()
        if name in values
    )


def rules_table(visit: Visit, place: Place) -> Markup:
    """Return the rules of a subscription; nothing for other entities."""
    if place.subscription is None:
        return Markup()
    rules = visit.host.namespace.rules(place.entity, place.subscription, visit.host.now_ms())
    rows = [_rule(rule_values(rule.description)) for rule in rules[:_MOST_RULES]]
    return render("rules", path=place.path, rows=join([*rows, _rest(len(rules))]))


def _rule(values: dict[str, Any]) -> Markup:
    return fill(
        '<tr><th scope="row">$name</th><td data-label="Kind">$kind</td>'
        '<td class="code" data-label="Filter">$filter</td><td class="code" data-label="Action">$action</td></tr>',
        name=values["name"],
        kind=_KINDS[values["filter"]["type"]],
        filter=filter_text(values["filter"]),
        action=action_text(values["action"]) or "none",
    )


_KINDS: Final = {"TrueFilter": "true", "FalseFilter": "false", "SqlFilter": "SQL", "CorrelationFilter": "correlation"}


def _rest(count: int) -> Markup:
    if not count:
        return Markup('<tr><td colspan="4">There are none: this subscription gets no messages.</td></tr>')
    if count <= _MOST_RULES:
        return Markup()
    return fill('<tr><td colspan="4">$count more, not shown.</td></tr>', count=number(count - _MOST_RULES))
