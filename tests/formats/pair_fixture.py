"""A pair after an outage: a backlog, the checkpoint of the syphon that was killed in it, and the ledgers of both.

Run as ``python -m tests.formats.pair_fixture PRIMARY SECONDARY CHECKPOINT`` it syphons on Spark, and says a line about
each batch; the second one never ends.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Final

from pairbus import (
    BrokeredMessage,
    EntityStatus,
    MessageState,
    MessagingFactory,
    NamespaceManager,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.client.amqp_json import moment_text
from pairbus.dialect.paths import backlog_path
from pairbus.pairing.syphon import SyphonContext, SyphonSettings
from tests.formats.entity_status import set_status
from tests.formats.killed_program import lines_until
from tests.formats.namespace_content import peek_all, plain
from tests.jobs.sent_messages import Strings
from tests.pairing.processes import BACKLOG_QUEUES, NamespaceProcess, pairing

if TYPE_CHECKING:
    from pairbus.jobs.syphon.outcome import BatchReport

KIND: Final = "pair"
PRIMARY: Final = "contoso"
SECONDARY: Final = "fabrikam"
CHECKPOINT: Final = "checkpoint"
LEDGERS: Final = ("contoso-ledger", "fabrikam-ledger")
BACKLOG: Final = tuple(backlog_path(PRIMARY, index) for index in range(BACKLOG_QUEUES))
_BATCH: Final = 6
_LAST: Final = 1
"""The number of the batch in which the syphon is killed."""

DOWN: Final = "down"
"""A queue that takes nothing when the syphon comes."""

_LONG: Final = timedelta(days=36_500)
_LATER: Final = datetime(2100, 1, 1, tzinfo=UTC)
_SENT: Final[dict[str, list[dict[str, Any]]]] = {
    DOWN: [{}] * 2,
    "orders": [{}] * 12,
    "visits": [{"session_id": f"s-{number % 2}"} for number in range(6)],
    "news": [
        {"label": "news", "correlation_id": f"c-{number}", "application_properties": {"n": number}}
        for number in range(4)
    ],
    "timed": [{"time_to_live": _LONG}, {"scheduled_enqueue_time": _LATER}],
}
"""The diverted messages, by destination."""


def make(directory: Path) -> dict[str, Any]:
    """Divert messages, bring a part of them home, and return what must be found at home in the end."""
    ledgers = [str(directory / name) for name in LEDGERS]
    with (
        NamespaceProcess(directory / PRIMARY, "--ledger", ledgers[0], "--ledger-lives") as primary,
        NamespaceProcess(directory / SECONDARY, "--ledger", ledgers[1], "--ledger-lives") as secondary,
    ):
        asyncio.run(_divert(primary, secondary))
        primary.start()
        asyncio.run(set_status(primary.connection_string, DOWN, EntityStatus.SEND_DISABLED))
        files = [directory.with_name("primary"), directory.with_name("secondary")]
        for file, served in zip(files, (primary, secondary), strict=True):
            file.write_text(served.connection_string, encoding="utf-8")
        lines_until(lambda said: said[-1:] == [_LAST], __name__, *files, directory / CHECKPOINT)
        left, parked = asyncio.run(_left(secondary.connection_string))
        for served in (primary, secondary):
            served.kill()
    total = sum(map(len, _SENT.values()))
    assert 0 < left < total, f"{left} of {total} messages are left in the backlog"
    assert parked, "nothing waits for a destination that is down"
    return {
        "primary": PRIMARY,
        "secondary": SECONDARY,
        "backlog": [*BACKLOG],
        "down": DOWN,
        "home": {
            _found_in(path): [_message_values(path, number) for number in range(len(_SENT[path]))] for path in _SENT
        },
    }


def context(primary: MessagingFactory, secondary: MessagingFactory, backlog: tuple[str, ...]) -> SyphonContext:
    """Return what a syphon needs to know of the pair."""
    return SyphonContext(
        primary=primary,
        secondary=secondary,
        backlog_queues=backlog,
        settings=SyphonSettings(long_poll=timedelta(seconds=2)),
        is_held=lambda _: False,
        publish=lambda _: None,
    )


async def _divert(primary: NamespaceProcess, secondary: NamespaceProcess) -> None:
    async with NamespaceManager.from_connection_string(primary.connection_string) as manager:
        for queue in (DOWN, "orders", "timed"):
            await manager.create_queue(queue)
        await manager.create_queue(QueueDescription("visits", requires_session=True))
        await manager.create_topic(TopicDescription("news"))
        await manager.create_subscription("news", SubscriptionDescription("all"))
    factory = MessagingFactory.from_connection_string(primary.connection_string)
    async with pairing(factory, secondary.connection_string) as pair:
        senders = {path: await factory.create_message_sender(path) for path in _SENT}
        await asyncio.to_thread(primary.stop)
        for path, sender in senders.items():
            for number in range(len(_SENT[path])):
                await sender.send(_message(path, number))
        assert pair.status().diverted == sum(map(len, _SENT.values()))


def _message(path: str, number: int) -> BrokeredMessage:
    return BrokeredMessage(_body(path, number), message_id=f"{path}-{number}", **_SENT[path][number])


def _body(path: str, number: int) -> bytes:
    return f"body {number} of {path}".encode()


def _found_in(path: str) -> str:
    return "news/Subscriptions/all" if path == "news" else path


def _message_values(path: str, number: int) -> dict[str, Any]:
    """Return what must be found of a message."""
    given = dict(_SENT[path][number])
    if "time_to_live" in given:
        given["time_to_live_ms"] = plain(given.pop("time_to_live"))
    if "scheduled_enqueue_time" in given:
        given["scheduled_enqueue_time"] = moment_text(given["scheduled_enqueue_time"])
    return {**given, "message_id": f"{path}-{number}", "body_sha256": sha256(_body(path, number)).hexdigest()}


async def _left(connection: str) -> tuple[int, int]:
    """Return how many messages are in the backlog, and how many of them are parked."""
    async with MessagingFactory.from_connection_string(connection) as factory:
        found = [message for path in BACKLOG for message in await peek_all(factory, path)]
    return len(found), sum(message.state is MessageState.DEFERRED for message in found)


async def _syphon(strings: Strings, primary: Path, secondary: Path, checkpoint: Path) -> None:
    from pairbus.jobs.syphon.settings import SparkSyphonSettings
    from pairbus.jobs.syphon.spark_syphon import SparkSyphon

    def say(report: BatchReport) -> None:
        print(report.batch, flush=True)
        if report.batch == _LAST:
            Event().wait()  # until the kill

    async with strings.factories() as (home, away):
        settings = SparkSyphonSettings(
            master="local[2]",
            checkpoint=checkpoint,
            primary=f"file:{primary}",
            secondary=f"file:{secondary}",
            max_messages=_BATCH,
        )
        syphon = SparkSyphon(context(home, away, BACKLOG), settings, say)
        await syphon.start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    home, away, place = map(Path, sys.argv[1:])
    texts = Strings(primary=home.read_text("utf-8"), secondary=away.read_text("utf-8"))
    asyncio.run(_syphon(texts, home, away, place))
