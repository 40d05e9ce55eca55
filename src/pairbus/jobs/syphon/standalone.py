"""A syphon that runs by itself: without a pair, in a process that sends nothing of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from pairbus.client.errors import EntityNotFoundError, MessagingError, UnauthorizedError
from pairbus.client.factory import MessagingFactory
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.jobs.lines import Line, Teller
from pairbus.jobs.syphon.backlog_queues import BacklogDepth, find_backlog_queues
from pairbus.jobs.syphon.order import SyphonOrder
from pairbus.jobs.syphon.remains import Remains, Stock
from pairbus.jobs.syphon.watch import Watch
from pairbus.pairing.events import PairEvent
from pairbus.pairing.homecoming.contact import Contact
from pairbus.pairing.partnership import share_fate
from pairbus.pairing.primary_names import await_final_names, find_primary_names
from pairbus.pairing.syphon import Syphon, SyphonContext

T = TypeVar("T")

_ATTEMPT_S: Final = 5.0
_ANYWHERE: Final = "x-pairbus-syphon"
"""A path at which nothing is; that we are told so shows that a namespace answers."""


class DrainableSyphon(Syphon, Protocol):
    """One that can end by itself."""

    @property
    def uncounted_batches(self) -> int:
        """How many batches were cut short, so that the counts of the status are too small."""

    async def finish(self) -> None:
        """Wait for the batch under way, and start no other."""

    async def drain(self) -> None:
        """Bring home what is there, and end; what cannot be delivered at the moment stays."""


Engine = Callable[[SyphonContext], DrainableSyphon]


class Standalone:
    """Has what a pair would have for its syphon: two factories that share their fate, and the backlog queues."""

    def __init__(self, order: SyphonOrder, engine: Engine, teller: Teller) -> None:
        self._order = order
        self._engine = engine
        self._teller = teller

    async def run(self, stopped: asyncio.Event) -> Remains:
        """Bring messages home until ``stopped``, or once; tells what is left. Raises ``MessagingError``."""
        order = self._order
        first, second = order.primary.resolve(), order.secondary.resolve()
        async with (
            _factory(second) as secondary,
            _factory(first) as primary,
            NamespaceManager.from_connection_string(second) as manager,
            _beside(self._greet(secondary), self._greet(primary)) as greetings,
        ):
            find = partial(find_backlog_queues, manager, secondary, count=order.backlog_queues)
            names = await _unless(stopped, find_primary_names(primary, manager, order.name))
            queues = None if names is None else await _unless(stopped, find(names))
            if names is None or queues is None:
                return self._end_early("nothing was brought home")
            context = SyphonContext(
                primary=primary,
                secondary=secondary,
                backlog_queues=queues,
                settings=order.settings,
                is_held=_is_held,
                tell=_ignore,
            )
            self._tell_start(context)
            if not names.is_final and not order.once:  # nothing can be delivered before it has announced its name
                names = await _unless(stopped, await_final_names(primary))
                queues = None if names is None else await _unless(stopped, find(names))
                if queues is None:
                    return self._end_early("nothing was brought home")
                context = replace(context, backlog_queues=queues)
            watch = Watch(self._teller, BacklogDepth(manager, queues))
            try:
                if order.once:
                    return await self._once(context, watch, stopped, greetings)
                return await self._run(context, watch, stopped)
            except MessagingError as error:
                raise _explained(error, context) from error

    async def _greet(self, factory: MessagingFactory) -> None:
        """Have it told soon that a namespace is silent. Of one that cannot even be connected to the factory tells."""
        with suppress(MessagingError):  # whatever it is, whoever needs the namespace meets with it
            try:
                async with asyncio.timeout(_ATTEMPT_S):
                    await factory.greet(_ANYWHERE)
            except TimeoutError:
                self._warn(
                    "silent", f"{factory.endpoint} has not answered within {_ATTEMPT_S:g} s; it is tried again", factory
                )
            except UnauthorizedError as error:  # while the backlog is empty, nobody would learn of it before an outage
                text = (
                    f"{factory.endpoint} refuses the key: {error.message}; one that is for single entities may be fine"
                )
                self._warn("refused", text, factory)

    def _warn(self, event: str, text: str, factory: MessagingFactory) -> None:
        self._teller.tell(Line(event=event, text=text, facts={"namespace": str(factory.endpoint)}, is_warning=True))

    async def _run(self, context: SyphonContext, watch: Watch, stopped: asyncio.Event) -> Remains:
        syphon = self._engine(context)
        async with _closing(syphon):
            await _unless(stopped, syphon.start())
            await self._attend(context, watch.follow(syphon), stopped.wait())
            await syphon.finish()
        watch.end(syphon.status, syphon.uncounted_batches)
        return Remains()

    async def _once(
        self,
        context: SyphonContext,
        watch: Watch,
        stopped: asyncio.Event,
        greetings: Collection[asyncio.Future[None]],
    ) -> Remains:
        stock = await _unless(stopped, Stock.take(context.secondary, context.backlog_queues))
        if not stock:
            await _unless(stopped, asyncio.wait(greetings))  # nobody else would find out that a key is wrong
            return self._end_early("nothing was brought home" if stock is None else "nothing waits in the backlog")
        away = await _absence(context.primary)
        if away is not None:
            return await stock.remains({"": away})
        syphon = self._engine(context)
        async with _closing(syphon):
            await self._attend(context, watch.follow(syphon), stopped.wait(), syphon.drain())
            waiting = syphon.status.waiting
            await syphon.finish()
        watch.end(syphon.status, syphon.uncounted_batches)
        causes = {path: _with_advice(cause, "--primary", "Send") for path, cause in waiting.items()}
        return await stock.remains(causes)

    async def _attend(
        self, context: SyphonContext, watching: Coroutine[Any, Any, None], *ends: Coroutine[Any, Any, object]
    ) -> None:
        """Wait until one of the ends has come, which must not be that of a factory."""
        fate = asyncio.ensure_future(share_fate(context.primary, context.secondary))
        background = asyncio.ensure_future(watching)
        tasks = [asyncio.ensure_future(end) for end in ends]
        try:
            await asyncio.wait([fate, *tasks], return_when=asyncio.FIRST_COMPLETED)
            if fate.done():
                raise MessagingError(f"the factory of {context.primary.endpoint} or {context.secondary.endpoint} ended")
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in (fate, background, *tasks):
                task.cancel()
            await asyncio.gather(fate, background, *tasks, return_exceptions=True)

    def _end_early(self, text: str) -> Remains:
        self._tell("ended", text, brought_home=0, dead_lettered=0)
        return Remains()

    def _tell_start(self, context: SyphonContext) -> None:
        count = len(context.backlog_queues)
        self._tell(
            "starting",
            f"bringing home to {context.primary.endpoint} what lies in {count:,} backlog"
            f" {'queue' if count == 1 else 'queues'} of {context.secondary.endpoint}",
            primary=str(context.primary.endpoint),
            secondary=str(context.secondary.endpoint),
            backlog_queues=count,
        )

    def _tell(self, event: str, text: str, **facts: str | int) -> None:
        self._teller.tell(Line(event=event, text=text, facts=facts))


@asynccontextmanager
async def _factory(connection_string: str) -> AsyncIterator[MessagingFactory]:
    async with MessagingFactory.from_connection_string(connection_string) as factory:
        factory.limit_send_attempts(_ATTEMPT_S)
        yield factory


@asynccontextmanager
async def _beside(*works: Coroutine[Any, Any, None]) -> AsyncIterator[Collection[asyncio.Future[None]]]:
    """Have things done meanwhile, as far as they get."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _unless(stopped: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """What comes of it; ``None`` if it was given up because a signal came."""
    doing, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stopped.wait())
    try:
        await asyncio.wait((doing, stopping), return_when=asyncio.FIRST_COMPLETED)
        return doing.result() if doing.done() else None
    finally:
        for task in (doing, stopping):
            task.cancel()
        await asyncio.gather(doing, stopping, return_exceptions=True)


@asynccontextmanager
async def _closing(syphon: Syphon) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await syphon.close()


def _explained(error: MessagingError, context: SyphonContext) -> MessagingError:
    """An error in the words of whoever has given the options."""
    if error.entity not in context.backlog_queues:
        return error
    if isinstance(error, EntityNotFoundError):
        return EntityNotFoundError(
            f"{context.secondary.endpoint} has no backlog queue '{error.entity}': leave --backlog-queues out to read"
            " those that are there, see that --primary and --secondary are not swapped, and have pairbus pair make"
            " what is missing",
            entity=error.entity,
        )
    return _with_advice(error, "--secondary", "Listen")


def _with_advice(error: MessagingError, option: str, claim: str) -> MessagingError:
    if not isinstance(error, UnauthorizedError):
        return error
    advised = error.copy()
    advised.hint = f"check the key of {option}, and that it has the claim {claim}"
    return advised


async def _absence(primary: MessagingFactory) -> MessagingError | None:
    """Why the primary namespace cannot be reached; ``None`` if it can."""
    contact = Contact(primary, _nobody_waits)
    await contact.doubt(_ANYWHERE, asyncio.get_running_loop().time())
    cause = contact.cause
    await contact.close()
    return cause


def _nobody_waits() -> None:
    pass


def _is_held(path: str) -> bool:
    return False  # there is no pair that could hold anything


def _ignore(event: PairEvent) -> None:
    """What is worth telling is logged as well."""
