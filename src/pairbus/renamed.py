"""Attributes that a package resolves on demand: renamed ones, with a warning, and those of modules loaded late."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
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
