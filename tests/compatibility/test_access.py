"""Access"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from pairbus.broker import AuthorizationRule, Right
from pairbus.dialect.sas import make_sas_token
from pairbus.testing import RunningNamespace
from tests.compatibility.client import Client, Endpoint
from tests.compatibility.entities import Entities
from tests.compatibility.feature import EVERY_TRANSPORT, feature
from tests.compatibility.values import Reason, SdkError, text
from tests.compatibility.waiting import now, past

Connect = Callable[[Endpoint], Client]

SENDER = AuthorizationRule(name="sender", rights=(Right.SEND,), primary_key="one", secondary_key="two")
LISTENER = AuthorizationRule(name="listener", rights=(Right.LISTEN,), primary_key="three", secondary_key="four")

REFUSED = {Reason.UNAUTHORIZED, Reason.CONNECTION}  # Python takes it for the connection's fault at a custom endpoint
SHORTLY = timedelta(milliseconds=500)
LIFETIME_S = 15


@feature("A wrong key is refused", transports=EVERY_TRANSPORT)
async def test_wrong_key(endpoint: Endpoint, queue: str, connect: Connect) -> None:
    async with connect(endpoint.with_key("RootManageSharedAccessKey", "d3Jvbmc=")) as client:
        with pytest.raises(SdkError) as refused:
            await (await client.sender(queue)).send(text("hello"))
        assert refused.value.reason in REFUSED


@feature("An unknown key is refused")
async def test_unknown_key(endpoint: Endpoint, queue: str, connect: Connect) -> None:
    async with connect(endpoint.with_key("nobody", "d3Jvbmc=")) as client:
        with pytest.raises(SdkError) as refused:
            await (await client.receiver(queue)).receive(wait=SHORTLY)
        assert refused.value.reason is Reason.UNAUTHORIZED


@feature("A queue's keys give access to it: one to send, one to receive; either of their two values")
async def test_keys_of_a_queue(endpoint: Endpoint, entities: Entities, connect: Connect) -> None:
    queue = entities.queue(authorization_rules=(SENDER, LISTENER))
    async with connect(endpoint.with_key("sender", "one")) as client:
        await (await client.sender(queue)).send(text("hello"))
    async with connect(endpoint.with_key("sender", "two")) as client:
        await (await client.sender(queue)).send(text("hello"))
    async with connect(endpoint.with_key("listener", "three")) as client:
        receiver = await client.receiver(queue)
        for received in await receiver.receive(2):
            await receiver.complete(received)


@feature("Sending with a Listen key is refused, and receiving with a Send key")
async def test_wrong_claim(endpoint: Endpoint, entities: Entities, connect: Connect) -> None:
    queue = entities.queue(authorization_rules=(SENDER, LISTENER))
    async with connect(endpoint.with_key("listener", "three")) as client:
        with pytest.raises(SdkError) as refused:
            await (await client.sender(queue)).send(text("hello"))
        assert refused.value.reason is Reason.UNAUTHORIZED
    async with connect(endpoint.with_key("sender", "one")) as client:
        with pytest.raises(SdkError) as refused:
            await (await client.receiver(queue)).receive(wait=SHORTLY)
        assert refused.value.reason is Reason.UNAUTHORIZED


@feature("A queue's keys give no access to another queue")
async def test_another_queue(endpoint: Endpoint, entities: Entities, connect: Connect, queue: str) -> None:
    entities.queue(authorization_rules=(SENDER, LISTENER))
    async with connect(endpoint.with_key("sender", "one")) as client:
        with pytest.raises(SdkError) as refused:
            await (await client.sender(queue)).send(text("hello"))
        assert refused.value.reason is Reason.UNAUTHORIZED


@feature("A topic's keys give access to its subscriptions")
async def test_keys_of_a_topic(endpoint: Endpoint, entities: Entities, connect: Connect) -> None:
    subscription = entities.subscription(entities.topic(authorization_rules=(SENDER, LISTENER)))
    async with connect(endpoint.with_key("sender", "one")) as client:
        await (await client.topic_sender(subscription.topic)).send(text("hello"))
    async with connect(endpoint.with_key("listener", "three")) as client:
        receiver = await client.receiver(subscription)
        await receiver.complete(await receiver.one())


def signature(namespace: RunningNamespace, queue: str, lifetime_s: int) -> str:
    return make_sas_token(
        f"sb://localhost:{namespace.port}/{queue}",
        "RootManageSharedAccessKey",
        namespace.key,
        int(time.time()) + lifetime_s,
    )


@feature("A shared access signature created elsewhere gives access to the entity that it names")
async def test_signature(namespace: RunningNamespace, endpoint: Endpoint, queue: str, connect: Connect) -> None:
    async with connect(endpoint.with_signature(signature(namespace, queue, 60))) as client:
        await (await client.sender(queue)).send(text("hello"))
        receiver = await client.receiver(queue)
        await receiver.complete(await receiver.one())


@feature("A shared access signature for one queue gives no access to another")
async def test_signature_of_another_entity(
    namespace: RunningNamespace, endpoint: Endpoint, entities: Entities, queue: str, connect: Connect
) -> None:
    async with connect(endpoint.with_signature(signature(namespace, entities.queue(), 60))) as client:
        with pytest.raises(SdkError) as refused:
            await (await client.sender(queue)).send(text("hello"))
        assert refused.value.reason is Reason.UNAUTHORIZED


@feature("An expired shared access signature is refused")
async def test_expired_signature(namespace: RunningNamespace, endpoint: Endpoint, queue: str, connect: Connect) -> None:
    async with connect(endpoint.with_signature(signature(namespace, queue, -60))) as client:
        with pytest.raises(SdkError) as refused:
            await (await client.sender(queue)).send(text("hello"))
        assert refused.value.reason is Reason.UNAUTHORIZED


@pytest.mark.slow
@feature("A shared access signature that expires while it is used ends the access")
async def test_signature_that_expires_while_connected(
    namespace: RunningNamespace, endpoint: Endpoint, queue: str, connect: Connect
) -> None:
    token = signature(namespace, queue, LIFETIME_S)
    async with connect(endpoint.with_signature(token)) as client:
        sender = await client.sender(queue)
        await sender.send(text("in time"))
        await past(now() + timedelta(seconds=LIFETIME_S + 1))
        with pytest.raises(SdkError) as refused:
            await sender.send(text("too late"))
        assert refused.value.reason in {Reason.UNAUTHORIZED, Reason.CONNECTION}
