"""The page of an entity: its counts, messages, settings, and the actions on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlencode

from pairbus.broker import EntityInfo, QueuePart, TopicDescription
from pairbus.console.actions import destination_of
from pairbus.console.counts import EntityCount
from pairbus.console.entities_page import count_values
from pairbus.console.formatting import date_time, duration, number, rate, size
from pairbus.console.http import ConsoleEntity, ConsolePage, RequestContext, entity_at, entity_of
from pairbus.console.message_page import BodyView, ShownMessage, body_text, show
from pairbus.dialect.atom.rules import action_text, filter_text
from pairbus.entity_settings import ENTITY_SETTINGS, SettingType
from pairbus.server.http.descriptions import rule_values, settings_of

_PAGE_SIZE: Final = 25
_PEEKED_BYTES: Final = 4 * 1024 * 1024
_PREVIEW: Final = 80
_MAX_SUBSCRIPTIONS: Final = 100
_MAX_RULES: Final = 100

_PARTS: Final = {
    QueuePart.MAIN: ("Messages", "tab:messages"),
    QueuePart.DEAD_LETTER: ("Dead letters", "tab:dead"),
    QueuePart.TRANSFER_DEAD_LETTER: ("Failed transfers", "tab:transfer"),
}
_TOPIC_CARDS: Final = {"scheduled": "Scheduled", "in": "In per second", "size": "Size"}
_CARDS: Final = {
    "active": "Active",
    "locked": "of which locked",
    "deferred": "of which deferred",
    "scheduled": "Scheduled",
    "dead": "Dead letters",
    "in": "In per second",
    "out": "Out per second",
    "size": "Size",
}
_FILTERS: Final = {"TrueFilter": "true", "FalseFilter": "false", "SqlFilter": "SQL", "CorrelationFilter": "correlation"}


def entity_page(context: RequestContext) -> ConsolePage:
    """Return the page of the entity that the query names; raise ``BrokerError`` or ``BadRequestError``."""
    entity = entity_of(context.query)
    info = context.host.use_namespace().entity(entity.main_address, context.host.now_ms())
    is_topic = isinstance(info.description, TopicDescription)
    is_dead_letters = entity.part is not QueuePart.MAIN
    messages, following = _peek(context, entity)
    return ConsolePage(
        template="entity.html",
        title=entity.path,
        section="entities",
        events=entity.link("events", page="entity"),
        live=live_values(context),
        values={
            "path": entity.path,
            "fields": entity.fields,
            "status": info.description.status.value,
            "created": date_time(info.created_ms),
            "cards": _TOPIC_CARDS if is_topic else _CARDS,
            "subscriptions": _subscription_values(context, entity) if is_topic else None,
            "rules": None if entity.subscription is None else _rules(context, entity),
            "tabs": [] if is_topic else _tabs(entity),
            "heading": "Scheduled messages" if is_topic else _PARTS[entity.part][0],
            "is_dead_letters": is_dead_letters,
            "messages": [_message_row(entity, message) for message in messages],
            "first": entity.link() if context.number("from") else "",
            "next": "" if following is None else entity.link("entity", **{"from": following}),
            "has_actions": context.is_admin and not is_topic and bool(messages),
            "destination": str(destination_of(entity.address)),
            "is_subscription": entity.subscription is not None,
            "settings": _settings(context, info),
        },
    )


def live_values(context: RequestContext) -> dict[str, str]:
    """Return the current counts, and the rates of the last seconds."""
    entity = entity_of(context.query)
    info = context.host.use_namespace().entity(entity.main_address, context.host.now_ms())
    path = _known_path(context, entity)
    dead = info.dead_letter_count + info.transfer_dead_letter_count
    values = _subscription_counts(context, entity) if isinstance(info.description, TopicDescription) else {}
    return values | {
        "active": number(info.active_count),
        "locked": number(info.locked_count),
        "deferred": number(info.deferred_count),
        "scheduled": number(info.scheduled_count),
        "dead": number(dead),
        "in": rate(context.sampler.rates.arriving(path)),
        "out": rate(context.sampler.rates.leaving(path)),
        "size": size(info.size_bytes),
        "tab:messages": number(info.active_count + info.scheduled_count),
        "tab:dead": number(info.dead_letter_count),
        "tab:transfer": number(info.transfer_dead_letter_count),
        "summary": f"{number(info.active_count)} messages waiting in {entity.path}, {number(dead)} dead letters",
    }


def _known_path(context: RequestContext, entity: ConsoleEntity) -> str:
    """Return the path in the spelling with which the entity was created; names are not case-sensitive."""
    entities = context.sampler.reading.counts.entities
    if entity.path in entities:
        return entity.path
    return next((path for path, one in entities.items() if one.address == entity.main_address), entity.path)


def _peek(context: RequestContext, entity: ConsoleEntity) -> tuple[list[ShownMessage], int | None]:
    """Return the messages of a page, and the sequence number at which the next page starts."""
    found = context.host.use_namespace().peek(
        entity.address, context.number("from"), _PAGE_SIZE + 1, context.host.now_ms(), max_bytes=_PEEKED_BYTES
    )
    if len(found) > _PAGE_SIZE:
        following = found[_PAGE_SIZE].record.sequence
    elif found and sum(len(each.body) for each in found) * 2 > _PEEKED_BYTES:  # the size may have ended the page
        following = found[-1].record.sequence + 1
    else:
        following = None
    return [show(delivery) for delivery in found[:_PAGE_SIZE]], following


def _tabs(entity: ConsoleEntity) -> list[dict[str, Any]]:
    return [
        {"link": entity.with_part(part).link(), "label": label, "key": key, "is_current": part is entity.part}
        for part, (label, key) in _PARTS.items()
    ]


def _message_row(entity: ConsoleEntity, message: ShownMessage) -> dict[str, Any]:
    return {
        "message": message,
        "link": entity.link("message", sequence=message.sequence),
        "preview": body_text(message.body[: _PREVIEW * 4], BodyView.TEXT)[:_PREVIEW],
    }


# Subscriptions of a topic


def _subscriptions(context: RequestContext, topic: ConsoleEntity) -> list[EntityCount]:
    return [
        entity
        for entity in context.sampler.reading.counts.entities.values()
        if entity.kind == "subscription" and entity.address.entity == topic.address.entity
    ]


def _subscription_counts(context: RequestContext, topic: ConsoleEntity) -> dict[str, str]:
    found = _subscriptions(context, topic)
    values: dict[str, str] = {}
    for each in found[:_MAX_SUBSCRIPTIONS]:
        values |= count_values(each, context.sampler.rates)
    # The browser loads the rows again when this value changes.
    values["shape"] = str(hash((len(found), tuple((each.path, each.status) for each in found[:_MAX_SUBSCRIPTIONS]))))
    return values


def _subscription_values(context: RequestContext, topic: ConsoleEntity) -> dict[str, Any]:
    found = _subscriptions(context, topic)
    query = urlencode({"q": f"{topic.path}/Subscriptions/"}, errors="replace")
    return {
        "rows": [_subscription_row(each) for each in found[:_MAX_SUBSCRIPTIONS]],
        "count": number(len(found)),
        "all": f"/console?{query}" if len(found) > _MAX_SUBSCRIPTIONS else "",
    }


def _subscription_row(subscription: EntityCount) -> dict[str, Any]:
    entity = entity_at(subscription.path, subscription.address)
    return {
        "path": subscription.path,
        "link": entity.link(),
        "name": entity.subscription,
        "status": subscription.status,
    }


# Rules and settings


def _rules(context: RequestContext, entity: ConsoleEntity) -> dict[str, Any]:
    rules = context.host.use_namespace().rules(entity.entity, entity.subscription or "", context.host.now_ms())
    return {
        "rows": [_rule(rule_values(rule.description)) for rule in rules[:_MAX_RULES]],
        "more": number(len(rules) - _MAX_RULES) if len(rules) > _MAX_RULES else "",
    }


def _rule(values: dict[str, Any]) -> dict[str, str]:
    return {
        "name": values["name"],
        "kind": _FILTERS[values["filter"]["type"]],
        "filter": filter_text(values["filter"]),
        "action": action_text(values["action"]) or "none",
    }


def _yes_or_no(value: bool) -> str:
    return "yes" if value else "no"


def _text(value: str | None) -> str:
    return value or "not set"


_FORMATS: Final[Mapping[SettingType, Callable[[Any], str]]] = {
    SettingType.BOOLEAN: _yes_or_no,
    SettingType.INTEGER: number,
    SettingType.SIZE: number,
    SettingType.DURATION: duration,
    SettingType.LIFETIME: duration,
    SettingType.TEXT: _text,
    SettingType.ENTITY: _text,
    SettingType.STATUS: str,
}


def _settings(context: RequestContext, info: EntityInfo) -> list[tuple[str, str]]:
    """Return the label and the value of each setting. Keys of entities are not shown."""
    values = settings_of(info.description, context.host.limits)
    return [
        (setting.label, f"{_FORMATS[setting.type](values[setting.value_name])}{setting.unit}")
        for setting in ENTITY_SETTINGS
        if setting.value_name in values
    ]
