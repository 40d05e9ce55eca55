"""Writes the facade of pairbus.blocking from the asyncio client: python tests/blocking/make_facade.py."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pairbus
from pairbus import client
from pairbus.client.entity_client import EntityClient
from pairbus.client.factory import MessagingFactory
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.client.part import Maker, Part
from pairbus.client.queue_client import QueueClient
from pairbus.client.receiver import MessageReceiver
from pairbus.client.sender import MessageSender
from pairbus.client.session import MessageSession
from pairbus.client.subscription_client import SubscriptionClient
from pairbus.client.topic_client import TopicClient

PACKAGE: Final = Path(pairbus.__file__).parent / "blocking"

CLASSES: Final[tuple[type, ...]] = (
    Part,
    MessageSender,
    TopicClient,
    MessageReceiver,
    MessageSession,
    EntityClient,
    QueueClient,
    SubscriptionClient,
    MessagingFactory,
    NamespaceManager,
)
"""What is wrapped, each after its base."""

NAMES: Final = {kind.__name__ for kind in CLASSES}
FOR_PARTS: Final = {
    name for name, member in vars(Maker).items() if inspect.isfunction(member) and not name.startswith("_")
}
"""What a factory does for what it has made, and not for applications."""

ATTRIBUTES: Final[dict[type, dict[str, str]]] = {
    NamespaceManager: {"endpoint": "Endpoint", "settings": "MessagingFactorySettings"}
}
"""Attributes that are no properties."""

WIDTH: Final = 120

FACADE_HEAD: Final = '''\
"""The asyncio client without asyncio: the same classes, each call done on the event loop of the process.

Written by tests/blocking/make_facade.py; what is to change is changed there, or in the asyncio client.
"""
'''

PUBLIC_HEAD: Final = '''\
"""The client of a namespace for synchronous code: the names of pairbus, to be called without ``await``.

Everything may be used by many threads at once. What has been used before a fork is the parent's alone. Written by
tests/blocking/make_facade.py.
"""
'''

Function = ast.FunctionDef | ast.AsyncFunctionDef


# Layout, as ruff has it.


def call_lines(indent: int, head: str, items: list[str], tail: str) -> list[str]:
    """A call or a signature: in one line if it fits, else with its items in one, else with a line for each."""
    start = " " * indent
    whole = f"{start}{head}{', '.join(items)}{tail}"
    if len(whole) <= WIDTH:
        return [whole]
    inside = f"{start}    {', '.join(items)}"
    if len(inside) <= WIDTH:
        return [start + head, inside, start + tail]
    return [start + head, *(f"{start}    {item}," for item in items), start + tail]


def import_lines(imports: set[tuple[str, str]]) -> list[str]:
    """Imports by module; with aliases in lines of their own."""
    modules = sorted({module for module, _ in imports}, key=lambda module: (module.startswith("pairbus"), module))
    lines: list[str] = []
    for number, module in enumerate(modules):
        if number and module.startswith("pairbus") and not modules[number - 1].startswith("pairbus"):
            lines.append("")
        names = [name for found, name in imports if found == module]
        plain = sorted((name for name in names if " as " not in name), key=_place)
        if plain:
            lines += _import(module, plain)
        lines += [f"from {module} import {name}" for name in sorted(names) if " as " in name]
    return lines


def _place(name: str) -> tuple[bool, bool, str]:
    """Constants, classes, functions."""
    return (not name.isupper(), name[0].islower(), name.lower())


def _import(module: str, names: list[str]) -> list[str]:
    line = f"from {module} import {', '.join(names)}"
    return [line] if len(line) <= WIDTH else [f"from {module} import (", *(f"    {name}," for name in names), ")"]


# What a module says.


@dataclass
class Source:
    """The source of a module of the asyncio client."""

    name: str
    text: str
    tree: ast.Module
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    """What its names were imported from."""
    constants: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, kind: type) -> Source:
        text = Path(inspect.getfile(kind)).read_text(encoding="utf-8")
        source = cls(kind.__module__, text, ast.parse(text))
        for node in source.tree.body:
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                source.imports.update({alias.name: (node.module, alias.name) for alias in node.names})
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                source.constants[node.targets[0].id] = source.said(node)
            elif isinstance(node, ast.ClassDef):
                source.imports[node.name] = (source.name, node.name)
        return source

    def said(self, node: ast.AST) -> str:
        found = ast.get_source_segment(self.text, node)
        assert found is not None
        return found

    def class_named(self, name: str) -> ast.ClassDef:
        return next(node for node in self.tree.body if isinstance(node, ast.ClassDef) and node.name == name)


class Facade:
    """The file under construction."""

    def __init__(self) -> None:
        self.imports: set[tuple[str, str]] = {("__future__", "annotations"), ("pairbus.blocking.wrapper", "Wrapper")}
        self.constants: set[str] = set()
        self.classes: list[str] = []

    def text(self) -> str:
        imports = import_lines(self.imports - {("__future__", "annotations")})
        head = [FACADE_HEAD, "from __future__ import annotations", "", *imports, "", *sorted(self.constants)]
        return "\n".join([*head, *self.classes]) + "\n"

    def add(self, kind: type) -> None:
        source = Source.of(kind)
        name = kind.__name__
        self.imports.add((source.name, f"{name} as Async{name}"))
        base = next((base.__name__ for base in kind.__bases__ if base.__name__ in NAMES), "Wrapper")
        lines = ["", "", f"class {name}({base}):", *_class_docstring(source, name), "", f"    _inner: Async{name}"]
        for node in source.class_named(name).body:
            if isinstance(node, Function) and _is_public(node, kind):
                lines += ["", *Method(self, source, name, node).lines()]
        for attribute, annotation in ATTRIBUTES.get(kind, {}).items():
            self._note_name(source, annotation)
            lines += ["", "    @property", f"    def {attribute}(self) -> {annotation}:"]
            lines += [f"        return self._inner.{attribute}"]
        self.classes.append("\n".join(lines))

    def note(self, source: Source, node: ast.AST) -> str:
        """An annotation or a default as it stands there; what it needs is imported."""
        for name in _names(node):
            self._note_name(source, name)
        return source.said(node)

    def _note_name(self, source: Source, name: str) -> None:
        if name in NAMES:
            return
        if name in source.imports:
            self.imports.add(source.imports[name])
        elif name in source.constants:
            self.constants.add(source.constants[name])
            self.note(source, ast.parse(source.constants[name]).body[0].value)  # type: ignore[attr-defined]


def _names(node: ast.AST) -> set[str]:
    return {found.id for found in ast.walk(node) if isinstance(found, ast.Name)}


def _class_docstring(source: Source, name: str) -> list[str]:
    """What it says; the first line alone if the others are about what does not concern us."""
    said = source.said(source.class_named(name).body[0])
    assert said.startswith('"""')
    return [f'    {said.splitlines()[0]}"""' if "event loop" in said else f"    {said}"]


def _is_public(node: Function, kind: type) -> bool:
    if kind is MessagingFactory and node.name in FOR_PARTS:
        return False
    if node.name == "__init__":
        return not issubclass(kind, Part)  # those are made by factories
    return node.name in {"__aiter__", "__anext__"} or not node.name.startswith("_")


class Method:
    """A method of the facade."""

    def __init__(self, facade: Facade, source: Source, owner: str, node: Function) -> None:
        self.facade = facade
        self.source = source
        self.owner = owner
        self.node = node
        self.decorators = [source.said(decorator) for decorator in node.decorator_list]
        self.returns = "None" if node.returns is None else facade.note(source, node.returns)

    def lines(self) -> list[str]:
        for decorator in self.node.decorator_list:
            self.facade.note(self.source, decorator)
        name = {"__aiter__": "__iter__", "__anext__": "__next__"}.get(self.node.name, self.node.name)
        is_overload = "overload" in self.decorators
        tail = f") -> {self.returns}:{' ...' if is_overload else ''}"
        lines = [f"    @{decorator}" for decorator in self.decorators]
        lines += call_lines(4, f"def {name}(", self._parameters(), tail)
        return lines if is_overload else [*lines, *self._docstring(), *self._body()]

    def _parameters(self) -> list[str]:
        arguments = self.node.args
        assert not arguments.posonlyargs
        assert arguments.vararg is None
        assert arguments.kwarg is None
        defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + arguments.defaults
        by_place = [self._parameter(*pair) for pair in zip(arguments.args, defaults, strict=True)]
        by_name = [self._parameter(*pair) for pair in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
        return [*by_place, "*", *by_name] if by_name else by_place

    def _parameter(self, argument: ast.arg, default: ast.expr | None) -> str:
        if argument.annotation is None:
            return argument.arg
        typed = f"{argument.arg}: {self.facade.note(self.source, argument.annotation)}"
        return typed if default is None else f"{typed} = {self.facade.note(self.source, default)}"

    def _docstring(self) -> list[str]:
        found = self.node.body[0]
        is_docstring = isinstance(found, ast.Expr) and isinstance(found.value, ast.Constant)
        return [f"        {self.source.said(found)}"] if is_docstring else []

    def _arguments(self) -> Iterator[str]:
        for argument in self.node.args.args[1:]:
            yield self._argument(argument)
        for argument in self.node.args.kwonlyargs:
            yield f"{argument.arg}={self._argument(argument)}"

    def _argument(self, argument: ast.arg) -> str:
        assert argument.annotation is not None
        assert not _names(argument.annotation) & NAMES, f"{self.node.name} takes something to be unwrapped"
        if "Iterable" not in _names(argument.annotation):
            return argument.arg
        self.facade.imports.add(("pairbus.blocking.wrapper", "gathered"))
        return f"gathered({argument.arg})"

    def _body(self) -> list[str]:
        name, arguments = self.node.name, [*self._arguments()]
        wrapped = f"Async{self.owner}"
        if "property" in self.decorators:
            return [f"        return self._inner.{name}"]
        if name == "__aiter__":
            return ["        return self"]
        if name == "__anext__":
            call = "            return self._call(self._inner.__anext__)"
            end = ["        except StopAsyncIteration:", "            raise StopIteration from None"]
            return ["        try:", call, *end]
        if name == "__init__":
            return call_lines(8, f"super().__init__({wrapped}(", arguments, "))")
        if "classmethod" in self.decorators:
            return call_lines(8, f"return cls._wrapping({wrapped}.{name}(", arguments, "))")
        if name == "close":
            return ["        self._close(self._inner.close)"]
        return self._call(arguments)

    def _is_overloaded(self) -> bool:
        """Whether it has several signatures, of which a type checker cannot choose one here."""
        same = [
            node
            for node in self.source.class_named(self.owner).body
            if isinstance(node, Function) and node.name == self.node.name
        ]
        return len(same) > 1

    def _call(self, arguments: list[str]) -> list[str]:
        call = "self._call(" if isinstance(self.node, ast.AsyncFunctionDef) else "self._call_function("
        items = [f"self._inner.{self.node.name}", *arguments]
        if self._is_overloaded():
            self.facade.imports |= {
                ("collections.abc", "Callable"),
                ("collections.abc", "Coroutine"),
                ("typing", "Any"),
            }
            one = f"        function: Callable[..., Coroutine[Any, Any, {self.returns}]] = {items[0]}"
            return [one, *call_lines(8, f"return {call}", ["function", *arguments], ")")]
        if self.returns in NAMES:
            made = call_lines(8, f"made = {call}", items, ")")
            return [*made, f"        return {self.returns}(made, self._loop)"]
        returns = set() if self.node.returns is None else _names(self.node.returns)
        assert not returns & NAMES, f"{self.node.name} gives something to be wrapped"
        return call_lines(8, call if self.returns == "None" else f"return {call}", items, ")")


def facade() -> str:
    """The classes."""
    made = Facade()
    for kind in CLASSES:
        made.add(kind)
    return made.text()


def public_names() -> str:
    """The package: these classes, and everything else of the asyncio client as it is."""
    names = pairbus.__all__
    ours = [name for name in client.__all__ if name in NAMES]
    theirs = [name for name in client.__all__ if name not in NAMES]
    imports = {("pairbus", "__version__")}
    imports |= {("pairbus.blocking.facade", name) for name in ours} | {("pairbus.client", name) for name in theirs}
    listed = [f'    "{name}",' for name in sorted(names, key=_as_ruff_sorts)]
    head = [PUBLIC_HEAD, "from __future__ import annotations", "", *import_lines(imports), "", "__all__ = ["]
    return "\n".join([*head, *listed, "]"]) + "\n"


def _as_ruff_sorts(name: str) -> tuple[int, str]:
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2, name)


FILES: Final[dict[Path, Callable[[], str]]] = {
    PACKAGE / "facade.py": facade,
    PACKAGE / "__init__.py": public_names,
}


def main() -> None:
    for path, make in FILES.items():
        path.write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main()
