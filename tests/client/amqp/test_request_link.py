"""Questions and their answers, from peers that give late, wrong or no answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pairbus.client.amqp.link import RequestLink
from pairbus.client.errors import (
    ClosedError,
    EntityNotFoundError,
    InternalServerError,
    InvalidRequestError,
    MessageSizeExceededError,
    MessagingCommunicationError,
    MessagingError,
)
from pairbus.dialect.management import Request, Response
from pairbus.wire import AMQP_VALUE, Delivery, Error, Int, Message, Properties, Rejected, encode_message
from tests.client.amqp_peer import Peer, PeerConnection, connected, run, settled

NODE = "orders/$management"


@asynccontextmanager
async def attached(peer: Peer | None = None) -> AsyncIterator[tuple[Peer, RequestLink]]:
    async with connected(peer) as (chosen, connection):
        link = RequestLink(connection, NODE, "orders")
        await link.attached(15)
        yield chosen, link
        await link.close()


def asked(link: RequestLink, count: int) -> list[asyncio.Task[Response]]:
    return [asyncio.create_task(link.ask("op", {"number": number})) for number in range(count)]


def echo(request: Request) -> Response:
    return Response(body={"number": request.body["number"]})


def test_response_is_matched_to_request() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            peer.answers["op"] = lambda request: Response(
                status=202, description="fine", body={"heard": request.body, "said": request.properties["word"]}
            )
            response = await link.ask("op", {"a": 1}, {"word": "w"})
            assert (response.status, response.description) == (202, "fine")
            assert response.body == {"heard": {"a": 1}, "said": "w"}

    run(scenario())


def test_responses_arrive_in_any_order() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            peer.answers["op"] = lambda _request: None
            tasks = asked(link, 20)
            await settled()
            for request in reversed(peer.requests):
                peer.last.reply(request, echo(request))
            responses = await asyncio.gather(*tasks)
            assert [response.body["number"] for response in responses] == [*range(20)]

    run(scenario())


def test_more_requests_than_credit_are_all_answered() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.credit = 7
        async with attached(peer) as (_, link):
            peer.answers["op"] = echo
            responses = await asyncio.gather(*asked(link, 500))
            assert [response.body["number"] for response in responses] == [*range(500)]
            assert peer.last.violation is None

    run(scenario())


def test_response_of_any_status_is_returned() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            peer.answers["op"] = lambda _request: Response(status=404, description="gone", condition="amqp:not-found")
            response = await link.ask("op")
            assert (response.status, response.condition) == (404, "amqp:not-found")

    run(scenario())


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"garbage",
        encode_message(Message(body=(b"no status",))),
        encode_message(Message(application_properties={"statusCode": "200"}, body=({},), body_kind=AMQP_VALUE)),
    ],
    ids=["nothing", "bytes", "no status", "a status that is none"],
)
def test_e3_malformed_response_ends_link_and_fails_all_requests(garbage: bytes) -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            peer.answers["op"] = lambda request: garbage if request.body["number"] == 2 else None
            results = await asyncio.gather(*asked(link, 3), return_exceptions=True)
            assert [type(result) for result in results] == [InternalServerError] * 3
            assert link.connection.error is None
            with pytest.raises(InternalServerError):
                await link.ask("op", {"number": 1})

    run(scenario())


@pytest.mark.parametrize("correlation_id", [None, "unknown", 5, b"bytes"])
def test_response_without_request_is_ignored(correlation_id: object) -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            stray = encode_message(
                Message(
                    properties=Properties(correlation_id=None if correlation_id is None else _id(correlation_id)),
                    application_properties={"statusCode": Int(500)},
                )
            )
            peer.answers["stray"] = lambda _request: stray
            task = asyncio.create_task(link.ask("stray"))
            await settled()
            assert not task.done()
            peer.answers["op"] = echo
            assert (await link.ask("op", {"number": 1})).status == 200
            task.cancel()

    run(scenario())


def _id(value: object) -> object:
    from pairbus.wire import ULong

    return ULong(value) if isinstance(value, int) else value


def test_repeated_or_late_response_is_ignored() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            peer.answers["op"] = lambda _request: None
            [task] = asked(link, 1)
            await settled()
            task.cancel()
            await settled()
            [request] = peer.requests
            for _ in range(3):
                peer.last.reply(request, echo(request))
            await settled()
            peer.answers["op"] = echo
            assert (await link.ask("op", {"number": 1})).body == {"number": 1}

    run(scenario())


def test_cancelled_request_is_not_sent() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.credit = 0
        async with attached(peer) as (_, link):
            tasks = asked(link, 3)
            await settled()
            tasks[0].cancel()
            await settled()
            peer.answers["op"] = echo
            peer.credit = 10
            requests = next(candidate for candidate in peer.all_links() if candidate.role)
            requests.flow(10)
            peer.flush()
            responses = await asyncio.gather(*tasks[1:])
            assert [response.body["number"] for response in responses] == [1, 2]
            assert len(peer.requests) == 2

    run(scenario())


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (Rejected(Error("amqp:not-found", "gone")), EntityNotFoundError),
        (Rejected(), InternalServerError),
    ],
)
def test_rejected_request_raises_reason(outcome: object, kind: type[MessagingError]) -> None:
    class Refusing(PeerConnection):
        def _answer_request(self, delivery: Delivery) -> None:
            delivery.link.settle(delivery, outcome)

    async def scenario() -> None:
        async with attached() as (peer, link):
            peer.last.__class__ = Refusing
            with pytest.raises(kind) as caught:
                await link.ask("op")
            assert caught.value.entity == "orders"

    run(scenario())


def test_e3_unencodable_request_is_rejected() -> None:
    async def scenario() -> None:
        async with attached() as (_, link):
            for body in ({"a": object()}, {"a": 2**70}):
                with pytest.raises(InvalidRequestError):
                    await link.ask("op", body)
            assert link.error is None

    run(scenario())


def test_oversized_request_is_rejected_and_link_stays_open() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.max_message_size = 1_000
        async with attached(peer) as (_, link):
            with pytest.raises(MessageSizeExceededError, match="the limit is 1,000") as caught:
                await link.ask("op", {"a": bytes(1_000)})
            assert caught.value.entity == "orders"
            peer.answers["op"] = echo
            await link.ask("op", {"number": 1})

    run(scenario())


@pytest.mark.parametrize("which", [0, 1])
def test_detach_of_either_link_fails_all_requests(which: int) -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            peer.answers["op"] = lambda _request: None
            tasks = asked(link, 3)
            await settled()
            peer.detach(peer.all_links()[which], Error("amqp:link:detach-forced", "moved"))
            for task in tasks:
                with pytest.raises(MessagingCommunicationError, match="moved"):
                    await task
            await settled()
            assert peer.all_links() == []

    run(scenario())


@pytest.mark.parametrize("which", [0, 1])
def test_refusal_of_either_link_is_raised(which: int) -> None:
    async def scenario() -> None:
        async with connected() as (peer, connection):
            peer.refusals.extend([None] * which + [Error("amqp:not-found", "no such entity")])
            link = RequestLink(connection, NODE, "orders")
            with pytest.raises(EntityNotFoundError, match="no such entity"):
                await link.attached(15)

    run(scenario())


def test_pending_request_raises_when_link_is_closed() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            peer.answers["op"] = lambda _request: None
            [task] = asked(link, 1)
            await settled()
            await link.close()
            with pytest.raises(ClosedError):
                await task
            with pytest.raises(ClosedError):
                await link.ask("op")

    run(scenario())
