"""What is done in a backlog queue with the messages of a task, each as soon as it is known what became of it."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from pairbus.client.errors import InvalidMessageError, MessagingError
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.dialect.transfer import Transfer
from pairbus.jobs.syphon.outcome import Kind, Outcome
from pairbus.jobs.syphon.restoration import Homecomer, Outcast
from pairbus.pairing.homecoming.dead_letter_reason import one_line, reason_of
from pairbus.spark.sequence_ranges import SequenceRanges

_log = logging.getLogger(__name__)

_AT_ONCE: Final = 1_000

Settle = Callable[[list[ReceivedMessage]], Awaitable[None]]
M = TypeVar("M", Homecomer, Outcast)


class Settlement:
    """Settles by lock token, beside what is still being sent; what cannot be settled comes again."""

    def __init__(self, desk: MessageReceiver) -> None:
        self._desk = desk
        self._outcomes: list[Outcome] = []
        self._settling: set[asyncio.Task[None]] = set()
        self._delivered: list[Homecomer] = []
        self._is_removing = False

    def delivered(self, messages: list[Homecomer]) -> None:
        """Remove them, with others that are delivered meanwhile: there are many destinations, and one queue."""
        self._delivered += messages
        if not self._is_removing:
            self._is_removing = True
            self._start(self._remove())

    async def _remove(self) -> None:
        try:
            while self._delivered:
                messages, self._delivered = self._delivered, []
                await self._settle_all(messages, self._desk.complete, Kind.DELIVERED, Kind.UNREMOVED)
        finally:
            self._is_removing = False

    def park(self, messages: list[Homecomer], cause: str) -> None:
        self._start(self._settle_all(messages, self._desk.defer, Kind.PARKED, Kind.GIVEN_BACK, cause))

    def give_back(self, messages: list[Homecomer], cause: str) -> None:
        self._start(self._settle_all(messages, self._desk.abandon, Kind.GIVEN_BACK, Kind.GIVEN_BACK, cause))

    def refuse(self, messages: list[Homecomer], error: MessagingError) -> None:
        """Their destination takes them never."""
        text = f"'{messages[0].destination}' does not take the message: {error}"
        self._start(self._move(messages, reason_of(error).value, one_line(text)))

    def cast_out(self, message: Outcast) -> None:
        self._start(self._move([message], message.reason, one_line(message.description)))

    def found_parked(self, queue: str, number: int, transfer: Transfer) -> None:
        """A message lies parked that is none of ours."""
        self._outcomes.append(
            Outcome(
                kind=Kind.FOUND,
                queue=queue,
                destination=transfer.path,
                session_id=transfer.session_id,
                numbers=SequenceRanges.of([number]),
            )
        )

    async def finish(self) -> list[Outcome]:
        """Wait until everything is settled that can be: what became of the messages."""
        while self._settling:
            await asyncio.wait([*self._settling])
        return self._outcomes

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _move(self, messages: Sequence[Homecomer] | Sequence[Outcast], reason: str, description: str) -> None:
        async def move(locked: list[ReceivedMessage]) -> None:
            await self._desk.dead_letter(locked, reason, description)

        settled, _ = await self._settle([*messages], move)
        self._outcomes += [
            Outcome(
                kind=Kind.DEAD_LETTERED,
                queue=message.queue,
                destination=message.destination,
                numbers=SequenceRanges.of([message.number]),
                reason=reason,
                description=description,
                message_id=_id_of(message.payload),
            )
            for message in settled
        ]

    async def _settle_all(
        self, messages: list[Homecomer], settle: Settle, done: Kind, undone: Kind, cause: str | None = None
    ) -> None:
        settled, unsettled = await self._settle(messages, settle)
        for kind, found in ((done, settled), (undone, unsettled)):
            lines: dict[tuple[str, str | None], list[int]] = defaultdict(list)
            for message in found:
                lines[message.destination, message.session_id if kind is Kind.PARKED else None].append(message.number)
            self._outcomes += [
                Outcome(
                    kind=kind,
                    queue=messages[0].queue,
                    destination=destination,
                    session_id=session_id,
                    numbers=SequenceRanges.of(numbers),
                    cause=cause,
                )
                for (destination, session_id), numbers in lines.items()
            ]

    async def _settle(self, messages: list[M], settle: Settle) -> tuple[list[M], list[M]]:
        """Those that are settled, and those that come again when their locks end."""
        locked = [ReceivedMessage(b"", lock_token=message.token) for message in messages]
        try:
            for start in range(0, len(locked), _AT_ONCE):
                await settle(locked[start : start + _AT_ONCE])
        except MessagingError as error:
            _log.warning("messages of '%s' come again: %s", self._desk.path, error)
        both = list(zip(messages, locked, strict=True))
        return [one for one, lock in both if lock.is_settled], [one for one, lock in both if not lock.is_settled]


def _id_of(payload: bytes) -> str:
    try:
        return str(ReceivedMessage(payload).message_id)
    except InvalidMessageError:
        return ""
