"""Data of earlier versions is opened, read completely, and upgraded in place."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from base64 import b64decode
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

import pairbus
from pairbus import (
    BrokeredMessage,
    EntityStatus,
    MessageReceiver,
    MessagingFactory,
    ReceivedMessage,
    UnauthorizedError,
)
from pairbus.cli.message_lines import message_of
from pairbus.dialect.connection_string import parse_connection_string
from pairbus.ledger import LIVES
from pairbus.server import Settings
from pairbus.testing import running_namespace
from tests.client.stage import play
from tests.docs.snippets import ROOT
from tests.docs.tables import rows_of as rows_of_table
from tests.formats.entity_status import set_status
from tests.formats.fixture import Fixture, fixtures
from tests.formats.format_versions import CURRENT, NAMED, stored_versions
from tests.formats.ledger_fixture import LEDGER, LIFE, SORT
from tests.formats.namespace_content import expect, message_values, peek_all, read_content
from tests.server.amqp.clocked_namespace import ClockedNamespace, SettableClock
from tests.server.ledger_rows import operations_in, rows_of
from tests.server.side_buffer.test_server import held
from tests.waiting import eventually

VERSION: Final = re.compile(r"^(_?(?:(?!API)[A-Z]+_)*VERSION): Final = (?:\d|b\")", re.MULTILINE)
"""A constant of the code that is a version: a number, or bytes that end with one."""

HOUR_MS: Final = 3_600_000
PARTITION_BITS: Final = 48
WAIT: Final = timedelta(seconds=30)


def of_each(kind: str | None = None) -> pytest.MarkDecorator:
    """Run a test with the fixtures of each version."""
    found = [pytest.param(one, id=one.name) for one in fixtures(kind)]
    assert found, f"there is no fixture of {kind or 'any kind'}"
    return pytest.mark.parametrize("fixture", found)


# The numbers.


def test_every_former_format_version_has_a_fixture() -> None:
    """Before a version is raised, ``tests.formats.make_fixtures`` keeps what the code has written until then."""
    stored: dict[str, set[int]] = defaultdict(set)
    for fixture in fixtures():
        for name, versions in fixture.formats.items():
            stored[name] |= {*versions}
    for name, current in CURRENT.items():
        missing = {*range(1, current)} - stored.get(name, set())
        assert not missing, f"there is no fixture of version {missing} of the {name}"
    assert stored.keys() <= CURRENT.keys()


def test_every_format_version_of_the_code_is_known_here() -> None:
    package = Path(pairbus.__file__).parent
    found = {
        f"{path.relative_to(package).with_suffix('').as_posix()}.{name}"
        for path in package.rglob("*.py")
        for name in VERSION.findall(path.read_text("utf-8"))
    }
    assert found == NAMED


def test_page_names_every_format_with_its_version() -> None:
    page = ROOT / "docs" / "explanation" / "disk-layout.md"
    rows = rows_of_table(page, "format", "where its version is", "version")
    assert {name: int(version) for name, _, version in rows} == CURRENT


@of_each()
def test_fixture_has_the_formats_of_its_manifest(fixture: Fixture, tmp_path: Path) -> None:
    fixture.unpack(tmp_path)
    assert stored_versions(tmp_path) == fixture.formats


# A data directory.


class DirectoryClock(SettableClock):
    """The time of a directory; tokens still go by the time of day."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


@contextmanager
def opened(fixture: Fixture, data: Path, after_ms: int = HOUR_MS, **settings: Any) -> Iterator[ClockedNamespace]:
    """Open a data directory with a real server, so long after it was made: what it remembers is not forgotten then."""
    clock = DirectoryClock()
    clock.advance(fixture.made_ms + after_ms - clock())
    name = fixture.manifest["name"]
    namespace = ClockedNamespace(Settings(data=data, name=name, port=(0,), **settings), clock)
    try:
        namespace.start()
        yield namespace
    finally:
        namespace.close()


@of_each("namespace")
def test_data_directory_is_opened_with_everything_in_it(
    fixture: Fixture, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    fixture.unpack(tmp_path)
    manifest = fixture.manifest
    data = tmp_path / manifest["name"]
    trusted = (data / "tls" / "ca.pem").read_bytes()
    for start in ("the first start", "the second start"):
        with opened(fixture, data) as namespace:
            assert namespace.key == parse_connection_string(manifest["connection"]).key, start
            found = asyncio.run(read_content(namespace.connection_string))
        assert f"damaged=0 quarantined={manifest['quarantined']}" in caplog.text, start
        caplog.clear()
        expect({name: manifest[name] for name in ("queues", "topics", "messages")}, found, start)
        assert found["messages"].keys() == manifest["messages"].keys(), start
        assert stored_versions(data)["data directory"] == [CURRENT["data directory"]], start
        assert (data / "tls" / "ca.pem").read_bytes() == trusted, "clients do not trust it any more"


@of_each("namespace")
def test_data_directory_goes_on_with_everything_in_it(fixture: Fixture, tmp_path: Path) -> None:
    """Two days later: what was scheduled has come, and what had a time to live has expired."""
    fixture.unpack(tmp_path)

    async def scenario(connection: str) -> None:
        async with MessagingFactory.from_connection_string(connection) as factory:
            await expect_history(factory, fixture.manifest)
            await expect_messages(factory, fixture.manifest)
            await expect_routing(factory, fixture.manifest)
            await expect_forwarding(factory, fixture.manifest)
        await expect_access(connection, fixture.manifest)

    with opened(fixture, tmp_path / fixture.manifest["name"], 48 * HOUR_MS) as namespace:
        play(scenario(namespace.connection_string))


async def expect_history(factory: MessagingFactory, manifest: Mapping[str, Any]) -> None:
    """Check that a message sent before the upgrade is a duplicate."""
    for path, remembered in manifest["history"].items():
        before = [message.sequence_number for message in await peek_all(factory, path)]
        async with await factory.create_message_sender(path) as sender:
            for message in remembered:
                await sender.send(BrokeredMessage("again", **message))
        assert [message.sequence_number for message in await peek_all(factory, path)] == before, path


async def expect_messages(factory: MessagingFactory, manifest: Mapping[str, Any]) -> None:
    """Receive everything that there is, and leave nothing."""
    later = manifest["later"]
    for path, messages in manifest["messages"].items():
        gone, come = later["gone"].get(path, []), later["due"].get(path, [])
        left = [message for message in messages if message.get("message_id") not in gone]
        if path in manifest["sessions"]:
            await expect_sessions(factory, path, left, manifest["sessions"][path])
        else:
            async with await factory.create_message_receiver(path) as receiver:
                await expect_received(receiver, path, left, come)
        assert await peek_all(factory, path) == []


async def expect_sessions(
    factory: MessagingFactory, path: str, messages: list[dict[str, Any]], states: Mapping[str, str | None]
) -> None:
    assert {message["session_id"] for message in messages} <= states.keys()
    for session_id, state in states.items():
        async with await factory.accept_message_session(path, session_id) as session:
            assert await session.get_state() == (None if state is None else b64decode(state))
            own = [message for message in messages if message["session_id"] == session_id]
            await expect_received(session, path, own, [])


async def expect_received(
    receiver: MessageReceiver, path: str, messages: Iterable[dict[str, Any]], come: Iterable[str]
) -> None:
    """Receive what is active, in the order of each partition, what has come since, and what is deferred."""
    expected = by_number(messages)
    active = [number for number, message in expected.items() if message["state"] == "active"]
    late = [*come]
    received: list[ReceivedMessage] = []
    while len(received) < len(active) + len(late):
        some = await receiver.receive(100, WAIT)
        assert some, f"{path} has {received}, and nothing more"
        await receiver.complete(some)
        received += some
    known = [message for message in received if message.sequence_number in expected]
    assert in_partitions(message.sequence_number for message in known) == in_partitions(active), path
    assert [message.message_id for message in received if message not in known] == late, path
    for message in known:
        expect(expected[message.sequence_number], message_values(message, path), path)
    deferred = [number for number, message in expected.items() if message["state"] == "deferred"]
    for message in await receiver.receive_deferred(deferred):
        expect(expected[message.sequence_number], message_values(message, path), path)
        await receiver.complete(message)


def by_number(messages: Iterable[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {message["sequence_number"]: message for message in messages}


def in_partitions(numbers: Iterable[int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for number in numbers:
        found[number >> PARTITION_BITS].append(number)
    return found


async def expect_routing(factory: MessagingFactory, manifest: Mapping[str, Any]) -> None:
    """Rules do to a message what they did before: each that the topic had is sent once more."""
    topic, everything = manifest["routing"]["topic"], manifest["routing"]["everything"]
    prefix = f"{topic}/Subscriptions/"
    kept = {path: messages for path, messages in manifest["messages"].items() if path.startswith(prefix)}
    async with await factory.create_message_sender(topic) as sender:
        for message in kept[prefix + everything]:
            await sender.send(again(message))
    for path, messages in kept.items():
        found = [message_values(message, path) for message in await peek_all(factory, path)]
        assert Counter(map(outward, found)) == Counter(map(outward, messages)), path


def again(message: Mapping[str, Any]) -> BrokeredMessage:
    """Return a message as it was sent, from its message_values, with another body: no rule sees that."""
    sent = {name: value for name, value in message.items() if not name.startswith("body")}
    return message_of(json.dumps({"body": "again", **sent}))


def outward(message: Mapping[str, Any]) -> str:
    """Return what a rule can change of a message."""
    return json.dumps([message.get(name) for name in ("message_id", "label", "application_properties")])


async def expect_forwarding(factory: MessagingFactory, manifest: Mapping[str, Any]) -> None:
    for source, target in manifest["forwards"].items():
        async with await factory.create_message_sender(source) as sender:
            await sender.send(BrokeredMessage("onward", message_id="onward"))
        assert "onward" in [message.message_id for message in await peek_all(factory, target)]


async def expect_access(connection: str, manifest: Mapping[str, Any]) -> None:
    """Each key opens what it opened."""
    place = connection.partition(";")[0]
    for access in manifest["access"]:
        text = f"{place};SharedAccessKeyName={access['key_name']};SharedAccessKey={access['key']}"
        async with MessagingFactory.from_connection_string(f"{text};UseDevelopmentEmulator=true") as factory:
            allowed = {
                "send": await may_send(factory, access["path"]),
                "listen": await may_listen(factory, access["path"]),
            }
        assert [right for right, is_given in allowed.items() if is_given] == access["rights"], access


async def may_send(factory: MessagingFactory, path: str) -> bool:
    try:
        async with await factory.create_message_sender(path) as sender:
            await sender.send(BrokeredMessage("allowed"))
    except UnauthorizedError:
        return False
    return True


async def may_listen(factory: MessagingFactory, path: str) -> bool:
    try:
        await peek_all(factory, path)
    except UnauthorizedError:
        return False
    return True


# A side buffer.


@of_each("side-buffer")
def test_side_buffer_is_merged_with_each_message_once_and_in_order(fixture: Fixture, tmp_path: Path) -> None:
    fixture.unpack(tmp_path)
    data, side = tmp_path / "data", tmp_path / "side"
    set_aside = (side / "set-aside.jsonl").read_bytes()
    with opened(fixture, data, side_buffer=side) as namespace:
        disabled = fixture.manifest["disabled"]
        eventually(lambda: held(namespace) == len(fixture.manifest["merged"][disabled]))
        asyncio.run(set_status(namespace.connection_string, disabled, EntityStatus.ACTIVE))
        eventually(lambda: not held(namespace))
        asyncio.run(expect_merged(namespace.connection_string, fixture.manifest))
    assert not [*side.glob("*.parcels")]
    with opened(fixture, data, side_buffer=side) as namespace:
        assert not held(namespace)
        asyncio.run(expect_merged(namespace.connection_string, fixture.manifest))
    assert (side / "set-aside.jsonl").read_bytes() == set_aside
    assert stored_versions(side)["side buffer"] == [CURRENT["side buffer"]]


async def expect_merged(connection: str, manifest: Mapping[str, Any]) -> None:
    """Every message that was confirmed is there, in the order of each partition."""
    found = (await read_content(connection))["messages"]
    for path, messages in manifest["merged"].items():
        expect(sorted(messages, key=partition_key), sorted(found.pop(path), key=partition_key), path)
    assert not found


def partition_key(message: Mapping[str, Any]) -> str:
    return str(message.get("partition_key"))


# A ledger.


@of_each("ledger")
def test_ledger_is_completed_from_the_outbox_and_its_journals_become_parquet_files(
    fixture: Fixture, tmp_path: Path
) -> None:
    fixture.unpack(tmp_path)
    manifest, ledger = fixture.manifest, tmp_path / LEDGER
    before = {row["ordinal"] for row in rows_of(ledger, LIVES)}
    assert before == {ordinal for ordinal, *_ in manifest["lives"]} - {*manifest["unwritten"]}
    for start in ("the first start", "the second start"):
        with running_namespace(manifest["name"], data=tmp_path / manifest["name"], ledger=ledger, ledger_lives=True):
            pass
        assert not [*(ledger / "open").iterdir()], start
        lives = sorted([row[name] for name in LIFE] for row in rows_of(ledger, LIVES))
        ordinals = [ordinal for ordinal, *_ in lives]
        assert len(ordinals) == len({*ordinals}), start
        known = {ordinal for ordinal, *_ in manifest["lives"]}
        assert [life for life in lives if life[0] in known] == manifest["lives"], start
        operations = operations_in(ledger, *SORT)
        assert {tuple(sort): count for *sort, count in manifest["operations"]} == operations, start
    assert stored_versions(ledger)["ledger"][-1] == CURRENT["ledger"]
