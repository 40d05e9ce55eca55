"""No room on the disk: nothing is half-written, what waits is kept or counted, and it goes on when there is room."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ledger.child import ROOT, run
from tests.ledger.full_child import SCENES


@pytest.mark.parametrize("scene", SCENES)
def test_files_that_cannot_grow(tmp_path: Path, scene: str) -> None:
    run("full_child", scene, tmp_path)


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """A disk of one megabyte, that only the child sees."""
    unshare = shutil.which("unshare")
    mount = f"mount -t tmpfs -o size=1m none {shlex.quote(str(tmp_path))}"
    if unshare is None or subprocess.call([unshare, "-rm", "sh", "-c", mount], stderr=subprocess.DEVNULL):
        pytest.skip("this machine lets nobody have a disk of his own")
    child = shlex.join([sys.executable, "-m", "tests.ledger.full_child", "full_disk", str(tmp_path)])
    subprocess.run([unshare, "-rm", "sh", "-c", f"{mount} && {child}"], cwd=ROOT, check=True, timeout=120)
