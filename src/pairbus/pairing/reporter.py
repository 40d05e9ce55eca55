"""Has both namespaces of a pair told how it is doing, beside everything else: nobody ever waits for that."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from uuid import uuid4

from pairbus.client.chores import Chores
from pairbus.client.factory import MessagingFactory
from pairbus.pairing.events import EntityChanged, PairEvent, PingSent
from pairbus.pairing.policy import DIVERTING
from pairbus.pairing.report import MOST_NAME, MOST_PATH, PairReport, Receiver, SwitchReport, reason_of, report_entities
from pairbus.pairing.report_courier import Courier
from pairbus.pairing.status import PairedEntityStatus

_MOST_REASONS: Final = 10_000


class PairReporter:
    """Listens to a pair, and sends a courier to each of its namespaces until it is closed."""

    def __init__(
        self,
        application: str,
        primary_name: str,
        primary: MessagingFactory,
        secondary: MessagingFactory,
        entities: Callable[[], Iterable[PairedEntityStatus]],
    ) -> None:
        self.application = application
        self._primary_name = primary_name
        self._entities = entities
        self._pair_id = uuid4().hex
        self._host = socket.gethostname()[:MOST_NAME] or "unknown"
        self._reasons: dict[str, str] = {}
        """What entities failed with at last, also when they are healthy again."""

        self._switch_count = 0
        self._couriers = [
            Courier(factory, receiver, self._report)
            for factory, receiver in ((primary, Receiver.PRIMARY), (secondary, Receiver.SECONDARY))
        ]
        self._chores = Chores("reports of a pair")

    def start(self) -> None:
        for courier in self._couriers:
            if courier.has_console:
                self._chores.start(courier.run())

    def note(self, event: PairEvent) -> None:
        """Take note of what has happened to the pair; it is told soon."""
        if isinstance(event, EntityChanged | PingSent) and event.cause is not None:
            self._note_reason(event.path, reason_of(event.cause))
        if not isinstance(event, EntityChanged):
            return
        if event.state in DIVERTING or event.before in DIVERTING:
            self._note_switch(event)
        for courier in self._couriers:
            courier.hurry()

    def _note_reason(self, path: str, reason: str) -> None:
        if path in self._reasons or len(self._reasons) < _MOST_REASONS:
            self._reasons[path] = reason

    def _note_switch(self, event: EntityChanged) -> None:
        self._switch_count += 1
        switch = SwitchReport(
            number=self._switch_count,
            path=event.path[:MOST_PATH],
            state=event.state,
            at_ms=_ms(event.at),
            reason=reason_of(event.cause),
        )
        for courier in self._couriers:
            courier.tell(switch)

    def _report(self, receiver: Receiver, number: int, switches: tuple[SwitchReport, ...]) -> PairReport:
        entities, more = report_entities(self._entities(), self._reasons)
        return PairReport(
            pair_id=self._pair_id,
            number=number,
            application=self.application,
            host=self._host,
            process=os.getpid(),
            primary=self._primary_name,
            receiver=receiver,
            sent_ms=_ms(datetime.now(UTC)),
            entities=entities,
            more=more,
            switches=switches,
            switched=self._switch_count,
        )

    async def close(self) -> None:
        """Stop at once, whatever is under way."""
        await self._chores.close()


def program_name() -> str:
    """What this program is called, for one that does not say."""
    return Path(sys.argv[0]).stem[:MOST_NAME] or "python"


def _ms(at: datetime) -> int:
    return int(at.timestamp() * 1_000)
