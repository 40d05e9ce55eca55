"""Between clients"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tests.compatibility.adapters import ADAPTERS
from tests.compatibility.client import Client, Endpoint, Transport
from tests.compatibility.entities import Entities
from tests.compatibility.feature import feature
from tests.compatibility.values import Amqp, Body, Message, data, sequence, text, value

WHOLE = Message(
    body=data("Grüße".encode()),
    message_id="the id",
    correlation_id="the correlation",
    session_id="the session",
    reply_to_session_id="the other session",
    partition_key="the session",
    content_type="text/plain",
    subject="the subject",
    to="the destination",
    reply_to="the sender",
    time_to_live=timedelta(minutes=5),
    application_properties={"text": "Grüße", "yes": True, "int": 7, "negative": -(2**31), "double": 1.25},
)


@feature("Messages of every other client are read identically")
async def test_every_sender(client: Client, endpoint: Endpoint, queue: str) -> None:
    receiver = await client.receiver(queue)
    bodies: list[Body] = [sequence(["a", 1, True]), value("text"), value({"key": ["value", 1.5]})]
    for adapter in ADAPTERS:
        adapter.check_presence()
        async with adapter.client(endpoint, Transport.TCP) as other:
            sender = await other.sender(queue)
            await sender.send(WHOLE)
            for body in bodies:
                await sender.send(Message(body=body, amqp=Amqp(priority=7, annotations={"x-mine": 1})))
        first, *others = await receiver.receive(1 + len(bodies))
        expected = WHOLE.replace(amqp=first.message.amqp)
        assert first.message == expected
        assert [one.message.body for one in others] == bodies
        for one in others:
            assert one.message.amqp is not None
            assert (one.message.amqp.priority, one.message.amqp.annotations) == (7, {"x-mine": 1})
        for one in (first, *others):
            await receiver.complete(one)


@feature("A session's state that another client has set is read identically")
async def test_session_state(client: Client, endpoint: Endpoint, entities: Entities) -> None:
    queue = entities.queue(requires_session=True)
    for adapter in ADAPTERS:
        async with adapter.client(endpoint, Transport.TCP) as other:
            holder = await other.session(queue, "a")
            await holder.set_state(adapter.id.encode())
            await holder.close()
        receiver = await client.session(queue, "a")
        assert await receiver.state() == adapter.id.encode()
        await receiver.close()


@feature("Messages that another client has scheduled or deferred are found")
async def test_scheduled_and_deferred(client: Client, endpoint: Endpoint, queue: str) -> None:
    receiver = await client.receiver(queue)
    for adapter in ADAPTERS:
        async with adapter.client(endpoint, Transport.TCP) as other:
            sender = await other.sender(queue)
            await sender.send(text("deferred"))
            its_receiver = await other.receiver(queue)
            deferred = await its_receiver.one()
            await its_receiver.defer(deferred)
            (scheduled,) = await sender.schedule([text("scheduled")], datetime(2099, 1, 1, tzinfo=UTC))
        (found,) = await receiver.receive_deferred([deferred.sequence_number])
        assert found.text == "deferred"
        await receiver.complete(found)
        await (await client.sender(queue)).cancel([scheduled])
    assert await receiver.peek(1, from_sequence_number=1) == []
