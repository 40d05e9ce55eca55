"""The documentation says what is true: its snippets run, its links lead somewhere, its tables are complete."""

from __future__ import annotations

import asyncio
import re
import runpy
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from pairbus.wire import (
    ACCEPTED,
    SENDER,
    Condition,
    Configuration,
    Connection,
    ProtocolError,
    Source,
    Target,
    anonymous,
)
from pairbus.wire import errors as errors_module
from tests.docs.snippets import PAGES, ROOT, run_snippets, snippets_of

REFERENCE = ROOT / "docs" / "reference" / "wire.md"


@pytest.mark.parametrize("page", [page for page in PAGES if snippets_of(page)], ids=lambda page: page.name)
def test_every_snippet_runs(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_snippets(page)
    if page.name == "README.md":
        assert capsys.readouterr().out == "b'one espresso'\n"


def test_the_server_of_the_how_to_page_takes_a_message() -> None:
    page = run_snippets(ROOT / "docs" / "how-to" / "socket.md")
    delivery_state = asyncio.run(send_one(page["handle"]))
    assert delivery_state == ACCEPTED
    assert page["received"] == [b"one espresso"]


async def send_one(handle: Any) -> object:
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        client = Connection(Configuration(container_id="client"), anonymous())
        client.open()
        link = client.begin().attach("orders", SENDER, source=Source(address="a"), target=Target(address="b"))
        delivery = None
        while not (delivery is not None and delivery.settled):
            if link.credit and delivery is None:
                delivery = link.send(b"one espresso", tag=b"1")
            writer.write(client.data_to_send())
            client.receive_data(await asyncio.wait_for(reader.read(65536), 10))
        client.close()
        writer.write(client.data_to_send())
        client.receive_data(await asyncio.wait_for(reader.read(65536), 10))
        writer.close()
        await writer.wait_closed()
    return delivery.state


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_reference_lists_every_fault_with_its_condition() -> None:
    rows = [line for line in REFERENCE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    for name, kind in vars(errors_module).items():
        if isinstance(kind, type) and issubclass(kind, ProtocolError) and not kind.__subclasses__():
            row = next((row for row in rows if f"`{name}`" in row), None)
            assert row is not None, f"{name} is not in the reference"
            assert f"`{kind.condition}`" in row or name == "AuthenticationError", f"{name} has the wrong condition"


def test_the_reference_names_every_limit_and_its_default() -> None:
    text = REFERENCE.read_text(encoding="utf-8").split("## Limits")[1]
    defaults = {field.name: field.default for field in fields(Configuration)}
    for name in ("max_frame_size", "channel_max", "handle_max", "max_links", "max_unsettled", "incoming_window"):
        assert re.search(rf"`{name}`\s+{defaults[name]:,}", text), name
    assert defaults["max_message_size"] == 100 * 1024 * 1024


def test_every_condition_of_the_reference_exists() -> None:
    for condition in re.findall(r"`(amqp:[a-z:-]+)`", REFERENCE.read_text(encoding="utf-8")):
        assert condition in set(Condition), condition


def test_the_generated_pages_are_up_to_date() -> None:
    generator = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    assert generator["PAGE"].read_text(encoding="utf-8") == generator["page"](), "run: python docs/generate.py"
