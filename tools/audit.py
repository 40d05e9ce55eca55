"""Look for known vulnerabilities in the installed runtime dependencies: part of ``make check``.

Exits with 1 if there are any. Where the tool or its service is not there, it says so and exits with 0: a check that
needs the network must not stop work without it.
"""

from __future__ import annotations

import json
import subprocess
import sys
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


def audit(tool: Path, dependencies: dict[str, str], within_s: float = _WITHIN_S) -> tuple[bool, str]:
    """Ask the tool about dependencies; return whether nothing speaks against them, and what to print."""
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
            return True, "dependencies not audited: pip-audit is not installed"
        except subprocess.TimeoutExpired:
            return True, f"dependencies not audited: pip-audit did not answer within {within_s:g} seconds"
    try:
        answers: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):  # it had no answer, and says why on stderr
        reason = (done.stderr.strip() or f"it ended with status {done.returncode}").splitlines()[-1]
        return True, f"dependencies not audited: pip-audit failed: {reason:.300}"
    return _judged(answers)


def _judged(answers: list[dict[str, Any]]) -> tuple[bool, str]:
    audited = [answer for answer in answers if "skip_reason" not in answer]
    skipped = [answer for answer in answers if "skip_reason" in answer]
    if not audited:
        reason = skipped[0]["skip_reason"] if skipped else "the tool was given none"
        return True, f"dependencies not audited: the service answered for none of {len(skipped)}: {reason:.300}"
    lines = [_finding(answer, found) for answer in audited for found in answer["vulns"]]
    reported = lines or [f"no known vulnerabilities in {len(audited)} runtime dependencies"]
    if skipped:
        reported.append(f"not audited: {', '.join(answer['name'] for answer in skipped)}")
    return not lines, "\n".join(reported)


def _finding(answer: dict[str, Any], found: dict[str, Any]) -> str:
    fixed = " or ".join(found["fix_versions"]) or "no version"
    return f"vulnerable dependency: {answer['name']} {answer['version']}, {found['id']}, fixed in {fixed}"


def main() -> int:
    """Audit what is installed; the path of another tool may be given."""
    tool = Path(sys.argv[1]) if len(sys.argv) > 1 else TOOL
    is_fine, reported = audit(tool, runtime_dependencies())
    print(reported)
    return 0 if is_fine else 1


if __name__ == "__main__":
    sys.exit(main())
