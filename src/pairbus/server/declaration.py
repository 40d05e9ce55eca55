"""Declared entities and keys: parsed from a file, and applied to a namespace."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

from pairbus.broker import (
    DEFAULT_RULE,
    Address,
    AuthorizationRule,
    BrokerError,
    CorrelationFilter,
    EntityDescription,
    EntityNotFoundError,
    EntityStatus,
    FalseFilter,
    FilterDescription,
    Namespace,
    QueueDescription,
    Right,
    RuleDescription,
    SqlActionDescription,
    SqlFilterDescription,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
)
from pairbus.broker.descriptions import KIND_OF
from pairbus.broker.limits import Limits
from pairbus.broker.validation import check_description
from pairbus.dialect.atom import parse_duration
from pairbus.entity_settings import (
    ENTITY_SETTINGS,
    FORWARDING,
    EntityKind,
    SettingType,
    rewrite_refusal,
    settings_of,
)

D = TypeVar("D", QueueDescription, TopicDescription, SubscriptionDescription)
T = TypeVar("T")


class DeclarationError(ValueError):
    """The declaration is invalid, or this namespace cannot satisfy it; the message says what and where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredEntity(Generic[D]):
    """An entity by name. ``given`` has the settings that were named; the others stay unchanged."""

    name: str
    description: D
    given: frozenset[str] = frozenset()

    def over(self, before: D) -> D:
        """Return the settings of an existing entity, overridden by those that were named."""
        named: dict[str, Any] = {name: _over(name, self.description, before) for name in self.given}
        return replace(before, **named)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredSubscription(DeclaredEntity[SubscriptionDescription]):
    """A subscription. Without rules in the file it keeps its existing ones."""

    rules: tuple[RuleDescription, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredTopic(DeclaredEntity[TopicDescription]):
    subscriptions: tuple[DeclaredSubscription, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """The declared entities and keys. Entities that are not named here stay unchanged."""

    queues: tuple[DeclaredEntity[QueueDescription], ...] = ()
    topics: tuple[DeclaredTopic, ...] = ()
    keys: tuple[AuthorizationRule, ...] = ()


def _over(name: str, declared: EntityDescription, before: EntityDescription) -> object:
    wanted, found = getattr(declared, name), getattr(before, name)
    if name == "authorization_rules":
        return merge_keys(found, wanted)
    if name in FORWARDING and wanted is not None and found is not None and wanted.lower() == found.lower():
        return found  # the broker keeps the spelling of the existing name
    return wanted


def merge_keys(
    found: Sequence[AuthorizationRule], wanted: Sequence[AuthorizationRule]
) -> tuple[AuthorizationRule, ...]:
    """Return the existing keys, with those of the same name replaced and new ones at the end."""
    by_name = {rule.name.lower(): rule for rule in found} | {rule.name.lower(): rule for rule in wanted}
    return tuple(by_name.values())


# Parsing. ``where`` names the entity in every error.


def parse_declaration(document: Mapping[str, object]) -> Declaration:
    """Parse the tables ``queues``, ``topics`` and ``keys`` of a settings file; raises ``DeclarationError``."""
    check_keys(document, ("queues", "topics", "keys"), "the declaration")
    declaration = Declaration(
        queues=tuple(_parse_queue(table) for table in _tables(document, "queues", "")),
        topics=tuple(_parse_topic(table) for table in _tables(document, "topics", "")),
        keys=_parse_keys(document, "the namespace"),
    )
    check_names(declaration)
    return declaration


def _parse_queue(table: Mapping[str, object]) -> DeclaredEntity[QueueDescription]:
    name = _name(table, "a queue")
    description, given = _describe(QueueDescription, table, f"queue '{name}'")
    return DeclaredEntity(name=name, description=description, given=given)


def _parse_topic(table: Mapping[str, object]) -> DeclaredTopic:
    name = _name(table, "a topic")
    where = f"topic '{name}'"
    description, given = _describe(TopicDescription, table, where, "subscriptions")
    subscriptions = tuple(_parse_subscription(each, name) for each in _tables(table, "subscriptions", where))
    return DeclaredTopic(name=name, description=description, given=given, subscriptions=subscriptions)


def _parse_subscription(table: Mapping[str, object], topic: str) -> DeclaredSubscription:
    name = _name(table, f"a subscription of topic '{topic}'")
    where = f"subscription '{topic}/{name}'"
    description, given = _describe(SubscriptionDescription, table, where, "rules")
    rules = tuple(_parse_rule(each, where) for each in _tables(table, "rules", where))
    return DeclaredSubscription(name=name, description=description, given=given, rules=rules)


def _describe(kind: type[D], table: Mapping[str, object], where: str, *parts: str) -> tuple[D, frozenset[str]]:
    """Return a description, and the names of the settings that the table has."""
    settings = _read_settings(KIND_OF[kind], table, where, parts)
    return kind(**settings), frozenset(settings)


def _read_settings(kind: EntityKind, table: Mapping[str, object], where: str, parts: Sequence[str]) -> dict[str, Any]:
    known = {setting.key: setting for setting in settings_of(kind)}
    has_keys = kind is not EntityKind.SUBSCRIPTION
    check_keys(table, ("name", *known, *(("keys",) if has_keys else ()), *parts), where)
    settings = {
        known[key].name: _read_setting(known[key].type, value, f"{key} of {where}")
        for key, value in table.items()
        if key in known
    }
    return settings | ({"authorization_rules": _parse_keys(table, where)} if "keys" in table else {})


_TYPES: Final[Mapping[SettingType, type]] = {
    SettingType.BOOLEAN: bool,
    SettingType.INTEGER: int,
    SettingType.SIZE: int,
    SettingType.TEXT: str,
    SettingType.ENTITY: str,
    SettingType.STATUS: EntityStatus,
}


def _read_setting(kind: SettingType, value: object, where: str) -> Any:
    if kind not in _TYPES:
        return read_duration(value, where, is_optional=kind is SettingType.LIFETIME)
    if kind is SettingType.ENTITY and value == "":
        return None
    return read_value(_TYPES[kind], value, where)


def _parse_rule(table: Mapping[str, object], owner: str) -> RuleDescription:
    name = _name(table, f"a rule of {owner}", DEFAULT_RULE)
    where = f"rule '{name}' of {owner}"
    check_keys(table, ("name", "filter", "action"), where)
    action = table.get("action")
    return RuleDescription(
        name=name,
        filter=_parse_filter(table.get("filter", True), f"the filter of {where}"),
        action=None if action is None else SqlActionDescription(*_expression(action, f"the action of {where}")),
    )


def _parse_filter(value: object, where: str) -> FilterDescription:
    """Parse a filter: a boolean, a text or a table with ``expression`` in SQL, or a table of properties to compare."""
    match value:
        case bool():
            return TrueFilter() if value else FalseFilter()
        case Mapping() if "expression" not in value:
            check_keys(value, [field.name for field in fields(CorrelationFilter)], where)
            texts = {
                name: read_value(str, text, f"{name} of {where}")
                for name, text in value.items()
                if name != "properties"
            }
            return CorrelationFilter(**texts, properties=read_properties(value.get("properties", {}), where))
    return SqlFilterDescription(*_expression(value, where))


def _expression(value: object, where: str) -> tuple[str, dict[str, Any]]:
    table = value if isinstance(value, Mapping) else {"expression": value}
    check_keys(table, ("expression", "parameters"), where)
    expression = read_value(str, table.get("expression"), f"expression of {where}")
    return expression, read_properties(table.get("parameters", {}), where)


def read_properties(value: object, where: str) -> dict[str, Any]:
    """Parse the property values that messages are compared with."""
    if not isinstance(value, Mapping):
        raise DeclarationError(f"{where} must be a table, got {value!r}")
    for name, each in value.items():
        if not isinstance(each, bool | int | float | str):
            raise DeclarationError(f"{name} of {where} must be text, a number, true or false, got {each!r}")
    return dict(value)


def _parse_keys(table: Mapping[str, object], owner: str) -> tuple[AuthorizationRule, ...]:
    return tuple(_parse_key(each, owner) for each in _tables(table, "keys", owner))


def _parse_key(table: Mapping[str, object], owner: str) -> AuthorizationRule:
    name = _name(table, f"a key of {owner}")
    where = f"key '{name}' of {owner}"
    check_keys(
        table, [("rights" if field.name == "rights" else field.name) for field in fields(AuthorizationRule)], where
    )
    primary = read_value(str, table.get("primary_key"), f"primary_key of {where}", secret=True)
    secondary = read_value(str, table.get("secondary_key", primary), f"secondary_key of {where}", secret=True)
    return AuthorizationRule(
        name=name, rights=_parse_rights(table.get("rights"), where), primary_key=primary, secondary_key=secondary
    )


def _parse_rights(value: object, where: str) -> tuple[Right, ...]:
    if not isinstance(value, list) or not value:
        raise DeclarationError(f"rights of {where} must be a list of some of {_listed(Right)}")
    rights = {read_value(Right, each, f"a right of {where}") for each in value}
    return tuple(right for right in Right if right in rights or Right.MANAGE in rights)


def _name(table: Mapping[str, object], what: str, default: str | None = None) -> str:
    name = table.get("name", default)
    if not isinstance(name, str) or not name:
        raise DeclarationError(f"{what} has no name")
    return name


def _tables(table: Mapping[str, object], key: str, where: str) -> Sequence[Mapping[str, object]]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
        owner = f" of {where}" if where else ""
        raise DeclarationError(f"{key}{owner} must be a list of tables")
    return value


# Shared by all settings files.


def check_keys(table: Mapping[str, object], known: Iterable[str], where: str) -> None:
    """Raise ``DeclarationError`` for an unknown key."""
    for key in table:
        if key not in known:
            raise DeclarationError(f"{where} has an unknown key '{key}'{nearest(key, known)}")


def nearest(key: str, known: Iterable[str]) -> str:
    """Return a suggestion of the key that was meant, to end an error with."""
    found = get_close_matches(key, known, n=1) or get_close_matches(key.lower(), known, n=1)
    return f"; did you mean '{found[0]}'?" if found else f"; known are {', '.join(sorted(known))}"


_KINDS: Final[Mapping[type, str]] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
}


def read_value(kind: type[T], value: object, where: str, *, secret: bool = False) -> T:
    """Return a value of a type; the error names the required type."""
    if issubclass(kind, StrEnum):
        return _read_choice(kind, value, where)
    if type(value) is int and kind is float:
        value = float(value)
    if type(value) is not kind:  # a bool is not a number
        shown = "nothing" if value is None else "another type" if secret else repr(value)
        raise DeclarationError(f"{where} must be {_KINDS[kind]}, got {shown}")
    return value


def _read_choice(kind: type[T], value: object, where: str) -> T:
    try:
        return kind(value)  # type: ignore[call-arg]
    except ValueError:
        raise DeclarationError(f"{where} must be one of {_listed(kind)}, got {value!r}") from None


def _listed(kind: Any) -> str:
    return ", ".join(kind)


_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SHORT: Final = re.compile(r"([0-9]{1,15})(ms|s|m|h|d)")


def read_duration(value: object, where: str, *, is_optional: bool) -> int | None:
    """Return milliseconds from whole seconds, texts such as 30s, 5m, 1h, 7d, or ISO 8601; ``None`` for never."""
    try:
        length_ms = _milliseconds(value)
    except ValueError:
        length_ms = -1
    if (length_ms is None and not is_optional) or (length_ms is not None and length_ms < 0):
        never = ", or 'never'" if is_optional else ""
        raise DeclarationError(
            f"{where} must be a duration such as 30s, 5m, 1h, 7d or PT1M, or seconds{never}, got {value!r}"
        )
    return length_ms


def _milliseconds(value: object) -> int | None:
    if type(value) is int:
        return value * 1_000
    if value == "never":
        return None
    text = str(value)
    short = _SHORT.fullmatch(text)
    return parse_duration(text) if short is None else int(short[1]) * _UNITS_MS[short[2]]


def check_names(declaration: Declaration) -> None:
    """Raise ``DeclarationError`` for a name that is declared twice."""
    _expect_unique([*declaration.queues, *declaration.topics], "the namespace")
    _expect_unique(declaration.keys, "the keys of the namespace")
    for queue in declaration.queues:
        _expect_unique(queue.description.authorization_rules, f"the keys of queue '{queue.name}'")
    for topic in declaration.topics:
        _expect_unique(topic.description.authorization_rules, f"the keys of topic '{topic.name}'")
        _expect_unique(topic.subscriptions, f"topic '{topic.name}'")
        for subscription in topic.subscriptions:
            _expect_unique(subscription.rules, f"subscription '{topic.name}/{subscription.name}'")


def _expect_unique(named: Sequence[Any], where: str) -> None:
    seen: set[str] = set()
    for each in named:
        if each.name.lower() in seen:
            raise DeclarationError(f"{where} has '{each.name}' twice")
        seen.add(each.name.lower())


# Application to a namespace.


def apply_declaration(declaration: Declaration, namespace: Namespace, now_ms: int) -> None:
    """Create missing entities and update different ones; repeating it changes nothing. Raises ``DeclarationError``.

    Steps before an error are not undone: to apply all or nothing, do not commit them.
    """
    _Application(namespace, now_ms).run(declaration)


def _shown_duration(count_ms: int) -> str:
    """Return a duration as a file has it, such as 30s or 7d."""
    units = (f"{count_ms // size_ms}{unit}" for unit, size_ms in reversed(_UNITS_MS.items()) if not count_ms % size_ms)
    return next(units) if count_ms else "0s"


_TERMS: Final = {
    setting.name: (
        setting.key,
        _shown_duration if setting.type in {SettingType.DURATION, SettingType.LIFETIME} else str,
    )
    for setting in ENTITY_SETTINGS
}
"""The key of each setting in a file, and how its values are shown."""


@contextmanager
def _as_declaration_error(what: str) -> Iterator[None]:
    """Turn errors of the namespace into ``DeclarationError``."""
    try:
        yield
    except BrokerError as error:
        text = rewrite_refusal(str(error), _TERMS) or str(error)
        raise DeclarationError(f"{what} cannot be applied as declared: {text}") from error


class _Application:
    """A declaration that is being applied to a namespace."""

    def __init__(self, namespace: Namespace, now_ms: int) -> None:
        self._namespace = namespace
        self._now_ms = now_ms

    def run(self, declaration: Declaration) -> None:
        entities = list(declared_entities(declaration))
        for address, declared in entities:
            with _as_declaration_error(_named(address, declared)):
                self._expect(address, declared)
        for address, declared in entities:  # the entities to which they forward exist now
            with _as_declaration_error(_named(address, declared)):
                self._update(address, declared)
        for topic in declaration.topics:
            for subscription in topic.subscriptions:
                self._set_rules(topic.name, subscription)
        with _as_declaration_error("the namespace's list of keys"):
            self._set_keys(declaration.keys)

    def _expect(self, address: Address, declared: DeclaredEntity[Any]) -> None:
        try:
            found = self._namespace.entity(address, self._now_ms).description
        except EntityNotFoundError:
            self._create(address, declared)
            return
        if type(found) is not type(declared.description):
            wanted, kind = _kind(declared.description), _kind(found)
            raise DeclarationError(f"'{declared.name}' is declared as a {wanted}, but it is an existing {kind}")

    def _create(self, address: Address, declared: DeclaredEntity[Any]) -> None:
        match declared.description:
            case QueueDescription() as queue:
                _refuse_itself(declared.name, queue)
                self._namespace.create_queue(declared.name, _without_forwards(queue), self._now_ms)
            case TopicDescription() as topic:
                self._namespace.create_topic(declared.name, topic, self._now_ms)
            case SubscriptionDescription() as settings:
                first = declared.rules[0] if isinstance(declared, DeclaredSubscription) and declared.rules else None
                self._namespace.create_subscription(
                    address.entity, declared.name, _without_forwards(settings), self._now_ms, first
                )

    def _update(self, address: Address, declared: DeclaredEntity[Any]) -> None:
        found = self._namespace.entity(address, self._now_ms).description
        wanted = declared.over(found)
        if wanted != found:
            self._namespace.update(address, wanted, self._now_ms)

    def _set_rules(self, topic: str, subscription: DeclaredSubscription) -> None:
        """Replace the rules of a subscription. It is never without a rule, even if one is refused."""
        place, now_ms = (topic, subscription.name), self._now_ms
        found = {rule.description.name.lower(): rule.description for rule in self._namespace.rules(*place, now_ms)}
        wanted = {rule.name.lower(): rule for rule in subscription.rules}
        for name, rule in wanted.items():
            with _as_declaration_error(f"rule '{rule.name}' of '{topic}/{subscription.name}'"):
                if name not in found:
                    self._namespace.add_rule(*place, rule, now_ms)
                elif not _is_same(found[name], rule):
                    self._namespace.update_rule(*place, rule, now_ms)
        for name in found:
            if wanted and name not in wanted:
                self._namespace.remove_rule(*place, name, now_ms)

    def _set_keys(self, keys: Sequence[AuthorizationRule]) -> None:
        found = self._namespace.authorization_rules(self._now_ms)
        wanted = merge_keys(found, keys)
        if wanted != found:
            self._namespace.set_authorization_rules(wanted, self._now_ms)


def declared_entities(declaration: Declaration) -> Iterator[tuple[Address, DeclaredEntity[Any]]]:
    """Yield the addresses and settings of all entities of a declaration, topics before their subscriptions."""
    destinations: list[DeclaredEntity[Any]] = [*declaration.queues, *declaration.topics]
    for entity in destinations:
        yield Address.of(entity.name), entity
    for topic in declaration.topics:
        for subscription in topic.subscriptions:
            yield Address.of(topic.name, subscription.name), subscription


def declared_keys(declaration: Declaration) -> Iterator[tuple[str, Sequence[AuthorizationRule]]]:
    """Yield the keys of the namespace and of each queue and topic, with the name of their owner for texts."""
    yield "the namespace", declaration.keys
    entities: list[DeclaredEntity[Any]] = [*declaration.queues, *declaration.topics]
    for entity in entities:
        yield f"{_kind(entity.description)} '{entity.name}'", entity.description.authorization_rules


def check_declaration(declaration: Declaration, limits: Limits) -> None:
    """Check the settings that can be checked without a namespace; raises ``DeclarationError``."""
    for address, declared in declared_entities(declaration):
        with _as_declaration_error(_named(address, declared)):
            check_description(declared.name, declared.description, limits)


def _named(address: Address, declared: DeclaredEntity[Any]) -> str:
    name = declared.name if address.subscription is None else f"{address.entity}/{declared.name}"
    return f"{_kind(declared.description)} '{name}'"


def _refuse_itself(name: str, queue: QueueDescription) -> None:
    """Reject a queue that is created with itself as target: the second step, which sets forwards, would accept it."""
    for setting in FORWARDING:
        if (getattr(queue, setting) or "").lower() == name.lower():
            raise DeclarationError(f"{setting} of queue '{name}' is the queue itself; name another queue or topic")


def _without_forwards(description: D) -> D:
    nowhere: dict[str, Any] = dict.fromkeys(FORWARDING)
    return replace(description, **nowhere)


def _kind(description: EntityDescription) -> str:
    return KIND_OF[type(description)].value


def _is_same(one: RuleDescription, other: RuleDescription) -> bool:
    return one == other and _kinds(one.filter) == _kinds(other.filter)


def _kinds(description: FilterDescription) -> dict[str, type]:
    """Return the types of the values to compare with: true equals 1 in Python, but not in a filter."""
    match description:
        case CorrelationFilter(properties=values) | SqlFilterDescription(parameters=values):
            return {name: type(value) for name, value in values.items()}
    return {}
