"""A namespace that survives: the broker, its journal, and the thread that commits."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Self, TypeAlias, TypeVar

from pairbus.broker.namespace import Namespace
from pairbus.broker.records import Records
from pairbus.store import keys
from pairbus.store.directory import DataDirectory
from pairbus.store.errors import StoreError, StoreFailedError, StoreFullError
from pairbus.store.journal import Journal
from pairbus.store.keyvalue import Commit, KeyValueStore
from pairbus.store.lmdb import DEFAULT_MAX_BYTES, LmdbStore
from pairbus.store.records import RecordFormatError, decode_stamped, encode_stamped
from pairbus.store.recovery import Recovery, recover

Done: TypeAlias = Callable[[StoreError | None], object]
"""Is told that everything written so far is durable, or why it is not and never will be."""

Wake: TypeAlias = Callable[[Callable[[], None]], object]
"""Has a function called soon on the thread that the keeper belongs to, such as ``loop.call_soon_threadsafe``."""

MakeNamespace: TypeAlias = Callable[[Records], Namespace]

Recovering: TypeAlias = Callable[[int], object]
"""Is told that a namespace is about to be read, and the last number that was put into the outbox."""

T = TypeVar("T")


class Keeper:
    """Makes what the broker does durable, in groups.

    Operations are called on ``namespace``, on one thread. ``when_durable`` then says whom to tell; ``commit`` starts a
    commit if none is running, and whatever is written meanwhile goes into the next: one fsync serves all. Without
    ``wake`` there is no thread, and ``commit`` waits.

    A commit that fails takes back everything since the last one that did not, in memory too: the namespace is read
    anew from the store (``rebuilt`` is told), and whoever waits is told the error. If the store cannot be read either,
    ``namespace`` raises that error, and tries again with each use.
    """

    def __init__(
        self,
        store: KeyValueStore,
        make_namespace: MakeNamespace,
        now_ms: int,
        wake: Wake | None = None,
        recovering: Recovering = lambda _last: None,
    ) -> None:
        if wake is not None and not callable(wake):
            raise TypeError(f"wake is {wake!r}; it has to be a function such as loop.call_soon_threadsafe")
        self._store = store
        self._make_namespace = make_namespace
        self._recovering = recovering
        self._wake = wake
        self._now_ms = now_ms
        self.failure: StoreError | None = None
        """Why the last commit failed; ``None`` if it did not."""
        self.commit_count = 0
        self.commit_seconds = 0.0
        """How long the thread that commits has been at it, in all."""
        self._commit_started: float | None = None
        """When the commit that the thread is at was handed to it, by ``time.perf_counter``."""
        self.created_ms = now_ms
        """Since when there is this namespace, as far as a data directory tells."""
        self._waiting: list[Done] = []
        self._committing: list[Done] = []
        self._is_committing = False
        self._probe: Done | None = None
        """Who waits for a commit that nothing of the namespace is in."""
        self._is_closed = False
        self._wanted_bytes = 0
        self._damaged: list[bytes] = []
        self._complaints: list[Exception] = []
        self._resources = ExitStack()
        self._work: SimpleQueue[Commit | None] = SimpleQueue()
        self._outcomes: SimpleQueue[StoreError | None] = SimpleQueue()
        self.rebuilt: Callable[[Recovery], object] = lambda _recovery: None
        self.before_commit: Callable[[], object] = lambda: None
        """A commit begins: what is put into the outbox now goes with all that was written until now, and no more."""
        self._namespace: Namespace | None = None
        self._journal = Journal(store, self._damaged)
        self.recovery = self._recover()
        self._thread = None if wake is None else Thread(target=self._run, name="pairbus-commit", daemon=True)
        if self._thread is not None:
            self._thread.start()

    @classmethod
    def open(
        cls,
        path: Path | str,
        make_namespace: MakeNamespace,
        now_ms: int,
        wake: Wake | None = None,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        recovering: Recovering = lambda _last: None,
    ) -> Keeper:
        """The namespace in a data directory, which is made if it is new. Raises the errors of the store."""
        with ExitStack() as stack:
            directory = DataDirectory.open(Path(path), now_ms)
            stack.callback(directory.close)
            store = LmdbStore(directory.data_file, max_bytes=max_bytes)
            stack.callback(store.close)
            keeper = cls(store, make_namespace, now_ms, wake, recovering)
            keeper.created_ms = directory.created_ms
            keeper._resources = stack.pop_all()
        return keeper

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def namespace(self) -> Namespace:
        """The broker as it is now; another one after a failed commit."""
        if self._namespace is None:
            self.rebuilt(self._recover())
        assert self._namespace is not None  # noqa: S101 (or the line above has raised)
        return self._namespace

    @property
    def used_bytes(self) -> int:
        """What is in use of the store's file; the file itself never becomes shorter."""
        return self._store.used_bytes

    @property
    def damaged(self) -> Sequence[bytes]:
        """Keys under which something unreadable was found, and set aside, since the start."""
        return self._damaged

    def commit_age_s(self) -> float | None:
        """Return for how long the commit that runs now has been running; ``None`` if none is."""
        started = self._commit_started
        return None if started is None else time.perf_counter() - started

    def lacks_room(self) -> bool:
        """Return whether sends are refused for lack of space; if the last one was, look whether that has changed."""
        if self._journal.lacks_room:
            with suppress(StoreError):
                self._journal.admit(0)
        return self._journal.lacks_room

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
        error = self._commit()
        self._complain()
        if error is not None and self._wake is None:
            raise error

    # The outbox: what a commit has done, for somebody who writes it down elsewhere, and may be killed before that.

    def put_in_outbox(self, number: int, content: bytes) -> bool:
        """Keep something with the commit that is to come: it is there if that is, and not if it is not.

        Tells whether it is taken: not where there is nothing to commit, or too little room.
        """
        return self._journal.put_in_outbox(number, content)

    def remove_from_outbox(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._journal.remove_from_outbox(number)

    def outbox(self) -> Sequence[tuple[int, bytes]]:
        """What was kept and not removed, at the start. What is damaged is there as empty: it was a copy."""
        prefix = keys.OUTBOX
        damaged: list[tuple[int, bytes]] = []
        found = self._store.scan(
            prefix, keys.after(prefix), lambda key, _raw: damaged.append((keys.split_outbox(key), b""))
        )
        return sorted([*((keys.split_outbox(key), content) for key, content in found), *damaged])

    # The side buffer: messages that were kept elsewhere for a while, and are sent again.

    def put_merged(self, identity: bytes, path: str, position: int) -> None:
        """Note, with the commit that is to come, up to where an entity's messages are here that lay in a buffer."""
        self._journal.put_merged(identity, path, position)

    def merged(self, identity: bytes) -> dict[str, int]:
        """What was noted of a buffer, by entity, at the start; without an identity, of any of them.

        What is damaged is set aside.
        """
        prefix = keys.MERGED
        merged: dict[str, int] = {}
        for key, value in self._store.scan(prefix, keys.after(prefix), self._set_aside):
            if key.startswith(prefix + identity):
                try:
                    position, path, _ = decode_stamped(value)
                except RecordFormatError:
                    self._set_aside(key, value)
                else:
                    merged[path] = position
        return merged

    def probe(self, identity: bytes, done: Done) -> None:
        """Have someone told whether the store can be written; if it cannot, nothing is taken back for that.

        What is there to be committed tells it as well. Where there is nothing, one small record is written, under a
        name that no entity has.
        """
        if self._is_committing or self._waiting or not self._journal.is_empty:
            self.when_durable(done)
            return
        self._is_committing = True
        self._probe = done
        batch = {keys.merged_key(identity, ""): encode_stamped(0, "")}
        self._hand_over(partial(self._store.prepare, batch))
        self._complain()

    def _set_aside(self, key: bytes, raw: bytes) -> None:
        self._damaged.append(key)
        self._journal.adopt({keys.aside_key(key): raw, key: None})

    def close(self) -> None:
        """Wait for the commit that runs, commit the rest, tell everyone, and close the store.

        Raises the ``StoreError`` of the last commit. To close twice is fine.
        """
        if self._is_closed:
            return
        self._is_closed = True
        error: StoreError | None = None
        with self._resources:
            self._end_thread()
            while error is None and (self._waiting or not self._journal.is_empty):
                error = self._commit()
        self._complain()
        if error is not None:
            raise error

    def abandon(self) -> None:
        """Close without committing what is left: since the last commit, nothing has happened."""
        if self._is_closed:
            return
        self._is_closed = True
        with self._resources:
            self._end_thread()
            self._journal.retire()

    def _end_thread(self) -> None:
        """Wait for the commit that runs, and have the store closed at the end."""
        self._resources.callback(self._store.close)
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
            self._thread = self._wake = None
            self._take_outcome()

    # The state machine. Whoever is told may raise, and may write more: neither stops it half-way.

    def _commit(self) -> StoreError | None:
        if self._is_committing or (self._journal.is_empty and not self._waiting):
            return None
        self._tell(self.before_commit)
        self._is_committing = True
        self._committing, self._waiting = self._waiting, []
        return self._hand_over(self._journal.seal)

    def _hand_over(self, prepare: Callable[[], Commit]) -> StoreError | None:
        error, commit = _attempt(prepare)
        if commit is not None and self._thread is not None:
            self._commit_started = time.perf_counter()
            self._work.put(commit)
            return None
        if commit is not None:
            error, _ = _attempt(commit.run)
        self._finish(error)
        return error

    def _run(self) -> None:
        wake = self._wake
        assert wake is not None  # noqa: S101 (there is no thread without it)
        while (commit := self._work.get()) is not None:
            start = time.perf_counter()
            error, _ = _attempt(commit.run)
            self.commit_count += 1
            self.commit_seconds += time.perf_counter() - start
            self._outcomes.put(error)
            with suppress(RuntimeError):  # the loop is closed; then close() takes the outcome
                wake(self._collect)

    def _collect(self) -> None:
        """The commit thread is done: go on. ``close`` may have been faster."""
        self._take_outcome()
        self._commit()
        self._complain()

    def _take_outcome(self) -> None:
        if not self._outcomes.empty():
            self._commit_started = None
            self._finish(self._outcomes.get())

    def _finish(self, error: StoreError | None) -> None:
        self.failure = error
        if self._probe is not None:
            self._finish_probe(self._probe, error)
            return
        told, self._committing = self._committing, []
        if error is None:
            self._journal.sealed()
        else:
            told += self._waiting
            self._waiting = []
            self._take_back(error)
        self._is_committing = False
        for done in told:
            self._tell(partial(done, error))
        if error is not None and self._namespace is not None:
            self._tell(partial(self.rebuilt, self.recovery))

    def _finish_probe(self, done: Done, error: StoreError | None) -> None:
        """Nothing of the namespace was in it: what was written meanwhile is committed next, whatever came of it."""
        self._probe = None
        self._is_committing = False
        self._tell(partial(done, error))

    def _take_back(self, error: StoreError) -> None:
        self._namespace = None
        self._journal.retire()
        _, room = _attempt(self._store.room) if isinstance(error, StoreFullError) else (None, None)
        # With no more room than now it would fail again.
        self._wanted_bytes = 0 if room in {None, sys.maxsize} else room + 1
        _attempt(self._recover)  # if that fails, whoever uses the namespace next sees it

    def _recover(self) -> Recovery:
        """Read the namespace from the store. Only one that is complete takes the place of the last."""
        journal = Journal(self._store, self._damaged, self._wanted_bytes)
        self._recovering(journal.last_in_outbox())
        namespace = self._make_namespace(journal)
        self.recovery = recover(self._store, journal, namespace, self._now_ms)
        self._journal, self._namespace = journal, namespace
        return self.recovery

    def _tell(self, listener: Callable[[], object]) -> None:
        try:
            listener()
        except Exception as error:  # noqa: BLE001 (the others have to be told too; it is raised in the end)
            self._complaints.append(error)

    def _complain(self) -> None:
        """Raise what a listener has raised, now that everything is in order."""
        if self._complaints:
            complaint = self._complaints[0]
            self._complaints.clear()
            raise complaint


def _attempt(do: Callable[[], T]) -> tuple[StoreError | None, T | None]:
    """What went wrong, or what came of it. Whatever it is, nobody is told that the batch is durable."""
    try:
        return None, do()
    except StoreError as error:
        return error, None
    except Exception as error:  # noqa: BLE001 (else nobody would ever be told)
        failure = StoreFailedError("the store", repr(error))
        failure.__cause__ = error
        return failure, None
