"""Bodies of messages"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from tests.compatibility.client import Ability, Client
from tests.compatibility.feature import EVERY_TRANSPORT, feature
from tests.compatibility.values import Body, Kind, Message, data, sequence, value
from tests.compatibility.waiting import now

NOT_UTF8 = b"\xff\xfe\x00\x80"


def comparable(content: Any) -> Any:
    """Let points in time be milliseconds: in a body, not every SDK tells them from numbers."""
    match content:
        case datetime():
            return round(content.timestamp() * 1000)
        case list():
            return [comparable(item) for item in content]
        case dict():
            return {key: comparable(item) for key, item in content.items()}
        case _:
            return content


async def check_bodies(client: Client, queue: str, *bodies: Body) -> None:
    sender = await client.sender(queue)
    for number, body in enumerate(bodies):
        await sender.send(Message(body=body, message_id=f"{number}"))
    receiver = await client.receiver(queue)
    received = await receiver.receive(len(bodies))
    assert [one.message.message_id for one in received] == [f"{number}" for number in range(len(bodies))]
    for one, body in zip(received, bodies, strict=True):
        assert (one.message.body.kind, comparable(one.message.body.content)) == (body.kind, comparable(body.content))
        await receiver.complete(one)


@feature("Bytes", transports=EVERY_TRANSPORT)
async def test_bytes(client: Client, queue: str) -> None:
    await check_bodies(client, queue, data(b""), data(b"order 66"), data("Grüße".encode()), data(bytes(range(256))))


@feature("Several sections of bytes", needs=[Ability.DATA_SECTIONS])
async def test_sections_of_bytes(client: Client, queue: str) -> None:
    await check_bodies(client, queue, data(b"one", b"two", NOT_UTF8))


@feature("A list (AMQP sequence)")
async def test_sequence(client: Client, queue: str) -> None:
    await check_bodies(client, queue, sequence(["a", 1, True, None, 1.5, ["nested", {"key": "value"}]]))


@feature("Several lists (AMQP sequences)", needs=[Ability.SEQUENCE_SECTIONS])
async def test_sequences(client: Client, queue: str) -> None:
    await check_bodies(client, queue, sequence(["a", 1], ["b", 2], ["c"]))


@feature("A single value (AMQP value)")
async def test_value(client: Client, queue: str) -> None:
    values = [
        True,
        -7,
        2**31 - 1,
        1.25,
        "text",
        "Grüße",
        now().replace(microsecond=0),
        ["a", 1, [True]],
        {"key": "value", "number": 3, "nested": {"list": [1, 2]}},
    ]
    await check_bodies(client, queue, *(value(content) for content in values))


@feature("False, zero and an empty text as value", needs=[Ability.FALSY_BODIES])
async def test_falsy_values(client: Client, queue: str) -> None:
    await check_bodies(client, queue, value(False), value(0), value(""))


@feature("Bytes as value", needs=[Ability.BINARY_BODIES])
async def test_bytes_as_value(client: Client, queue: str) -> None:
    await check_bodies(client, queue, value(NOT_UTF8))


@feature("A UUID as value", needs=[Ability.UUID_PROPERTIES])
async def test_uuid(client: Client, queue: str) -> None:
    await check_bodies(client, queue, value(UUID(int=66)))


@feature("Null as value", needs=[Ability.NULL_BODIES])
async def test_null(client: Client, queue: str) -> None:
    await check_bodies(client, queue, Body(Kind.VALUE, None))


@feature("JSON, by the SDK's own conversion", needs=[Ability.JSON_BODIES])
async def test_json(client: Client, queue: str) -> None:
    sender = await client.sender(queue)
    contents = [{"id": 66, "items": ["a", None, 1.5]}, "text", 7, True, ["list"]]
    for content in contents:
        await sender.send_json(content)
    assert [await client.receive_json(queue) for _ in contents] == contents
