"""Full disks, and no descriptor left: nothing is half-written, queued rows are kept or counted, and writing resumes."""

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
def test_rows_are_kept_while_files_cannot_grow_or_be_opened(tmp_path: Path, scene: str) -> None:
    run("full_child", scene, tmp_path)


def test_rows_are_kept_while_disk_is_full(tmp_path: Path) -> None:
    """The disk has one megabyte, and only the child sees it."""
    unshare = shutil.which("unshare")
    mount = f"mount -t tmpfs -o size=1m none {shlex.quote(str(tmp_path))}"
    if unshare is None or subprocess.call([unshare, "-rm", "sh", "-c", mount], stderr=subprocess.DEVNULL):
        pytest.skip("this machine does not allow a test to mount a disk")
    child = shlex.join([sys.executable, "-m", "tests.ledger.full_child", "full_disk", str(tmp_path)])
    subprocess.run([unshare, "-rm", "sh", "-c", f"{mount} && {child}"], cwd=ROOT, check=True, timeout=120)
