"""Interruptions"""

from __future__ import annotations

import asyncio

from pairbus.testing import RunningNamespace
from tests.compatibility.client import Client, Transport, drain
from tests.compatibility.feature import Tier, feature
from tests.compatibility.values import text


@feature("A restarted server: senders and receivers continue, nothing confirmed is lost", tier=Tier.OWN)
async def test_restart(patient_client: Client, namespace: RunningNamespace, queue: str) -> None:
    sender = await patient_client.sender(queue)
    receiver = await patient_client.receiver(queue)
    await sender.send_all([text("1"), text("2")])
    await receiver.complete(await receiver.one())
    await asyncio.to_thread(namespace.restart)
    await sender.send(text("3"))
    assert [one.text for one in await receiver.receive(2)] == ["2", "3"]


@feature(
    "A lost connection: senders and receivers continue, nothing confirmed is lost",
    tier=Tier.OWN,
    transports=(Transport.TCP, Transport.TLS),
)
async def test_cut_connection(patient_client: Client, namespace: RunningNamespace, queue: str) -> None:
    sender = await patient_client.sender(queue)
    receiver = await patient_client.receiver(queue)
    await sender.send_all([text("1"), text("2")])
    await receiver.complete(await receiver.one())
    await asyncio.to_thread(namespace.kill_connections)
    await sender.send(text("3"))
    assert [one.text for one in await receiver.receive(2)] == ["2", "3"]


@feature("A message that was locked when the connection was lost can still be settled", tier=Tier.OWN)
async def test_settling_after_a_cut(patient_client: Client, namespace: RunningNamespace, queue: str) -> None:
    sender = await patient_client.sender(queue)
    receiver = await patient_client.receiver(queue)
    await sender.send_all([text("1"), text("2")])
    first = await receiver.one()
    await asyncio.to_thread(namespace.kill_connections)
    await receiver.complete(first)
    assert (await receiver.one()).text == "2"


@feature("The connection is lost repeatedly while messages are sent: all confirmed ones arrive", tier=Tier.OWN)
async def test_many_cuts(patient_client: Client, namespace: RunningNamespace, queue: str) -> None:
    sender = await patient_client.sender(queue)
    for number in range(12):
        if number % 4 == 2:
            await asyncio.to_thread(namespace.kill_connections)
        await sender.send(text(f"{number}"))
    receiver = await patient_client.receiver(queue)
    received = [one.text async for one in drain(receiver)]
    assert sorted(set(received), key=int) == [f"{number}" for number in range(12)]
