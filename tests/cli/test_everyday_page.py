"""The page on everyday commands shows what they print."""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pairbus.testing import running_namespace
from tests.cli.test_cli import ENVIRONMENT, PATIENCE_S, blocks_of
from tests.docs.snippets import ROOT

PAGE = ROOT / "docs" / "how-to" / "everyday-commands.md"


def dialogues() -> Iterator[tuple[str, str]]:
    """What is typed, and what is printed then."""
    for block in blocks_of(PAGE, "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            yield command, printed


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash to type it into")
def test_the_page_shows_what_is_printed(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "pairbus"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m pairbus.cli.main "$@"\n', encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    environment = ENVIRONMENT | {"PATH": f"{program.parent}:{ENVIRONMENT['PATH']}"}
    with running_namespace("contoso") as contoso:
        (tmp_path / "contoso.txt").write_text(contoso.connection_string, encoding="utf-8")
        for command, printed in dialogues():
            if command.startswith("export "):
                name, _, value = command.removeprefix("export ").partition("=")
                environment[name] = value
                continue
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=PATIENCE_S,
            )
            assert (done.returncode, done.stderr) == (0, ""), command
            pattern = re.escape(printed).replace("…", ".*")
            assert re.fullmatch(pattern, done.stdout, re.DOTALL), f"{command}\n{done.stdout}"
