"""The environment of tests: one event loop for all tests of a worker, with the namespaces that they share.

The SDKs spend most of a test waiting: half a second for a link to open, up to a second for one to close. So some tests
run at the same time; each has entities of its own. When pytest asks for a test's result, the tests that it will ask for
next are started too.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from threading import Thread
from typing import Any, Final

from pairbus.testing import RunningNamespace, running_namespace
from tests.compatibility.administration import Administration
from tests.compatibility.client import Client
from tests.compatibility.feature import Tier
from tests.compatibility.scene import Case, Scene

AT_ONCE: Final = 20
THREADS: Final = 100
"""Calls of a synchronous SDK block one each."""


@contextmanager
def unclosed_forgiven() -> Iterator[None]:
    """Say nothing of what the SDKs leave to the garbage collector: sockets of connections that broke or were refused.

    A filter of a test would not do: the collector comes when it likes, also between two tests, and in any thread.
    """
    reported = sys.unraisablehook

    def tell(unraisable: sys.UnraisableHookArgs) -> None:
        raised = unraisable.exc_value
        if not (isinstance(raised, ResourceWarning) and f"{raised}".startswith("unclosed")):
            reported(unraisable)

    sys.unraisablehook = tell
    try:
        yield
        gc.collect()
    finally:
        sys.unraisablehook = reported


class Stage:
    """The loop, the namespaces and the runs under way."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="stage", daemon=True)
        self._runs: dict[Case, Future[None]] = {}
        self._closing: list[Future[None]] = []
        self._served = ExitStack()
        self._forgiving: ExitStack | None = None
        self._namespaces: dict[Tier, RunningNamespace] = {}

    def result(self, case: Case, following: Iterable[Case]) -> None:
        """Wait until a test has run, and raise what it raised. Start those that follow."""
        if self._forgiving is None:
            self._forgiving = ExitStack()
            self._forgiving.enter_context(unclosed_forgiven())
        for started in (case, *following):
            if started not in self._runs:
                self._runs[started] = self._submit(self._run(started))
        run = self._runs[case]
        try:
            run.result()
        finally:
            run.cancel()

    def namespace(self, tier: Tier) -> RunningNamespace:
        """The namespace that all tests of a tier share."""
        if tier not in self._namespaces:
            self._namespaces[tier] = self._served.enter_context(running_namespace(name="contoso", tier=tier.value))
        return self._namespaces[tier]

    def clear(self) -> None:
        """Wait for all that run and until all clients are closed: what they leave is not for other tests to find."""
        wait(self._runs.values())
        closing, self._closing = self._closing, []
        for closed in closing:
            closed.result()
        if self._forgiving is not None:
            self._forgiving.close()
            self._forgiving = None

    def close(self) -> None:
        """Stop everything."""
        for run in self._runs.values():
            run.cancel()
        self.clear()
        self._served.close()

    async def _run(self, case: Case) -> None:
        async with self._namespace_for(case) as namespace:
            scene = await asyncio.to_thread(lambda: Scene(case, namespace).arguments())
            clients = [argument for argument in scene.values() if isinstance(argument, Client | Administration)]
            async with AsyncExitStack() as stack:
                for client in clients:
                    await client.open()
                    stack.push_async_callback(self._close, client, waits=case.feature.tier is Tier.OWN)
                await case.test(**scene)

    @asynccontextmanager
    async def _namespace_for(self, case: Case) -> AsyncIterator[RunningNamespace]:
        if case.feature.tier is not Tier.OWN:
            yield self.namespace(case.feature.tier)
            return
        own = running_namespace(name="contoso", tier=Tier.RELAXED.value)
        namespace = await asyncio.to_thread(own.__enter__)
        try:
            yield namespace
        finally:
            await asyncio.to_thread(own.__exit__, None, None, None)

    async def _close(self, client: Client | Administration, *, waits: bool) -> None:
        """Close a client: while other tests run, unless its namespace goes with it."""
        if waits:
            await client.close()
        else:
            self._closing.append(self._submit(client.close()))

    def _submit(self, work: Coroutine[Any, Any, None]) -> Future[None]:
        if not self._thread.is_alive():
            self._loop.set_default_executor(ThreadPoolExecutor(THREADS))
            self._thread.start()
        return asyncio.run_coroutine_threadsafe(work, self._loop)


STAGE: Final = Stage()
