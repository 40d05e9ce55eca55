"""What can never be delivered: it goes to the dead-letter queue of its backlog queue, and that is told."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from pairbus.client.chores import Chores
from pairbus.client.errors import InvalidMessageError, MessagingError
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.dialect.transfer import TransferError
from pairbus.pairing.events import Listener, MessageDeadLettered
from pairbus.pairing.homecoming.dead_letter_reason import DeadLetterReason, one_line, reason_of
from pairbus.pairing.pump.cargo import Cargo
from pairbus.pairing.pump.hand import Hand

_log = logging.getLogger(__name__)


class DeadLetters:
    """Those of one backlog queue. One that could not be moved there comes again."""

    def __init__(self, receiver: MessageReceiver, hand: Hand, chores: Chores, tell: Listener) -> None:
        self.count = 0
        self._receiver = receiver
        self._hand = hand
        self._chores = chores
        self._tell = tell

    def add(self, cargoes: list[Cargo], reason: DeadLetterReason, description: str) -> None:
        """Move messages that are in hand."""
        self._chores.start(self._move(cargoes, reason, one_line(description)), is_due=True)

    async def _move(self, cargoes: list[Cargo], reason: DeadLetterReason, description: str) -> None:
        async def settle(messages: list[ReceivedMessage]) -> None:
            await self._receiver.dead_letter(messages, reason.value, description)

        await self._hand.settle(cargoes, settle)
        self._hand.adopt_unsettled(cargoes)
        moved = [cargo for cargo in cargoes if cargo.message.is_settled]
        for cargo in moved:
            self._moved(cargo.message, cargo.transfer.path, reason, description)
        self._log(len(moved), description)

    def add_unreadable(self, message: ReceivedMessage, error: TransferError | InvalidMessageError) -> None:
        """Move a message that was received, and is nothing that could be delivered."""
        path = error.path if isinstance(error, TransferError) else None
        reason = reason_of(error) if isinstance(error, TransferError) else DeadLetterReason.UNREADABLE
        where = "" if path is None else f"the message for '{path}': "
        description = one_line(f"{where}{error}")
        self._chores.start(self._move_unreadable(message, path, reason, description), is_due=True)

    async def _move_unreadable(
        self, message: ReceivedMessage, path: str | None, reason: DeadLetterReason, description: str
    ) -> None:
        try:
            await self._receiver.dead_letter(message, reason.value, description)
        except MessagingError as error:
            _log.warning("a message of '%s' could not be dead-lettered yet: %s", self._receiver.path, error)
        else:
            self._moved(message, path, reason, description)
            self._log(1, description)

    def _log(self, count: int, description: str) -> None:
        if count:
            _log.warning("%d messages of '%s' were dead-lettered: %s", count, self._receiver.path, description)

    def _moved(self, message: ReceivedMessage, path: str | None, reason: DeadLetterReason, description: str) -> None:
        self.count += 1
        self._tell(
            MessageDeadLettered(
                at=datetime.now(UTC),
                backlog_queue=self._receiver.path,
                message_id=_id_of(message),
                path=path,
                reason=reason.value,
                description=description,
            )
        )


def _id_of(message: ReceivedMessage) -> str:
    try:
        return str(message.message_id)
    except InvalidMessageError:
        return ""
