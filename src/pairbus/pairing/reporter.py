"""Reports of a pair to both of its namespaces, sent in the background: no send waits for them."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Final
from uuid import uuid4

from pairbus.background_tasks import BackgroundTasks
from pairbus.client.errors import MessagingError
from pairbus.client.factory import MessagingFactory
from pairbus.client.management.http import HttpRequest, HttpResponse, exchange
from pairbus.client.token_provider import JWT, Credentials, PlainCredentials, token_of
from pairbus.pairing.events import EntityChanged, PairEvent, PingSent
from pairbus.pairing.policy import DIVERTING
from pairbus.pairing.report import (
    HEARTBEAT_S,
    MOST_NAME,
    MOST_PATH,
    MOST_SWITCHES,
    PairReport,
    ReportRecipient,
    SwitchReport,
    reason_of,
    report_entities,
    write_report,
)
from pairbus.pairing.status import PairedEntityStatus

_log = logging.getLogger(__name__)

PATH: Final = "/console/api/pair"
_SOON_S: Final = 1.0
"""Maximum delay of a report after a change, and shortest time between two reports."""

_RESTLESS_S: Final = 5.0
"""Time between two reports while an entity is not healthy."""

_TROUBLED_S: Final = 10.0
"""Pause after a failed report: the lookup of an unreachable host may block a thread, which senders need as well."""

_PATIENCE_S: Final = 3.0
_MOST_ANSWER_BYTES: Final = 16 * 1024
_SHOWN: Final = 200
_NO_CONSOLE: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED})
_AZURE: Final = ".servicebus."
"""Part of the host names of Azure Service Bus."""

MakeReport = Callable[[ReportRecipient, int, tuple[SwitchReport, ...]], PairReport]


class ReportSender:
    """Sends reports to one namespace. An outage is logged when it begins, and when it ends."""

    def __init__(self, factory: MessagingFactory, receiver: ReportRecipient, make: MakeReport) -> None:
        self._endpoint = factory.endpoint
        self._credentials: Credentials = factory.credentials
        self._tls = factory.settings.tls_context() if factory.endpoint.tls else None
        self._receiver = receiver
        self._make = make
        self._number = 0
        self._switches: deque[SwitchReport] = deque(maxlen=MOST_SWITCHES)
        """Switches that the namespace has not received yet; beyond the limit the oldest are dropped."""

        self._has_news = asyncio.Event()
        self._is_failing = False

    @property
    def has_console(self) -> bool:
        """True if the namespace may accept reports, which Azure Service Bus does not."""
        return _AZURE not in f"{self._endpoint.host.lower()}."

    def add_switch(self, switch: SwitchReport) -> None:
        self._switches.append(switch)

    def send_soon(self) -> None:
        """Send a report soon."""
        self._has_news.set()

    async def run(self) -> None:
        """Report until cancelled."""
        before: PairReport | None = None
        while True:
            self._has_news.clear()
            self._number += 1
            report = self._make(self._receiver, self._number, tuple(self._switches))
            await self._deliver(report)
            is_active = report.has_unhealthy_entity or (before is not None and report.entities != before.entities)
            before = report
            await self._pause(is_active=is_active)

    async def _pause(self, *, is_active: bool) -> None:
        min_s = _TROUBLED_S if self._is_failing else _SOON_S
        max_s = _RESTLESS_S if is_active else HEARTBEAT_S
        await asyncio.sleep(min_s)
        try:
            async with asyncio.timeout(max(0.0, max_s - min_s)):
                await self._has_news.wait()
        except TimeoutError:
            pass

    async def _deliver(self, report: PairReport) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                response = await self._post(write_report(report))
        except MessagingError as error:
            self._failed(str(error))
        except TimeoutError:
            self._failed(f"no response within {_PATIENCE_S:g} s")
        else:
            if response.status == HTTPStatus.NO_CONTENT:
                self._succeeded(report)
            elif response.status in _NO_CONSOLE:
                self._failed("the namespace has no console, reports are not shown")
            else:
                self._failed(_refusal(response))

    async def _post(self, body: bytes) -> HttpResponse:
        headers = {"User-Agent": "pairbus", "Content-Type": "application/json", **await self._authorization()}
        return await exchange(
            self._endpoint,
            HttpRequest(method="POST", target=PATH, headers=headers, body=body),
            tls=self._tls,
            timeout_s=_PATIENCE_S,
            max_bytes=_MOST_ANSWER_BYTES,
        )

    async def _authorization(self) -> dict[str, str]:
        match self._credentials:
            case None:
                return {}
            case PlainCredentials(user=user, password=password):
                return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}
            case provider:
                token = await token_of(provider, self._endpoint.uri())
                return {"Authorization": f"Bearer {token.text}" if token.type == JWT else token.text}

    def _succeeded(self, report: PairReport) -> None:
        known = report.switches[-1].number if report.switches else 0
        while self._switches and self._switches[0].number <= known:
            self._switches.popleft()
        if self._is_failing:
            _log.info("pair reports accepted again endpoint=%s", self._endpoint)
        self._is_failing = False

    def _failed(self, reason: str) -> None:
        if not self._is_failing:
            _log.warning('pair report failed endpoint=%s error="%s"', self._endpoint, reason)
        self._is_failing = True


def _refusal(response: HttpResponse) -> str:
    words = " ".join(response.body.decode("utf-8", "replace").split())[:_SHOWN]
    return f"{response.status} {words}".strip()


_MOST_REASONS: Final = 10_000


class PairReporter:
    """Listens to a pair, and reports to each of its namespaces until it is closed."""

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
        """The last error of each entity, also after it has become healthy."""

        self._switch_count = 0
        self._senders = [
            ReportSender(factory, receiver, self._report)
            for factory, receiver in ((primary, ReportRecipient.PRIMARY), (secondary, ReportRecipient.SECONDARY))
        ]
        self._tasks = BackgroundTasks("reports of a pair", expected=MessagingError)

    def start(self) -> None:
        for sender in self._senders:
            if sender.has_console:
                self._tasks.start(sender.run())

    def note(self, event: PairEvent) -> None:
        """Note an event, and report it soon if it is a change of an entity."""
        if isinstance(event, EntityChanged | PingSent) and event.cause is not None:
            self._note_reason(event.path, reason_of(event.cause))
        if not isinstance(event, EntityChanged):
            return
        if event.state in DIVERTING or event.before in DIVERTING:
            self._note_switch(event)
        for sender in self._senders:
            sender.send_soon()

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
        for sender in self._senders:
            sender.add_switch(switch)

    def _report(self, receiver: ReportRecipient, number: int, switches: tuple[SwitchReport, ...]) -> PairReport:
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
        """Stop at once; a report that is being sent is cancelled."""
        await self._tasks.close()


def program_name() -> str:
    """Return the name of this program, as the default for the name of the application."""
    return Path(sys.argv[0]).stem[:MOST_NAME] or "python"


def _ms(at: datetime) -> int:
    return int(at.timestamp() * 1_000)
