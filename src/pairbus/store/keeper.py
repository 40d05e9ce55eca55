"""A namespace that survives: the broker, its journal, and the thread that commits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Self, TypeAlias, TypeVar

from pairbus.broker.namespace import Namespace
from pairbus.broker.records import Records
from pairbus.store.directory import DataDirectory
from pairbus.store.errors import StoreError, StoreFailedError
from pairbus.store.journal import Journal
from pairbus.store.keyvalue import Commit, KeyValueStore
from pairbus.store.lmdb import DEFAULT_MAX_BYTES, LmdbStore
from pairbus.store.recovery import Recovery, recover

Done: TypeAlias = Callable[[StoreError | None], None]
"""Is told that everything written so far is durable, or why it is not and never will be."""

Wake: TypeAlias = Callable[[Callable[[], None]], object]
"""Has a function called soon on the thread that the keeper belongs to, such as ``loop.call_soon_threadsafe``."""

MakeNamespace: TypeAlias = Callable[[Records], Namespace]

T = TypeVar("T")


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
        if wake is not None and not callable(wake):
            raise TypeError(f"wake is {wake!r}; it has to be a function such as loop.call_soon_threadsafe")
        self._store = store
        self._make_namespace = make_namespace
        self._wake = wake
        self._waiting: list[Done] = []
        self._committing: list[Done] = []
        self._is_committing = False
        self._now_ms = now_ms
        self._is_closed = False
        self._resources = ExitStack()
        self._damaged: list[bytes] = []
        self._journal = Journal(store, self._damaged)
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
        """Start to commit, unless a commit runs: then the next one starts when it ends.

        Without ``wake`` it waits, and raises the ``StoreError`` that ``when_durable`` is told.
        """
        self._now_ms = max(self._now_ms, now_ms)
        if self._is_committing or (self._journal.is_empty and not self._waiting):
            return
        self._committing, self._waiting = self._waiting, []
        self._is_committing = True
        error, commit = _attempt(self._journal.seal)
        if commit is not None and self._thread is not None:
            self._work.put(commit)
            return
        if commit is not None:
            error, _ = _attempt(commit.run)
        self._finish(error)
        if error is not None and self._wake is None:
            raise error

    def close(self) -> None:
        """Wait for the commit that runs, commit the rest, tell everyone, and close the store.

        Raises the ``StoreError`` of the last commit. To close twice is fine.
        """
        if self._is_closed:
            return
        self._is_closed = True
        with self._resources:
            self._resources.callback(self._store.close)
            if self._thread is not None:
                self._work.put(None)
                self._thread.join()
                self._thread = self._wake = None
                self._collect()
            self.commit(self._now_ms)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        assert self._wake is not None  # noqa: S101 (there is no thread without it)
        while (commit := self._work.get()) is not None:
            error, _ = _attempt(commit.run)
            self._outcomes.put(error)
            with suppress(RuntimeError):  # the loop is closed; then close() collects the outcome
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
        if self._wake is not None:
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
        self._journal.retire()
        self._journal = Journal(self._store, self._damaged)
        self.namespace = self._make_namespace(self._journal)
        self.recovery = recover(self._store, self.namespace, now_ms)
        return self.recovery


def _attempt(do: Callable[[], T]) -> tuple[StoreError | None, T | None]:
    """What went wrong, or what came of it. Whatever it is: the batch is not in the store."""
    try:
        return None, do()
    except StoreError as error:
        return error, None
    except Exception as error:  # noqa: BLE001 (else nobody would ever be told)
        failure = StoreFailedError("the store", repr(error))
        failure.__cause__ = error
        return failure, None


def _tell(told: list[Done], error: StoreError | None) -> None:
    """Tell everyone, in order, even if one of them fails on hearing it."""
    with ExitStack() as stack:
        for done in reversed(told):
            stack.callback(done, error)
