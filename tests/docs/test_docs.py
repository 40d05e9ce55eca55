"""The documentation says what is true: its snippets run, its links lead somewhere, its tables are complete."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import pytest

import pairbus.dialect.annotations as annotation_names
from pairbus import (
    MessagingFactorySettings,
    RetryPolicy,
    blocking,
    broker,
    client,
    pairing,
    server,
    store,
    testing,
    wire,
)
from pairbus.broker.sql.syntax import system_property
from pairbus.wire import (
    ACCEPTED,
    RECEIVER,
    Condition,
    Configuration,
    Connection,
    ConnectionClosed,
    Error,
    LinkDetached,
    ProtocolError,
    Source,
    Target,
    anonymous,
)
from pairbus.wire import errors as errors_module
from tests.docs.snippets import PAGES, ROOT, run_snippets, snippets_of
from tests.docs.tables import code, rows_of
from tests.spans import forget_tracer_provider

OUTSIDE: Any = {"view": lambda _: broker.NO_PROPERTIES, "fresh_id": uuid4, "fresh_token": lambda: uuid4().bytes}
REFERENCE = ROOT / "docs" / "reference" / "wire.md"


def with_snippets() -> Iterator[Any]:
    for page in PAGES:
        snippets = snippets_of(page)
        if snippets:  # a session of Spark takes its time
            has_spark = any("pyspark" in snippet or "pairbus.spark" in snippet for snippet in snippets)
            yield pytest.param(page, id=page.name, marks=pytest.mark.slow if has_spark else ())


@pytest.mark.parametrize("page", [*with_snippets()])
def test_every_snippet_runs(
    page: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        run_snippets(page)
    finally:
        forget_tracer_provider()  # one page sets it for the whole process
    if page.name == "README.md":
        assert capsys.readouterr().out == "one espresso\n" * 2
    if page.parent.name == "tutorial":  # what it says is printed is printed
        assert capsys.readouterr().out == "".join(printed_by(page))


def printed_by(page: Path) -> list[str]:
    return re.findall(r"^```text\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def test_client_of_the_how_to_page_sends_to_its_server() -> None:
    page = run_snippets(ROOT / "docs" / "how-to" / "socket.md")

    async def send_some() -> list[object]:
        async with await asyncio.start_server(page["handle"], "127.0.0.1", 0) as server:
            outcomes: list[object] = await page["send"]([b"one espresso", b"two"], port=port_of(server))
            return outcomes

    assert asyncio.run(send_some()) == [ACCEPTED, ACCEPTED]
    assert page["received"] == [b"one espresso", b"two"]


def test_server_of_the_how_to_page_refuses_a_receiver_and_continues() -> None:
    page = run_snippets(ROOT / "docs" / "how-to" / "socket.md")

    async def receive_from_it() -> list[object]:
        async with await asyncio.start_server(page["handle"], "127.0.0.1", 0) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server))
            client = Connection(Configuration(container_id="client"), anonymous())
            client.open()
            client.begin().attach("orders", RECEIVER, source=Source(address="a"), target=Target(address="b"))
            events: list[object] = []
            while not any(isinstance(event, LinkDetached) for event in events):
                writer.write(client.data_to_send())
                events += client.receive_data(await asyncio.wait_for(reader.read(65536), 60))
            client.close()
            writer.write(client.data_to_send())
            while not client.is_finished:
                events += client.receive_data(await asyncio.wait_for(reader.read(65536), 60))
            writer.close()
            await writer.wait_closed()
            return events

    events = asyncio.run(receive_from_it())
    detached = next(event for event in events if isinstance(event, LinkDetached))
    assert detached.error == Error(Condition.NOT_IMPLEMENTED, "this server only takes messages")
    assert events[-1] == ConnectionClosed(None)


def port_of(server: asyncio.Server) -> int:
    port: int = server.sockets[0].getsockname()[1]
    return port


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_to_a_file_and_to_a_heading_of_it(page: Path) -> None:
    for target, heading in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            file = page.parent / target if target else page
            assert file.exists(), target
            assert not heading or heading in headings_of(file), f"{target}#{heading}"


def headings_of(page: Path) -> set[str]:
    """The headings of a page in the form that links have them."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in found}


def test_reference_lists_every_fault_with_its_condition() -> None:
    rows = [line for line in REFERENCE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    for name, kind in vars(errors_module).items():
        if isinstance(kind, type) and issubclass(kind, ProtocolError) and not kind.__subclasses__():
            row = next((row for row in rows if f"`{name}`" in row), None)
            assert row is not None, f"{name} is not in the reference"
            assert f"`{kind.condition}`" in row or name == "AuthenticationError", f"{name} has the wrong condition"


def test_reference_names_every_limit_and_its_default() -> None:
    text = REFERENCE.read_text(encoding="utf-8").split("## Limits")[1]
    defaults = {field.name: field.default for field in fields(Configuration)}
    for name in ("max_frame_size", "channel_max", "handle_max", "max_links", "max_unsettled", "incoming_window"):
        assert re.search(rf"`{name}`\s+{defaults[name]:,}", text), name
    assert defaults["max_message_size"] == 100 * 1024 * 1024


def test_every_condition_of_the_reference_exists() -> None:
    for condition in re.findall(r"`(amqp:[a-z:-]+)`", REFERENCE.read_text(encoding="utf-8")):
        assert condition in set(Condition), condition


def test_generated_pages_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]
    # The generator reads annotations, which the compiled build does not have.
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0), done.stderr


@pytest.mark.parametrize(
    "package", [blocking, broker, client, pairing, server, store, testing, wire], ids=lambda package: package.__name__
)
def test_reference_lists_every_public_name(package: ModuleType) -> None:
    page = ROOT / "docs" / "reference" / f"api-{package.__name__.removeprefix('pairbus.')}.md"
    text = page.read_text(encoding="utf-8")
    for name in package.__all__:
        assert re.search(rf"^- `{name}\b", text, re.MULTILINE), name


def test_reference_lists_constructors_and_members() -> None:
    packages = ("broker", "client", "server", "store")
    text = "".join((ROOT / "docs" / "reference" / f"api-{package}.md").read_text("utf-8") for package in packages)
    generator = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    for name in generator["CONSTRUCTED"]:
        assert f"\n- `{name}(" in text
    keeper = store.GroupCommitter(store.MemoryStore(), lambda records: broker.Namespace(records, **OUTSIDE), 0)
    for attribute in [*generator["ATTRIBUTES"]["GroupCommitter"], "namespace", "damaged"]:
        assert f"\n  - `{attribute}`: " in text
        assert hasattr(keeper, attribute.split(":")[0])
    for line in (
        "message_id: str = ''",
        "disposition: SettlementKind = SettlementKind.COMPLETE",
        "max_delivery_count: int = 10",
    ):
        assert f"\n  - `{line}`" in text


@pytest.mark.parametrize(("head", "kind"), [("setting", MessagingFactorySettings), ("of `RetryPolicy`", RetryPolicy)])
def test_how_to_connect_names_every_setting_of_the_client_and_its_default(head: str, kind: type[Any]) -> None:
    rows = rows_of(ROOT / "docs" / "how-to" / "connect.md", head, "default", "description")
    usual = kind()
    assert {code(name): default for name, default, _ in rows} == {
        field.name: as_a_reader_writes(getattr(usual, field.name)) for field in fields(kind)
    }


def as_a_reader_writes(default: object) -> str:
    match default:
        case timedelta():
            units = {"min": timedelta(minutes=1), "s": timedelta(seconds=1), "ms": timedelta(milliseconds=1)}
            unit = next(unit for unit, length in units.items() if not default % length)
            return f"{default // units[unit]} {unit}"
        case RetryPolicy():
            return "`RetryPolicy()`"
    return f"`{default}`"


def test_client_reference_names_every_property_of_messages() -> None:
    page = ROOT / "docs" / "reference" / "client.md"
    reported = {code(row[0]) for row in rows_of(page, "property", "in AMQP", "in rules")}
    assert reported == set(inspect.signature(client.BrokeredMessage).parameters) - {"body", "body_kind", "amqp"}
    received = {code(row[0]) for row in rows_of(page, "attribute", "in AMQP", "description")}
    properties = {name for name, kind in vars(client.ReceivedMessage).items() if isinstance(kind, property)}
    assert received == {*inspect.get_annotations(client.ReceivedMessage), *properties, "is_settled"}


def test_client_reference_lists_existing_annotations_and_rules() -> None:
    text = (ROOT / "docs" / "reference" / "client.md").read_text("utf-8")
    known = {value for value in vars(annotation_names).values() if isinstance(value, str)}
    assert set(re.findall(r"`(x-opt-[a-z-]+)`", text)) <= known
    for name in re.findall(r"`sys[.](\w+)`", text):
        assert system_property(name) is not None
