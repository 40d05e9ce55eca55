"""Every command that a page shows can be typed, and does what the page says."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Final

import pytest
import typer.main

from pairbus.blocking import (
    BrokeredMessage,
    MessagingFactory,
    NamespaceManager,
    NamespacePair,
    SendAvailabilityPairedNamespaceOptions,
)
from pairbus.cli.main import app
from pairbus.store.certificate import open_certificate
from pairbus.testing import RunningNamespace, running_namespace
from tests.cli.test_cli import blocks_of, serving
from tests.docs.shell import Dialogue, Shell, dialogues, words_of_ours
from tests.docs.snippets import PAGES, ROOT
from tests.jobs.ledger.written import operation, write
from tests.jobs.reconcile.model import PairModel

DOCS: Final = ROOT / "docs"
HOW_TO: Final = DOCS / "how-to"
HTTP: Final = DOCS / "reference" / "http.md"
DIAGNOSTICS: Final = HOW_TO / "collect-diagnostics.md"
EMULATOR: Final = DOCS / "migration" / "from-the-emulator.md"
ELSEWHERE: Final = {HOW_TO / "everyday-commands.md", HOW_TO / "recover.md", DOCS / "reference" / "cli.md"}
"""Typed by tests/cli/test_everyday_page.py and test_repair.py; and examples of the help, of tests/cli/test_help.py."""

SERVING: Final = [
    *(HOW_TO / f"{name}.md" for name in ("serve", "console", "operate", "know-what-it-costs", "practise-an-outage")),
    HOW_TO / "prove-that-nothing-was-lost.md",
    EMULATOR,
]
ASKING_LEDGERS: Final = [
    *(HOW_TO / f"{name}.md" for name in ("know-what-it-costs", "prove-that-nothing-was-lost")),
    DOCS / "reference" / "rate-cards.md",
]
CLUSTER: Final = ("spark://", "spark-class", "spark-submit", "kill %1", "syphon=$(")
"""On a cluster the syphon runs in tests/jobs/test_syphon_cluster.py."""

SERVICE: Final = re.compile(r"^ExecStart=\S*/(pairbus .*)", re.MULTILINE)
SHOWN: Final = {page: found for page in PAGES if (found := dialogues(page))}
OURS: Final = [
    pytest.param(words, id=f"{page.stem}-{' '.join(words)}"[:80])
    for page, found in SHOWN.items()
    for command in (*(one.command for one in found), *SERVICE.findall(page.read_text(encoding="utf-8")))
    for words in words_of_ours(command)
]
PUBLIC_KEY: Final = "PAIRBUS_SERVE_KEY=SAS_KEY_VALUE pairbus serve"
"""The emulator's key is no secret: commands with it may print it."""

READ_BY_PROGRAMS: Final = {DOCS / "tutorial" / "first-messages.md", DOCS / "tutorial" / "survive-an-outage.md"}
"""The scripts of these pages read the output of the server, so it is not displayed."""

NEEDS_BASH: Final = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash to type it into")


@pytest.mark.parametrize("words", OURS)
def test_every_command_of_a_page_is_valid(words: list[str]) -> None:
    """Its options exist, and it has all that it needs and that no variable can say."""
    command = typer.main.get_command(app)
    rest = [*words]
    while rest and (found := getattr(command, "commands", {}).get(rest[0])) is not None:
        command = found
        rest.pop(0)
    if words == ["--install-completion"]:  # which acts as it is read
        return
    known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
    assert {word for word in rest if word.startswith("--")} <= known
    given = command.make_context("pairbus", rest, resilient_parsing=True).params
    assert not [one.name for one in command.params if one.required and not one.envvar and given.get(one.name) is None]


def of_page(page: Path, *, served: bool) -> list[tuple[str, Dialogue]]:
    """The commands that serve, or all others, with the first word after ``pairbus``."""
    found = [(next(iter(words_of_ours(one.command)), [""])[0], one) for one in SHOWN[page]]
    return [
        (name, one)
        for name, one in found
        if (name == "serve") == served and not any(word in one.command for word in CLUSTER)
    ]


# Namespaces that are served


@NEEDS_BASH
@pytest.mark.slow
@pytest.mark.parametrize("page", SERVING, ids=lambda page: page.stem)
def test_serve_commands_of_a_page_work(page: Path, tmp_path: Path) -> None:
    """Whatever port is asked for, it is one that is free."""
    made = open_certificate(tmp_path / "made", ["bus.example"], time.time_ns() // 1_000_000)
    shutil.copy(made.cert_file, tmp_path / "bus.pem")
    shutil.copy(made.key_file, tmp_path / "bus-key.pem")
    in_place = {"5672": "0", "5673": "0", "--port 5300": "", "--host 0.0.0.0": "", "/mnt/other": "./other"}
    shell = Shell(tmp_path, in_place, {"PAIRBUS_SERVE_PORT": "0"})
    for name, language in (("contoso.toml", "toml"), ("Config.json", "json")):
        (tmp_path / name).write_text(blocks_of(HOW_TO / "serve.md", language)[0], encoding="utf-8")
    for _, dialogue in of_page(page, served=True):
        shell.start(dialogue, lambda said: "Endpoint=" in said or "connection: @" in said)
    if page.stem == "serve":
        for _, dialogue in of_page(page, served=False):
            shell.type(dialogue)


@NEEDS_BASH
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_requests_of_the_http_page_are_answered(tmp_path: Path) -> None:
    with serving(tmp_path / "contoso", "--name", "contoso") as served:
        connection = served.connection
        key = f"{connection.key_name}:{connection.key}"
        in_place = {"5672": f"{connection.port}", "RootManageSharedAccessKey:…": key}
        shell = Shell(tmp_path, in_place)
        for _, dialogue in of_page(HTTP, served=False):
            shell.type(dialogue)


@NEEDS_BASH
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_what_the_page_on_diagnostics_asks_for_is_answered(tmp_path: Path) -> None:
    with serving(tmp_path / "contoso", "--name", "contoso") as served:
        connection = served.connection
        (tmp_path / "contoso.txt").write_text(str(connection), encoding="utf-8")
        shell = Shell(tmp_path, {"5672": f"{connection.port}", "$KEY": str(connection.key)})
        for _, dialogue in of_page(DIAGNOSTICS, served=False):
            shell.type(dialogue)
        assert (tmp_path / "bundle.json").stat().st_size


# Ledgers


@pytest.fixture
def ledgers(tmp_path: Path) -> Path:
    """Of a pair that has had an outage, in the directories that the pages name."""
    model = PairModel()
    model.send("orders", "direct")
    model.divert("orders", "diverted", None)
    for message in list(model.backlog.waiting):
        model.syphon(message)
    model.receive_all()
    model.clock.tick(86_400_000)  # a page reconciles the day after, too
    model.send("orders", "the next day")
    model.receive_all()
    model.alive()
    model.primary.write(tmp_path / "contoso-ledger")
    model.secondary.write(tmp_path / "fabrikam-ledger")
    write(
        tmp_path / "contoso-ledger",
        [operation("2026-03-01T12:00:00"), operation("2026-03-01T12:00:40", stage="syphon")],
    )
    write(tmp_path / "fabrikam-ledger", [operation("2026-03-01T12:00:20", namespace="fabrikam", stage="backlog")])
    return tmp_path


@NEEDS_BASH
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", ASKING_LEDGERS, ids=lambda page: page.stem)
def test_ledger_commands_of_a_page_work(page: Path, ledgers: Path) -> None:
    shell = Shell(ledgers, {})
    for _, dialogue in of_page(page, served=False):
        shell.type(dialogue)


# Pairs


class Pair:
    """Two namespaces with the entities that the pages name."""

    def __init__(self, contoso: RunningNamespace, fabrikam: RunningNamespace) -> None:
        self.contoso = contoso
        self.fabrikam = fabrikam

    def shell(self, directory: Path) -> Shell:
        for one in (self.contoso, self.fabrikam):
            (directory / f"{one.name}.txt").write_text(one.connection_string, encoding="utf-8")
        in_place = {
            "PAIRBUS_PRIMARY=…": f"PAIRBUS_PRIMARY='{self.contoso.connection_string}'",
            "PAIRBUS_SECONDARY=…": f"PAIRBUS_SECONDARY='{self.fabrikam.connection_string}'",
        }
        return Shell(directory, in_place)

    @contextmanager
    def sent(self) -> Iterator[None]:
        """There are messages."""
        with MessagingFactory.from_connection_string(self.contoso.connection_string) as factory:
            for path in ("orders", "news"):
                factory.create_message_sender(path).send(BrokeredMessage("one espresso"))
        yield
        assert self.waiting == 0

    @contextmanager
    def diverted(self) -> Iterator[None]:
        """There is a message in the backlog."""
        with self._paired(enable_syphon=False) as (primary, pair):
            pair.engage("orders")
            primary.create_message_sender("orders").send(BrokeredMessage("one espresso"))
            assert pair.status().diverted == 1
        yield
        assert self.waiting == 1

    @contextmanager
    def syphoned(self) -> Iterator[None]:
        """A syphon is at work."""
        with self._paired(enable_syphon=True):
            yield

    @contextmanager
    def _paired(self, *, enable_syphon: bool) -> Iterator[tuple[MessagingFactory, NamespacePair]]:
        primary, secondary = (
            MessagingFactory.from_connection_string(one.connection_string) for one in (self.contoso, self.fabrikam)
        )
        with NamespaceManager.from_connection_string(self.fabrikam.connection_string) as manager, secondary, primary:
            options = SendAvailabilityPairedNamespaceOptions(
                manager, secondary, 2, enable_syphon=enable_syphon, primary_name="contoso"
            )
            yield primary, primary.pair_namespace(options)

    @property
    def waiting(self) -> int:
        """Messages in the primary."""
        with MessagingFactory.from_connection_string(self.contoso.connection_string) as factory:
            paths = ("orders", "news/Subscriptions/audit")
            return sum(len(factory.create_message_receiver(path).peek(10)) for path in paths)


PAIRED: Final[Mapping[Path, Callable[[Pair], AbstractContextManager[None]]]] = {
    HOW_TO / "pair.md": lambda _: nullcontext(),
    HOW_TO / "drill.md": Pair.syphoned,
    HOW_TO / "practise-an-outage.md": Pair.syphoned,
    HOW_TO / "syphon-on-spark.md": Pair.diverted,
    HOW_TO / "capture-to-parquet.md": Pair.sent,
    DOCS / "tutorial" / "drain-on-spark.md": Pair.diverted,
}
"""The environment of the commands of a page."""


@pytest.fixture
def pair() -> Iterator[Pair]:
    with (
        running_namespace("contoso", queues=["orders"], topics={"news": ["audit"]}) as contoso,
        running_namespace("fabrikam") as fabrikam,
    ):
        yield Pair(contoso, fabrikam)


@NEEDS_BASH
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAIRED, ids=lambda page: page.stem)
def test_pair_commands_of_a_page_work(page: Path, pair: Pair, tmp_path: Path) -> None:
    shell = pair.shell(tmp_path)
    endless: Mapping[str, Callable[[str], bool]] = {
        "capture": lambda _: pair.waiting == 0,
        "syphon": lambda _: pair.waiting == 1,
    }
    with PAIRED[page](pair):
        for name, dialogue in of_page(page, served=False):
            if name in endless and "--once" not in dialogue.command:
                shell.start(dialogue, endless[name])
            else:
                shell.type(dialogue)


def test_commands_of_every_page_are_run() -> None:
    assert {*SHOWN} == {*ELSEWHERE, *SERVING, *ASKING_LEDGERS, *PAIRED, HTTP, DIAGNOSTICS}


def test_no_recipe_prints_the_key_of_a_namespace() -> None:
    """A server without ``--connection-file`` prints it, and its output often ends up in a log."""
    found = [
        (page, command)
        for page, shown in SHOWN.items()
        for command in (*(one.command for one in shown), *SERVICE.findall(page.read_text(encoding="utf-8")))
        if any(words[:1] == ["serve"] for words in words_of_ours(command))
    ]
    assert len(found) > 10
    assert [
        (page.name, command)
        for page, command in found
        if "--connection-file" not in command and not command.startswith(PUBLIC_KEY)
    ] == []
    scripts = {
        page
        for page in PAGES
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        if '"serve"' in block and "--connection-file" not in block
    }
    assert scripts == READ_BY_PROGRAMS
