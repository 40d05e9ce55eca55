"""What must survive a restart: the broker's records in an ordered key-value store, on disk or in memory."""

from __future__ import annotations

from pairbus.store.directory import FORMAT_VERSION, DataDirectory
from pairbus.store.errors import (
    CommitOrderError,
    DamagedRecordError,
    DamagedStoreError,
    InvalidKeyError,
    NamespaceReplacedError,
    NewerFormatError,
    NotADataDirectoryError,
    StoreClosedError,
    StoreError,
    StoreFailedError,
    StoreFullError,
    StoreInUseError,
    UnsupportedSystemError,
)
from pairbus.store.journal import Journal
from pairbus.store.keeper import Keeper
from pairbus.store.keyvalue import LONGEST_KEY_BYTES, Batch, Commit, DamageListener, KeyValueStore, apply
from pairbus.store.lmdb import LmdbStore
from pairbus.store.memory import MemoryStore
from pairbus.store.pages import verify
from pairbus.store.recovery import Recovery

__all__ = [
    "FORMAT_VERSION",
    "LONGEST_KEY_BYTES",
    "Batch",
    "Commit",
    "CommitOrderError",
    "DamageListener",
    "DamagedRecordError",
    "DamagedStoreError",
    "DataDirectory",
    "InvalidKeyError",
    "Journal",
    "Keeper",
    "KeyValueStore",
    "LmdbStore",
    "MemoryStore",
    "NamespaceReplacedError",
    "NewerFormatError",
    "NotADataDirectoryError",
    "Recovery",
    "StoreClosedError",
    "StoreError",
    "StoreFailedError",
    "StoreFullError",
    "StoreInUseError",
    "UnsupportedSystemError",
    "apply",
    "verify",
]
