"""Writes the facade of pairbus.blocking from the asyncio client: python tests/blocking/make_facade.py."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

import pairbus
from pairbus import client, pairing
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
from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from pairbus.pairing.pair import NamespacePair

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
    SendAvailabilityPairedNamespaceOptions,
    NamespacePair,
)
"""What is wrapped, each after its base."""

NAMES: Final = {kind.__name__ for kind in CLASSES}
FOR_PARTS: Final = {
    name for name, member in vars(Maker).items() if inspect.isfunction(member) and not name.startswith("_")
} | {
    *("pairing", "credentials", "send_attempt_s", "limit_send_attempts", "ended", "enlist", "dismiss", "greet"),
    "announced_name",
}
"""What a factory does for what it has made and for its pair, and not for applications."""

NOT_FOR_APPLICATIONS: Final[dict[type, set[str]]] = {
    MessagingFactory: FOR_PARTS,
    MessageSender: {"pair"},
    SendAvailabilityPairedNamespaceOptions: {"pair"},
    NamespacePair: {"route", "start", "abort", "close"},
}

MADE_FOR_APPLICATIONS: Final = (Part, NamespacePair)
"""What applications do not make themselves."""

ATTRIBUTES: Final[dict[type, dict[str, str]]] = {
    NamespaceManager: {"endpoint": "Endpoint", "settings": "MessagingFactorySettings"},
    SendAvailabilityPairedNamespaceOptions: {
        "secondary_namespace_manager": "NamespaceManager",
        "messaging_factory": "MessagingFactory",
        "backlog_queue_count": "int",
        "failover_interval": "timedelta",
        "enable_syphon": "bool",
        "ping_interval": "timedelta",
        "attempt_timeout": "timedelta",
        "primary_name": "str | None",
        "failure_rules": "FailureRules",
        "preserve_session_order": "bool",
        "syphon": "SyphonSettings",
        "syphon_engine": "str | SyphonEngine",
    },
}
"""Attributes that are no properties."""

IN_PLACE_OF: Final = {
    "PairedNamespaceOptions[P]": "SendAvailabilityPairedNamespaceOptions",
    "P": "NamespacePair",
    "AsyncIterator[PairEvent]": "Iterator[PairEvent]",
}
"""Annotations that are others here. There is one kind of options, and what it makes is wrapped."""

MORE: Final = {
    "subscribe": "It is called on the thread of the event loop, where no blocking call can be made.",
}
"""What else there is to say of a method to synchronous code."""

RELATED_FROM: Final = ("pairbus.client.paired_namespace", "PairedNamespaceOptions")
RELATED: Final = "PairedNamespaceOptions.register(SendAvailabilityPairedNamespaceOptions)"
"""Its base class has something to wait for, which these options do not inherit."""

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
        for name in sorted(names):
            if " as " in name:
                lines += _import(module, [name])
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

    def methods(self, owner: str) -> list[Function]:
        return [node for node in self.class_named(owner).body if isinstance(node, Function)]

    def attribute_texts(self, owner: str) -> dict[str, str]:
        """What stands below an attribute where the constructor sets it."""
        constructor = next(node for node in self.methods(owner) if node.name == "__init__")
        texts = {}
        for node, below in pairwise(constructor.body):
            match node, below:
                case ast.AnnAssign(target=ast.Attribute(attr=name)), ast.Expr(ast.Constant(str())):
                    texts[name] = self.said(below)
        return texts


class Facade:
    """The file under construction."""

    def __init__(self) -> None:
        self.imports: set[tuple[str, str]] = {("__future__", "annotations"), RELATED_FROM}
        self.constants: set[str] = set()
        self.classes: list[str] = []

    def text(self) -> str:
        imports = import_lines(self.imports - {("__future__", "annotations")})
        head = [FACADE_HEAD, "from __future__ import annotations", "", *imports, "", *sorted(self.constants)]
        return "\n".join([*head, *self.classes, "", "", RELATED]) + "\n"

    def add(self, kind: type) -> None:
        source = Source.of(kind)
        name = kind.__name__
        self.imports.add((source.name, f"{name} as Async{name}"))
        base = next((base.__name__ for base in kind.__bases__ if base.__name__ in NAMES), None) or self._wrapper(kind)
        lines = ["", "", f"class {name}({base}):", *_class_docstring(source, name), "", f"    _inner: Async{name}"]
        for node in source.class_named(name).body:
            if isinstance(node, Function) and _is_public(node, kind):
                lines += ["", *Method(self, source, kind, node).lines()]
        for attribute, annotation in ATTRIBUTES.get(kind, {}).items():
            lines += ["", *self._attribute(source, name, attribute, annotation)]
        self.classes.append("\n".join(lines))

    def _wrapper(self, kind: type) -> str:
        """The class that one without another base has."""
        name = "ClosingWrapper" if "close" in vars(kind).keys() - NOT_FOR_APPLICATIONS.get(kind, set()) else "Wrapper"
        self.imports.add(("pairbus.blocking.wrapper", name))
        return name

    def _attribute(self, source: Source, owner: str, name: str, annotation: str) -> list[str]:
        self.note_text(source, annotation)
        text = source.attribute_texts(owner).get(name)
        lines = ["    @property", f"    def {name}(self) -> {annotation}:", *([f"        {text}"] if text else [])]
        return [*lines, f"        return self.{'_' if annotation in NAMES else '_inner.'}{name}"]

    def note(self, source: Source, node: ast.AST) -> str:
        """An annotation or a default as it stands there, or as it is here; what it needs is imported."""
        said = source.said(node)
        return self.note_text(source, IN_PLACE_OF.get(said, said))

    def note_text(self, source: Source, text: str) -> str:
        for name in _names(ast.parse(text)):
            self._note_name(source, name)
        return text

    def _note_name(self, source: Source, name: str) -> None:
        if name in NAMES:
            return
        if name == "Iterator":
            self.imports.add(("collections.abc", name))
        elif name in source.imports:
            self.imports.add(source.imports[name])
        elif name in source.constants:
            self.constants.add(source.constants[name])
            self.note_text(source, source.constants[name])


def _names(node: ast.AST) -> set[str]:
    """The names that it uses."""
    return {found.id for found in ast.walk(node) if isinstance(found, ast.Name) and isinstance(found.ctx, ast.Load)}


def _class_docstring(source: Source, name: str) -> list[str]:
    """What it says; the first line alone if the others are about what does not concern us."""
    said = source.said(source.class_named(name).body[0])
    assert said.startswith('"""')
    return [f'    {said.splitlines()[0]}"""' if "event loop" in said else f"    {said}"]


def _is_public(node: Function, kind: type) -> bool:
    if node.name in NOT_FOR_APPLICATIONS.get(kind, ()):
        return False
    if node.name == "__init__":
        return not issubclass(kind, MADE_FOR_APPLICATIONS)
    return node.name in {"__aiter__", "__anext__"} or not node.name.startswith("_")


class Method:
    """A method of the facade."""

    def __init__(self, facade: Facade, source: Source, kind: type, node: Function) -> None:
        self.facade = facade
        self.source = source
        self.kind = kind
        self.owner = kind.__name__
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
        said = self.source.said(found)
        if self.node.name in MORE:
            said = "\n".join([said.removesuffix('"""'), "", f"        {MORE[self.node.name]}", '        """'])
        return [f"        {said}"] if is_docstring else []

    def _arguments(self) -> Iterator[str]:
        for argument in self.node.args.args[1:]:
            yield self._argument(argument)
        for argument in self.node.args.kwonlyargs:
            yield f"{argument.arg}={self._argument(argument)}"

    def _argument(self, argument: ast.arg) -> str:
        assert argument.annotation is not None
        annotation = self.facade.note(self.source, argument.annotation)
        if annotation in NAMES:
            function = "unwrapped" if self.node.name == "__init__" else "lent"
            self.facade.imports.add(("pairbus.blocking.wrapper", function))
            return f'{function}("{argument.arg}", {argument.arg}, {annotation})'
        assert not _names(ast.parse(annotation)) & NAMES, f"{self.node.name} takes something to be unwrapped"
        if "Iterable" not in _names(argument.annotation):
            return argument.arg
        self.facade.imports.add(("pairbus.blocking.wrapper", "gathered"))
        return f"gathered({argument.arg})"

    def _kept(self) -> list[str]:
        """Keeps what a constructor was given to unwrap."""
        kept = [
            argument.arg
            for argument in self.node.args.args[1:]
            if argument.annotation is not None and self.source.said(argument.annotation) in NAMES
        ]
        lines = [f"        self._{name} = {name}" for name in kept]
        return [*lines, f"        self._needs = ({', '.join(kept)})"] if kept else []

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
            return [*self._constructor(wrapped, arguments), *self._kept()]
        if "classmethod" in self.decorators:
            return call_lines(8, f"return cls._wrapping({wrapped}.{name}(", arguments, "))")
        if name == "close":
            return ["        self._close(self._inner.close)"]
        if self.returns.startswith("Iterator["):
            return [f"        return self._iterate(self._inner.{name})"]
        if not self._has_to_wait():
            return call_lines(8, f"return self._inner.{name}(", arguments, ")")
        return self._call(arguments)

    def _constructor(self, wrapped: str, arguments: list[str]) -> list[str]:
        line = call_lines(8, f"super().__init__({wrapped}(", arguments, "))")
        if len(line) == 1:
            return line
        return ["        super().__init__(", *call_lines(12, f"{wrapped}(", arguments, ")"), "        )"]

    def _has_to_wait(self) -> bool:
        """Whether its class has to do with the loop: whatever has coroutine functions for applications."""
        return any(
            isinstance(node, ast.AsyncFunctionDef) and _is_public(node, self.kind)
            for node in self.source.methods(self.owner)
        )

    def _is_overloaded(self) -> bool:
        """Whether it has several signatures, of which a type checker cannot choose one here."""
        return len([node for node in self.source.methods(self.owner) if node.name == self.node.name]) > 1

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
    """The package: these classes, and everything else of the asyncio client and of pairing as it is."""
    rooms = {name: room.__name__ for room in (client, pairing) for name in room.__all__}
    imports = {("pairbus", "__version__")}
    imports |= {("pairbus.blocking.facade" if name in NAMES else room, name) for name, room in rooms.items()}
    listed = [f'    "{name}",' for name in sorted(pairbus.__all__, key=_as_ruff_sorts)]
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
