"""The entities of a namespace with their message counts, as a table or as JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final, TypeAlias

from rich.console import Console
from rich.table import Table

from pairbus.cli.arguments import duration_text
from pairbus.cli.entity_settings import KINDS, SETTINGS
from pairbus.client.amqp_json import moment_text
from pairbus.client.management.atom import RULE_CODEC, EntityDescription
from pairbus.client.management.descriptions import (
    QueueRuntimeInfo,
    SubscriptionDescription,
    SubscriptionRuntimeInfo,
    TopicRuntimeInfo,
)
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.client.management.rules import RuleDescription
from pairbus.dialect.atom.rules import action_text, filter_text, plain_part
from pairbus.pairing.backlog import in_groups

RuntimeInfo: TypeAlias = QueueRuntimeInfo | TopicRuntimeInfo | SubscriptionRuntimeInfo

_HEAD: Final = ("entity", "kind", "status", "active", "dead letters", "scheduled", "transfer", "bytes")
_NUMBERS: Final = 3
"""The index of the first numeric column."""

_LEAST: Final = 5
"""The number of columns shown even in a narrow terminal."""

_ENDLESS: Final = 10_000
_OPTIONS: Final = {setting.field: option for option, setting in SETTINGS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedEntity:
    """A queue, a topic or a subscription with its current counts."""

    path: str
    description: EntityDescription
    info: RuntimeInfo
    rules: tuple[RuleDescription, ...] | None = None
    """The rules of a subscription, if they were read."""

    @property
    def kind(self) -> str:
        return KINDS[type(self.description)]

    def document(self) -> dict[str, Any]:
        """Return all settings and counts, for JSON. Access keys are omitted, because output is often shared."""
        known = {"path": self.path, "kind": self.kind, **_plain(self.description), **_plain(self.info)}
        rules = {} if self.rules is None else {"rules": [_plain_rule(rule) for rule in self.rules]}
        return known | {"path": self.path} | rules

    def row(self) -> tuple[str, ...]:
        status = self.description.status
        counts = (
            self.info.active_message_count,
            self.info.dead_letter_message_count,
            getattr(self.info, "scheduled_message_count", None),
            self.info.transfer_message_count,
            getattr(self.info, "size_in_bytes", None),
        )
        cells = ["" if count is None else str(count) for count in counts]
        return (self.path, self.kind, "" if status is None else status.value, *cells)


def _plain(value: Any) -> dict[str, Any]:
    """Return the fields that have a value, and all settings, ``None`` for unset ones."""
    return {
        name: value_text(one)
        for name, one in asdict(value).items()
        if (one is not None or name in _OPTIONS) and name not in {"authorization_rules", "name"}
    }


def _plain_rule(rule: RuleDescription) -> dict[str, Any]:
    return {
        "name": rule.name,
        "filter": plain_part(RULE_CODEC.filter_values(rule.filter)),
        "action": None if rule.action is None else plain_part(RULE_CODEC.action_values(rule.action)),
    }


def value_text(value: Any) -> Any:
    """Return a setting as the user types it."""
    match value:
        case timedelta():
            return duration_text(value)
        case datetime():
            return moment_text(value)
        case Enum():
            return value.value
    return value


# Listing.


async def all_entities(manager: NamespaceManager) -> list[ListedEntity]:
    """Return the queues, then each topic with its subscriptions."""
    queues, queue_infos, topics, topic_infos = await asyncio.gather(
        manager.get_queues(),
        manager.get_queues_runtime_info(),
        manager.get_topics(),
        manager.get_topics_runtime_info(),
    )

    async def of_topic(path: str) -> list[ListedEntity]:
        return await subscriptions(manager, path)

    below = await in_groups(of_topic, [topic.path for topic in topics])
    found = list(_together(queues, queue_infos))
    for topic, its_own in zip(_together(topics, topic_infos), below, strict=False):
        found += [topic, *its_own]
    return found


async def subscriptions(manager: NamespaceManager, topic: str) -> list[ListedEntity]:
    descriptions, infos = await asyncio.gather(
        manager.get_subscriptions(topic), manager.get_subscriptions_runtime_info(topic)
    )
    return [
        ListedEntity(path=f"{topic}/Subscriptions/{one.name}", description=one, info=info)
        for one, info in _matched(descriptions, infos)
    ]


def _together(descriptions: Sequence[Any], infos: Sequence[Any]) -> Iterator[ListedEntity]:
    for one, info in _matched(descriptions, infos):
        yield ListedEntity(path=one.path, description=one, info=info)


def _matched(descriptions: Sequence[Any], infos: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the entities that appear in both answers: one may be created or deleted between the two requests."""
    by_name = {_name(info): info for info in infos}
    for one in descriptions:
        if _name(one) in by_name:
            yield one, by_name[_name(one)]


def _name(thing: Any) -> str:
    name: str = thing.name if isinstance(thing, SubscriptionDescription | SubscriptionRuntimeInfo) else thing.path
    return name.lower()


# Output.


def show_table(entities: Sequence[ListedEntity], *, in_colour: bool) -> None:
    """Print a table for a terminal, or one tab-separated line for each entity, which other programs can parse."""
    if not in_colour:
        print(*("\t".join(row) for row in (_HEAD, *(entity.row() for entity in entities))), sep="\n")
        return
    console = Console(highlight=False, markup=False)  # a path may have brackets
    tables = (_table(entities, width) for width in range(len(_HEAD), _LEAST - 1, -1))
    table = next(one for one in tables if len(one.columns) == _LEAST or _fits(one, console))
    console.print(table)
    if len(table.columns) < len(_HEAD):
        console.print(
            f"hidden columns: {', '.join(_HEAD[len(table.columns) :])} (the terminal is too narrow; --json shows them)"
        )


def _table(entities: Sequence[ListedEntity], width: int) -> Table:
    """Return a table of the first ``width`` columns."""
    table = Table()
    for number, title in enumerate(_HEAD[:width]):
        table.add_column(title, justify="right" if number >= _NUMBERS else "left", overflow="fold")
    for entity in entities:
        row = entity.row()[:width]
        table.add_row(*row[:_NUMBERS], *(f"{int(cell):,}" if cell else "" for cell in row[_NUMBERS:]))
    return table


def _fits(table: Table, console: Console) -> bool:
    return console.measure(table, options=console.options.update(max_width=_ENDLESS)).maximum <= console.width


def show_one(entity: ListedEntity) -> None:
    """Print a line for each setting, with the option that sets it, for each count, and for each part of a rule."""
    document = entity.document()
    document.pop("rules", None)
    for name, value in document.items():
        option = f"  ({_OPTIONS[name]})" if name in _OPTIONS else ""
        print(f"{name}: {'not set' if value is None else value}{option}")
    for rule in entity.rules or ():
        print(f"rule {rule.name} filter: {filter_text(RULE_CODEC.filter_values(rule.filter))}")
        if rule.action is not None:
            print(f"rule {rule.name} action: {action_text(RULE_CODEC.action_values(rule.action))}")
