"""The settings of queues, topics and subscriptions, as options of a command."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from inspect import Parameter, signature
from typing import Annotated, Any, Final, TypeAlias

import typer

from pairbus.cli.connection import USAGE
from pairbus.cli.durations import NEVER, duration_text, read_lifetime
from pairbus.cli.failure import fail
from pairbus.client.management.descriptions import (
    EntityStatus,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)

Description: TypeAlias = QueueDescription | TopicDescription | SubscriptionDescription

KINDS: Final[dict[type[Description], str]] = {
    QueueDescription: "queue",
    TopicDescription: "topic",
    SubscriptionDescription: "subscription",
}
_STATUSES: Final = {
    status.value.lower(): status
    for status in (
        EntityStatus.ACTIVE,
        EntityStatus.DISABLED,
        EntityStatus.SEND_DISABLED,
        EntityStatus.RECEIVE_DISABLED,
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EntitySetting:
    """One of them."""

    field: str
    """What the descriptions call it."""

    option: str
    kind: type
    """What the value is; a status and a time are typed as texts."""

    help: str
    is_fixed: bool = False
    """Whether it is said when the entity is made, and never again."""

    def read(self, given: Any) -> Any:
        """The value; ends the command if it is no good."""
        if self.kind is timedelta:
            return read_lifetime(self.option, given)
        if self.kind is EntityStatus:
            found = _STATUSES.get(given.lower())
            if found is None:
                fail(f"{self.option} is {given!r:.50}; it is {', '.join(_STATUSES)}", USAGE)
            return found
        return given


SETTINGS: Final = (
    EntitySetting(
        field="lock_duration", option="--lock-duration", kind=timedelta, help="how long a receiver has a message"
    ),
    EntitySetting(
        field="max_delivery_count",
        option="--max-delivery-count",
        kind=int,
        help="after how many deliveries a message is a dead letter",
    ),
    EntitySetting(
        field="default_message_time_to_live",
        option="--ttl",
        kind=timedelta,
        help=f"how long messages live, or {NEVER} for no end",
    ),
    EntitySetting(
        field="enable_dead_lettering_on_message_expiration",
        option="--dead-letter-expired",
        kind=bool,
        help="whether what has expired is a dead letter, or gone",
    ),
    EntitySetting(
        field="requires_session",
        option="--sessions",
        kind=bool,
        help="whether every message belongs to a session",
        is_fixed=True,
    ),
    EntitySetting(
        field="requires_duplicate_detection",
        option="--detect-duplicates",
        kind=bool,
        help="whether a message with an id that came before is dropped",
        is_fixed=True,
    ),
    EntitySetting(
        field="duplicate_detection_history_time_window",
        option="--duplicate-window",
        kind=timedelta,
        help="how long ids are remembered for that",
    ),
    EntitySetting(field="max_size_in_megabytes", option="--max-size-mb", kind=int, help="how much it may hold"),
    EntitySetting(
        field="max_message_size_in_kilobytes", option="--max-message-kb", kind=int, help="how large a message may be"
    ),
    EntitySetting(
        field="enable_partitioning",
        option="--partitioned",
        kind=bool,
        help="whether it is spread over partitions",
        is_fixed=True,
    ),
    EntitySetting(field="forward_to", option="--forward-to", kind=str, help="where its messages go on to"),
    EntitySetting(
        field="forward_dead_lettered_messages_to",
        option="--forward-dead-letters-to",
        kind=str,
        help="where its dead letters go on to",
    ),
    EntitySetting(
        field="auto_delete_on_idle",
        option="--auto-delete-on-idle",
        kind=timedelta,
        help=f"after how long without use it is deleted, or {NEVER}",
    ),
    EntitySetting(field="status", option="--status", kind=EntityStatus, help=f"one of {', '.join(_STATUSES)}"),
    EntitySetting(field="user_metadata", option="--metadata", kind=str, help="a note for people"),
)


def has_setting(kind: type[Description], setting: EntitySetting) -> bool:
    return setting.field in {field.name for field in fields(kind)}


def read_settings(kind: type[Description], options: Mapping[str, Any]) -> dict[str, Any]:
    """What a description of that kind is made with; ends the command if it does not have a setting that is given."""
    values = {}
    for setting in SETTINGS:
        given = options.get(setting.field)
        if given is None:
            continue
        if not has_setting(kind, setting):
            fail(f"a {KINDS[kind]} has no {setting.option}", USAGE)
        values[setting.field] = setting.read(given)
    return values


def refuse_fixed(options: Mapping[str, Any]) -> None:
    """End the command if an entity that exists is to become what it cannot."""
    for setting in SETTINGS:
        if setting.is_fixed and options.get(setting.field) is not None:
            fail(
                f"{setting.option} is decided when an entity is made, and never again: to have it otherwise,"
                " delete the entity and make it anew",
                USAGE,
            )


# What is said of them.


def _time(count_ms: int) -> str:
    return duration_text(timedelta(milliseconds=count_ms))


def _kilobytes(count_bytes: int) -> str:
    return str(max(1, count_bytes // 1024))


_NUMBER: Final = re.compile(r"\d+")
_REFUSED: Final = re.compile(r"(\w+) of '[^']*' is (\d+); possible (is|are) (.+)")
_MAY_BE: Final = {"is": "it has to be", "are": "it can be"}
_TYPED: Final[Mapping[str, tuple[str, Callable[[int], str]]]] = {
    "lock_duration_ms": ("--lock-duration", _time),
    "default_time_to_live_ms": ("--ttl", _time),
    "duplicate_window_ms": ("--duplicate-window", _time),
    "auto_delete_on_idle_ms": ("--auto-delete-on-idle", _time),
    "max_delivery_count": ("--max-delivery-count", str),
    "max_size_megabytes": ("--max-size-mb", str),
    "max_message_bytes": ("--max-message-kb", _kilobytes),
}
"""What a namespace of pairbus calls them and counts them in: the option, and what is typed there."""


def in_options(said: str) -> str:
    """What a namespace, or a description, says of a setting, in what a person types."""
    refused = _REFUSED.fullmatch(said)
    if refused is not None and refused[1] in _TYPED:
        option, typed = _TYPED[refused[1]]
        possible = _NUMBER.sub(lambda number: typed(int(number[0])), refused[4])
        return f"{option} is {typed(int(refused[2]))}; {_MAY_BE[refused[3]]} {possible}"
    for setting in SETTINGS:
        if said.startswith(f"{setting.field} "):
            return setting.option + said.removeprefix(setting.field)
    return said


# Options.


def take_settings(command: Callable[..., None], *, is_new: bool) -> None:
    """Give a command that takes ``**options`` one for each setting.

    Of those that never change, an entity that exists takes none; who tries it is told so.
    """
    own = [
        one for one in signature(command, eval_str=True).parameters.values() if one.kind is not Parameter.VAR_KEYWORD
    ]
    own = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in own]
    parameters = [*own, *(_option(setting, hidden=setting.is_fixed and not is_new) for setting in SETTINGS)]
    command.__signature__ = signature(command).replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


def _option(setting: EntitySetting, *, hidden: bool) -> Parameter:
    name = setting.option
    if setting.kind is bool:
        name = f"{name}/{name.replace('--', '--no-', 1)}"
    typed = setting.kind if setting.kind in {bool, int} else str
    metavar = {timedelta: "TIME", EntityStatus: "STATUS", str: "TEXT", int: "N"}.get(setting.kind)
    # Without a default: what is not said is left to the namespace.
    info = typer.Option(name, help=setting.help, show_default=False, metavar=metavar, hidden=hidden)
    return Parameter(setting.field, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[typed | None, info])
