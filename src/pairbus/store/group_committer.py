"""Group commit of the broker's writes: one fsync serves every operation that is waiting."""

from __future__ import annotations

import sys
import time
import warnings
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final, NamedTuple, Self, TypeAlias, TypeVar

from pairbus.broker.namespace import Namespace
from pairbus.broker.ports import Records
from pairbus.callbacks import Callbacks
from pairbus.store import keys
from pairbus.store.datafile import disk_errors_as_store_errors
from pairbus.store.directory import DataDirectory
from pairbus.store.errors import (
    NamespaceLoadingError,
    StoreClosedError,
    StoreError,
    StoreFailedError,
    StoreFullError,
    StoreStalledError,
    UnconfinedDamageError,
)
from pairbus.store.keyvalue import Commit, CommitId, CommitInDoubtError, KeyValueStore
from pairbus.store.lmdb import DEFAULT_MAX_BYTES, LmdbStore
from pairbus.store.page_nodes import LostPage
from pairbus.store.rebuild import Rebuild, known_state, rebuild, remove_incomplete
from pairbus.store.records import RecordFormatError, decode_stamped, encode_stamped
from pairbus.store.recovery import Recovery, recover
from pairbus.store.repair import KnownState
from pairbus.store.write_batch import WriteBatch

Done: TypeAlias = Callable[[StoreError | None], object]
"""Called with ``None`` once everything written so far is durable, or with the error if it never will be."""

Wake: TypeAlias = Callable[[Callable[[], None]], object]
"""Schedules a call on the thread that owns the committer, such as ``loop.call_soon_threadsafe``."""

MakeNamespace: TypeAlias = Callable[[Records], Namespace]

Recovering: TypeAlias = Callable[[int], object]
"""Called before a namespace is read, with the last number that was put into the outbox."""

WrapStore: TypeAlias = Callable[[KeyValueStore], KeyValueStore]
"""Returns the store to use instead of the one on disk, which it may pass everything on to."""

_Task: TypeAlias = Callable[[], Callable[[], object]]
"""A task of the commit thread; it returns how the thread that owns the committer continues."""
COMMIT_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the durations by which commits are counted, in seconds."""

REST_AFTER_S: Final = 0.01
"""Time without a commit after which the commit thread calls ``rest``."""

MOST_REBUILDS: Final = 3
REBUILD_WINDOW_MS: Final = 600_000
"""A damaged file is rebuilt at most three times within ten minutes: a disk that damages it again is not used on."""

T = TypeVar("T")

_KEPT_EPOCHS: Final = 256
"""Number of epochs of which the store keeps the last commit."""

_EPOCH_BITS: Final = 16
"""An epoch begins with the time of its load, so that it is larger than all before it."""


class _Loaded(NamedTuple):
    """A namespace that was read from the store."""

    journal: WriteBatch
    namespace: Namespace
    recovery: Recovery
    epoch: int
    last_commit: int
    """Number of the last commit of the epoch before that the store has."""

    is_rebuilt: bool
    """True if the data file was rebuilt for this."""


class _CommitNumbers:
    """Numbers of the commits of this process: which were begun, and which have succeeded."""

    def __init__(self) -> None:
        self.epoch = 0
        self._begun = 0
        self._durable = 0
        self._ended: dict[int, int] = {}
        """The last successful commits of earlier epochs."""

    @property
    def next(self) -> CommitId:
        return CommitId(self.epoch, self._begun + 1)

    def begin(self) -> None:
        self._begun += 1

    def succeed(self) -> None:
        self._durable = self._begun

    def begin_epoch(self, epoch: int, last_commit: int) -> None:
        """Begin an epoch; ``last_commit`` is the last one of the epoch before that the store has."""
        self._ended[self.epoch] = last_commit
        if len(self._ended) > _KEPT_EPOCHS:
            del self._ended[min(self._ended)]
        self.epoch, self._begun, self._durable = epoch, 0, 0

    def knows(self, epoch: int) -> bool:
        return epoch == self.epoch or epoch in self._ended

    def last_durable(self) -> dict[bytes, int]:
        """Return the record of the last successful commit, if there is one."""
        return {keys.epoch_key(self.epoch): self._durable} if self._durable else {}

    def is_committed(self, commit: CommitId) -> bool | None:
        if commit.epoch == self.epoch:
            return True if commit.number <= self._durable else None
        return commit.number <= self._ended[commit.epoch]


class CommitThreadState:
    """The state that the event loop and the commit thread share.

    "Event loop" stands for the thread that owns the committer. There are no locks: a field has one writer at a time, or
    is only appended to, and the queues order the rest. A commit or load runs on the commit thread between ``_work.get``
    and ``_outcomes.put``; the event loop begins no other one until it has taken the outcome. During a commit it may
    read the store, during a load it does not use the store at all.

    | field | written by | when |
    |---|---|---|
    | ``_work`` | event loop | a commit or load begins; ``None`` ends the thread |
    | ``_outcomes`` | commit thread | a task has ended; the event loop takes it in ``_take_outcome`` |
    | ``_in_hand`` | event loop | set before a task is put into ``_work``, cleared when its outcome is taken |
    | ``_started`` | event loop | set before a task is put into ``_work``, cleared when its outcome is processed |
    | ``is_at_rest`` | commit thread | when no commit follows for a while, and when the next task arrives |
    | ``commit_count``, ``commit_seconds``, ``commit_histogram`` | commit thread | after each commit |
    | ``damaged_pages``, ``restored_pages``, ``_damaged`` | either | appended to while the thread uses the store |
    | ``_reverted`` | event loop, then commit thread | set before a load begins, cleared in it |
    | ``_wanted_bytes``, ``_rebuilt_ms``, ``replaced_pages`` | commit thread | in a load |
    | ``rebuilds``, ``failed_rebuilds`` | commit thread | appended to in a load |
    | ``_known`` | event loop | set before a load begins, cleared after it |

    The event loop reads counters and lists at any time; they may be one commit behind then.
    """

    def __init__(self) -> None:
        self._work: SimpleQueue[_Task | None] = SimpleQueue()
        self._outcomes: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._in_hand: _Task | None = None
        """The task that was passed to the commit thread, until its outcome is collected."""

        self._started: float | None = None
        """Start of the running commit or load, by ``time.perf_counter``."""

        self._rebuilt_ms: deque[int] = deque(maxlen=MOST_REBUILDS)
        """Time of the last rebuild of the file."""

        self._known: Callable[[], KnownState] | None = None
        """Returns what the memory of the reverted namespace knows about the store."""

        self.is_at_rest = False
        """True if no commit has followed the last one for a while, and the data file was notified."""

        self.rebuilds: list[Rebuild] = []
        """The rebuilds of the file since the start, because its damage could not be confined."""

        self.failed_rebuilds: list[StoreError] = []
        """The errors of attempts to rebuild it."""

        self.replaced_pages = 0
        """Number of the first ``damaged_pages`` that were in a file which was rebuilt since."""

        self.commit_count = 0
        self.commit_seconds = 0.0
        """Total time that the commit thread has spent in commits."""

        self.commit_histogram = [0] * (len(COMMIT_BOUNDS_S) + 1)
        """Number of commits by duration: up to each of the bounds, and longer ones."""

        self.damaged_pages: list[LostPage] = []
        """Pages of the store that were found damaged since the start: what they held is read and written elsewhere."""

        self.restored_pages: list[str] = []
        """Parts of the file that were found damaged since the start, and restored."""

        self._damaged: list[bytes] = []
        """Keys of unreadable records that were found and set aside since the start."""

        self._reverted: StoreError | None = None
        """The error after which the namespace has to be read again."""

        self._wanted_bytes = 0
        """The free space without which sends are refused: with less, a commit has failed."""

    def _note_duration(self, seconds: float) -> None:
        self.commit_count += 1
        self.commit_seconds += seconds
        self.commit_histogram[bisect_left(COMMIT_BOUNDS_S, seconds)] += 1


class CommitHooks(CommitThreadState):
    """The callbacks of a committer to its owner."""

    def __init__(self) -> None:
        super().__init__()
        self._rebuilt: Callbacks[[Recovery]] = Callbacks()
        self.before_commit: Callbacks[[]] = Callbacks()
        """Called when a commit begins: what is put into the outbox now is committed with everything written so far, and
        no more.
        """
        self.after_commit: Callbacks[[]] = Callbacks()
        """Called when a commit has ended, before the callbacks that wait for it."""
        self.after_load: Callbacks[[]] = Callbacks()
        """Called when the commit thread has read the namespace, or has failed to."""
        self.on_unconfined: Callbacks[[]] = Callbacks()
        """Called on any thread when the file needs to be rebuilt: ``commit`` does it, if it is called."""

    @property
    def rebuilt(self) -> Callbacks[[Recovery]]:
        """Called after the namespace was read again: ``rebuilt.add(listener)``."""
        return self._rebuilt

    @rebuilt.setter
    def rebuilt(self, listener: Callable[[Recovery], object]) -> None:
        warnings.warn("GroupCommitter.rebuilt is set; call rebuilt.add(listener)", DeprecationWarning, stacklevel=2)
        self._rebuilt = Callbacks()
        self._rebuilt.add(listener)


class GroupCommitter(CommitHooks):
    """Makes the broker's writes durable, in groups.

    Call operations on the namespace that ``use_namespace`` returns, on one thread. ``when_durable`` then registers a
    callback; ``commit`` starts a commit if none is running, and everything written meanwhile goes into the next one:
    one fsync serves all. Without ``wake`` there is no thread, and ``commit`` blocks.

    A commit that fails reverts everything since the last successful one, in memory too: the namespace is read again
    from the store (``rebuilt`` is called), and every waiting callback gets the error, unless the store has what it
    waits for. The commit thread reads it; meanwhile ``use_namespace`` raises ``NamespaceLoadingError``. If the store
    cannot be read either, it raises that error, and each call of it tries again.
    """

    def __init__(
        self,
        store: KeyValueStore,
        make_namespace: MakeNamespace,
        now_ms: int,
        wake: Wake | None = None,
        recovering: Recovering = lambda _last: None,
        *,
        file: LmdbStore | None = None,
    ) -> None:
        """``file`` is the store on disk that ``store`` is or passes everything on to: it is cared for and rebuilt."""
        if wake is not None and not callable(wake):
            raise TypeError(f"wake must be a function such as loop.call_soon_threadsafe, got {wake!r}")
        super().__init__()
        self._store = store
        self._file = file
        self._make_namespace = make_namespace
        self._recovering = recovering
        self._wake = wake
        self._now_ms = now_ms
        self.failure: StoreError | None = None
        """Error of the last commit; ``None`` if it succeeded."""
        self.failed_commit_count = 0
        self._running: CommitId | None = None
        """The identity of the running commit, if it has one."""
        self.created_ms = now_ms
        """Creation time of this namespace, as far as the data directory records it."""
        self._numbers = _CommitNumbers()
        self._fence: StoreStalledError | None = None
        """The error of everything that was written since the running commit began, if that was withdrawn."""
        self.is_loading = False
        """True if the commit thread reads the namespace from the store."""
        self.load_error: StoreError | None = None
        """Error with which the namespace could not be read the last time."""
        self._reverted_entities: set[str] = set()
        self._waiting: list[Done] = []
        self._committing: list[Done] = []
        self._is_committing = self._is_closed = self._is_given_up = False
        self._probing: list[Done] = []
        """Callbacks that wait for a commit without writes of the namespace."""
        self._callback_errors: list[Exception] = []
        self._resources = ExitStack()
        self._namespace: Namespace | None = None
        self._journal = WriteBatch(store, self._damaged)
        self.recovery = self._recover()
        self._commit_thread = None if wake is None else Thread(target=self._run, name="pairbus-commit", daemon=True)
        if self._commit_thread is not None:
            self._commit_thread.start()

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
        wrap_store: WrapStore = lambda store: store,
    ) -> GroupCommitter:
        """Open the namespace in a data directory, which is created if it is new. Raises the errors of the store."""
        with ExitStack() as stack:
            directory = DataDirectory.open(Path(path), now_ms)
            stack.callback(directory.close)
            with disk_errors_as_store_errors(directory.path):
                remove_incomplete(directory.data_file)
            store = LmdbStore(directory.data_file, max_bytes=max_bytes, rests=wake is not None)
            stack.callback(store.close)
            committer = cls(wrap_store(store), make_namespace, now_ms, wake, recovering, file=store)
            store.allow_rebuild(committer.may_rebuild)
            store.on_unconfined.add(committer.on_unconfined)
            store.on_damaged_page.add(committer.damaged_pages.append)
            store.on_restored.add(committer.restored_pages.append)
            committer.created_ms = directory.created_ms
            committer._resources = stack.pop_all()
        return committer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def namespace(self) -> Namespace:
        """Return the current broker; raise ``StoreError`` while there is none. See ``use_namespace``."""
        if self._namespace is None:
            raise self.load_error or NamespaceLoadingError
        return self._namespace

    def use_namespace(self) -> Namespace:
        """Return the current broker; a failed commit replaces it.

        If the store could not be read after a failed commit, try again: without ``wake`` now, otherwise on the commit
        thread. Raises ``StoreError`` while there is no broker.
        """
        if self._namespace is None and self._commit_thread is None:
            self._rebuilt(self._recover())
        elif self._namespace is None and not self._is_committing and not self._is_closed:
            self._begin_load([])
        return self.namespace

    @property
    def used_bytes(self) -> int:
        """Return the bytes in use of the store's file; the file itself never shrinks."""
        return self._store.used_bytes

    def check_key(self, key: bytes) -> bool:
        """Check the record under a key, and the page around it; return whether the record can be read, or is gone."""
        return self._file is None or self._file.check(key)

    @property
    def damaged(self) -> Sequence[bytes]:
        """Return the keys of unreadable records that were found and set aside since the start."""
        return self._damaged

    def commit_age_s(self) -> float | None:
        """Return for how long the current commit, or load, has been running; ``None`` if none is."""
        started = self._started
        return None if started is None else time.perf_counter() - started

    @property
    def has_outcome(self) -> bool:
        """Return whether a commit, or load, has ended, and only the event loop has not noticed yet."""
        return not self._outcomes.empty()

    @property
    def is_idle(self) -> bool:
        """Return whether everything written is on disk, and no commit is running."""
        return self._journal.is_empty and not self._waiting and not self._is_committing

    # Supervision of the commit thread.

    @property
    def has_lost_thread(self) -> bool:
        """Return whether the commit thread has ended without being closed."""
        return self._commit_thread is not None and not self._commit_thread.is_alive() and not self._is_closed

    def end_thread(self) -> None:
        """End the commit thread before its next task, as a defect would, to practise ``restart_thread``."""
        if self._commit_thread is not None:
            self._work.put(None)

    def restart_thread(self) -> None:
        """Start another commit thread, if it has ended. It runs the task that the old one had in hand.

        If that was a commit that had begun, the commit is refused, and the namespace is read from the store again,
        which shows whether the commit has succeeded. If the namespace was being read, that starts again.
        """
        if not self.has_lost_thread:
            return
        while not self._work.empty():
            self._work.get()
        self._commit_thread = Thread(target=self._run, name="pairbus-commit", daemon=True)
        self._commit_thread.start()
        if self._in_hand is not None and self._outcomes.empty():
            self._work.put(self._in_hand)
        else:
            self._collect()

    def lacks_room(self) -> bool:
        """Return whether sends are refused for lack of space; if one was, check again."""
        return self._namespace is not None and self._journal.lacks_room()

    def when_durable(self, done: Done) -> None:
        """Call ``done`` once everything written so far is durable, or with the error; at once, if it already is."""
        if self._journal.is_empty and not self._is_committing:
            done(None)
        else:
            self._waiting.append(done)

    def commit(self, now_ms: int) -> None:
        """Start a commit; if one is running, the next one starts when it ends.

        Without ``wake`` it blocks, and raises the ``StoreError`` with which the ``when_durable`` callbacks are called.
        """
        self._now_ms = max(self._now_ms, now_ms)
        error = self._commit()
        self._raise_callback_error()
        if error is not None and self._wake is None:
            raise error

    # Commits that do not answer.

    @property
    def next_commit(self) -> CommitId:
        """Return the identity of the commit that will have everything written so far that no commit has yet."""
        return self._numbers.next

    def is_committed(self, commit: CommitId) -> bool | None:
        """Return whether a commit has succeeded, also one of an earlier process; ``None`` while that is unknown."""
        if self._numbers.knows(commit.epoch):
            return self._numbers.is_committed(commit)
        return None if self.is_loading else commit.number <= self._journal.last_commit(commit.epoch)

    def new_entities(self) -> set[str]:
        """Return the paths of the entities that a failed commit would remove, or has removed while it is loading."""
        return self._reverted_entities if self.is_loading else self._journal.new_entities()

    def withdraw(self) -> None:
        """Withdraw everything that was written since the running commit began: it will not be committed.

        The callbacks that wait for it get ``StoreStalledError`` now. When the running commit has ended, the namespace
        is read again from the store, even if that commit has succeeded.
        """
        if self._is_committing and not self.is_loading and self._fence is None:
            self._fence = StoreStalledError(self._store.place)
            waiting, self._waiting = self._waiting, []
            for done in waiting:
                self._tell(partial(done, self._fence))
            self._raise_callback_error()

    # The outbox: records of what a commit did, for a consumer that stores them elsewhere and may be killed before that.

    def put_in_outbox(self, number: int, content: bytes) -> bool:
        """Store an entry with the next commit: it is durable if and only if that commit is.

        Returns whether it was accepted; it is not if there is nothing to commit, or too little space.
        """
        return self._journal.put_in_outbox(number, content)

    def remove_from_outbox(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._journal.remove_from_outbox(number)

    def outbox(self) -> Sequence[tuple[int, bytes]]:
        """Return the entries that were stored and not removed before the start. A damaged entry is empty: it was a
        copy.
        """
        prefix = keys.OUTBOX
        damaged: list[tuple[int, bytes]] = []
        found = self._store.scan(
            prefix, keys.after(prefix), lambda key, _raw: damaged.append((keys.split_outbox(key), b""))
        )
        return sorted([*((keys.split_outbox(key), content) for key, content in found), *damaged])

    # The side buffer: messages that were stored elsewhere for a while, and are sent again.

    def put_merged(self, identity: bytes, path: str, position: int) -> None:
        """Record, with the next commit, up to which position an entity's buffered messages are merged."""
        self._journal.put_merged(identity, path, position)

    def merged(self, identity: bytes) -> dict[str, int]:
        """Return the merge positions of a buffer by entity, as of the start; without an identity, of all buffers.

        A damaged position is set aside.
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
        """Call ``done`` with the outcome of a test write; if it fails, nothing is reverted.

        If there is something to commit, that commit is the test. Otherwise one small record is written, under a name
        that no entity has.
        """
        if self._probing and self._journal.is_empty:
            self._probing.append(done)
            return
        if self._is_committing or self._waiting or not self._journal.is_empty:
            self.when_durable(done)
            return
        self._is_committing = True
        self._probing.append(done)
        batch = {keys.merged_key(identity, ""): encode_stamped(0, "")}
        self._hand_over(partial(self._store.prepare, batch))
        self._raise_callback_error()

    def _set_aside(self, key: bytes, raw: bytes) -> None:
        self._damaged.append(key)
        self._journal.adopt({keys.aside_key(key): raw, key: None})

    def close(self) -> None:
        """Wait for the running commit, commit the rest, call all callbacks, and close the store.

        Raises the ``StoreError`` of the last commit. Closing twice is allowed.
        """
        if self._is_closed:
            return
        self._is_closed = True
        error: StoreError | None = None
        with self._resources:
            self._end_thread()
            while error is None and (self._waiting or not self._journal.is_empty):
                error = self._commit()
        self._raise_callback_error()
        if error is not None:
            raise error

    def abandon(self) -> None:
        """Close without committing the rest: everything since the last commit is dropped."""
        if self._is_closed:
            return
        self._is_closed = True
        with self._resources:
            self._end_thread()
            self._journal.retire()

    def give_up(self) -> None:
        """Close without waiting for the running commit, because the storage does not answer.

        The running commit may or may not become durable; what was written after it does not. When it has ended, the
        waiting callbacks are called, and the store is closed; until then the directory stays locked.
        """
        if not self._is_committing:
            self.abandon()
        elif not self._is_closed:
            self._is_closed = self._is_given_up = True
            self._resources.callback(self._store.close)
            self._work.put(None)

    def _close_given_up(self) -> None:
        """Close the store, after the abandoned commit has ended."""
        waiting, self._waiting = self._waiting, []
        is_durable = self.failure is None and self._journal.is_empty
        self._journal.retire()
        self._resources.close()
        for done in waiting:
            self._tell(partial(done, None if is_durable else StoreClosedError(self._store.place)))

    def _end_thread(self) -> None:
        """Wait for the running commit, and let its thread close the store at the end."""
        self._resources.callback(self._store.close)
        if self._commit_thread is not None:
            self._work.put(None)
            self._commit_thread.join()
            if self._in_hand is not None and self._outcomes.empty():  # the thread had ended before
                self._outcomes.put(self._in_hand())
            self._commit_thread = self._wake = None
            self._take_outcome()

    # The state machine. A callback may raise, and may write more: neither stops the machine half-way.

    def _commit(self) -> StoreError | None:
        if self._is_committing:
            return None
        damage = self._unconfined()
        if damage is not None and self._namespace is not None and self.may_rebuild():
            return self._fail_for(damage)
        if self._journal.is_empty and not self._waiting:
            return None
        self._tell(self.before_commit)
        self._is_committing = True
        self._committing, self._waiting = self._waiting, []
        self._running = None if self._namespace is None else self._numbers.next
        if self._running is not None:
            self._journal.put_commit(self._running)
            self._numbers.begin()
        return self._hand_over(self._journal.seal)

    def _fail_for(self, damage: UnconfinedDamageError) -> StoreError | None:
        """Fail everything that no commit has, so that the file is rebuilt before the namespace is read again."""
        self._is_committing = True
        self._committing, self._waiting = self._waiting, []
        self._running = None
        had_writes = bool(self._committing) or not self._journal.is_empty
        self._finish(damage)
        return damage if had_writes else None

    def _hand_over(self, prepare: Callable[[], Commit]) -> StoreError | None:
        error, commit = _attempt(prepare)
        if commit is None:
            self._running = None  # nothing can have been written
        if commit is not None and self._commit_thread is not None:
            self._started = time.perf_counter()
            self._pass_to_thread(partial(self._run_commit, commit))
            return None
        if commit is not None:
            error, _ = _attempt(commit.run)
        running = self._running
        self._finish(error)
        return self._outcome(running, error)

    def _pass_to_thread(self, task: _Task) -> None:
        self._in_hand = task
        self._work.put(task)

    def _run(self) -> None:
        wake = self._wake
        assert wake is not None  # noqa: S101 (there is no thread without it)
        while (task := self._next_task()) is not None:
            self._outcomes.put(task())
            try:
                wake(self._collect)
            except RuntimeError:  # the loop is closed: close() collects the outcome, if it is called
                if self._is_given_up:
                    self._resources.close()

    def _next_task(self) -> _Task | None:
        try:
            return self._work.get(timeout=REST_AFTER_S)
        except Empty:
            if self._file is not None:
                self._file.rest()
        self.is_at_rest = True
        task = self._work.get()
        self.is_at_rest = False
        return task

    def _run_commit(self, commit: Commit) -> Callable[[], object]:
        start = time.perf_counter()
        error, _ = _attempt(commit.run)
        self._note_duration(time.perf_counter() - start)
        return partial(self._finish, error)

    def _run_load(self, callbacks: Iterable[Callable[[], object]]) -> Callable[[], object]:
        return partial(self._end_load, callbacks, *_attempt(self._load))

    def _collect(self) -> None:
        """Continue after the commit thread has finished. ``close`` may have collected the outcome before."""
        self._take_outcome()
        if self._is_given_up:
            self._close_given_up()
        else:
            self._commit()
        self._raise_callback_error()

    def _take_outcome(self) -> None:
        if self.has_outcome:
            outcome = self._outcomes.get()
            self._in_hand = None
            outcome()

    def _finish(self, error: StoreError | None) -> None:
        self._started = None
        self.failure = error
        self.failed_commit_count += error is not None
        self._tell(self.after_commit)
        fence, self._fence = self._fence, None
        if self._probing:
            self._finish_probe(error, fence)
            return
        callbacks = [
            partial(done, None) if error is None else partial(self._answer, done, self._running, error)
            for done in self._committing
        ]
        self._committing = []
        if error is None:
            self._numbers.succeed()
            self._journal.sealed()
        reverted = error if error is not None or (self._journal.is_empty and not self._waiting) else fence
        if reverted is not None:
            self._revert(reverted, callbacks)
        else:
            self._is_committing = False
            self._tell_all(callbacks)

    def _answer(self, done: Done, commit: CommitId | None, error: StoreError | None) -> None:
        done(self._outcome(commit, error))

    def _outcome(self, commit: CommitId | None, error: StoreError | None) -> StoreError | None:
        """Return the error of a commit, if it has failed. The namespace was read again by then.

        The store has the last word: a disk can report an error for what it has written, and a thread can end after it
        has committed.
        """
        if error is None or commit is None:
            return error
        is_committed = self._numbers.is_committed(commit)
        if is_committed is None:
            return CommitInDoubtError(error, commit)
        return None if is_committed else error

    def _finish_probe(self, error: StoreError | None, fence: StoreError | None) -> None:
        """Finish a probe. It held no writes of the namespace: regardless of its outcome, later writes are committed
        next, unless they were withdrawn.
        """
        callbacks = [partial(done, error) for done in self._probing]
        self._probing = []
        if isinstance(error, UnconfinedDamageError) and self.may_rebuild():
            self._revert(error, callbacks)
            return
        if fence is not None and not self._journal.is_empty:
            self._revert(fence, callbacks)
            return
        if self._journal.is_empty:  # callbacks registered meanwhile wait for nothing
            callbacks += [partial(done, None) for done in self._waiting]
            self._waiting = []
        self._is_committing = False
        self._tell_all(callbacks)

    def _revert(self, error: StoreError, callbacks: Sequence[Callable[[], object]]) -> None:
        """Revert everything that is not in the store, and call all callbacks when the namespace is read again."""
        callbacks = [*callbacks, *(partial(done, error) for done in self._waiting)]
        self._waiting = []
        self._reverted_entities = _attempt(self._journal.new_entities)[1] or set()
        if self._namespace is not None:
            self._known = partial(
                known_state, self._namespace, self._journal.uncommitted(), self._numbers.last_durable()
            )
        self._namespace = None
        self._journal.retire()
        self._reverted = error
        if self._commit_thread is not None and not self._is_given_up:
            self._begin_load(callbacks)
            return
        # If the namespace cannot be read, its next use raises.
        _, recovery = (None, None) if self._is_given_up else _attempt(self._recover)
        self._is_committing = False
        self._tell_all(callbacks)
        if recovery is not None:
            self._tell(partial(self.rebuilt, recovery))

    # Reading the namespace

    def _begin_load(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Let the commit thread read the namespace. Until it has, no commit begins, and nothing else uses the store."""
        self._is_committing = self.is_loading = True
        self._started = time.perf_counter()
        self._pass_to_thread(partial(self._run_load, callbacks))

    def _end_load(
        self, callbacks: Iterable[Callable[[], object]], error: StoreError | None, loaded: _Loaded | None
    ) -> None:
        self._is_committing = self.is_loading = False
        self._started = None
        self.load_error = error
        if loaded is not None:
            self._install(loaded)
        self._tell_all(callbacks)
        if loaded is not None:
            self._tell(partial(self.rebuilt, loaded.recovery))
        self._tell(self.after_load)

    def _recover(self) -> Recovery:
        """Read the namespace from the store. Only a complete one replaces the previous one."""
        try:
            loaded = self._load()
        except StoreError as error:
            self.load_error = error
            raise
        self.load_error = None
        self._install(loaded)
        return loaded.recovery

    def _load(self) -> _Loaded:
        """Read the namespace from the store; on the commit thread, while no other one uses the store."""
        is_rebuilt = self._rebuild_if_damaged()
        try:
            return self._read()._replace(is_rebuilt=is_rebuilt)
        except UnconfinedDamageError:
            if not self._rebuild_if_damaged():
                raise
            return self._read()._replace(is_rebuilt=True)

    def _read(self) -> _Loaded:
        reverted = self._reverted
        if reverted is not None:
            _, room = _attempt(self._store.room) if isinstance(reverted, StoreFullError) else (None, None)
            # Without more space it would fail again.
            self._wanted_bytes = 0 if room in {None, sys.maxsize} else room + 1
            self._reverted = None  # last: if the thread ends before, another one starts here again
        journal = WriteBatch(self._store, self._damaged, self._wanted_bytes)
        self._recovering(journal.last_in_outbox())
        namespace = self._make_namespace(journal)
        recovery = recover(self._store, journal, namespace, self._now_ms)
        journal.adopt({keys.epoch_key(epoch): None for epoch in recovery.epochs[:-_KEPT_EPOCHS]})
        last = max([self._numbers.epoch, *recovery.epochs[-1:]])
        epoch = max(self._now_ms << _EPOCH_BITS, last + 1)
        last_commit = journal.last_commit(self._numbers.epoch)
        return _Loaded(journal, namespace, recovery, epoch, last_commit, is_rebuilt=False)

    def _install(self, loaded: _Loaded) -> None:
        self._numbers.begin_epoch(loaded.epoch, loaded.last_commit)
        self.recovery, self._journal, self._namespace = loaded.recovery, loaded.journal, loaded.namespace
        self._known = None
        if loaded.is_rebuilt:
            self.failure = None

    # Rebuilding the data file

    def _unconfined(self) -> UnconfinedDamageError | None:
        """Return the damage for which the file has to be rebuilt."""
        return None if self._file is None else self._file.unconfined

    def may_rebuild(self) -> bool:
        """Return whether the data file is rebuilt if its damage cannot be confined."""
        oldest_ms = self._rebuilt_ms[0] if len(self._rebuilt_ms) == MOST_REBUILDS else None
        return self._file is not None and (oldest_ms is None or self._now_ms - oldest_ms >= REBUILD_WINDOW_MS)

    def _rebuild_if_damaged(self) -> bool:
        """Rebuild the data file if that is necessary, and return whether it was; on the commit thread."""
        damage = self._unconfined()
        if damage is None or self._file is None or not self.may_rebuild():
            return False
        self._rebuilt_ms.append(self._now_ms)
        known = None if self._known is None else self._known()
        error, result = _attempt(partial(rebuild, self._file, known, damage.reason, self._now_ms))
        if result is None:
            self.failed_rebuilds.append(error or damage)
            return False
        self.replaced_pages = len(self.damaged_pages)
        self.rebuilds.append(result)
        return True

    def _tell_all(self, listeners: Iterable[Callable[[], object]]) -> None:
        for listener in listeners:
            self._tell(listener)

    def _tell(self, listener: Callable[[], object]) -> None:
        try:
            listener()
        except Exception as error:  # noqa: BLE001 (the other callbacks must be called too; it is raised in the end)
            self._callback_errors.append(error)

    def _raise_callback_error(self) -> None:
        """Raise the error that a callback has raised, now that the state is consistent."""
        if self._callback_errors:
            callback_error = self._callback_errors[0]
            self._callback_errors.clear()
            raise callback_error


def _attempt(do: Callable[[], T]) -> tuple[StoreError | None, T | None]:
    """Return the error of a call, or its result. On any error, no callback is called as if the batch were durable."""
    try:
        return None, do()
    except StoreError as error:
        return error, None
    except Exception as error:  # noqa: BLE001 (otherwise no callback would ever be called)
        failure = StoreFailedError("the store", repr(error))
        failure.__cause__ = error
        return failure, None
