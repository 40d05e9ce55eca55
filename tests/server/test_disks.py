"""Tests on separate file systems do not vanish unnoticed."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

import pytest
import yaml  # type: ignore[import-untyped]

from tests.server.disks import REQUIRED, is_required, mounted

ROOT: Final = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("environment", "is_root", "missing", "expected"),
    [
        ({}, True, True, False),
        ({"CI": "true"}, False, True, False),
        ({"CI": "true"}, True, False, False),
        ({"CI": "true"}, True, True, True),
        ({REQUIRED: "1"}, False, False, True),
    ],
    ids=["no CI", "CI without root", "container that must not mount", "missing program", "required"],
)
def test_only_tests_that_can_run_are_required(
    environment: dict[str, str], is_root: bool, missing: bool, expected: bool
) -> None:
    assert is_required(environment, is_root, missing) == expected


@pytest.mark.parametrize("required", ["", "1"])
def test_missing_program_skips_the_test_or_fails_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, required: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CI", "")
    monkeypatch.setenv(REQUIRED, required)
    expected = pytest.fail.Exception if required else pytest.skip.Exception
    with pytest.raises(expected, match=r"mkfs\.ext4, mount, umount, fsfreeze not installed"), mounted(tmp_path):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts file systems")
def test_command_that_fails_later_fails_the_test(tmp_path: Path) -> None:
    with mounted(tmp_path), pytest.raises(FileExistsError), mounted(tmp_path):
        pass


def test_workflow_runs_all_tests_on_separate_file_systems_as_root() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text("utf-8"))
    (step,) = [each for each in workflow["jobs"]["test"]["steps"] if REQUIRED in each.get("env", {})]
    users = [
        file
        for file in (ROOT / "tests").rglob("test_*.py")
        if re.search(r"^from tests\.server\.disks import", file.read_text("utf-8"), re.MULTILINE)
    ]
    names = sorted(str(file.relative_to(ROOT)) for file in users if file.name != "test_disks.py")
    assert sorted(re.findall(r"tests/\S+\.py", step["run"])) == names
