"""The configuration file of the Azure Service Bus emulator, parsed as a declaration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pairbus.broker.descriptions import CORRELATION_FIELDS
from pairbus.entity_settings import EntityKind, settings_of
from pairbus.server.declaration import Declaration, DeclarationError, check_keys, parse_declaration, read_value

# The schema of the file: ServiceBus-Emulator/Schema/Config-schema.json of the repository
# Azure/azure-service-bus-emulator-installer.
_CORRELATION: Final = {**{name: field for field, name in CORRELATION_FIELDS.items()}, "Properties": "properties"}
_FILTERS: Final = {"Correlation": "CorrelationFilter", "Sql": "SqlFilter"}

Table = Mapping[str, Any]


class EmulatorConfig(NamedTuple):
    """One namespace of the file."""

    name: str
    entities: Declaration


def read_emulator_config(document: object, name: str | None = None) -> EmulatorConfig:
    """Parse the namespace of that name; the name of an only namespace is ignored. Raises ``DeclarationError``.

    Settings that the file omits have Azure's defaults. The emulator's logging settings are ignored.
    """
    user = _table(_table(document, "the file", ["UserConfig"])["UserConfig"], "UserConfig", ["Namespaces"], ["Logging"])
    namespace = _choose(_tables(user, "Namespaces", "UserConfig"), name)
    where = f"namespace '{namespace.get('Name')}'"
    _table(namespace, where, ["Name"], ["Queues", "Topics"])
    declaration = parse_declaration(
        {
            "queues": [_queue(queue) for queue in _tables(namespace, "Queues", where)],
            "topics": [_topic(topic) for topic in _tables(namespace, "Topics", where)],
        }
    )
    return EmulatorConfig(read_value(str, namespace["Name"], f"Name of {where}"), declaration)


def _choose(namespaces: Sequence[Table], name: str | None) -> Table:
    names = [str(namespace.get("Name")) for namespace in namespaces]
    chosen = [each for each, its in zip(namespaces, names, strict=True) if its.lower() == (name or "").lower()]
    if len(namespaces) == 1 or len(chosen) == 1:
        return (chosen or namespaces)[0]
    if not namespaces:
        raise DeclarationError("UserConfig has no namespace")
    raise DeclarationError(f"the file has the namespaces {', '.join(names)}; choose one with the setting 'name'")


def _queue(table: Table) -> dict[str, object]:
    where = _titled("queue", table, "Properties")
    return {"name": table["Name"]} | _properties(table, EntityKind.QUEUE, where)


def _topic(table: Table) -> dict[str, object]:
    where = _titled("topic", table, "Properties", "Subscriptions")
    subscriptions = [_subscription(each) for each in _tables(table, "Subscriptions", where)]
    return {"name": table["Name"], "subscriptions": subscriptions} | _properties(table, EntityKind.TOPIC, where)


def _subscription(table: Table) -> dict[str, object]:
    where = _titled("subscription", table, "Properties", "Rules")
    rules = [_rule(each) for each in _tables(table, "Rules", where)]
    return {"name": table["Name"], "rules": rules} | _properties(table, EntityKind.SUBSCRIPTION, where)


def _rule(table: Table) -> dict[str, object]:
    where = _titled("rule", table, "Properties")
    properties = _table(
        table.get("Properties"), f"Properties of {where}", ["FilterType"], [*_FILTERS.values(), "Action"]
    )
    kind = properties["FilterType"]
    if kind not in _FILTERS:
        raise DeclarationError(f"FilterType of {where} must be one of {', '.join(_FILTERS)}, got {kind!r}")
    rule: dict[str, object] = {"name": table["Name"], "filter": _filter(properties, kind, where)}
    if "Action" in properties:
        rule["action"] = _expression(properties, "Action", where)
    return rule


def _filter(properties: Table, kind: str, where: str) -> object:
    key = _FILTERS[kind]
    if stray := [other for other in _FILTERS.values() if other in properties and other != key]:
        raise DeclarationError(f"{where} has FilterType '{kind}' and a {stray[0]}")
    if kind == "Sql":
        return _expression(properties, key, where)
    return _renamed(_table(properties.get(key), f"{key} of {where}"), _CORRELATION, f"{key} of {where}")


def _expression(properties: Table, key: str, where: str) -> object:
    return _table(properties.get(key), f"{key} of {where}", ["SqlExpression"])["SqlExpression"]


def _properties(table: Table, kind: EntityKind, where: str) -> dict[str, object]:
    names = {setting.emulator_key: setting.key for setting in settings_of(kind) if setting.emulator_key is not None}
    return _renamed(_table(table.get("Properties", {}), f"Properties of {where}"), names, where)


def _renamed(table: Table, names: Mapping[str, str], where: str) -> dict[str, object]:
    check_keys(table, names, where)
    return {names[key]: value for key, value in table.items()}


def _titled(kind: str, table: Table, *others: str) -> str:
    """Return the name of an entity for errors, after checking that it has a name and no unknown keys."""
    where = f"{kind} '{table.get('Name')}'"
    _table(table, where, ["Name"], others)
    return where


def _table(value: object, where: str, needed: Sequence[str] = (), others: Iterable[str] | None = None) -> Table:
    """Return an object with these keys; if none are named here, with any keys."""
    if not isinstance(value, Mapping):
        raise DeclarationError(f"{where} must be an object")
    if needed:
        check_keys(value, [*needed, *(others or ())], where)
    for key in needed:
        if key not in value:
            raise DeclarationError(f"{where} has no {key}")
    return value


def _tables(table: Table, key: str, where: str) -> Sequence[Table]:
    value = table.get(key, [])
    if not isinstance(value, list):
        raise DeclarationError(f"{key} of {where} must be a list")
    return [_table(each, f"each of {key} of {where}") for each in value]
