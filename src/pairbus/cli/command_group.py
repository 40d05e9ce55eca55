"""A command group that imports each command on first use, so that a client command does not load the server."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from pairbus.cli.failure import STOPPED, extra_needed, fail
from pairbus.cli.standard_output import checked_output

MARKUP: Final = "markdown"
"""Without it, the help breaks the lines of a paragraph where the source breaks them."""

_PLAIN: Final = (
    (re.compile(r"Input should be a valid integer\b.*", re.DOTALL), "must be a whole number"),
    (re.compile(r"Input should be a valid number\b.*", re.DOTALL), "must be a number"),
    (re.compile(r"Input should be greater than or equal to "), "must be at least "),
    (re.compile(r"Input should be less than or equal to "), "must be at most "),
    (re.compile(r"Value error, "), ""),
)
"""Error texts of the option parser, which are written for programmers, with the texts to show instead."""


class LazyCommand(NamedTuple):
    """The module of a command, and its summary: a list of commands imports none of them."""

    module: str
    summary: str


class LazyCommands(Mapping[str, Any]):
    """Commands by name. Each is the function, or the group of commands, with that name in the given module."""

    def __init__(self, commands: Mapping[str, LazyCommand]) -> None:
        self._commands = commands
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _command(_imported(self._commands[name].module, name))
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._commands)

    def __len__(self) -> int:
        return len(self._commands)

    def listed(self) -> dict[str, Any]:
        """Return commands that show what a list of commands does, and do nothing else."""
        return {name: TyperCommand(name, help=command.summary) for name, command in self._commands.items()}


def command_group(commands: Mapping[str, LazyCommand]) -> type[TyperGroup]:
    """Return the class of a group with these commands."""

    class LazyGroup(TyperGroup):
        commands: Any

        def __init__(self, **settings: Any) -> None:
            super().__init__(**{**settings, "commands": LazyCommands(commands)})

        def get_params(self, ctx: Any) -> Any:
            _show_flags_alone(self)
            return super().get_params(ctx)

        def format_help(self, ctx: Any, formatter: Any) -> None:
            with self._listed():
                super().format_help(ctx, formatter)

        def shell_complete(self, ctx: Any, incomplete: str) -> Any:
            with self._listed():
                return super().shell_complete(ctx, incomplete)

        @contextmanager
        def _listed(self) -> Iterator[None]:
            """Take the names and summaries of the commands; a command itself is imported when it is used."""
            complete = self.commands
            self.commands = complete.listed()
            try:
                yield
            finally:
                self.commands = complete

        def make_context(self, *arguments: Any, **settings: Any) -> Any:
            with checked_output():  # --help and --version print here
                return super().make_context(*arguments, **settings)

        def invoke(self, ctx: Any) -> Any:
            try:
                with _interruptible(ctx.obj), checked_output():
                    return super().invoke(ctx)
            except typer.BadParameter as error:
                error.message = _plain(error.message)
                raise
            except KeyboardInterrupt:  # from a command that does not report its progress
                fail("stopped", STOPPED)

    return LazyGroup


@contextmanager
def _interruptible(stop_at_once: object) -> Iterator[None]:
    """Let Ctrl-C raise ``KeyboardInterrupt`` while a command runs; outside of it, Ctrl-C ends the process at once.

    ``stop_at_once`` is the handler that ends it. Any other one is on purpose, and stays.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is None or before is not stop_at_once:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _imported(module: str, name: str) -> Callable[..., Any]:
    with extra_needed():
        found: Callable[..., Any] = getattr(import_module(module), name)
    return found


def _command(command: Callable[..., Any]) -> Any:
    if not isinstance(command, typer.Typer):
        alone = typer.Typer(add_completion=False, rich_markup_mode=MARKUP)
        alone.command()(command)
        command = alone
    made = typer.main.get_command(command)
    for one in (made, *getattr(made, "commands", {}).values()):
        _show_flags_alone(one)
    return made


def _show_flags_alone(command: Any) -> None:
    """Hide the value type of flags, --help included: they take no value."""
    for parameter in (*command.params, command.get_help_option(typer.Context(command))):
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""


def _plain(message: str) -> str:
    for theirs, ours in _PLAIN:
        message = theirs.sub(ours, message)
    return message
