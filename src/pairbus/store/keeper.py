"""A namespace that survives: the broker, its journal, and the thread that commits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TypeAlias

from pairbus.broker.namespace import Namespace
from pairbus.broker.records import Records
from pairbus.store.directory import DataDirectory
from pairbus.store.errors import StoreError
from pairbus.store.journal import Journal
from pairbus.store.keyvalue import Commit, KeyValueStore
from pairbus.store.lmdb import DEFAULT_MAX_BYTES, LmdbStore
from pairbus.store.recovery import Recovery, recover

Done: TypeAlias = Callable[[StoreError | None], None]
"""Is told that everything written so far is durable, or why it is not and never will be."""

Wake: TypeAlias = Callable[[Callable[[], None]], object]
"""Has a function called soon on the thread that the keeper belongs to, such as ``loop.call_soon_threadsafe``."""

MakeNamespace: TypeAlias = Callable[[Records], Namespace]


class Keeper:
    """Makes what the broker does durable, in groups.

    Operations are called on ``namespace``, on one thread. ``when_durable`` then says whom to tell; ``commit`` starts a
    commit if none is running, and whatever is written meanwhile goes into the next: one fsync serves all. Without
    ``wake`` there is no thread, and ``commit`` waits.

    A commit that fails takes back everything since the last one that did not, in memory too: the namespace is read
    anew from the store (``rebuilt`` is told), and whoever waits is told the error.
    """

    def __init__(
        self, store: KeyValueStore, make_namespace: MakeNamespace, now_ms: int, wake: Wake | None = None
    ) -> None:
        self._store = store
        self._make_namespace = make_namespace
        self._wake = wake
        self._waiting: list[Done] = []
        self._committing: list[Done] = []
        self._is_committing = False
        self._now_ms = now_ms
        self._resources = ExitStack()
        self._damaged: list[bytes] = []
        self._work: SimpleQueue[Commit | None] = SimpleQueue()
        self._outcomes: SimpleQueue[StoreError | None] = SimpleQueue()
        self._thread = None if wake is None else Thread(target=self._run, name="pairbus-commit", daemon=True)
        self.rebuilt: Callable[[Recovery], None] = lambda _recovery: None
        self._recover(now_ms)
        if self._thread is not None:
            self._thread.start()

    @classmethod
    def open(
        cls,
        path: Path,
        make_namespace: MakeNamespace,
        now_ms: int,
        wake: Wake | None = None,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> Keeper:
        """The namespace in a data directory, which is made if it is new. Raises the errors of the store."""
        with ExitStack() as stack:
            directory = DataDirectory.open(path, now_ms)
            stack.callback(directory.close)
            store = LmdbStore(directory.data_file, max_bytes=max_bytes)
            stack.callback(store.close)
            keeper = cls(store, make_namespace, now_ms, wake)
            keeper._resources = stack.pop_all()
        return keeper

    @property
    def damaged(self) -> Sequence[bytes]:
        """Keys under which something unreadable was found, and set aside, since the start."""
        return self._damaged

    def when_durable(self, done: Done) -> None:
        """Have someone told when all that was written until now is durable; at once, if it is."""
        if self._journal.is_empty and not self._is_committing:
            done(None)
        else:
            self._waiting.append(done)

    def commit(self, now_ms: int) -> None:
        """Start to commit, unless a commit runs: then the next one starts when it ends."""
        self._now_ms = max(self._now_ms, now_ms)
        if self._is_committing or (self._journal.is_empty and not self._waiting):
            return
        self._committing, self._waiting = self._waiting, []
        self._is_committing = True
        try:
            commit = self._journal.seal()
        except StoreError as error:
            self._fail(error)
            return
        if self._thread is None:
            self._finish(_outcome(commit))
        else:
            self._work.put(commit)

    def close(self) -> None:
        """Wait for the commit that runs, commit the rest, tell everyone, and close the store."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
            self._thread = None
            self._collect()
        self.commit(self._now_ms)
        self._store.close()
        self._resources.close()

    def _run(self) -> None:
        assert self._wake is not None  # noqa: S101 (there is no thread without it)
        while (commit := self._work.get()) is not None:
            self._outcomes.put(_outcome(commit))
            self._wake(self._collect)

    def _collect(self) -> None:
        """Take the outcome that the thread has left. ``close`` may have been faster than ``wake``."""
        if not self._outcomes.empty():
            self._finish(self._outcomes.get())

    def _finish(self, error: StoreError | None) -> None:
        if error is not None:
            self._fail(error)
            return
        self._journal.sealed()
        self._is_committing = False
        told, self._committing = self._committing, []
        _tell(told, None)
        self.commit(self._now_ms)

    def _fail(self, error: StoreError) -> None:
        told = [*self._committing, *self._waiting]
        self._committing, self._waiting = [], []
        self._is_committing = False
        try:
            recovery = self._recover(self._now_ms)
        finally:  # whoever waits learns it, even if the store cannot be read any more
            _tell(told, error)
        self.rebuilt(recovery)

    def _recover(self, now_ms: int) -> Recovery:
        self._journal = Journal(self._store, self._damaged)
        self.namespace = self._make_namespace(self._journal)
        self.recovery = recover(self._store, self.namespace, now_ms)
        return self.recovery


def _outcome(commit: Commit) -> StoreError | None:
    try:
        commit.run()
    except StoreError as error:
        return error
    return None


def _tell(told: list[Done], error: StoreError | None) -> None:
    """Tell everyone, in order, even if one of them fails on hearing it."""
    with ExitStack() as stack:
        for done in reversed(told):
            stack.callback(done, error)
