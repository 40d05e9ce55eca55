"""Whether a name or a setting is one that a namespace takes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from pairbus.broker.descriptions import (
    AuthorizationRule,
    EntityDescription,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.broker.errors import InvalidDescriptionError, InvalidNameError
from pairbus.broker.limits import Limits

# Azure's naming rules for Microsoft.ServiceBus; the tilde is what Azure Resource Manager writes for a slash in a path.
_NOT_IN_PATHS: Final = re.compile(r"[^A-Za-z0-9._~/-]")
_IN_PATHS: Final = "letters (a-z, A-Z), digits, '.', '-', '_', '~' and '/'"
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._-]")
_IN_NAMES: Final = "letters (a-z, A-Z), digits, '.', '-' and '_'"
_NOT_IN_KEY_NAMES: Final = re.compile(r"[@?#*\\/\x00-\x1f\x7f\ud800-\udfff]")
_KEY_NAME_CHARACTERS: Final = 256
_RESERVED: Final = {"subscriptions", "rules"}
_FIXED: Final = ("requires_session", "requires_duplicate_detection", "partitioned")
"""What an entity is for life."""


def check_path(path: str, limits: Limits) -> None:
    """Check the path of a queue or topic that is about to be created; raises ``InvalidNameError``.

    Entities that exist keep whatever name an earlier version gave them.
    """
    _check_text(path, limits.path_characters)
    for segment in path.split("/"):
        if not segment or segment in {".", ".."}:
            raise InvalidNameError(f"{path!r} has the segment '{segment}', which names nothing", path)
        if segment.startswith("$") or segment.lower() in _RESERVED:
            raise InvalidNameError(f"{path!r} has the segment '{segment}', which is reserved", path)
    _check_characters(path, _NOT_IN_PATHS, f"a queue or topic has a name of {_IN_PATHS}")


def check_name(name: str, limits: Limits) -> None:
    """Check the name of a subscription or rule that is about to be created; raises ``InvalidNameError``."""
    _check_text(name, limits.name_characters)
    if name.startswith("$"):
        raise InvalidNameError(f"{name!r} begins with a dollar sign, which is reserved", name)
    _check_characters(name, _NOT_IN_NAMES, f"a subscription or rule has a name of {_IN_NAMES}")


def _check_text(name: str, characters: int) -> None:
    if not isinstance(name, str):
        raise InvalidNameError(f"{name!r} is no name: a name is text")
    if not name or name.isspace():
        raise InvalidNameError("the name is empty", name)
    if len(name) > characters:
        raise InvalidNameError(f"the name has {len(name)} characters; at most {characters} are allowed", name)


def _check_characters(name: str, forbidden: re.Pattern[str], allowed: str) -> None:
    found = forbidden.search(name)
    if found is not None:
        raise InvalidNameError(
            f"{name!r} has the character {found.group()!r} at position {found.start() + 1}; {allowed}", name
        )


def check_description(path: str, description: EntityDescription, limits: Limits) -> None:
    """Every setting that can be judged without a look at other entities."""
    _check_times(path, description, limits)
    if not isinstance(description, TopicDescription):
        _check_receiving(path, description, limits)
    if not isinstance(description, SubscriptionDescription):
        _check_sending(path, description, limits)


def check_update(path: str, before: EntityDescription, after: EntityDescription) -> None:
    if type(before) is not type(after):
        raise InvalidDescriptionError(f"'{path}' is not of this kind", path)
    for name in _FIXED:
        if getattr(before, name, None) != getattr(after, name, None):
            raise InvalidDescriptionError(f"{name} of '{path}' cannot be changed; it was set at creation", path)


def _check_times(path: str, description: EntityDescription, limits: Limits) -> None:
    lifetime_ms = description.default_time_to_live_ms
    if lifetime_ms is not None:
        _check_range(path, "default_time_to_live_ms", lifetime_ms, limits.min_time_to_live_ms)
    if description.auto_delete_on_idle_ms is not None:
        _check_range(path, "auto_delete_on_idle_ms", description.auto_delete_on_idle_ms, limits.min_idle_ms)


def _check_receiving(path: str, description: QueueDescription | SubscriptionDescription, limits: Limits) -> None:
    _check_range(path, "lock_duration_ms", description.lock_duration_ms, limits.min_lock_ms, limits.max_lock_ms)
    _check_range(path, "max_delivery_count", description.max_delivery_count, 1, limits.max_delivery_count)


def _check_sending(path: str, description: QueueDescription | TopicDescription, limits: Limits) -> None:
    _check_range(
        path,
        "duplicate_window_ms",
        description.duplicate_window_ms,
        limits.min_duplicate_window_ms,
        limits.max_duplicate_window_ms,
    )
    if limits.entity_megabytes and description.max_size_megabytes not in limits.entity_megabytes:
        sizes = ", ".join(map(str, limits.entity_megabytes))
        raise InvalidDescriptionError(
            f"max_size_megabytes of '{path}' is {description.max_size_megabytes}; possible are {sizes}", path
        )
    _check_range(path, "max_size_megabytes", description.max_size_megabytes, 1)
    if description.max_message_bytes is not None:
        most = max(limits.message_bytes, limits.large_message_bytes)
        _check_range(path, "max_message_bytes", description.max_message_bytes, 1, most)
    check_keys(path, description.authorization_rules)
    if len(description.authorization_rules) > limits.authorization_rules:
        raise InvalidDescriptionError(
            f"'{path}' has {len(description.authorization_rules)} authorization rules;"
            f" at most {limits.authorization_rules} are allowed",
            path,
        )


def _check_range(path: str, name: str, value: int, least: int, most: int | None = None) -> None:
    if value < least or (most is not None and value > most):
        bounds = f"at least {least}" if most is None else f"from {least} to {most}"
        raise InvalidDescriptionError(f"{name} of '{path}' is {value}; possible is {bounds}", path)


def check_keys(path: str, rules: Sequence[AuthorizationRule]) -> None:
    """Authorization rules: each has a name of its own, rights and two keys."""
    names = [rule.name.lower() for rule in rules]
    if len(set(names)) < len(names):
        raise InvalidDescriptionError(f"'{path}' has two authorization rules of the same name", path)
    for rule in rules:
        if _NOT_IN_KEY_NAMES.search(rule.name) or len(rule.name) > _KEY_NAME_CHARACTERS:
            raise InvalidDescriptionError(f"authorization rule {rule.name[:300]!r} of '{path}' has no good name", path)
        if not (rule.name and rule.rights and rule.primary_key and rule.secondary_key):
            raise InvalidDescriptionError(
                f"authorization rule '{rule.name}' of '{path}' needs a name, rights and two keys", path
            )
