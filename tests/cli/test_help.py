"""What `--help` says of every command, and what a shell can complete."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from pairbus.cli.main import app
from tests.cli.everyday import Desk, eventually
from tests.cli.test_cli import ENVIRONMENT, PATIENCE_S
from tests.cli.test_pair import nobody

EXAMPLE = re.compile(r"^Example: (.+)$", re.MULTILINE)


def commands(command: Any, path: tuple[str, ...] = ("pairbus",)) -> Iterator[tuple[str, Any]]:
    """All that there are, those with commands of their own included."""
    yield " ".join(path), command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


ALL = dict(commands(typer.main.get_command(app)))
EXAMPLES = [
    pytest.param(path, example, id=f"{path}-{number}")
    for path, command in ALL.items()
    for number, example in enumerate(EXAMPLE.findall(command.help or ""))
]


def test_the_commands_are_there() -> None:
    everyday = {f"pairbus {name}" for name in ("send", "receive", "peek", "entities", "entities list")}
    assert everyday | {"pairbus serve", "pairbus demo", "pairbus pair", "pairbus drill", "pairbus syphon"} <= ALL.keys()


@pytest.mark.parametrize("path", ALL)
def test_the_help_of_every_command_shows_an_example(path: str) -> None:
    examples = EXAMPLE.findall(ALL[path].help or "")
    assert examples, f"say 'Example: {path} …' in a paragraph of its own"
    assert path == "pairbus" or all(example.startswith(path) for example in examples)


@pytest.mark.parametrize(("path", "example"), EXAMPLES)
def test_every_example_can_be_typed(path: str, example: str) -> None:
    """Its options exist, and it has all that it needs."""
    words = shlex.split(example)[1:]
    command = ALL["pairbus"]
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= known | {"--install-completion"}
    if command is not ALL["pairbus"]:  # whose options act as they are read
        context = command.make_context(path, words, resilient_parsing=True)
        missing = [one.name for one in command.params if one.required and context.params.get(one.name) is None]
        assert not missing


@pytest.mark.parametrize("path", ALL)
def test_every_option_is_explained(path: str) -> None:
    for parameter in ALL[path].params:
        assert getattr(parameter, "help", None), f"{path} {parameter.name}"


@pytest.mark.parametrize("path", ALL)
def test_no_type_is_shown_behind_what_takes_no_value(path: str) -> None:
    words = [*path.split()[1:], "--help"]
    assert "<bool>" not in CliRunner().invoke(app, words, env={"COLUMNS": "200", "TERM": "dumb"}).output


@pytest.mark.parametrize("path", ["pairbus send", "pairbus receive", "pairbus peek", "pairbus entities"])
def test_the_exit_codes_are_told(path: str) -> None:
    text = ALL[path].help or ""
    for code in ("with 0", "with 1 ", "with 2 "):
        assert code in text.replace("\n", " ")


# Completion.


def completed(words: str, **environment: str) -> list[str]:
    """What bash is offered for the last of these words."""
    command = [sys.executable, "-c", "from pairbus.cli.main import app; app(prog_name='pairbus')"]
    variables = {
        "_PAIRBUS_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    done = subprocess.run(
        command,
        env=ENVIRONMENT | variables | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_commands_are_completed() -> None:
    assert "receive" in completed("pairbus re")


def test_rate_cards_are_completed() -> None:
    assert completed("pairbus cost --rates st") == ["standard"]


def test_entities_are_completed_from_the_namespace(desk: Desk) -> None:
    queue = desk.queue()
    connection = {"PAIRBUS_CONNECTION": desk.namespace.connection_string}
    offered(f"pairbus receive {queue[:-2]}", [queue], **connection)


@pytest.mark.slow
def test_entities_are_completed_for_what_they_are_wanted_for(desk: Desk) -> None:
    connection = {"PAIRBUS_CONNECTION": desk.namespace.connection_string}
    offered("pairbus send eve", ["events"], **connection)
    offered("pairbus receive eve", ["events/Subscriptions/audit"], **connection)
    offered("pairbus entities show eve", ["events", "events/Subscriptions/audit"], **connection)
    offered(f"pairbus peek --connection {desk.namespace.connection_string} eve", ["events/Subscriptions/audit"])


def offered(words: str, names: list[str], **environment: str) -> None:
    """A namespace that takes longer than a second is not waited for: then somebody presses the key again."""
    eventually(lambda: completed(words, **environment) == names)


@pytest.mark.slow
def test_nothing_is_completed_where_nobody_answers() -> None:
    with nobody() as text:
        assert completed("pairbus peek eve", PAIRBUS_CONNECTION=text) == []
    assert completed("pairbus peek eve", PAIRBUS_CONNECTION="nonsense") == []
    assert completed("pairbus peek eve") == []
