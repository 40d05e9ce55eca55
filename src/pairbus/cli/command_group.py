"""Commands that are imported when they are asked for: one that sends a message need not wait for the server's code."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperGroup

from pairbus.cli.connection import STOPPED
from pairbus.cli.extra import extra_needed
from pairbus.cli.failure import fail
from pairbus.cli.standard_output import checked_output
from pairbus_command import stop_at_once

MARKUP: Final = "markdown"
"""Else the lines of a paragraph end where they end in the source."""

_PLAIN: Final = (
    (re.compile(r"Input should be a valid integer\b.*", re.DOTALL), "it has to be a whole number"),
    (re.compile(r"Input should be a valid number\b.*", re.DOTALL), "it has to be a number"),
    (re.compile(r"Input should be greater than or equal to "), "it has to be at least "),
    (re.compile(r"Input should be less than or equal to "), "it can be at most "),
    (re.compile(r"Value error, "), ""),
)
"""What the library that reads options says to programmers, and what to say to everybody else."""


class LazyCommands(Mapping[str, Any]):
    """Commands by name. Each is the function, or the group of commands, that has its name in the module given here."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = modules
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _made(_found(self._modules[name], name))
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


def command_group(modules: Mapping[str, str]) -> type[TyperGroup]:
    """The class of a group that has these commands."""

    class LazyGroup(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**{**settings, "commands": LazyCommands(modules)})

        def get_params(self, ctx: Any) -> Any:
            _show_flags_alone(self)
            return super().get_params(ctx)

        def make_context(self, *arguments: Any, **settings: Any) -> Any:
            with checked_output():  # --help and --version print here
                return super().make_context(*arguments, **settings)

        def invoke(self, ctx: Any) -> Any:
            try:
                with _interruptible(), checked_output():
                    return super().invoke(ctx)
            except typer.BadParameter as error:
                error.message = _plain(error.message)
                raise
            except KeyboardInterrupt:  # of a command that has nothing to say of how far it has come
                fail("stopped", STOPPED)

    return LazyGroup


@contextmanager
def _interruptible() -> Iterator[None]:
    """Have Ctrl-C raise ``KeyboardInterrupt`` while a command is at work, where it would end the process at once."""
    before = signal.getsignal(signal.SIGINT)
    if before is not stop_at_once:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _found(module: str, name: str) -> Callable[..., Any]:
    with extra_needed():
        found: Callable[..., Any] = getattr(import_module(module), name)
    return found


def _made(command: Callable[..., Any]) -> Any:
    if not isinstance(command, typer.Typer):
        alone = typer.Typer(add_completion=False, rich_markup_mode=MARKUP)
        alone.command()(command)
        command = alone
    made = typer.main.get_command(command)
    for one in (made, *getattr(made, "commands", {}).values()):
        _show_flags_alone(one)
    return made


def _show_flags_alone(command: Any) -> None:
    """Without the type of a value behind them, which they do not take; --help is one of them."""
    for parameter in (*command.params, command.get_help_option(typer.Context(command))):
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""


def _plain(message: str) -> str:
    for theirs, ours in _PLAIN:
        message = theirs.sub(ours, message)
    return message
