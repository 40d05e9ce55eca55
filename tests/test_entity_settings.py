"""The descriptions of broker and client have the settings of the table, and the management API has their elements."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pairbus import broker, client
from pairbus.broker.descriptions import KIND_OF
from pairbus.client.management import descriptions as client_descriptions
from pairbus.dialect.atom import QUEUE, SUBSCRIPTION, TOPIC, Table
from pairbus.entity_settings import ENTITY_SETTINGS, STATUSES, EntityKind, settings_of

TABLES = {EntityKind.QUEUE: QUEUE, EntityKind.TOPIC: TOPIC, EntityKind.SUBSCRIPTION: SUBSCRIPTION}
CLIENT = {
    EntityKind.QUEUE: client_descriptions.QueueDescription,
    EntityKind.TOPIC: client_descriptions.TopicDescription,
    EntityKind.SUBSCRIPTION: client_descriptions.SubscriptionDescription,
}
OTHERS = {"authorization_rules", "default_rule"}
"""Parts of a description that are no settings."""


def fields_of(kind: Any) -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(kind) if field.name not in OTHERS}


@pytest.mark.parametrize("description", KIND_OF, ids=lambda each: each.__name__)
def test_broker_description_has_the_settings_and_defaults_of_the_table(description: type) -> None:
    expected = {setting.name: setting.default for setting in settings_of(KIND_OF[description])}
    assert fields_of(description) == expected


@pytest.mark.parametrize("kind", EntityKind)
def test_client_description_has_the_settings_of_the_table(kind: EntityKind) -> None:
    expected = {setting.field for setting in ENTITY_SETTINGS if kind in (*setting.kinds, *setting.fixed_for)}
    assert {*fields_of(CLIENT[kind])} - {"path", "name"} == expected


@pytest.mark.parametrize("kind", EntityKind)
def test_management_api_has_the_elements_of_the_table(kind: EntityKind) -> None:
    table: Table = TABLES[kind]
    settable = {each.name: each.attribute for each in table.elements if not each.read_only}
    expected = {
        setting.element: setting.value_name
        for setting in ENTITY_SETTINGS
        if kind in (*setting.kinds, *setting.fixed_for)
    }
    assert {name: value for name, value in settable.items() if value not in OTHERS} == expected


def test_ranges_name_limits_that_exist() -> None:
    named = {
        bound
        for setting in ENTITY_SETTINGS
        for bound in (setting.minimum, setting.maximum, setting.choices)
        if isinstance(bound, str)
    }
    assert len(named) >= 8
    assert all(hasattr(broker.STANDARD, name) for name in named)


@pytest.mark.parametrize("attribute", ["name", "field", "element", "option", "emulator_key"])
def test_no_two_settings_share_a_name(attribute: str) -> None:
    names = [name for setting in ENTITY_SETTINGS if (name := getattr(setting, attribute)) is not None]
    assert len(names) == len(set(names))


def test_statuses_are_those_of_broker_and_client() -> None:
    assert [*STATUSES] == [status.value for status in broker.EntityStatus]
    assert [*STATUSES.values()] == [status.value for status in client.EntityStatus][: len(STATUSES)]
