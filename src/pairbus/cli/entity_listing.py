"""What is in a namespace, with how much lies in it, for people and for machines."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final, TypeAlias

from rich.console import Console
from rich.table import Table

from pairbus.cli.durations import duration_text
from pairbus.cli.entity_settings import KINDS, SETTINGS, Description
from pairbus.client.amqp_json import moment_text
from pairbus.client.management.descriptions import SubscriptionDescription
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.client.management.rule_atom import write_action, write_filter
from pairbus.client.management.rules import RuleDescription
from pairbus.client.management.runtime_info import QueueRuntimeInfo, SubscriptionRuntimeInfo, TopicRuntimeInfo
from pairbus.dialect.atom.rule_text import action_text, filter_text, plain_part
from pairbus.pairing.backlog import in_groups

RuntimeInfo: TypeAlias = QueueRuntimeInfo | TopicRuntimeInfo | SubscriptionRuntimeInfo

_HEAD: Final = ("entity", "kind", "status", "active", "dead letters", "scheduled", "transfer", "bytes")
_NUMBERS: Final = 3
"""From which column on there are numbers."""

_LEAST: Final = 5
"""How many columns are shown in any terminal: the others can be done without."""

_ENDLESS: Final = 10_000
_OPTIONS: Final = {setting.field: setting.option for setting in SETTINGS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """A queue, a topic or a subscription, as it is at the moment."""

    path: str
    description: Description
    info: RuntimeInfo
    rules: tuple[RuleDescription, ...] | None = None
    """Of a subscription, if they were read."""

    @property
    def kind(self) -> str:
        return KINDS[type(self.description)]

    def document(self) -> dict[str, Any]:
        """All of it, for machines. Keys are left out: what is printed is read by others."""
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
        told = ["" if count is None else str(count) for count in counts]
        return (self.path, self.kind, "" if status is None else status.value, *told)


def _plain(value: Any) -> dict[str, Any]:
    """Return what is known, and all settings, ``None`` for those that are not set."""
    return {
        name: value_text(one)
        for name, one in asdict(value).items()
        if (one is not None or name in _OPTIONS) and name not in {"authorization_rules", "name"}
    }


def _plain_rule(rule: RuleDescription) -> dict[str, Any]:
    return {
        "name": rule.name,
        "filter": plain_part(write_filter(rule.filter)),
        "action": None if rule.action is None else plain_part(write_action(rule.action)),
    }


def value_text(value: Any) -> Any:
    """A setting as it is typed."""
    match value:
        case timedelta():
            return duration_text(value)
        case datetime():
            return moment_text(value)
        case Enum():
            return value.value
    return value


# Finding them.


async def all_entities(manager: NamespaceManager) -> list[Entity]:
    """Queues, then each topic with its subscriptions."""
    queues, queue_infos, topics, topic_infos = await asyncio.gather(
        manager.get_queues(),
        manager.get_queues_runtime_info(),
        manager.get_topics(),
        manager.get_topics_runtime_info(),
    )

    async def of_topic(path: str) -> list[Entity]:
        return await subscriptions(manager, path)

    below = await in_groups(of_topic, [topic.path for topic in topics])
    found = list(_together(queues, queue_infos))
    for topic, its_own in zip(_together(topics, topic_infos), below, strict=False):
        found += [topic, *its_own]
    return found


async def subscriptions(manager: NamespaceManager, topic: str) -> list[Entity]:
    descriptions, infos = await asyncio.gather(
        manager.get_subscriptions(topic), manager.get_subscriptions_runtime_info(topic)
    )
    return [
        Entity(path=f"{topic}/Subscriptions/{one.name}", description=one, info=info)
        for one, info in _matched(descriptions, infos)
    ]


def _together(descriptions: Sequence[Any], infos: Sequence[Any]) -> Iterator[Entity]:
    for one, info in _matched(descriptions, infos):
        yield Entity(path=one.path, description=one, info=info)


def _matched(descriptions: Sequence[Any], infos: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Those that were there both times we asked."""
    by_name = {_name(info): info for info in infos}
    for one in descriptions:
        if _name(one) in by_name:
            yield one, by_name[_name(one)]


def _name(thing: Any) -> str:
    name: str = thing.name if isinstance(thing, SubscriptionDescription | SubscriptionRuntimeInfo) else thing.path
    return name.lower()


# Showing them.


def show_table(entities: Sequence[Entity], *, in_colour: bool) -> None:
    """A table in a terminal; else a line each, with tabs, which other programs can cut."""
    if not in_colour:
        print(*("\t".join(row) for row in (_HEAD, *(entity.row() for entity in entities))), sep="\n")
        return
    console = Console(highlight=False, markup=False)  # a path may have brackets
    tables = (_table(entities, width) for width in range(len(_HEAD), _LEAST - 1, -1))
    table = next(one for one in tables if len(one.columns) == _LEAST or _fits(one, console))
    console.print(table)
    if len(table.columns) < len(_HEAD):
        console.print(
            f"without {', '.join(_HEAD[len(table.columns) :])}: the terminal is too narrow; --json has it all"
        )


def _table(entities: Sequence[Entity], width: int) -> Table:
    """The first columns of it."""
    table = Table()
    for number, title in enumerate(_HEAD[:width]):
        table.add_column(title, justify="right" if number >= _NUMBERS else "left", overflow="fold")
    for entity in entities:
        row = entity.row()[:width]
        table.add_row(*row[:_NUMBERS], *(f"{int(cell):,}" if cell else "" for cell in row[_NUMBERS:]))
    return table


def _fits(table: Table, console: Console) -> bool:
    return console.measure(table, options=console.options.update(max_width=_ENDLESS)).maximum <= console.width


def show_one(entity: Entity) -> None:
    """Print a line for each setting, with the option that sets it, for each count, and for each part of a rule."""
    document = entity.document()
    document.pop("rules", None)
    for name, value in document.items():
        option = f"  ({_OPTIONS[name]})" if name in _OPTIONS else ""
        print(f"{name}: {'not set' if value is None else value}{option}")
    for rule in entity.rules or ():
        print(f"rule {rule.name} filter: {filter_text(write_filter(rule.filter))}")
        if rule.action is not None:
            print(f"rule {rule.name} action: {action_text(write_action(rule.action))}")
