"""Look for known vulnerabilities in the installed runtime dependencies: part of ``make check``.

Exits with 1 if there are any. Where the tool or its service is not there, it says so and exits with 0: a check that
needs the network must not stop work without it. With AUDIT=required it exits with 1 then: CI has the network.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from enum import Enum, auto
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PACKAGE: Final = "pairbus"
EXTRAS: Final = frozenset({"server", "tracing", "ledger", "spark", "connect"})
"""The extras that users install; those for checks and tests do not run on a server."""

TOOL: Final = Path(sys.executable).with_name("pip-audit")
_OPTIONS: Final = ("--no-deps", "--disable-pip", "--progress-spinner", "off", "--timeout", "5", "--format", "json")
_WITHIN_S: Final = 20.0
_REQUIRED_WITHIN_S: Final = 180.0

VARIABLE: Final = "AUDIT"
REQUIRED: Final = "required"
"""The value of that environment variable with which it is an error if no dependency could be audited."""


class Verdict(Enum):
    """The outcome of an audit."""

    SOUND = auto()
    VULNERABLE = auto()
    NOT_AUDITED = auto()


def runtime_dependencies(package: str = PACKAGE, extras: frozenset[str] = EXTRAS) -> dict[str, str]:
    """Return the installed version of everything that a package needs to run, by name."""
    found: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(package, extras)]
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # an extra that was left out
            continue
        for text in requires(name) or ():
            needed = Requirement(text)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in ("", *wanted)):
                waiting.append((canonicalize_name(needed.name), frozenset(needed.extras)))
    del found[package]
    return dict(sorted(found.items()))


def audit(tool: Path, dependencies: dict[str, str], within_s: float = _WITHIN_S) -> tuple[Verdict, str]:
    """Ask the tool about dependencies; return the outcome, and what to print."""
    with TemporaryDirectory() as directory:
        listed = Path(directory) / "requirements.txt"
        listed.write_text("".join(f"{name}=={number}\n" for name, number in dependencies.items()))
        try:
            done = subprocess.run(
                [tool, "--requirement", listed, *_OPTIONS],
                capture_output=True,
                text=True,
                timeout=within_s,
                check=False,
            )
        except FileNotFoundError:
            return _not_audited("pip-audit is not installed")
        except subprocess.TimeoutExpired:
            return _not_audited(f"pip-audit did not answer within {within_s:g} seconds")
    try:
        answers: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):  # it had no answer, and says why on stderr
        reason = (done.stderr.strip() or f"it ended with status {done.returncode}").splitlines()[-1]
        return _not_audited(f"pip-audit failed: {reason:.300}")
    return _judged(answers)


def _judged(answers: list[dict[str, Any]]) -> tuple[Verdict, str]:
    audited = [answer for answer in answers if "skip_reason" not in answer]
    skipped = [answer for answer in answers if "skip_reason" in answer]
    if not audited:
        reason = skipped[0]["skip_reason"] if skipped else "the tool was given none"
        return _not_audited(f"the service answered for none of {len(skipped)}: {reason:.300}")
    lines = [_finding(answer, found) for answer in audited for found in answer["vulns"]]
    reported = lines or [f"no known vulnerabilities in {len(audited)} runtime dependencies"]
    if skipped:
        reported.append(f"not audited: {', '.join(answer['name'] for answer in skipped)}")
    return Verdict.VULNERABLE if lines else Verdict.SOUND, "\n".join(reported)


def _not_audited(reason: str) -> tuple[Verdict, str]:
    return Verdict.NOT_AUDITED, f"dependencies not audited: {reason}"


def _finding(answer: dict[str, Any], found: dict[str, Any]) -> str:
    fixed = " or ".join(found["fix_versions"]) or "no version"
    return f"vulnerable dependency: {answer['name']} {answer['version']}, {found['id']}, fixed in {fixed}"


def main() -> int:
    """Audit what is installed; the path of another tool may be given."""
    tool = Path(sys.argv[1]) if len(sys.argv) > 1 else TOOL
    value = os.environ.get(VARIABLE, "")
    if value not in {"", REQUIRED}:
        print(f"{VARIABLE} must be '{REQUIRED}' or unset, got '{value}'", file=sys.stderr)
        return 2
    verdict, reported = audit(tool, runtime_dependencies(), _REQUIRED_WITHIN_S if value else _WITHIN_S)
    print(reported)
    if verdict is Verdict.NOT_AUDITED and value:
        print(f"{VARIABLE}={value}: this is an error", file=sys.stderr)
    return int(verdict is Verdict.VULNERABLE or (verdict is Verdict.NOT_AUDITED and bool(value)))


if __name__ == "__main__":
    sys.exit(main())
