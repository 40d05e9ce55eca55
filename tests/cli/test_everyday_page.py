"""The page on everyday commands shows their output."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pairbus.testing import running_namespace
from tests.docs.shell import Shell, dialogues
from tests.docs.snippets import ROOT

PAGE = ROOT / "docs" / "how-to" / "everyday-commands.md"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash to type it into")
def test_page_shows_the_output_of_the_commands(tmp_path: Path) -> None:
    with running_namespace("contoso") as contoso:
        (tmp_path / "contoso.txt").write_text(contoso.connection_string, encoding="utf-8")
        shell = Shell(tmp_path, {})
        for dialogue in dialogues(PAGE):
            done = shell.type(dialogue)
            if done is not None:
                assert done.stderr == "", dialogue.command
                assert dialogue.printed or not done.stdout, dialogue.command
