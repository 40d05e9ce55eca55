"""Attributes that a package resolves on demand: renamed ones, with a warning, and those of modules loaded late."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def renamed(module: str, names: Mapping[str, str], loaded: Mapping[str, str] | None = None) -> Callable[[str], object]:
    """Return a ``__getattr__`` for a module.

    ``names`` maps former names of attributes to their names. ``loaded`` maps attributes to the modules that define
    them, which are imported when the attribute is first used.
    """
    late = loaded or {}

    def find(name: str) -> object:
        if name in late:
            value: object = getattr(import_module(late[name]), name)
            setattr(sys.modules[module], name, value)
            return value
        new = names.get(name)
        if new is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(f"{module}.{name} is now called {new}", DeprecationWarning, stacklevel=2)
        return getattr(sys.modules[module], new)

    return find


def searched(module: str, modules: Sequence[str], names: Mapping[str, str]) -> Callable[[str], object]:
    """Return a ``__getattr__`` for a package that takes its public names from its modules when they are first used.

    They are imported one after the other until one of them has the name. ``names`` maps former names of attributes to
    their names.
    """
    find_renamed = renamed(module, names)

    def find(name: str) -> object:
        package = sys.modules[module]
        if name in package.__all__:
            for found in map(vars, map(import_module, modules)):
                if name in found:
                    setattr(package, name, found[name])
                    return found[name]
        return find_renamed(name)

    return find


def on_demand(
    module: str, packages: Sequence[str], own: Sequence[str], names: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return a ``__getattr__`` and a ``__dir__`` for a package that has the public names of its subpackages.

    A subpackage is imported when one of its names is first used, and all are for ``__all__``, which adds the package's
    ``own`` names. ``names`` maps former names of attributes to their names.
    """
    find_renamed = renamed(module, names)

    def public() -> list[str]:
        return [*own, *(name for package in packages for name in import_module(package).__all__)]

    def find(name: str) -> object:
        if f"{module}.{name}" in packages:
            return import_module(f"{module}.{name}")
        if name == "__all__":
            return public()
        if not name.startswith("__"):
            for package in map(import_module, packages):
                if name in package.__all__:
                    return getattr(package, name)
        return find_renamed(name)

    return find, lambda: sorted({*vars(sys.modules[module]), *public()})


def moved(module: str, names: Mapping[str, str]) -> Callable[[str], object]:
    """Return a ``__getattr__`` for a module that finds attributes in the modules that they were moved to.

    ``names`` maps attributes to their modules, or to ``module:name`` if the attribute was renamed as well.
    """

    def find(name: str) -> object:
        target = names.get(name)
        if target is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        place, _, new = target.partition(":")
        warnings.warn(f"{module}.{name} is now {place}.{new or name}", DeprecationWarning, stacklevel=2)
        return getattr(import_module(place), new or name)

    return find
