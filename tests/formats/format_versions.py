"""The version of each stored format: what the code writes today, and what is written in files.

The files are read here without the code that they are to be compared with.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import lmdb
import pyarrow as pa
from pyarrow import parquet

from pairbus.jobs.capture import window
from pairbus.jobs.syphon import share_source
from pairbus.ledger import events
from pairbus.server.side_buffer import archive
from pairbus.spark import offset
from pairbus.store import buffer_directory, directory, pages, records

CURRENT: Final[Mapping[str, int]] = {
    "data directory": directory.FORMAT_VERSION,
    "data file": pages.DATA_VERSION,
    "records": records.VERSION,
    "side buffer": buffer_directory.FORMAT_VERSION,
    "parcels": archive._VERSION[-1],
    "ledger": events.VERSION,
    "consume offsets": offset._VERSION,
    "browse offsets": offset._MARKS_VERSION,
    "share offsets": share_source._VERSION,
    "capture book": window._VERSION,
}
"""The format versions that the code writes."""

NAMED: Final = frozenset(
    {
        "store/directory.FORMAT_VERSION",
        "store/pages.DATA_VERSION",
        "store/records.VERSION",
        "store/buffer_directory.FORMAT_VERSION",
        "server/side_buffer/archive._VERSION",
        "ledger/events.VERSION",
        "spark/offset._VERSION",
        "spark/offset._MARKS_VERSION",
        "jobs/capture/window._VERSION",
        "jobs/syphon/share_source._VERSION",
    }
)
"""The constants that the code has them from."""

_CHUNK: Final = struct.Struct("<II")
_META: Final = struct.Struct("<16xII")
"""The beginning of LMDB's first page: its header, a magic number, and the version."""

_CHECKSUM_BYTES: Final = 4
_UNVERSIONED: Final = b"BOX"
"""Kinds of records that have no version of their own: bodies, the outbox, and what is quarantined."""

_PARCEL_VERSION: Final = len(b"pairbus")


def stored_versions(root: Path) -> dict[str, list[int]]:
    """Return the versions of each format in the files below a directory."""
    found = {name: sorted({*read(root)}) for name, read in _READERS.items()}
    return {name: versions for name, versions in found.items() if versions}


def records_in(data_file: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and the values of a data file that no process has open, without their checksums."""
    size = data_file.stat().st_size
    with (
        lmdb.open(str(data_file), map_size=size, subdir=False, readonly=True, lock=False) as environment,
        environment.begin() as transaction,
        transaction.cursor() as cursor,
    ):
        for key, value in cursor:
            yield bytes(key), bytes(value[_CHECKSUM_BYTES:])


def _json_number(file_name: str, key: str) -> Callable[[Path], Iterator[int]]:
    def read(root: Path) -> Iterator[int]:
        for path in root.rglob(file_name):
            yield json.loads(path.read_bytes())[key]

    return read


def _data_files(root: Path) -> Iterator[int]:
    for path in root.rglob("data.mdb"):
        with path.open("rb") as file:
            yield _META.unpack(file.read(_META.size))[-1]


def _records(root: Path) -> Iterator[int]:
    for path in root.rglob("data.mdb"):
        yield from (value[0] for key, value in records_in(path) if key[:1] not in _UNVERSIONED)


def _parcels(root: Path) -> Iterator[int]:
    yield from (content[_PARCEL_VERSION] for content in parcels_in(root))


def parcels_in(root: Path, name: str = "*.parcels") -> Iterator[bytes]:
    """Yield the sends that lie in the files of a side buffer, as they are written."""
    for path in sorted(root.rglob(name)):
        yield from _chunks(path)


def _ledgers(root: Path) -> Iterator[int]:
    for path in root.rglob("*.journal"):
        yield from (_ledger_version(pa.ipc.open_stream(content).schema.metadata) for content in _chunks(path))
    for path in root.rglob("*.parquet"):
        metadata = parquet.read_metadata(path).metadata or {}
        if events.VERSION_KEY.encode() in metadata:  # captured messages are Parquet, too
            yield _ledger_version(metadata)


def _ledger_version(metadata: Mapping[bytes, bytes]) -> int:
    return int(metadata[events.VERSION_KEY.encode()])


def _chunks(path: Path) -> Iterator[bytes]:
    file = BytesIO(path.read_bytes())
    while head := file.read(_CHUNK.size):
        length, _ = _CHUNK.unpack(head)
        yield file.read(length)


def _offsets_with(key: str) -> Callable[[Path], Iterator[int]]:
    def read(root: Path) -> Iterator[int]:
        for offsets in offsets_in(root):
            yield from (each["version"] for each in offsets if key in each)

    return read


def offsets_in(root: Path) -> Iterator[list[dict[str, Any]]]:
    """Yield what each batch of the checkpoints below a directory ends with, in order."""
    numbered = (path for path in root.rglob("offsets/*") if path.name.isdecimal())
    for path in sorted(numbered, key=lambda path: (path.parent, int(path.name))):
        _version, _metadata, *lines = path.read_text("utf-8").splitlines()
        yield [json.loads(line) for line in lines]


_READERS: Final[Mapping[str, Callable[[Path], Iterator[int]]]] = {
    "data directory": _json_number("format", "format"),
    "data file": _data_files,
    "records": _records,
    "side buffer": _json_number("side-buffer", "format"),
    "parcels": _parcels,
    "ledger": _ledgers,
    "consume offsets": _offsets_with("held"),
    "browse offsets": _offsets_with("seen"),
    "share offsets": _offsets_with("queues"),
    "capture book": _json_number("book.json", "version"),
}
