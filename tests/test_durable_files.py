"""Architecture: only the store and the ledger write durable files. import-linter cannot see which files are written."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pairbus

SOURCES = Path(pairbus.__file__).parent

WRITERS = frozenset({"store", "ledger", "durable"})
"""The packages that write durable files, and the module that they do it with."""

EXCEPTION = "jobs/capture/files"
"""The one other module that writes durable files: those of a capture. They are Parquet, written by the executors of
Spark too, which have neither a data directory nor a ledger; and the store cannot be imported where lmdb is missing.
"""

OTHER_FILES = {
    "cli/demo/namespace": "settings and logs of the demo's namespaces, in a temporary directory",
    "cli/demo/performance": "the demo's log, in a temporary directory",
    "cli/interruption": "standard error",
    "cli/message_output": "the file that the user names for received messages",
    "cli/reconcile": "the report that the user asks for",
    "cli/serve": "the connection string, in the file that the user names",
    "cli/standard_output": "standard output",
    "jobs/syphon/settings": "connection strings for executors, deleted when the job ends",
    "spark/java": "a Java launcher in a temporary directory",
    "spark/session": "the logging settings of a Spark session, in a temporary directory",
}
"""Modules that write files on which no state depends."""

_OS_CALLS = frozenset(
    [
        "copy_file_range",
        "fdatasync",
        "fsync",
        "ftruncate",
        "link",
        "posix_fallocate",
        "pwrite",
        "pwritev",
        "remove",
        "rename",
        "renames",
        "replace",
        "sendfile",
        "symlink",
        "truncate",
        "unlink",
        "write",
        "writev",
    ]
)
_PATH_CALLS = frozenset(["hardlink_to", "rename", "symlink_to", "unlink", "write_bytes", "write_text"])
_WRITING_FLAGS = frozenset(["O_APPEND", "O_CREAT", "O_RDWR", "O_TRUNC", "O_WRONLY"])
_MODULES = frozenset({"pairbus.durable", "shelve", "sqlite3"})
_SHUTIL_CALLS = frozenset(
    ["copy", "copy2", "copyfile", "copyfileobj", "copytree", "make_archive", "move", "rmtree", "unpack_archive"]
)


def writes_in(source: str) -> list[str]:
    """Return the calls and imports of a module that write files."""
    return [f"line {line}: {what}" for line, what in sorted(_found(ast.parse(source)))]


def _found(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in _MODULES:
            yield node.lineno, f"from {node.module} import"
        elif isinstance(node, ast.ImportFrom) and node.module in {"os", "shutil"}:
            for alias in node.names:
                if alias.name in _OS_CALLS | _SHUTIL_CALLS | {"open", "fdopen"}:
                    yield node.lineno, f"from {node.module} import {alias.name}"
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, f"import {alias.name}") for alias in node.names if alias.name in _MODULES)
        elif isinstance(node, ast.Attribute | ast.Call) and _is_write(node):
            yield node.lineno, ast.unparse(node)


def _is_write(node: ast.Attribute | ast.Call) -> bool:
    """Return whether this opens a file for writing, or names a function that writes files, called or passed on."""
    if isinstance(node, ast.Call):
        return _opens_for_writing(node)
    owner = node.value.id if isinstance(node.value, ast.Name) else None
    if owner == "os":
        return node.attr in _OS_CALLS | _WRITING_FLAGS
    if owner == "shutil":
        return node.attr in _SHUTIL_CALLS
    return node.attr in _PATH_CALLS


def _opens_for_writing(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name not in {"open", "fdopen", "NamedTemporaryFile"}:
        return False
    arguments = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    modes = [set(each.value) for each in arguments if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return any(mode <= set("rwaxbt+") and mode & set("wax+") for mode in modes)


def modules() -> Iterator[tuple[str, str]]:
    for path in sorted(SOURCES.rglob("*.py")):
        name = path.relative_to(SOURCES).with_suffix("").as_posix()
        if name.split("/")[0] not in WRITERS:
            yield name, path.read_text("utf-8")


def test_only_store_and_ledger_write_durable_files() -> None:
    found = {name: writes for name, source in modules() if (writes := writes_in(source))}
    assert {name: writes for name, writes in found.items() if name not in {EXCEPTION, *OTHER_FILES}} == {}
    assert found.keys() == {EXCEPTION, *OTHER_FILES}, "a module that writes no files any more needs no exception"


@pytest.mark.parametrize(
    "source",
    [
        "from pairbus.durable import put_in_place",
        "import pairbus.durable",
        "path.open('ab')",
        "open(path, mode='w')",
        "open(path, 'r+b')",
        "os.open(path, os.O_RDWR)",
        "os.fdopen(descriptor, 'w')",
        "os.fsync(descriptor)",
        "run(os.replace, a, b)",
        "path.write_text('a')",
        "path.rename(other)",
        "shutil.move(a, b)",
        "from os import replace",
    ],
)
def test_write_is_found(source: str) -> None:
    assert writes_in(source) != []


@pytest.mark.parametrize("source", ["open(path)", "path.open('rb')", "os.open(path, os.O_RDONLY)", "a.replace(b, c)"])
def test_read_is_allowed(source: str) -> None:
    assert writes_in(source) == []
