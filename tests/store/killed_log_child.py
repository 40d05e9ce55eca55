"""Kills a writer of a segment log before each of its system calls, and within each write, and reports what is left.

Each writer starts with an empty directory. It appends, copies the first segment's contents to the end, deletes that
segment, and puts a record into quarantine.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pairbus.store import quarantine as quarantine_module
from pairbus.store import segment_log
from pairbus.store.quarantine import BufferQuarantine, QuarantinedRecord
from pairbus.store.segment_log import Damage, SegmentLog

MARK: Final = b"pairbus\x01identity"
SEGMENT_BYTES: Final = 60
"""Two appends for each segment."""

RECORD: Final = QuarantinedRecord(3, "gone", {"entity": "orders"})
_CALLS: Final = ("open", "ftruncate", "fsync", "unlink")


def content(number: int) -> bytes:
    return MARK + b"%04d" % number


def write(directory: Path, report: Callable[[str], object]) -> None:
    """Report each step once it is durable."""
    log = SegmentLog(directory, MARK, segment_bytes=SEGMENT_BYTES)
    for first in range(0, 12, 2):
        log.append([content(first), content(first + 1)])
        report(f"{first} {first + 1}")
    base = min(log.sizes)
    copied = [each[1] for each in log.scan() if not isinstance(each, Damage) and each[0].base == base]
    log.append(copied)
    log.delete(base)
    BufferQuarantine(directory / "quarantine.jsonl").add([RECORD])
    report("quarantined")
    log.append([content(12)])
    report("12")


def die_at(point: int, *, within: bool) -> None:
    """Kill this process before the call with this number, or within it if it is a write."""
    count = 0

    def guarded(call: Callable[..., Any]) -> Callable[..., Any]:
        def guard(*arguments: Any) -> Any:
            nonlocal count
            count += 1
            if count > point:
                if within and call is _pwrite:
                    descriptor, data, offset = arguments
                    call(descriptor, data[: len(data) // 2], offset)
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments)

        return guard

    for name in _CALLS:
        setattr(os, name, guarded(getattr(os, name)))
    os.pwrite = guarded(_pwrite)
    for module in (segment_log, quarantine_module):
        setattr(module, "sync_content", guarded(module.sync_content))  # noqa: B010 (mypy: it is final)


_pwrite: Final = os.pwrite


def killed_writer(directory: Path, point: int, *, within: bool) -> dict[str, Any]:
    """Run a writer up to a point; return its reports, whether it was killed, and what its directory holds."""
    directory.mkdir()
    reading, reported = os.pipe()
    writer = os.fork()
    if not writer:
        try:
            die_at(point, within=within)
            write(directory, lambda line: os.write(reported, line.encode() + b"\n"))
        finally:
            os._exit(0)
    os.close(reported)
    with os.fdopen(reading) as lines:
        reports = lines.read().splitlines()
    _, status = os.waitpid(writer, 0)
    log = SegmentLog(directory, MARK, segment_bytes=SEGMENT_BYTES)
    found = [*log.scan()]
    (last,) = log.append([content(99)])
    result = {
        "killed": os.WIFSIGNALED(status),
        "reports": reports,
        "found": [int(each[1][-4:]) for each in found if not isinstance(each, Damage)],
        "damaged": sum(isinstance(each, Damage) for each in found),
        "appends": log.read(last.position) == content(99),
        "quarantined_again": BufferQuarantine(directory / "quarantine.jsonl").add([RECORD]),
    }
    log.close()
    return result


if __name__ == "__main__":
    logging.getLogger("pairbus").addHandler(logging.NullHandler())  # warnings about torn writes are expected
    for within in (False, True):
        for point in range(1_000):
            result = killed_writer(Path(sys.argv[1]) / f"{point}-{within}", point, within=within)
            print(json.dumps(result), flush=True)
            if not result["killed"]:
                break
