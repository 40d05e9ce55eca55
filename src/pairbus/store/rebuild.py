"""Rebuilds the data file of a running namespace, when it is damaged in a place on which other pages depend.

Everything that can be read is copied into a new file, as ``pairbus repair`` does, and what the memory of the namespace
knows decides about the rest: which messages were there, and which were removed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from pairbus.broker.namespace import Namespace
from pairbus.broker.queue import PARTITION_SHIFT
from pairbus.store import keys
from pairbus.store.datafile import disk_errors_as_store_errors
from pairbus.store.lmdb import LmdbStore
from pairbus.store.pages import verify
from pairbus.store.records import encode_access, encode_entity, encode_rule
from pairbus.store.repair import KnownState, Repair, RepairReport
from pairbus.store.salvage import DamagedFile
from pairbus.store.write_batch import ACCESS_KEY, LAST_BODY, LAST_ENTITY

REBUILT: Final = ".rebuilt"
"""End of the name of a file that is not complete yet."""

DAMAGED: Final = ".damaged-"
"""Follows the name of the data file in that of a damaged one that was replaced; the time follows."""

KEPT_FILES: Final = 2
"""Number of damaged files that are kept, the newest ones: each is as large as the data file."""


class Rebuild(NamedTuple):
    """The result of rebuilding a data file."""

    reason: str
    """The reason of the rebuild."""

    records: int
    """Number of records of all kinds that the new file has."""

    lost: int
    """Number of messages that are lost; the background work leaves a stub of each."""

    kept: Path
    """The damaged file."""


def rebuild(store: LmdbStore, known: KnownState | None, reason: str, now_ms: int) -> Rebuild:
    """Copy everything readable into a new file, and let the store use that one; nothing else may use it meanwhile.

    The new file is complete and verified before it gets the name of the old one. Raises ``StoreError``; then the store
    uses the old file.
    """
    path = store.path
    new = path.with_name(path.name + REBUILT)
    store.restore()
    with disk_errors_as_store_errors(path):
        remove_incomplete(path)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                report = _copy(DamagedFile(path, descriptor), new, known, now_ms, store.max_bytes)
            finally:
                os.close(descriptor)
            verify(new)
            kept = path.with_name(f"{path.name}{DAMAGED}{_timestamp(now_ms)}")
            store.replace_file(new, kept)
        except BaseException:
            remove_incomplete(path)
            raise
        for old in sorted(path.parent.glob(path.name + DAMAGED + "*"))[:-KEPT_FILES]:
            old.unlink()
    return Rebuild(reason, report.records, len(report.lost), kept)


def remove_incomplete(path: Path) -> None:
    """Remove the new file of a rebuild that was interrupted."""
    path.with_name(path.name + REBUILT).unlink(missing_ok=True)


def _copy(file: DamagedFile, new: Path, known: KnownState | None, now_ms: int, max_bytes: int) -> RepairReport:
    store = LmdbStore(new, max_bytes=max_bytes)
    try:
        return Repair(file, store, now_ms, known).run()
    finally:
        store.close()


def _timestamp(now_ms: int) -> str:
    return datetime.fromtimestamp(now_ms / 1_000, UTC).strftime("%Y%m%dT%H%M%S")


def known_state(
    namespace: Namespace, uncommitted: Mapping[bytes, bytes | None], counters: Mapping[bytes, int]
) -> KnownState:
    """Return what the memory of a namespace knows; ``counters`` are added to those of the namespace."""
    index = namespace.index()
    return KnownState(
        messages=index.messages,
        uncommitted=uncommitted,
        counters={
            **counters,
            LAST_ENTITY: index.last_entity_id,
            LAST_BODY: index.last_body_id,
            **{
                keys.sequence_key(place.entity_id, place.part, partition): sequence
                for place, sequences in index.last_sequences.items()
                for partition, sequence in enumerate(sequences)
                if sequence & ((1 << PARTITION_SHIFT) - 1)
            },
        },
        settings={
            **{keys.entity_key(entity.entity_id): encode_entity(entity) for entity in index.entities},
            **{
                keys.rule_key(entity_id, rule.position): encode_rule(rule.description, rule.created_ms)
                for entity_id, rule in index.rules
            },
            ACCESS_KEY: encode_access(index.access),
        },
    )
