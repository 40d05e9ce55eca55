"""A process that sends, receives and settles as fast as it can, says what was confirmed, and expects to be killed."""

from __future__ import annotations

import asyncio
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

from pairbus.broker import SettlementKind, SettlementRequest
from pairbus.broker.message import Address, NewMessage
from pairbus.store.errors import StoreError
from pairbus.store.group_committer import GroupCommitter
from tests.durability.namespace import DEAD_LETTERS, NOW, QUEUE, make_namespace

SIZES = (40, 300, 1_500, 3_000, 9_000)
KEEPING = {
    QUEUE: (SettlementKind.ABANDON, SettlementKind.DEFER, SettlementKind.DEAD_LETTER),
    DEAD_LETTERS: (SettlementKind.ABANDON, SettlementKind.DEFER),
}


def main(path: Path, reports: Connection, seed: int) -> None:
    asyncio.run(_work(path, reports, Random(seed)))  # noqa: S311 (the same load for the same seed)


async def _work(path: Path, reports: Connection, random: Random) -> None:
    keeper = GroupCommitter.open(path, make_namespace, NOW, asyncio.get_running_loop().call_soon_threadsafe)
    while True:  # until the kill
        for _ in range(random.randrange(1, 12)):
            _send(keeper, reports, random)
        for _ in range(random.randrange(12)):
            _receive(keeper, reports, random.choice((QUEUE, QUEUE, DEAD_LETTERS)), random)
        keeper.commit(NOW)
        await asyncio.sleep(0)


def _send(keeper: GroupCommitter, reports: Connection, random: Random) -> None:
    message_id = random.randbytes(16).hex()
    body = message_id.encode().ljust(random.choice(SIZES), b".")
    keeper.use_namespace().send(QUEUE, [NewMessage(body, message_id)], NOW)
    keeper.when_durable(partial(_report, reports, "sent", message_id))


def _receive(keeper: GroupCommitter, reports: Connection, address: Address, random: Random) -> None:
    if random.random() < 0.2:
        for delivery in keeper.use_namespace().receive(address, 1, NOW, delete=True):
            _removed(keeper, reports, delivery.record.message_id)
        return
    for delivery in keeper.use_namespace().receive(address, 1, NOW):
        assert delivery.lock_token is not None
        if random.random() < 0.5:
            keeper.use_namespace().settle(address, delivery.lock_token, NOW)
            _removed(keeper, reports, delivery.record.message_id)
        else:
            verdict = SettlementRequest(disposition=random.choice(KEEPING[address]))
            keeper.use_namespace().settle(address, delivery.lock_token, NOW, verdict)


def _removed(keeper: GroupCommitter, reports: Connection, message_id: str) -> None:
    """Nothing is committed before the next ``commit``, so this word comes before the deed can be durable."""
    reports.send(("removing", message_id))
    keeper.when_durable(partial(_report, reports, "removed", message_id))


def _report(reports: Connection, word: str, message_id: str, error: StoreError | None) -> None:
    if error is None:
        reports.send((word, message_id))
