"""One run: the namespaces, those who send, bring home and receive, and what goes wrong; then all of it is looked at."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from pairbus.client.errors import MessagingError
from pairbus.client.received_message import ReceivedMessage
from pairbus.dialect.paths import split_entity_path
from pairbus.pairing import EntityState
from pairbus.pairing.status import PairStatus
from pairbus.server.messages import address_of, delivered_payload
from tests.faults.namespace import VirtualNamespace
from tests.simulation.fault_injector import FaultInjector
from tests.simulation.journal import Journal, Sent, Watch
from tests.simulation.pair_world import PRIMARY, PairWorld, run
from tests.simulation.plan import Plan, ProcessPlan
from tests.simulation.process import Process
from tests.simulation.traffic import Receiving, Sending

_RECEIVER: Final = "receiver"
_STEP_S: Final = 5.0
_LONGEST_S: Final = 3 * 3_600.0
"""The maximum time until everything has recovered after the last fault."""

_CALM_S: Final = 30.0
_PAUSE_S: Final = 1.0


@dataclass(slots=True)
class Run:
    """A run, with everything that can be looked at afterwards."""

    plan: Plan
    journal: Journal = field(default_factory=Journal)
    processes: list[Process] = field(default_factory=list)
    """All there have been, the dead ones too."""
    dead_letters: dict[str, list[ReceivedMessage]] = field(default_factory=dict)
    """By queue."""
    restless: list[str] = field(default_factory=list)
    """The entities and processes that had not recovered at the end."""
    last: list[Sent] = field(default_factory=list)
    """The messages sent after the recovery."""
    before: dict[str, int] = field(default_factory=dict)
    """The number of messages that each process had diverted before that."""
    after: dict[str, int] = field(default_factory=dict)
    logged: list[str] = field(default_factory=list)
    """Errors that were logged."""
    broken: str = ""
    """The reason why the run did not finish."""
    took_s: float = 0.0

    def statuses(self) -> list[PairStatus]:
        return [status for process in self.processes if (status := process.status) is not None]


def play(plan: Plan, *, on_line: Callable[[str], None] | None = None) -> Run:
    """Do it all."""
    made = Run(plan)
    with _logging(made, on_line):
        try:
            made.took_s = run(
                lambda world: _Stage(world, made).run(),
                plan.seed,
                primary_skew_s=plan.primary_skew_s,
                secondary_skew_s=plan.secondary_skew_s,
            )
        except Exception as error:
            made.broken = f"{type(error).__name__}: {error}"
            if on_line is not None:
                logging.getLogger(__name__).exception("the run has broken off")
    return made


class _Stage:
    """The processes, traffic and faults of a run."""

    def __init__(self, world: PairWorld, made: Run) -> None:
        self._world = world
        self._run = made
        self._plan = made.plan
        self._journal = made.journal
        self._injector = FaultInjector(world, made.journal, self._restart)
        self._starts: dict[str, int] = {}
        self._sendings: dict[str, list[Sending]] = {}
        self._sending: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        plan, world = self._plan, self._world
        for entity in plan.entities:
            entity.create(world.primary)
        watch = Watch(world.primary, self._journal, world.loop.time)
        self._injector.on_start = lambda namespace: watch.look() if namespace is world.primary else None
        receiving = await self._receive()
        for process in plan.processes:
            await self._start(process)
        await self._injector.run(plan.planned_faults)
        while pending := [task for task in self._sending if not task.done()]:
            await asyncio.wait(pending)  # a process that was started again has more to send then
        await asyncio.gather(*self._injector.ending)
        await self._calm_down()
        await self._send_last()
        self._look()
        for task in receiving:
            task.cancel()
        await asyncio.gather(*receiving, return_exceptions=True)
        await asyncio.gather(*(process.close() for process in self._alive))

    @property
    def _alive(self) -> list[Process]:
        return [*self._injector.processes.values()]

    # Those who take part.

    async def _start(self, plan: ProcessPlan) -> None:
        number = self._starts[plan.name] = self._starts.get(plan.name, 0) + 1
        process = await Process.create(self._world, plan, f"{plan.name}-{number}")
        self._run.processes.append(process)
        self._injector.processes[plan.name] = process
        for namespace, network in process.networks.items():
            self._injector.add_network(plan.name, namespace, network)
        if number == 1:
            self._sendings[plan.name] = [self._make_sending(plan, index) for index in range(len(plan.senders))]
            await self._pair(process)
        else:
            self._sending.append(process.spawn(self._pair(process)))

    def _make_sending(self, plan: ProcessPlan, index: int) -> Sending:
        sender = plan.senders[index]
        return Sending(
            self._world,
            self._journal,
            plan,
            sender,
            self._plan.entity(sender.path),
            f"{plan.name}.{index}",
            keeps_order=self._plan.keeps_order,
        )

    async def _pair(self, process: Process) -> None:
        """Restart a process until it runs; then send its messages."""
        while True:
            try:
                await process.start(keeps_order=self._plan.keeps_order)
            except MessagingError as error:
                self._journal.note(self._world.loop.time(), f"{process.name} cannot be paired: {error}")
                await asyncio.sleep(_PAUSE_S)
            else:
                self._journal.note(self._world.loop.time(), f"{process.name} is paired")
                sendings = self._sendings[process.plan.name]
                self._sending += [process.spawn(one.run(process.primary)) for one in sendings]
                return

    async def _restart(self, name: str) -> None:
        plan = next(one for one in self._plan.processes if one.name == name)
        if name not in self._injector.processes:
            await self._start(plan)

    async def _receive(self) -> list[asyncio.Task[None]]:
        world = self._world
        network = await world.another_network(world.primary, f"{_RECEIVER}.example")
        self._injector.add_network(_RECEIVER, PRIMARY, network)
        factory = world.factory_at(network.endpoint)
        tasks = []
        for entity in self._plan.entities:
            for place in entity.places:
                one = Receiving(factory, self._journal, place, world.loop.time)
                tasks.append(world.loop.create_task(one.run_by_sessions() if entity.has_sessions else one.run()))
        return tasks

    # The end.

    async def _calm_down(self) -> None:
        """Wait until everything has recovered: no backlog, no messages to receive, and all entities healthy."""
        loop = self._world.loop
        deadline_s = loop.time() + _LONGEST_S
        while (restless := self._restless()) and loop.time() < deadline_s:  # noqa: ASYNC110 (there is no event for it)
            await asyncio.sleep(_STEP_S)
        self._run.restless = restless
        self._journal.note(loop.time(), "all is well" if not restless else f"not well: {restless}")

    def _restless(self) -> list[str]:
        return [*self._left(), *self._unwell()]

    def _left(self) -> Iterator[str]:
        plan = self._plan
        for path in (f"{PRIMARY}/x-servicebus-transfer/{index}" for index in range(plan.queue_count)):
            info = self._world.secondary.info(path)
            if info.active_count + info.scheduled_count:
                yield (
                    f"'{path}' has {info.ready_count} messages, {info.locked_count} that are locked, "
                    f"{info.deferred_count} that are deferred and {info.scheduled_count} that are scheduled"
                )
        for entity in plan.entities:
            # A topic keeps what is scheduled until it is time.
            for place in dict.fromkeys((entity.path, *entity.places)) if entity.path not in plan.deleted else ():
                info = self._world.primary.info(place)
                if info.active_count + info.scheduled_count:
                    yield f"'{place}' of the primary still has {info.active_count + info.scheduled_count} messages"

    def _unwell(self) -> Iterator[str]:
        for process in self._alive:
            if not process.is_paired:
                yield f"{process.name} is not paired"
                continue
            for entity in process.pair.status().entities:
                if entity.state is not EntityState.HEALTHY and entity.path not in self._plan.deleted:
                    yield f"'{entity.path}' is {entity.state.value} for {process.name}"

    async def _send_last(self) -> None:
        """Now everything has to go straight to the primary."""
        await asyncio.sleep(_CALM_S)
        made = self._run
        made.before = self._diverted()
        living = [
            one
            for name in self._injector.processes
            for one in self._sendings[name]
            if one.path not in self._plan.deleted
        ]
        for sent in await asyncio.gather(*(one.send_last() for one in living)):
            made.last += sent
        made.after = self._diverted()
        if not made.restless:
            await self._calm_down()
            await asyncio.sleep(_PAUSE_S)

    def _diverted(self) -> dict[str, int]:
        return {process.name: process.pair.status().diverted for process in self._alive if process.is_paired}

    def _look(self) -> None:
        plan, world = self._plan, self._world
        for index in range(plan.queue_count):
            self._look_at(world.secondary, f"{PRIMARY}/x-servicebus-transfer/{index}")
        for entity in plan.entities:
            if entity.path not in plan.deleted:
                for place in entity.places:
                    self._look_at(world.primary, place)

    def _look_at(self, namespace: VirtualNamespace, path: str) -> None:
        found = dead_letters(namespace, path)
        if found:
            self._run.dead_letters[path] = found
            for one in found:
                self._journal.note(
                    self._world.loop.time(),
                    f"{one.message_id!s} is dead in '{path}': {one.dead_letter_reason}: "
                    f"{one.dead_letter_error_description}",
                )


def dead_letters(namespace: VirtualNamespace, path: str) -> list[ReceivedMessage]:
    """Return the messages in the dead-letter queue of a queue or subscription."""
    entity = split_entity_path(f"{path}/$DeadLetterQueue")
    assert entity is not None
    page = namespace.host.use_namespace().peek(address_of(entity), 0, 1_000, namespace.now_ms())
    return [ReceivedMessage(delivered_payload(one)) for one in page]


@contextmanager
def _logging(made: Run, on_line: Callable[[str], None] | None) -> Iterator[None]:
    """Collect logged errors, which are unexpected."""
    handler = _Handler(made, on_line)
    loggers = [logging.getLogger(name) for name in ("pairbus", "asyncio", __name__)]
    before = [(one.level, one.propagate) for one in loggers]
    for one in loggers:
        one.addHandler(handler)
        one.setLevel(logging.ERROR if on_line is None else logging.DEBUG)
        one.propagate = False
    try:
        yield
    finally:
        for one, (level, propagate) in zip(loggers, before, strict=True):
            one.removeHandler(handler)
            one.setLevel(level)
            one.propagate = propagate


class _Handler(logging.Handler):
    def __init__(self, made: Run, on_line: Callable[[str], None] | None) -> None:
        super().__init__()
        self._run = made
        self._on_line = on_line

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if record.levelno >= logging.ERROR and record.name != __name__:
            self._run.logged.append(text)
        if self._on_line is not None:
            self._on_line(f"{_now_s():9.3f} {record.name}: {text}")


def _now_s() -> Any:
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return 0.0
