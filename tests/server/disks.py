"""Separate file systems that a test can freeze, fill, or make fail, if the system allows mounting them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

MEGABYTE: Final = 1 << 20
UNJOURNALED: Final = ("-O", "^has_journal", "-E", "lazy_itable_init=0")
"""Options of a file system that a process writes to itself: with a journal, a thread of the kernel does."""

_GROUPS: Final = Path("/sys/fs/cgroup")


@contextmanager
def mounted(directory: Path, megabytes: int = 256, *options: str) -> Iterator[Path]:
    """Mount a file system that is stored in a file of a directory."""
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
            (parent / "cgroup.subtree_control").write_text("+io", encoding="ascii")
        group.mkdir()
        limits = group / ("io.max" if is_unified else "blkio.throttle.write_iops_device")
        limits.write_text(f"{limited} {'wiops=' if is_unified else ''}{writes_per_s}", encoding="ascii")
    except OSError as error:
        pytest.skip(f"no disk can be slowed down here: {error}")
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
    try:
        subprocess.run([*map(str, command)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")
