"""Durable storage of the broker's records in an ordered key-value store, on disk or in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairbus.renamed import renamed
from pairbus.store.errors import (
    BufferOwnerError,
    CommitOrderError,
    DamagedRecordError,
    DamagedStoreError,
    InvalidKeyError,
    NamespaceLoadingError,
    NamespaceReplacedError,
    NewerFormatError,
    NotADataDirectoryError,
    RepairTargetError,
    StoreClosedError,
    StoreError,
    StoreFailedError,
    StoreFullError,
    StoreInUseError,
    StoreStalledError,
    UnconfinedDamageError,
    UnsupportedSystemError,
)
from pairbus.store.keyvalue import (
    LONGEST_KEY_BYTES,
    Batch,
    Commit,
    CommitId,
    CommitInDoubtError,
    DamageListener,
    KeyValueStore,
    apply,
)
from pairbus.store.memory import MemoryStore
from pairbus.store.pages import verify
from pairbus.store.recovery import Recovery
from pairbus.store.write_batch import WriteBatch

if TYPE_CHECKING:
    from pairbus.store.directory import FORMAT_VERSION, DataDirectory
    from pairbus.store.group_committer import GroupCommitter
    from pairbus.store.lmdb import LmdbStore

__all__ = [
    "FORMAT_VERSION",
    "LONGEST_KEY_BYTES",
    "Batch",
    "BufferOwnerError",
    "Commit",
    "CommitId",
    "CommitInDoubtError",
    "CommitOrderError",
    "DamageListener",
    "DamagedRecordError",
    "DamagedStoreError",
    "DataDirectory",
    "GroupCommitter",
    "InvalidKeyError",
    "KeyValueStore",
    "LmdbStore",
    "MemoryStore",
    "NamespaceLoadingError",
    "NamespaceReplacedError",
    "NewerFormatError",
    "NotADataDirectoryError",
    "Recovery",
    "RepairTargetError",
    "StoreClosedError",
    "StoreError",
    "StoreFailedError",
    "StoreFullError",
    "StoreInUseError",
    "StoreStalledError",
    "UnconfinedDamageError",
    "UnsupportedSystemError",
    "WriteBatch",
    "apply",
    "verify",
]

if not TYPE_CHECKING:  # type checkers only see the new names
    __getattr__ = renamed(
        __name__,
        {
            "Journal": "WriteBatch",
            "Keeper": "GroupCommitter",
        },
        # These need lmdb, which is not installed everywhere that a ledger is read.
        {
            "FORMAT_VERSION": "pairbus.store.directory",
            "DataDirectory": "pairbus.store.directory",
            "GroupCommitter": "pairbus.store.group_committer",
            "LmdbStore": "pairbus.store.lmdb",
        },
    )
