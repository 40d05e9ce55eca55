"""Refusals"""

from __future__ import annotations

from datetime import timedelta

import pytest

from pairbus.broker import EntityStatus
from pairbus.testing import RunningNamespace
from tests.compatibility.administration import Administration
from tests.compatibility.client import Client
from tests.compatibility.entities import Entities
from tests.compatibility.feature import Tier, feature
from tests.compatibility.values import Message, Reason, SdkError, Subscription, data, text

SHORTLY = timedelta(milliseconds=500)
NOT_FOUND = {Reason.NOT_FOUND, Reason.UNAUTHORIZED}  # Python cannot tell them apart at the service either


@feature("A missing entity: sending")
async def test_sending_nowhere(client: Client) -> None:
    with pytest.raises(SdkError) as refused:
        await (await client.sender("missing")).send(text("hello"))
    assert refused.value.reason in NOT_FOUND


@feature("A missing entity: receiving")
async def test_receiving_from_nowhere(client: Client, entities: Entities) -> None:
    for missing in ("missing", Subscription(entities.topic(), "missing"), Subscription("missing", "missing")):
        with pytest.raises(SdkError) as refused:
            await (await client.receiver(missing)).receive(wait=SHORTLY)
        assert refused.value.reason in NOT_FOUND


@feature("A missing entity: a session")
async def test_session_of_a_missing_entity(client: Client) -> None:
    with pytest.raises(SdkError) as refused:
        await client.session("missing", "a")
    assert refused.value.reason in NOT_FOUND


@feature("An entity that is deleted while it is used", tier=Tier.STANDARD)
async def test_deleted_meanwhile(client: Client, administration: Administration, queue: str) -> None:
    sender = await client.sender(queue)
    await sender.send(text("hello"))
    await administration.delete_queue(queue)
    with pytest.raises(SdkError) as refused:
        await sender.send(text("hello"))
    assert refused.value.reason in NOT_FOUND | {Reason.CONNECTION, Reason.GENERAL}


@feature("A disabled entity: neither sending nor receiving")
async def test_disabled(client: Client, entities: Entities) -> None:
    queue = entities.queue(status=EntityStatus.DISABLED)
    await refuses_sending(client, queue)
    await refuses_receiving(client, queue)


@feature("A send-disabled entity: receiving works")
async def test_send_disabled(client: Client, administration: Administration, queue: str) -> None:
    sender = await client.sender(queue)
    await sender.send(text("before"))
    await administration.update_queue(queue, status="SendDisabled")
    with pytest.raises(SdkError) as refused:
        await sender.send(text("after"))
    assert refused.value.reason is Reason.DISABLED
    receiver = await client.receiver(queue)
    await receiver.complete(await receiver.one())


@feature("A receive-disabled entity: sending works")
async def test_receive_disabled(client: Client, entities: Entities) -> None:
    queue = entities.queue(status=EntityStatus.RECEIVE_DISABLED)
    await (await client.sender(queue)).send(text("hello"))
    await refuses_receiving(client, queue)


async def refuses_sending(client: Client, queue: str) -> None:
    with pytest.raises(SdkError) as refused:
        await (await client.sender(queue)).send(text("hello"))
    assert refused.value.reason is Reason.DISABLED


async def refuses_receiving(client: Client, queue: str) -> None:
    with pytest.raises(SdkError) as refused:
        await (await client.receiver(queue)).receive(wait=SHORTLY)
    assert refused.value.reason is Reason.DISABLED


@feature("A full queue accepts no messages until some are received")
async def test_quota(client: Client, entities: Entities) -> None:
    queue = entities.queue(max_size_megabytes=1)
    sender = await client.sender(queue)
    large = Message(body=data(bytes(400_000)))
    await sender.send(large)
    await sender.send(large)
    with pytest.raises(SdkError) as refused:
        await sender.send(large)
    assert refused.value.reason is Reason.QUOTA_EXCEEDED
    receiver = await client.receiver(queue)
    await receiver.complete(await receiver.one())
    await sender.send(large)


@feature("A busy server", tier=Tier.OWN)
async def test_server_busy(client: Client, namespace: RunningNamespace, queue: str) -> None:
    sender = await client.sender(queue)
    await sender.send(text("before"))
    namespace.server_busy = True
    with pytest.raises(SdkError) as refused:
        await sender.send(text("denied"))
    assert refused.value.reason is Reason.BUSY
    namespace.server_busy = False
    await sender.send(text("after"))
    receiver = await client.receiver(queue)
    assert [one.text for one in await receiver.receive(2)] == ["before", "after"]


@feature("A busy server recovers while the SDK retries", tier=Tier.OWN)
async def test_server_busy_for_a_while(patient_client: Client, namespace: RunningNamespace, queue: str) -> None:
    sender = await patient_client.sender(queue)
    await sender.send(text("before"))
    denied: list[str] = []

    def deny(operation: str, _address: object) -> str | None:
        denied.append(operation)
        return "busy" if len(denied) <= 2 else None

    def install(host: object) -> None:
        host.deny = deny  # type: ignore[attr-defined]

    namespace.call(install)
    await sender.send(text("at last"))
    assert len(denied) >= 3
    receiver = await patient_client.receiver(queue)
    assert [one.text for one in await receiver.receive(2)] == ["before", "at last"]
