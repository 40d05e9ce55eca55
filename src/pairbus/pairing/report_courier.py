"""Brings reports of a pair to one namespace, at a pace that suits what there is to tell."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from pairbus.client.errors import MessagingError
from pairbus.client.factory import MessagingFactory
from pairbus.client.management.http import HttpRequest, HttpResponse, exchange
from pairbus.client.token_provider import JWT, Credentials, PlainCredentials, token_of
from pairbus.pairing.report import HEARTBEAT_S, MOST_SWITCHES, PairReport, Receiver, SwitchReport
from pairbus.pairing.report_json import write_report

_log = logging.getLogger(__name__)

PATH: Final = "/console/api/pair"
_SOON_S: Final = 1.0
"""What is new is told after so long at most; and there are never more reports than that."""

_RESTLESS_S: Final = 5.0
"""How often there is a report while something goes on."""

_TROUBLED_S: Final = 10.0
"""How long a namespace is left alone that did not take a report, whatever goes on: what asks for the address of a host
that is away may hang, and has to leave room for those who send."""

_PATIENCE_S: Final = 3.0
_MOST_ANSWER_BYTES: Final = 16 * 1024
_SHOWN: Final = 200
_AZURE: Final = ".servicebus."
"""What all names of Azure's own namespaces have in them."""

MakeReport = Callable[[Receiver, int, tuple[SwitchReport, ...]], PairReport]


class Courier:
    """Knows what its namespace has been told. An error is logged when it begins, and when it is over."""

    def __init__(self, factory: MessagingFactory, receiver: Receiver, make: MakeReport) -> None:
        self._endpoint = factory.endpoint
        self._credentials: Credentials = factory.credentials
        self._tls = factory.settings.tls_context() if factory.endpoint.tls else None
        self._receiver = receiver
        self._make = make
        self._number = 0
        self._switches: deque[SwitchReport] = deque(maxlen=MOST_SWITCHES)
        """Those that the namespace does not know of yet; of too many the oldest are dropped."""

        self._has_news = asyncio.Event()
        self._is_in_trouble = False

    @property
    def has_console(self) -> bool:
        """Whether the namespace can be one that takes reports: Azure's cannot."""
        return _AZURE not in f"{self._endpoint.host.lower()}."

    def tell(self, switch: SwitchReport) -> None:
        self._switches.append(switch)

    def hurry(self) -> None:
        """Something is new."""
        self._has_news.set()

    async def run(self) -> None:
        """Report until cancelled."""
        before: PairReport | None = None
        while True:
            self._has_news.clear()
            self._number += 1
            report = self._make(self._receiver, self._number, tuple(self._switches))
            await self._deliver(report)
            is_restless = report.is_restless or (before is not None and report.entities != before.entities)
            before = report
            await self._rest(is_restless=is_restless)

    async def _rest(self, *, is_restless: bool) -> None:
        least_s = _TROUBLED_S if self._is_in_trouble else _SOON_S
        most_s = _RESTLESS_S if is_restless else HEARTBEAT_S
        await asyncio.sleep(least_s)
        try:
            async with asyncio.timeout(max(0.0, most_s - least_s)):
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
            self._failed(f"no answer within {_PATIENCE_S:g} s")
        else:
            if response.status == HTTPStatus.NO_CONTENT:
                self._succeeded(report)
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
        if self._is_in_trouble:
            _log.info("%s takes reports of the pair again", self._endpoint)
        self._is_in_trouble = False

    def _failed(self, reason: str) -> None:
        if not self._is_in_trouble:
            _log.warning("%s takes no reports of the pair: %s", self._endpoint, reason)
        self._is_in_trouble = True


def _refusal(response: HttpResponse) -> str:
    words = " ".join(response.body.decode("utf-8", "replace").split())[:_SHOWN]
    return f"{response.status} {words}".strip()
