"""Separate file systems that a test can freeze, fill, or make fail, if the system allows mounting them.

Whether it does is tried once. Tests are skipped without root, or in a container that must not mount, and the summary
says why. They fail if a program is missing when root runs them in CI, if ``PAIRBUS_REQUIRE_DISKS`` is set, and if
anything fails later: such a test proves something, and must not vanish unnoticed.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from shutil import which
from typing import Final, NoReturn

import pytest

MEGABYTE: Final = 1 << 20
UNJOURNALED: Final = ("-O", "^has_journal", "-E", "lazy_itable_init=0")
"""Options of a file system that a process writes to itself: with a journal, a thread of the kernel does."""

PROGRAMS: Final = ("mkfs.ext4", "mount", "umount", "fsfreeze")
REQUIRED: Final = "PAIRBUS_REQUIRE_DISKS"

_GROUPS: Final = Path("/sys/fs/cgroup")


def is_required(environment: Mapping[str, str], is_root: bool, missing: bool) -> bool:
    """Return whether a test fails, instead of being skipped, if no file system can be mounted, or slowed down.

    ``missing``: because a program is not installed.
    """
    return bool(environment.get(REQUIRED)) or (environment.get("CI") == "true" and is_root and missing)


def _give_up(reason: str, *, missing: bool = False) -> NoReturn:
    if is_required(os.environ, os.geteuid() == 0, missing):
        pytest.fail(reason)
    pytest.skip(reason)


def _require_disks() -> None:
    missing = [program for program in PROGRAMS if which(program) is None]
    if missing:
        _give_up(f"no file system can be mounted here: {', '.join(missing)} not installed", missing=True)
    problem = _mount_problem()
    if problem is not None:
        _give_up(f"no file system can be mounted here: {problem}")


@cache
def _mount_problem() -> str | None:
    """Try to mount a file system; return why that is impossible."""
    if os.geteuid() != 0:
        return "only root may"
    with tempfile.TemporaryDirectory() as directory:
        try:
            with _mounted(Path(directory), 8):
                return None
        except (OSError, subprocess.CalledProcessError) as error:
            return f"{error}: {getattr(error, 'stderr', b'').decode(errors='replace').strip()}"


@contextmanager
def mounted(directory: Path, megabytes: int = 256, *options: str) -> Iterator[Path]:
    """Mount a file system that is stored in a file of a directory."""
    _require_disks()
    with _mounted(directory, megabytes, *options) as place:
        yield place


@contextmanager
def _mounted(directory: Path, megabytes: int, *options: str) -> Iterator[Path]:
    image, place = directory / "image", directory / "mounted"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(megabytes * MEGABYTE)
    _run("mkfs.ext4", "-q", *options, image)
    _run("mount", "-o", "loop", image, place)
    try:
        yield place
    finally:
        _unmount(place)


@contextmanager
def frozen(place: Path) -> Iterator[None]:
    """Freeze a file system: writers block, and not even SIGKILL ends that."""
    subprocess.run(["fsfreeze", "--freeze", place], check=True)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", place], check=True)


@contextmanager
def fragile(directory: Path) -> Iterator[tuple[Path, Path]]:
    """Mount a file system whose disk fails with EIO while the one below it is full; return both.

    A disk in a file reports a write that does not fit into that file as an input/output error.
    """
    _require_disks()
    below, middle, top = directory / "below", directory / "middle", directory / "top"
    for place in (below, middle, top):
        place.mkdir()
    with ExitStack() as stack:
        _run("mount", "-t", "tmpfs", "-o", "size=400m", "none", below)
        stack.callback(_unmount, below)
        nested = stack.enter_context(mounted(_made(below / "disk"), 360, *UNJOURNALED))
        yield stack.enter_context(mounted(_made(nested / "disk"), 300, *UNJOURNALED)), below


@contextmanager
def slowed(place: Path, process_id: int, writes_per_s: int) -> Iterator[None]:
    """Limit how many writes a process gets done on a mounted file system that is unjournaled."""
    device = os.stat(place).st_dev
    limited = f"{os.major(device)}:{os.minor(device)}"
    is_unified = (_GROUPS / "cgroup.controllers").exists()
    parent = _GROUPS if is_unified else _GROUPS / "blkio"
    group = parent / f"pairbus-{process_id}"
    try:
        if is_unified:
            # Without the memory controller, what the kernel writes for a group does not count as written by the group.
            (parent / "cgroup.subtree_control").write_text("+io +memory", encoding="ascii")
        group.mkdir()
        limits = group / ("io.max" if is_unified else "blkio.throttle.write_iops_device")
        limits.write_text(f"{limited} {'wiops=' if is_unified else ''}{writes_per_s}", encoding="ascii")
    except OSError as error:
        _give_up(f"no disk can be slowed down here: {error}")
    home = group.parent / _group_of(process_id, is_unified).lstrip("/")
    try:
        (group / "cgroup.procs").write_text(str(process_id), encoding="ascii")
        yield
    finally:
        (home / "cgroup.procs").write_text(str(process_id), encoding="ascii")
        group.rmdir()


def _group_of(process_id: int, is_unified: bool) -> str:
    """Return the control group that a process belongs to, whose name is relative to the root."""
    lines = Path(f"/proc/{process_id}/cgroup").read_text(encoding="ascii").splitlines()
    fields = [line.split(":", 2) for line in lines]
    return next(name for _, kinds, name in fields if kinds == ("" if is_unified else "blkio"))


@contextmanager
def filled(place: Path, leave_bytes: int = 0) -> Iterator[None]:
    """Fill a file system except for some bytes."""
    _run("sync", "--file-system", place)
    disk = os.statvfs(place)
    ballast = place / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, disk.f_bavail * disk.f_frsize - leave_bytes)
    try:
        yield
    finally:
        ballast.unlink()


def _unmount(place: Path) -> None:
    subprocess.run(["umount", "--lazy", place], check=True)


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def _run(*command: object) -> None:
    subprocess.run([*map(str, command)], check=True, capture_output=True)
