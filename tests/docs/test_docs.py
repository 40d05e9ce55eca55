"""The documentation says what is true: its snippets run, its links lead somewhere, its tables are complete."""

from __future__ import annotations

import asyncio
import re
import runpy
from dataclasses import fields
from pathlib import Path

import pytest

from pairbus import wire
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

REFERENCE = ROOT / "docs" / "reference" / "wire.md"


@pytest.mark.parametrize("page", [page for page in PAGES if snippets_of(page)], ids=lambda page: page.name)
def test_every_snippet_runs(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_snippets(page)
    if page.name == "README.md":
        assert capsys.readouterr().out == "b'one espresso'\n"


def test_the_client_of_the_how_to_page_sends_to_its_server() -> None:
    page = run_snippets(ROOT / "docs" / "how-to" / "socket.md")

    async def send_some() -> list[object]:
        async with await asyncio.start_server(page["handle"], "127.0.0.1", 0) as server:
            outcomes: list[object] = await page["send"]([b"one espresso", b"two"], port=port_of(server))
            return outcomes

    assert asyncio.run(send_some()) == [ACCEPTED, ACCEPTED]
    assert page["received"] == [b"one espresso", b"two"]


def test_the_server_of_the_how_to_page_refuses_a_receiver_and_goes_on() -> None:
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
                events += client.receive_data(await asyncio.wait_for(reader.read(65536), 10))
            client.close()
            writer.write(client.data_to_send())
            while not client.is_finished:
                events += client.receive_data(await asyncio.wait_for(reader.read(65536), 10))
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
    for page, make in generator["PAGES"].items():
        assert page.read_text(encoding="utf-8") == make(), "run: python docs/generate.py"


def test_the_reference_names_everything_that_is_public() -> None:
    text = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    for name in wire.__all__:
        assert f"`{name}" in text, name
