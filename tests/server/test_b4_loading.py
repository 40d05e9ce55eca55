"""B4: after a failed commit, the namespace is loaded again without blocking the event loop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest

from pairbus.broker import STANDARD, Namespace, NewMessage, QueueDescription, Records
from pairbus.server.clock import SystemClock
from pairbus.server.host import NamespaceHost
from pairbus.store import GroupCommitter, LmdbStore
from pairbus.store.errors import NamespaceLoadingError, StoreError
from pairbus.store.faulty import FaultyStore, StoreTrouble
from tests.server.amqp.test_failed_commits import ORDERS, Stage
from tests.waiting import eventually_async

MESSAGES: Final = 200_000
LONGEST_LAG_S: Final = 1.0


@pytest.mark.slow
def test_b4_loading_a_large_namespace_does_not_delay_the_event_loop(tmp_path: Path) -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        troubles: list[StoreTrouble] = []
        store = FaultyStore(LmdbStore(tmp_path / "data.mdb"), lambda: troubles.pop() if troubles else None)
        committer = GroupCommitter(store, Stage._make, SystemClock()(), wake=loop.call_soon_threadsafe)
        host = NamespaceHost("contoso", STANDARD, committer, SystemClock(), loop)
        host.use_namespace().create_queue("orders", QueueDescription(), host.now_ms())
        for _ in range(MESSAGES // 5_000):
            for _ in range(50):
                host.use_namespace().send(ORDERS, [NewMessage(b"body", "id")] * 100, host.now_ms())
            await host.durable()
        host.use_namespace().send(ORDERS, [NewMessage(b"lost", "id")], host.now_ms())
        troubles.append(StoreTrouble.ERROR)
        failed = asyncio.create_task(host.durable())
        await eventually_async(lambda: committer.is_loading)
        with pytest.raises(NamespaceLoadingError):
            host.use_namespace()
        lags: list[float] = []
        while committer.is_loading:
            started_s = loop.time()
            await asyncio.sleep(0.001)
            lags.append(loop.time() - started_s)
        with pytest.raises(StoreError, match="Input/output error"):
            await failed
        assert committer.recovery.messages == MESSAGES
        assert len(lags) > 10
        assert max(lags) < LONGEST_LAG_S
        host.close()
        store.close()

    asyncio.run(scene())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of the ended thread
def test_b4_commit_thread_that_ends_while_loading_is_replaced_and_loads_again(tmp_path: Path) -> None:
    ends_thread = False

    def make_namespace(records: Records) -> Namespace:
        nonlocal ends_thread
        if ends_thread:
            ends_thread = False
            raise SystemExit  # ends the thread without an outcome
        return Stage._make(records)

    async def scene() -> None:
        nonlocal ends_thread
        loop = asyncio.get_running_loop()
        troubles: list[StoreTrouble] = []
        store = FaultyStore(LmdbStore(tmp_path / "data.mdb"), lambda: troubles.pop() if troubles else None)
        committer = GroupCommitter(store, make_namespace, SystemClock()(), wake=loop.call_soon_threadsafe)
        host = NamespaceHost("contoso", STANDARD, committer, SystemClock(), loop)
        host.use_namespace().create_queue("orders", QueueDescription(), host.now_ms())
        host.use_namespace().send(ORDERS, [NewMessage(b"body", "id")], host.now_ms())
        await host.durable()
        ends_thread = True
        host.use_namespace().send(ORDERS, [NewMessage(b"lost", "id")], host.now_ms())
        troubles.append(StoreTrouble.ERROR)
        failed = asyncio.create_task(host.durable())
        await eventually_async(lambda: committer.has_lost_thread)
        assert committer.is_loading
        assert host.timer_problem() is None
        committer.restart_thread()
        with pytest.raises(StoreError, match="Input/output error"):
            await failed
        assert [each.body for each in host.use_namespace().peek(ORDERS, 0, 10, host.now_ms())] == [b"body"]
        host.close()
        store.close()

    asyncio.run(scene())
