"""The help of every command, and shell completion."""

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

from pairbus.cli.command_group import LazyCommands
from pairbus.cli.main import app
from tests.cli.everyday import CommandFixture
from tests.cli.test_cli import ENVIRONMENT, PATIENCE_S
from tests.cli.test_pair import unused_address
from tests.waiting import eventually

EXAMPLE = re.compile(r"^Example: (.+)$", re.MULTILINE)


def commands(command: Any, path: tuple[str, ...] = ("pairbus",)) -> Iterator[tuple[str, Any]]:
    """Yield all commands, including those of groups."""
    yield " ".join(path), command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


ALL = dict(commands(typer.main.get_command(app)))
EXAMPLES = [
    pytest.param(path, example, id=f"{path}-{number}")
    for path, command in ALL.items()
    for number, example in enumerate(EXAMPLE.findall(command.help or ""))
]


def test_all_commands_are_registered() -> None:
    everyday = {f"pairbus {name}" for name in ("send", "receive", "peek", "entities", "entities list")}
    assert everyday | {"pairbus serve", "pairbus demo", "pairbus pair", "pairbus drill", "pairbus syphon"} <= ALL.keys()


@pytest.mark.parametrize("path", ALL)
def test_help_of_every_command_shows_an_example(path: str) -> None:
    examples = EXAMPLE.findall(ALL[path].help or "")
    assert examples, f"say 'Example: {path} …' in a separate paragraph"
    assert path == "pairbus" or all(example.startswith(path) for example in examples)


def test_list_of_commands_shows_the_first_paragraph_of_the_help_of_each() -> None:
    complete: LazyCommands = ALL["pairbus"].commands
    for name, listed in complete.listed().items():
        assert listed.help == " ".join((complete[name].help or "").split("\n\n")[0].split()), name


@pytest.mark.parametrize(("path", "example"), EXAMPLES)
def test_every_example_is_valid(path: str, example: str) -> None:
    """The options of an example exist, and no required one is missing."""
    words = shlex.split(example)[1:]
    command = ALL["pairbus"]
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= known | {"--install-completion"}
    if command is not ALL["pairbus"]:  # its options take effect while they are parsed
        context = command.make_context(path, words, resilient_parsing=True)
        missing = [one.name for one in command.params if one.required and context.params.get(one.name) is None]
        assert not missing


@pytest.mark.parametrize("path", ALL)
def test_every_option_has_a_help_text(path: str) -> None:
    for parameter in ALL[path].params:
        assert getattr(parameter, "help", None), f"{path} {parameter.name}"


@pytest.mark.parametrize("path", ALL)
def test_flags_show_no_value_type(path: str) -> None:
    words = [*path.split()[1:], "--help"]
    assert "<bool>" not in CliRunner().invoke(app, words, env={"COLUMNS": "200", "TERM": "dumb"}).output


@pytest.mark.parametrize(
    "path", ["pairbus send", "pairbus receive", "pairbus peek", "pairbus entities", "pairbus fault"]
)
def test_help_lists_the_exit_codes(path: str) -> None:
    text = ALL[path].help or ""
    for code in ("with 0", "with 1 ", "with 2 "):
        assert code in text.replace("\n", " ")


# Completion.


def completed(words: str, **environment: str) -> list[str]:
    """Return the completions that bash gets for the last of these words."""
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


def test_entities_are_completed_from_the_namespace(desk: CommandFixture) -> None:
    queue = desk.queue()
    connection = {"PAIRBUS_CONNECTION": desk.namespace.connection_string}
    offered(f"pairbus receive {queue[:-2]}", [queue], **connection)


@pytest.mark.slow
def test_entities_are_completed_by_the_kind_that_a_command_takes(desk: CommandFixture) -> None:
    connection = {"PAIRBUS_CONNECTION": desk.namespace.connection_string}
    offered("pairbus send eve", ["events"], **connection)
    offered("pairbus receive eve", ["events/Subscriptions/audit"], **connection)
    offered("pairbus entities show eve", ["events", "events/Subscriptions/audit"], **connection)
    offered(f"pairbus peek --connection {desk.namespace.connection_string} eve", ["events/Subscriptions/audit"])


def offered(words: str, names: list[str], **environment: str) -> None:
    """Completion gives up after a second, so ask repeatedly, as a user presses the key again."""
    eventually(lambda: completed(words, **environment) == names)


@pytest.mark.slow
def test_completion_without_an_answer_is_empty() -> None:
    with unused_address() as text:
        assert completed("pairbus peek eve", PAIRBUS_CONNECTION=text) == []
    assert completed("pairbus peek eve", PAIRBUS_CONNECTION="nonsense") == []
    assert completed("pairbus peek eve") == []
