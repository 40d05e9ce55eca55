"""The settings of queues, topics and subscriptions, as options of a command."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from inspect import Parameter, signature
from typing import Annotated, Any, Final

import typer

from pairbus.cli.arguments import duration_text, read_lifetime
from pairbus.cli.connection import USAGE
from pairbus.cli.failure import fail
from pairbus.client.management.atom import EntityDescription
from pairbus.client.management.descriptions import (
    EntityStatus,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.entity_settings import ENTITY_SETTINGS, STATUSES, EntityKind, EntitySetting, SettingType

KINDS: Final[dict[type[EntityDescription], str]] = {
    QueueDescription: EntityKind.QUEUE.value,
    TopicDescription: EntityKind.TOPIC.value,
    SubscriptionDescription: EntityKind.SUBSCRIPTION.value,
}
_STATUSES: Final = {word.lower(): EntityStatus(word) for word in STATUSES.values()}
_DURATIONS: Final = {SettingType.DURATION, SettingType.LIFETIME}


@dataclass(frozen=True, slots=True)
class SettingOption:
    """The option of a setting."""

    option: str
    setting: EntitySetting[Any]

    @property
    def field(self) -> str:
        """The name of the field in the descriptions."""
        return self.setting.field

    @property
    def is_fixed(self) -> bool:
        return self.setting.is_fixed

    def read(self, given: Any) -> Any:
        """Return the value of the option; end the command if it is invalid."""
        if self.setting.type in _DURATIONS:
            return read_lifetime(self.option, given)
        if self.setting.type is SettingType.STATUS:
            found = _STATUSES.get(given.lower())
            if found is None:
                fail(f"{self.option} must be one of {', '.join(_STATUSES)}, got {given!r:.50}", USAGE)
            return found
        return given


SETTINGS: Final = tuple(
    SettingOption(setting.option, setting) for setting in ENTITY_SETTINGS if setting.option is not None
)


def has_setting(kind: type[EntityDescription], setting: SettingOption) -> bool:
    return setting.field in {field.name for field in fields(kind)}


def read_settings(kind: type[EntityDescription], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given settings by field; end the command if this kind of entity does not have one of them."""
    values = {}
    for setting in SETTINGS:
        given = options.get(setting.field)
        if given is None:
            continue
        if not has_setting(kind, setting):
            fail(f"{setting.option} does not apply to a {KINDS[kind]}; remove it", USAGE)
        values[setting.field] = setting.read(given)
    return values


def refuse_fixed(options: Mapping[str, Any]) -> None:
    """End the command if a setting is given that cannot be updated."""
    for setting in SETTINGS:
        if setting.is_fixed and options.get(setting.field) is not None:
            fail(
                f"{setting.option} can only be set when an entity is created: delete the entity and create it again",
                USAGE,
            )


# Error texts.


def _time(count_ms: int) -> str:
    return duration_text(timedelta(milliseconds=count_ms))


def _kilobytes(count_bytes: int) -> str:
    return str(max(1, count_bytes // 1024))


_NUMBER: Final = re.compile(r"\d+")
_REFUSED: Final = re.compile(r"(\w+) of '[^']*' must be (.+), got (\d+)")
_UNITS: Final[Mapping[SettingType, Callable[[int], str]]] = {
    SettingType.DURATION: _time,
    SettingType.LIFETIME: _time,
    SettingType.INTEGER: str,
    SettingType.SIZE: _kilobytes,
}
_TYPED: Final = {
    each.setting.name: (each.option, _UNITS[each.setting.type]) for each in SETTINGS if each.setting.type in _UNITS
}
"""The option for each field name that a pairbus namespace reports, and the conversion of its unit to the option's."""


def in_options(message: str) -> str:
    """Rewrite an error message about a setting in terms of the option that sets it."""
    refused = _REFUSED.fullmatch(message)
    if refused is not None and refused[1] in _TYPED:
        option, typed = _TYPED[refused[1]]
        allowed = _NUMBER.sub(lambda number: typed(int(number[0])), refused[2])
        return f"{option} must be {allowed}, got {typed(int(refused[3]))}"
    for setting in SETTINGS:
        if message.startswith(f"{setting.field} "):
            return setting.option + message.removeprefix(setting.field)
    return message


# Options.


def take_settings(command: Callable[..., None], *, is_new: bool) -> None:
    """Add one option for each setting to a command that takes ``**options``.

    For the update of an entity, settings that cannot change are hidden options, so that using one gives a clear error.
    """
    own = [
        one for one in signature(command, eval_str=True).parameters.values() if one.kind is not Parameter.VAR_KEYWORD
    ]
    own = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in own]
    parameters = [*own, *(_option(setting, hidden=setting.is_fixed and not is_new) for setting in SETTINGS)]
    command.__signature__ = signature(command).replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


_ARGUMENTS: Final[Mapping[SettingType, tuple[type, str | None]]] = {
    SettingType.BOOLEAN: (bool, None),
    SettingType.INTEGER: (int, "N"),
    SettingType.SIZE: (int, "N"),
    SettingType.DURATION: (str, "TIME"),
    SettingType.LIFETIME: (str, "TIME"),
    SettingType.TEXT: (str, "TEXT"),
    SettingType.ENTITY: (str, "TEXT"),
    SettingType.STATUS: (str, "STATUS"),
}


def _option(setting: SettingOption, *, hidden: bool) -> Parameter:
    name = setting.option
    kind = setting.setting.type
    if kind is SettingType.BOOLEAN:
        name = f"{name}/{name.replace('--', '--no-', 1)}"
    typed, metavar = _ARGUMENTS[kind]
    # No default: unset options use the server's defaults.
    info = typer.Option(name, help=setting.setting.help, show_default=False, metavar=metavar, hidden=hidden)
    return Parameter(setting.field, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[typed | None, info])
