"""The commands that pages show, and a shell to type them into."""

from __future__ import annotations

import os
import re
import shlex
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final, NamedTuple

_BLOCK: Final = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SETTING: Final = re.compile(r"(export |alias )?\w+=")
_LIMIT_S: Final = 300
NOTHING: Final[Mapping[str, str]] = {}
ENVIRONMENT: Final = {name: value for name, value in os.environ.items() if not name.startswith("PAIRBUS_")}


class Dialogue(NamedTuple):
    """A command, and its output on the page, if the page shows it."""

    command: str
    printed: str


def dialogues(page: Path) -> list[Dialogue]:
    """All that a page has, in order."""
    return [found for block in _BLOCK.findall(page.read_text(encoding="utf-8")) for found in _dialogues(block)]


def _dialogues(block: str) -> Iterator[Dialogue]:
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        lines = part.splitlines(keepends=True)
        length = next(count for count in range(1, len(lines) + 1) if _is_whole("".join(lines[:count])))
        yield Dialogue("".join(lines[:length]).strip(), "".join(lines[length:]))


def _is_whole(command: str) -> bool:
    """Return whether no quotation is open: otherwise a shell waits for the next line."""
    try:
        shlex.split(command)
    except ValueError:
        return False
    return True


def words_of_ours(command: str) -> list[list[str]]:
    """Return the arguments of each ``pairbus`` command of a line."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set("|&;<>()"):
            commands.append([])
        elif commands[-1] or not _SETTING.match(word):
            commands[-1].append(word)
    return [words[1:] for words in commands if words[:1] == ["pairbus"]]


class Shell:
    """Bash in a directory. What pages cannot know is put in its place: ports, and directories of a machine."""

    def __init__(self, directory: Path, in_place: Mapping[str, str], environment: Mapping[str, str] = NOTHING) -> None:
        self.directory = directory
        self._in_place = in_place
        self._environment = {**ENVIRONMENT, **environment}
        self._settings: list[str] = []
        self._put_on_path()

    def _put_on_path(self) -> None:
        program = self.directory / ".bin" / "pairbus"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m pairbus.cli.main "$@"\n', encoding="utf-8")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        self._environment["PATH"] = f"{program.parent}:{self._environment['PATH']}"

    def here(self, text: str) -> str:
        """Return the text of a page, adapted to this machine."""
        for there, here in self._in_place.items():
            text = re.sub(rf"(?<![\w-]){re.escape(there)}(?!\w)", here, text)
        return text

    def type(self, dialogue: Dialogue) -> subprocess.CompletedProcess[str] | None:
        """Run a command to its end, which has to be a good one, and see that it prints what the page says.

        What only sets something, for the commands that follow, has no end of its own.
        """
        command = self.here(dialogue.command)
        if all(_SETTING.match(word) for word in shlex.split(command)) or command.startswith(("export ", "alias ")):
            self._settings.append(command)
            return None
        done = subprocess.run(
            ["bash", "-O", "expand_aliases", "-o", "pipefail", "-c", "\n".join((*self._settings, command))],
            cwd=self.directory,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT_S,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        self._compare(dialogue, done.stdout)
        return done

    def start(self, dialogue: Dialogue, until: Callable[[str], bool]) -> None:
        """Run a command that does not end by itself, until it has done what it is for; then end it as one does."""
        command = self.here(dialogue.command).removesuffix("&").strip()
        script = "\n".join((*self._settings, _replacing_the_shell(command)))
        with TemporaryFile("w+") as said, TemporaryFile("w+") as complaints:
            process = subprocess.Popen(
                ["bash", "-c", script], cwd=self.directory, env=self._environment, stdout=said, stderr=complaints
            )
            try:
                ends_s = time.monotonic() + _LIMIT_S
                while not until(_content(said)) and process.poll() is None and time.monotonic() < ends_s:
                    time.sleep(0.1)
                printed = _content(said)
                process.terminate()
                process.wait(_LIMIT_S)
            finally:
                process.kill()
                process.wait()
            assert until(printed), f"{command}\n{printed}{_content(complaints)}"
            assert process.returncode == 0, f"{command}\n{printed}{_content(complaints)}"
        self._compare(dialogue, printed)

    def _compare(self, dialogue: Dialogue, printed: str) -> None:
        """Three dots stand for anything."""
        if dialogue.printed:
            shown = re.sub(r"\b567[23]\b", "…", dialogue.printed)  # the ports of this run are others
            pattern = re.escape(_trimmed(shown)).replace("…", ".*?")
            assert re.fullmatch(pattern, _trimmed(printed), re.DOTALL), f"{dialogue.command}\n{printed}"


def _trimmed(text: str) -> str:
    """Return the text without trailing blanks."""
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines())


def _content(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def _replacing_the_shell(command: str) -> str:
    """So that the signal is for the command."""
    settings = [word for word in command.split() if _SETTING.match(word)]
    ours = command.split(" ", len(settings))[-1]
    return "\n".join((*(f"export {setting}" for setting in settings), f"exec {ours}"))
