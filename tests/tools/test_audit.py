"""The audit of dependencies, with other programs in the place of pip-audit: what each answer of it leads to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools import audit
from tools.audit import Verdict

DEPENDENCIES = {"h11": "0.16.0", "lmdb": "3.0.0"}
SOUND: dict[str, Any] = {"name": "lmdb", "version": "3.0.0", "vulns": []}
VULNERABLE: dict[str, Any] = {
    "name": "h11",
    "version": "0.16.0",
    "vulns": [{"id": "PYSEC-2026-1", "fix_versions": ["0.17"], "aliases": [], "description": ""}],
}
UNKNOWN: dict[str, Any] = {"name": "h11", "skip_reason": "Dependency not found on PyPI"}

MakeTool = Callable[[str], Path]


@pytest.fixture
def make_tool(tmp_path: Path) -> MakeTool:
    def make(code: str) -> Path:
        tool = tmp_path / "pip-audit"
        tool.write_text(f"#!{sys.executable}\nimport sys, time\n{code}\n")
        tool.chmod(0o700)
        return tool

    return make


def answering(*answers: dict[str, Any]) -> str:
    """As the tool does, end with 1 if something is vulnerable."""
    document = json.dumps({"dependencies": answers, "fixes": []})
    return f"print({document!r}); sys.exit({int(any(answer.get('vulns') for answer in answers))})"


def test_sound_dependencies_pass_and_are_counted(make_tool: MakeTool) -> None:
    sound = {**VULNERABLE, "vulns": []}
    reported = audit.audit(make_tool(answering(SOUND, sound)), DEPENDENCIES)
    assert reported == (Verdict.SOUND, "no known vulnerabilities in 2 runtime dependencies")


def test_vulnerable_dependency_fails_and_is_named(make_tool: MakeTool) -> None:
    reported = audit.audit(make_tool(answering(SOUND, VULNERABLE)), DEPENDENCIES)
    assert reported == (Verdict.VULNERABLE, "vulnerable dependency: h11 0.16.0, PYSEC-2026-1, fixed in 0.17")


def test_dependency_that_the_service_does_not_know_is_named(make_tool: MakeTool) -> None:
    reported = audit.audit(make_tool(answering(SOUND, UNKNOWN)), DEPENDENCIES)
    assert reported == (Verdict.SOUND, "no known vulnerabilities in 1 runtime dependencies\nnot audited: h11")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("sys.exit('ConnectionError: connection refused')", "pip-audit failed: ConnectionError: connection refused"),
        ("sys.exit(3)", "pip-audit failed: it ended with status 3"),
        ("time.sleep(600)", "pip-audit did not answer within 0.5 seconds"),
        (answering(UNKNOWN), "the service answered for none of 1: Dependency not found on PyPI"),
    ],
    ids=["unreachable", "broken", "silent", "unknown"],
)
def test_unreachable_audit_service_is_reported(make_tool: MakeTool, code: str, reason: str) -> None:
    within_s = 0.5 if "sleep" in code else 60.0
    assert audit.audit(make_tool(code), DEPENDENCIES, within_s) == (
        Verdict.NOT_AUDITED,
        f"dependencies not audited: {reason}",
    )


def test_missing_tool_is_reported(tmp_path: Path) -> None:
    reported = audit.audit(tmp_path / "pip-audit", DEPENDENCIES)
    assert reported == (Verdict.NOT_AUDITED, "dependencies not audited: pip-audit is not installed")


def test_tool_is_given_the_installed_versions(make_tool: MakeTool) -> None:
    show = "sys.exit(' '.join(open(sys.argv[sys.argv.index('--requirement') + 1]).read().split()))"
    _, reported = audit.audit(make_tool(show), DEPENDENCIES)
    assert reported.endswith("h11==0.16.0 lmdb==3.0.0")


def test_runtime_dependencies_are_those_that_users_install() -> None:
    found = audit.runtime_dependencies()
    assert {"defusedxml", "lmdb", "starlette", "anyio", "pyspark", "py4j"} <= found.keys()
    assert not {"pairbus", "pytest", "mypy", "azure-servicebus"} & found.keys()


def ended(tool: Path, setting: str) -> subprocess.CompletedProcess[str]:
    """Run the command with a value of the environment variable; none if it is empty."""
    environment = {name: value for name, value in os.environ.items() if name != audit.VARIABLE}
    if setting:
        environment[audit.VARIABLE] = setting
    command = [sys.executable, "tools/audit.py", str(tool)]
    root = Path(audit.__file__).parent.parent
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("answer", "setting", "status"),
    [
        (SOUND, "", 0),
        (VULNERABLE, "", 1),
        (UNKNOWN, "", 0),
        (SOUND, audit.REQUIRED, 0),
        (VULNERABLE, audit.REQUIRED, 1),
        (UNKNOWN, audit.REQUIRED, 1),
    ],
    ids=["sound", "vulnerable", "not audited", "sound-required", "vulnerable-required", "not audited-required"],
)
def test_command_ends_with_a_status_that_make_understands(
    make_tool: MakeTool, answer: dict[str, Any], setting: str, status: int
) -> None:
    done = ended(make_tool(answering(answer)), setting)
    assert done.returncode == status, done.stderr
    assert len(done.stdout.splitlines()) == 1


def test_missing_tool_fails_where_the_audit_is_required(tmp_path: Path) -> None:
    done = ended(tmp_path / "pip-audit", audit.REQUIRED)
    assert (done.returncode, done.stdout) == (1, "dependencies not audited: pip-audit is not installed\n")


def test_invalid_value_of_the_variable_is_rejected(make_tool: MakeTool) -> None:
    done = ended(make_tool(answering(SOUND)), "yes")
    assert (done.returncode, done.stderr) == (2, "AUDIT must be 'required' or unset, got 'yes'\n")
