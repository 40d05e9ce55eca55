"""The settings of queues, topics and subscriptions, as options of a command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import timedelta
from inspect import Parameter, signature
from typing import Annotated, Any, Final

import typer

from pairbus.cli.arguments import duration_text, read_lifetime
from pairbus.cli.failure import USAGE, fail
from pairbus.client.management.atom import EntityDescription
from pairbus.client.management.descriptions import (
    EntityStatus,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.entity_settings import ENTITY_SETTINGS, STATUSES, EntityKind, EntitySetting, SettingType, rewrite_refusal

KINDS: Final[dict[type[EntityDescription], str]] = {
    QueueDescription: EntityKind.QUEUE.value,
    TopicDescription: EntityKind.TOPIC.value,
    SubscriptionDescription: EntityKind.SUBSCRIPTION.value,
}
_STATUSES: Final = {word.lower(): EntityStatus(word) for word in STATUSES.values()}
_DURATIONS: Final = {SettingType.DURATION, SettingType.LIFETIME}


SETTINGS: Final = {setting.option: setting for setting in ENTITY_SETTINGS if setting.option is not None}
"""The settings that have an option, by that option."""


def has_setting(kind: type[EntityDescription], setting: EntitySetting[Any]) -> bool:
    return setting.field in {field.name for field in fields(kind)}


def _read(option: str, setting: EntitySetting[Any], given: Any) -> Any:
    """Return the value of the option; end the command if it is invalid."""
    if setting.type in _DURATIONS:
        return read_lifetime(option, given)
    if setting.type is SettingType.STATUS:
        found = _STATUSES.get(given.lower())
        if found is None:
            fail(f"{option} must be one of {', '.join(_STATUSES)}, got {given!r:.50}", USAGE)
        return found
    return given


def read_settings(kind: type[EntityDescription], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given settings by field; end the command if this kind of entity does not have one of them."""
    values = {}
    for option, setting in SETTINGS.items():
        given = options.get(setting.field)
        if given is None:
            continue
        if not has_setting(kind, setting):
            fail(f"{option} does not apply to a {KINDS[kind]}; remove it", USAGE)
        values[setting.field] = _read(option, setting, given)
    return values


def refuse_fixed(options: Mapping[str, Any]) -> None:
    """End the command if a setting is given that cannot be updated."""
    for option, setting in SETTINGS.items():
        if setting.is_fixed and options.get(setting.field) is not None:
            fail(
                f"{option} can only be set when an entity is created: delete the entity and create it again",
                USAGE,
            )


# Error texts.


def _time(count_ms: int) -> str:
    return duration_text(timedelta(milliseconds=count_ms))


def _kilobytes(count_bytes: int) -> str:
    return str(max(1, count_bytes // 1024))


_UNITS: Final[Mapping[SettingType, Callable[[int], str]]] = {
    SettingType.DURATION: _time,
    SettingType.LIFETIME: _time,
    SettingType.INTEGER: str,
    SettingType.SIZE: _kilobytes,
}
_TYPED: Final = {
    setting.name: (option, _UNITS[setting.type]) for option, setting in SETTINGS.items() if setting.type in _UNITS
}
"""The option for each field name that a pairbus namespace reports, and the conversion of its unit to the option's."""


def in_options(message: str) -> str:
    """Rewrite an error message about a setting in terms of the option that sets it."""
    rewritten = rewrite_refusal(message, _TYPED)
    if rewritten is not None:
        return rewritten
    for option, setting in SETTINGS.items():
        if message.startswith(f"{setting.field} "):
            return option + message.removeprefix(setting.field)
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
    options = (_option(name, setting, hidden=setting.is_fixed and not is_new) for name, setting in SETTINGS.items())
    parameters = [*own, *options]
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


def _option(name: str, setting: EntitySetting[Any], *, hidden: bool) -> Parameter:
    kind = setting.type
    if kind is SettingType.BOOLEAN:
        name = f"{name}/{name.replace('--', '--no-', 1)}"
    typed, metavar = _ARGUMENTS[kind]
    # No default: unset options use the server's defaults.
    info = typer.Option(name, help=setting.help, show_default=False, metavar=metavar, hidden=hidden)
    return Parameter(setting.field, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[typed | None, info])
