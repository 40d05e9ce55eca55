"""Every name in the tables of the migration pages exists: ours, and where it is installed, the one that it replaces."""

from __future__ import annotations

import importlib
import inspect
from functools import reduce
from typing import Any

import azure.servicebus
import azure.servicebus.exceptions
import azure.servicebus.management
import pytest

import pairbus
from pairbus import blocking
from pairbus.entity_settings import ENTITY_SETTINGS
from tests.docs.snippets import ROOT
from tests.docs.tables import code, codes, rows_of

MIGRATION = ROOT / "docs" / "migration"
OF_DOTNET = rows_of(MIGRATION / "from-dotnet.md", ".NET", "pairbus", "what differs")
OF_THE_SDK = rows_of(MIGRATION / "from-the-azure-sdk.md", "azure-servicebus", "pairbus", "what differs")


@pytest.mark.parametrize("name", sorted({code(row[1]) for row in OF_DOTNET + OF_THE_SDK}))
def test_pairbus_name_exists(name: str) -> None:
    assert name.split(".", maxsplit=1)[0] in pairbus.__all__
    assert has(pairbus, name), name


@pytest.mark.parametrize("name", sorted({code(row[1]).split(".")[0] for row in OF_DOTNET + OF_THE_SDK}))
def test_pairbus_name_exists_in_the_blocking_api(name: str) -> None:
    assert hasattr(blocking, name)


@pytest.mark.parametrize("name", [code(row[0]) for row in OF_THE_SDK])
def test_sdk_name_exists(name: str) -> None:
    assert has(azure.servicebus, name), name


def test_no_name_is_listed_twice() -> None:
    for rows in (OF_DOTNET, OF_THE_SDK):
        names = [name for row in rows for name in codes(row[0])]
        assert len(names) == len(set(names))


def test_every_argument_of_dotnet_has_a_row() -> None:
    """They are the first five, in the order of the constructor there."""
    own = [*inspect.signature(pairbus.SendAvailabilityPairedNamespaceOptions).parameters][:5]
    reported = [code(row[1]).partition(".")[2] for row in OF_DOTNET if code(row[1]).startswith("SendAvailability")]
    assert reported == ["", *own, "ping_interval"]


def test_every_setting_of_the_emulator_has_a_row() -> None:
    expected = {
        setting.emulator_key: (setting.key, ", ".join(f"{kind.value}s" for kind in setting.kinds))
        for setting in ENTITY_SETTINGS
        if setting.emulator_key is not None
    }
    rows = rows_of(MIGRATION / "from-the-emulator.md", "Config.json", "settings file", "of")
    assert {code(theirs): (code(ours), of) for theirs, ours, of in rows} == expected


def has(package: Any, path: str) -> bool:
    """Return whether a package has a class or a member of it; attributes of instances count."""
    *owners, name = path.split(".")
    owner = reduce(getattr, owners, package)
    if hasattr(owner, name):
        return True
    return isinstance(owner, type) and (
        name in inspect.signature(owner).parameters
        or any(name in inspect.get_annotations(kind) for kind in owner.__mro__)
    )


def test_name_that_does_not_exist_is_detected() -> None:
    assert not has(pairbus, "MessagingFactory.create_everything")
    assert not has(importlib.import_module("azure.servicebus"), "ServiceBusClient.pair_namespace")
