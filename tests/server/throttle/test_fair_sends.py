"""B2 on the wire: a real server that is short of time denies sends of the loud, and accepts all of the quiet."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import cycle
from typing import Final
from urllib.request import urlopen

import pytest

from pairbus import NO_RETRY, BrokeredMessage, MessageSender, ServerBusyError
from pairbus.broker.queue import partition_of
from pairbus.testing import RunningNamespace, running_namespace
from tests.client.stage import factory_of, make_queue, play
from tests.waiting import eventually_async

AT_ONCE: Final = 50
ENOUGH: Final = 200
QUIET_PAUSE_S: Final = 0.2
QUIET_SENDS: Final = 10
PARTITIONS: Final = 16
HOT: Final = "hot"
COOL: Final = next(
    key for key in map(str, range(100)) if partition_of(key, PARTITIONS) != partition_of(HOT, PARTITIONS)
)


@pytest.fixture
def contoso() -> Iterator[RunningNamespace]:
    """Yield a namespace that any busy sender brings far over its threshold, on a slow machine, too.

    One percent of a processor is some fifty messages a second, whatever else the machine does.
    """
    with running_namespace(throttle_processor_percent=1.0) as namespace:
        yield namespace


class Loud:
    """Sends at full speed, and does not wait when it is denied."""

    def __init__(self, sender: MessageSender, key: str | None = None) -> None:
        self.denied = 0
        self.accepted = 0
        self.reason = ""
        self._sender = sender
        self._key = key

    async def send(self) -> None:
        while True:
            await asyncio.gather(*(self._send() for _ in range(AT_ONCE)))

    async def _send(self) -> None:
        try:
            await self._sender.send(BrokeredMessage(b"loud", partition_key=self._key))
        except ServerBusyError as error:
            self.denied += 1
            self.reason = str(error)
        else:
            self.accepted += 1


async def while_denied(loud: Loud, quiet: MessageSender, *keys: str | None) -> None:
    """Send quietly beside the loud one, until that has been denied for a while: every quiet send succeeds."""
    shouting = asyncio.create_task(loud.send())
    try:
        await eventually_async(lambda: shouting.done() or loud.denied > ENOUGH)
        before = loud.denied
        for _, key in zip(range(QUIET_SENDS), cycle(keys), strict=False):
            await quiet.send(BrokeredMessage(b"quiet", partition_key=key))
            await asyncio.sleep(QUIET_PAUSE_S)
        assert loud.denied > before, "the shortage has not ended meanwhile"
    finally:
        shouting.cancel()
        with suppress(asyncio.CancelledError):
            await shouting


def share(namespace: RunningNamespace) -> float:
    with urlopen(f"http://localhost:{namespace.port}/metrics", timeout=60) as answer:
        (found,) = re.findall(r"^pairbus_send_share(?:\{.*\})? (\S+)$", answer.read().decode(), re.MULTILINE)
    return float(found)


def test_b2_loud_queue_is_denied_while_a_quiet_one_is_not(
    contoso: RunningNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        loud_path, quiet_path = make_queue(contoso), make_queue(contoso)
        async with factory_of(contoso, retry_policy=NO_RETRY) as factory:
            loud = Loud(await factory.create_message_sender(loud_path))
            await while_denied(loud, await factory.create_message_sender(quiet_path), None)
            assert "'processor' is at" in loud.reason
            assert loud_path in loud.reason
            assert loud.accepted > 0
            assert await asyncio.to_thread(share, contoso) < float("inf")
            assert f"sends beyond the fair share denied count=1 entities={loud_path} share=" in caplog.text

    play(scenario())


def test_b2_hot_partition_is_denied_while_the_rest_of_the_queue_is_not(contoso: RunningNamespace) -> None:
    async def scenario() -> None:
        path = make_queue(contoso, partitioned=True)
        async with factory_of(contoso, retry_policy=NO_RETRY) as factory:
            sender = await factory.create_message_sender(path)
            await while_denied(Loud(sender, HOT), sender, COOL, None)

    play(scenario())
