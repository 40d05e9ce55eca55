"""Senders and receivers of the simulation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Final

from pairbus.client.errors import MessagingError, MessagingTimeoutError
from pairbus.client.factory import MessagingFactory
from pairbus.client.message import BrokeredMessage
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.client.sender import MessageSender
from tests.simulation.entities import Entity
from tests.simulation.journal import Journal, Outcome, Received, Sent
from tests.simulation.pair_world import PairWorld
from tests.simulation.plan import Form, ProcessPlan, SenderPlan, Step

_AT_ONCE: Final = 50
_WAIT: Final = timedelta(seconds=60)
_SESSION_WAIT: Final = timedelta(seconds=30)
_PAUSE_S: Final = 2.0
_HOLD_S: Final = 3.0
"""The maximum time that sessions in order may wait for each other."""

_MOMENT_S: Final = 0.05
_ATTEMPTS: Final = 4
"""Attempts that a send may make after its timeout: one or two at backlog queues, each of which opens a link."""


class Sending:
    """One sender of one process, with its messages."""

    def __init__(
        self,
        world: PairWorld,
        journal: Journal,
        process: ProcessPlan,
        plan: SenderPlan,
        entity: Entity,
        name: str,
        *,
        keeps_order: bool,
    ) -> None:
        self.name = name
        self._world = world
        self._journal = journal
        self._process = process
        self._plan = plan
        self._entity = entity
        self._keeps_order = keeps_order
        self._random = Random(f"messages of {name}")  # noqa: S311 (it has to be repeatable)
        self._steps = [*plan.steps]
        self._number = 0
        self._factory: MessagingFactory | None = None

    @property
    def path(self) -> str:
        return self._plan.path

    async def run(self, factory: MessagingFactory) -> None:
        """Send everything, one after the other; what another process has not come to if it was killed."""
        self._factory = factory
        sender = None if self._plan.is_brief else await factory.create_message_sender(self.path)
        while self._steps:
            await asyncio.sleep(max(0.0, self._steps[0].at_s - self._world.loop.time()))
            if self._factory is not factory or factory.is_closed:
                return
            await self._send(self._steps.pop(0), sender or await factory.create_message_sender(self.path))

    async def send_last(self) -> list[Sent]:
        """One more, plain message."""
        assert self._factory is not None
        sender = await self._factory.create_message_sender(self.path)
        sent = self._sent(self._message(is_plain=True))
        await self._watched([sent], sender.send(sent.message))
        await sender.close()
        return [sent]

    async def _send(self, step: Step, sender: MessageSender) -> None:
        is_alone = step.form not in {Form.BURST, Form.HASTY}
        sent = [self._sent(self._message(is_alone=is_alone), is_one_of_many=not is_alone) for _ in range(step.count)]
        messages = [one.message for one in sent]
        match step.form:
            case Form.ONE:
                await self._watched(sent, sender.send(messages[0]))
            case Form.LIST:
                await self._watched(sent, sender.send(messages))
            case Form.BATCH:
                await self._watched(sent, sender.send_batch(messages))
            case Form.BURST:
                await asyncio.gather(*(self._watched([one], sender.send(one.message)) for one in sent))
            case Form.HASTY:
                await asyncio.gather(*(self._hastily(one, sender) for one in sent))
        if self._plan.is_brief:
            await sender.close()

    async def _hastily(self, sent: Sent, sender: MessageSender) -> None:
        patience_s = self._random.choice((0.0, 0.002, 0.1, 3.0, 12.0)) * self._random.uniform(0.5, 1.5)
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._watched([sent], sender.send(sent.message))
        if sent.outcome in {Outcome.KILLED, Outcome.UNDER_WAY}:
            sent.outcome = Outcome.GIVEN_UP

    async def _watched(self, sent: list[Sent], work: object) -> None:
        loop, journal = self._world.loop, self._journal
        first = sent[0]
        name = first.id if len(sent) == 1 else f"{first.id} and {len(sent) - 1} more"
        try:
            await work  # type: ignore[misc]
        except asyncio.CancelledError:
            outcome, error = Outcome.KILLED, None
            raise
        except BaseException as caught:  # noqa: BLE001 (it is looked at in the end)
            outcome, error = Outcome.RAISED, caught
        else:
            outcome, error = Outcome.RETURNED, None
        finally:
            for one in sent:
                one.outcome, one.error, one.ended_s = outcome, error, loop.time()
            reported = "" if error is None else f": {type(error).__name__}: {error}"
            journal.note(
                first.began_s, f"{name} for '{first.path}' {outcome.value} after {first.took_s:.3f} s{reported}"
            )

    def _sent(self, message: BrokeredMessage, *, is_one_of_many: bool = False) -> Sent:
        plan = self._process
        limit_s = plan.operation_s + _ATTEMPTS * plan.attempt_s + _MOMENT_S + (_HOLD_S if self._keeps_order else 0.0)
        sent = Sent(
            message=message,
            path=self.path,
            process=self._process.name,
            sender=self.name,
            number=self._number,
            began_s=self._world.loop.time(),
            limit_s=limit_s,
            is_one_of_many=is_one_of_many,
        )
        self._number += 1
        self._journal.sent[sent.id] = sent
        return sent

    def _message(self, *, is_alone: bool = True, is_plain: bool = False) -> BrokeredMessage:
        random = self._random
        message = BrokeredMessage(
            random.randbytes(int(3_000 ** random.random())),
            message_id=f"{self.name}-{self._number}",
            application_properties={
                "number": self._number,
                "text": f"{random.random()}",
                "flag": random.random() < 0.5,
            },
        )
        if self._entity.has_sessions or random.random() < 0.2:
            message.session_id = f"{self.name} {random.randrange(self._plan.sessions)}{'' if is_alone else ' any'}"
        if random.random() < 0.3:
            message.time_to_live = timedelta(seconds=random.randint(6, 1_000) * 3_600)
        if random.random() < 0.3:
            message.label, message.correlation_id = f"label {random.random()}", f"{random.random()}"
        is_scheduled = random.random() < 0.2
        delay_s = random.randint(-60, 150)
        if is_scheduled and not is_plain and not (self._keeps_order and message.session_id is not None):
            message.scheduled_enqueue_time = _moment(self._world.wall_s() + delay_s)
        return message


def _moment(wall_s: float) -> datetime:
    return datetime.fromtimestamp(round(wall_s, 3), UTC)


class Receiving:
    """Receives and removes everything that comes to one place."""

    def __init__(self, factory: MessagingFactory, journal: Journal, place: str, now_s: Callable[[], float]) -> None:
        self._factory = factory
        self._journal = journal
        self._place = place
        self._now_s = now_s

    async def run(self) -> None:
        receiver = await self._factory.create_message_receiver(self._place)
        while True:
            try:
                messages = await receiver.receive(_AT_ONCE, _WAIT)
                await self._take(receiver, messages)
            except MessagingError:
                await asyncio.sleep(_PAUSE_S)

    async def run_by_sessions(self) -> None:
        while True:
            try:
                await self._next_session()
            except MessagingTimeoutError:
                await asyncio.sleep(0.1)
            except MessagingError:
                await asyncio.sleep(_PAUSE_S)

    async def _next_session(self) -> None:
        async with await self._factory.accept_message_session(self._place, server_wait_time=_SESSION_WAIT) as session:
            while messages := await session.receive(_AT_ONCE, timedelta(seconds=1)):
                await self._take(session, messages)

    async def _take(self, receiver: MessageReceiver, messages: list[ReceivedMessage]) -> None:
        for message in messages:
            one = Received(at_s=self._now_s(), place=self._place, message=message)
            self._journal.received.append(one)
            self._journal.note(one.at_s, f"{one.id} received from '{self._place}' as {one.sequence}")
        if messages:
            await receiver.complete(messages)
