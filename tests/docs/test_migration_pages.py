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
from pairbus.server import emulator
from tests.docs.snippets import ROOT
from tests.docs.tables import code, codes, rows_of

MIGRATION = ROOT / "docs" / "migration"
OF_DOTNET = rows_of(MIGRATION / "from-dotnet.md", ".NET", "pairbus", "what differs")
OF_THE_SDK = rows_of(MIGRATION / "from-the-azure-sdk.md", "azure-servicebus", "pairbus", "what differs")


@pytest.mark.parametrize("name", sorted({code(row[1]) for row in OF_DOTNET + OF_THE_SDK}))
def test_a_name_of_ours_exists(name: str) -> None:
    assert name.split(".", maxsplit=1)[0] in pairbus.__all__
    assert has(pairbus, name), name


@pytest.mark.parametrize("name", sorted({code(row[1]).split(".")[0] for row in OF_DOTNET + OF_THE_SDK}))
def test_a_name_of_ours_is_there_without_asyncio_too(name: str) -> None:
    assert hasattr(blocking, name)


@pytest.mark.parametrize("name", [code(row[0]) for row in OF_THE_SDK])
def test_a_name_of_the_sdk_exists(name: str) -> None:
    assert has(azure.servicebus, name), name


def test_no_name_is_listed_twice() -> None:
    for rows in (OF_DOTNET, OF_THE_SDK):
        names = [name for row in rows for name in codes(row[0])]
        assert len(names) == len(set(names))


def test_every_argument_of_dotnet_has_a_line() -> None:
    """They are the first five, in the order of the constructor there."""
    own = [*inspect.signature(pairbus.SendAvailabilityPairedNamespaceOptions).parameters][:5]
    told = [code(row[1]).partition(".")[2] for row in OF_DOTNET if code(row[1]).startswith("SendAvailability")]
    assert told == ["", *own, "ping_interval"]


def test_every_setting_of_the_emulator_has_a_line() -> None:
    kinds = {
        "queues": emulator._SENDING | emulator._RECEIVING,
        "topics": emulator._SENDING,
        "subscriptions": emulator._RECEIVING,
    }
    expected = {
        theirs: (ours, ", ".join(kind for kind, names in kinds.items() if theirs in names))
        for theirs, ours in kinds["queues"].items()
    }
    rows = rows_of(MIGRATION / "from-the-emulator.md", "Config.json", "settings file", "of")
    assert {code(theirs): (code(ours), of) for theirs, ours, of in rows} == expected


def has(room: Any, path: str) -> bool:
    """Whether a class, or something of it, can be had from there: also what only its instances have."""
    *owners, name = path.split(".")
    owner = reduce(getattr, owners, room)
    if hasattr(owner, name):
        return True
    return isinstance(owner, type) and (
        name in inspect.signature(owner).parameters
        or any(name in inspect.get_annotations(kind) for kind in owner.__mro__)
    )


def test_a_name_that_does_not_exist_is_noticed() -> None:
    assert not has(pairbus, "MessagingFactory.create_everything")
    assert not has(importlib.import_module("azure.servicebus"), "ServiceBusClient.pair_namespace")
