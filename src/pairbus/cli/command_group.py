"""Commands that are imported when they are asked for: one that sends a message need not wait for the server's code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperGroup

from pairbus.cli.extra import extra_needed

MARKUP: Final = "markdown"
"""Else the lines of a paragraph end where they end in the source."""


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

    return LazyGroup


def _found(module: str, name: str) -> Callable[..., Any]:
    with extra_needed():
        found: Callable[..., Any] = getattr(import_module(module), name)
    return found


def _made(command: Callable[..., Any]) -> Any:
    if isinstance(command, typer.Typer):
        return typer.main.get_command(command)
    alone = typer.Typer(add_completion=False, rich_markup_mode=MARKUP)
    alone.command()(command)
    return typer.main.get_command(alone)
