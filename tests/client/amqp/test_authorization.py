"""Tokens: put before the links, and anew before they end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, cast

import pytest

from pairbus.client.amqp.authorization import Authorization
from pairbus.client.errors import (
    InvalidRequestError,
    MessagingCommunicationError,
    MessagingError,
    MessagingTimeoutError,
    ServerBusyError,
    UnauthorizedError,
)
from pairbus.client.factory import MessagingFactory
from pairbus.client.message import BrokeredMessage
from pairbus.client.retry import NO_RETRY
from pairbus.client.token_provider import JWT, SAS_TOKEN, Token, TokenProvider
from pairbus.dialect.management import Request, Response
from pairbus.dialect.sas import parse_sas_token
from pairbus.wire import Error, LinkAttached
from tests.client.amqp_peer import Peer, connected, run, scripted, settled, until

PUT: Final = "put-token"
HOUR_S: Final = 3_600
MESSAGE: Final = BrokeredMessage(b"body")


class Purse(TokenProvider):
    """Gives tokens that are good for so long, or fails."""

    def __init__(self, lifetime_s: float = HOUR_S, failure: Exception | None = None) -> None:
        self.lifetime_s = lifetime_s
        self.failure = failure
        self.audiences: list[str] = []

    async def get_token(self, audience: str) -> Token:
        self.audiences.append(audience)
        if self.failure is not None:
            raise self.failure
        return Token(text=f"token-{len(self.audiences)}", type=JWT, expires_s=time.time() + self.lifetime_s)


class Clerk:
    """Answers put-token, and notes when it was asked."""

    def __init__(self, peer: Peer, answer: Callable[[Request], Response | bytes | None] = lambda _: Response()) -> None:
        self.times_s: list[float] = []
        self.requests: list[Request] = []
        self.answer = answer
        peer.answers[PUT] = self

    def __call__(self, request: Request) -> Response | bytes | None:
        self.times_s.append(asyncio.get_running_loop().time())
        self.requests.append(request)
        return self.answer(request)


async def sent(factory: MessagingFactory, path: str = "orders") -> None:
    sender = await factory.create_message_sender(path)
    await sender.send(MESSAGE)


def test_a8_a_token_is_put_before_the_link_is_attached() -> None:
    async def scenario() -> None:
        async with scripted(TokenProvider.from_key("root", "secret")) as (peer, factory):
            clerk = Clerk(peer)
            await sent(factory)
            [request] = clerk.requests
            assert request.properties["name"] == f"sb://127.0.0.1:{peer.port}/orders"
            assert request.properties["type"] == SAS_TOKEN
            token = parse_sas_token(request.body)
            assert token.is_signed_with(["secret"])
            assert request.properties["expiration"] == token.expires_s * 1_000
            addresses = [
                getattr(event.attach.target, "address", None)
                for event in peer.seen(LinkAttached)
                if event.attach.role is False
            ]
            assert addresses == ["$cbs", "orders"]

    run(scenario())


def test_without_a_token_provider_no_token_is_put() -> None:
    async def scenario() -> None:
        async with scripted(None) as (peer, factory):
            await sent(factory)
            assert peer.requests == []

    run(scenario())


def test_each_entity_is_opened_once_however_many_use_it() -> None:
    async def scenario() -> None:
        async with scripted(Purse()) as (peer, factory):
            clerk = Clerk(peer)
            await asyncio.gather(*(sent(factory, path) for path in ("a", "b") for _ in range(5)))
            receiver = await factory.create_message_receiver("a")
            await receiver.receive(1, timedelta())
            await receiver.peek()
            names = sorted(request.properties["name"].rpartition("/")[2] for request in clerk.requests)
            assert names == ["a", "b"]
            assert len(peer.connections) == 1

    run(scenario())


@pytest.mark.parametrize("lifetime_s", [50, HOUR_S])
def test_a8_a_token_is_renewed_before_it_ends_for_as_long_as_the_connection_lasts(lifetime_s: int) -> None:
    async def scenario() -> None:
        async with scripted(Purse(lifetime_s)) as (peer, factory):
            clerk = Clerk(peer)
            await sent(factory)
            for _ in range(11 * lifetime_s // 50):
                await asyncio.sleep(50)
                peer.last.beat()
            pauses_s = [later - earlier for earlier, later in zip(clerk.times_s, clerk.times_s[1:], strict=False)]
            assert len(pauses_s) >= 10
            assert all(lifetime_s / 2 <= pause_s < lifetime_s for pause_s in pauses_s)
            assert len({request.body for request in clerk.requests}) == len(clerk.requests)

    run(scenario())


def test_a_token_that_is_good_for_very_long_is_renewed_all_the_same() -> None:
    async def scenario() -> None:
        async with scripted(Purse(1e9)) as (peer, factory):
            clerk = Clerk(peer)
            await sent(factory)
            for _ in range(2 * 86_400 // 50):
                await asyncio.sleep(50)
                peer.last.beat()
            assert len(clerk.times_s) >= 2

    run(scenario())


@pytest.mark.parametrize("expires_s", [0.0, -1e9, 1e300, float("inf"), float("nan")])
def test_e3_a_token_that_has_ended_or_never_does_is_put_all_the_same(expires_s: float) -> None:
    class Odd(TokenProvider):
        async def get_token(self, audience: str) -> Token:  # noqa: ARG002 (it is the same for all)
            return Token(text="token", type=JWT, expires_s=expires_s)

    async def scenario() -> None:
        async with scripted(Odd(), operation_timeout=timedelta(seconds=5), attempt_timeout=timedelta(seconds=2)) as (
            peer,
            factory,
        ):
            clerk = Clerk(peer)
            try:
                await sent(factory)
            except MessagingTimeoutError:
                pytest.fail("it hangs")
            except MessagingError as error:
                assert error.entity == "orders"  # noqa: PT017 (either is fine)
            await asyncio.sleep(10)
            assert len(clerk.requests) < 30

    run(scenario())


class Forger(Purse):
    """Gives what is no token, as long as it is told to."""

    def __init__(self, **parts: Any) -> None:
        super().__init__()
        self.parts: dict[str, Any] | None = parts

    async def get_token(self, audience: str) -> Token:
        token = await super().get_token(audience)
        if self.parts is None:
            return token
        return replace(token, **self.parts) if self.parts else cast("Token", None)


@pytest.mark.parametrize(
    "parts",
    [{}, {"expires_s": None}, {"expires_s": "soon"}, {"text": object()}, {"type": object()}],
    ids=["None", "no end", "odd end", "odd text", "odd type"],
)
def test_e3_what_is_no_token_is_told_at_once_and_the_next_one_is_asked_for(parts: dict[str, Any]) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        forger = Forger(**parts)
        async with scripted(forger) as (peer, factory):
            sender = await factory.create_message_sender("orders")
            with pytest.raises((UnauthorizedError, InvalidRequestError)) as caught:
                await sender.send(MESSAGE)
            assert caught.value.entity == "orders"
            assert loop.time() < 1
            forger.parts = None
            await sender.send(MESSAGE)
            assert len(peer.received) == 1

    run(scenario())


@pytest.mark.parametrize("parts", [{}, {"expires_s": None}, {"text": object()}], ids=["None", "no end", "odd text"])
def test_e3_what_is_no_token_does_not_end_renewing(parts: dict[str, Any]) -> None:
    async def scenario() -> None:
        forger = Forger()
        forger.parts = None
        async with scripted(forger) as (peer, factory):
            clerk = Clerk(peer)
            await sent(factory)
            forger.parts = parts
            for _ in range(60):
                await asyncio.sleep(50)
                peer.last.beat()
            assert len(forger.audiences) > 3
            forger.parts = None
            tried = len(clerk.times_s)
            await asyncio.sleep(31)
            assert len(clerk.times_s) == tried + 1

    run(scenario())


def test_a_renewal_that_fails_is_tried_again_within_half_a_minute() -> None:
    async def scenario() -> None:
        purse = Purse()
        async with scripted(purse) as (peer, factory):
            clerk = Clerk(peer)
            await sent(factory)
            purse.failure = RuntimeError("the vault is closed")
            for _ in range(60):
                await asyncio.sleep(50)
                peer.last.beat()
            assert len(purse.audiences) > 3  # it has tried, after three quarters of the time
            purse.failure = None
            tried = len(clerk.times_s)
            await asyncio.sleep(31)
            assert len(clerk.times_s) == tried + 1

    run(scenario())


def test_when_a_token_has_ended_the_link_is_opened_with_another() -> None:
    async def scenario() -> None:
        async with scripted(Purse()) as (peer, factory):
            clerk = Clerk(peer)
            sender = await factory.create_message_sender("orders")
            await sender.send(MESSAGE)
            peer.detach(peer.sender, Error("amqp:unauthorized-access", "the token has ended"))
            await settled()
            await sender.send(MESSAGE)
            assert len(peer.received) == 2
            assert len(clerk.requests) >= 1

    run(scenario())


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (Response(status=401, description="wrong key"), UnauthorizedError, "wrong key"),
        (Response(status=503, description="slow down"), ServerBusyError, "slow down"),
        (Response(status=404, description="no such entity"), MessagingError, "no such entity"),
        (b"garbage", MessagingError, "makes no sense"),
    ],
    ids=["401", "503", "404", "garbage"],
)
def test_a8_a_token_that_is_refused_is_told_with_the_entity(
    answer: Response | bytes, kind: type[MessagingError], text: str
) -> None:
    async def scenario() -> None:
        async with scripted(Purse(), retry_policy=NO_RETRY) as (peer, factory):
            Clerk(peer, lambda _request: answer)
            with pytest.raises(kind, match=text) as caught:
                await sent(factory)
            assert caught.value.entity == "orders"
            Clerk(peer)
            await sent(factory)  # the next one is asked anew

    run(scenario())


@pytest.mark.parametrize(
    ("status", "condition"), [(401, "amqp:unauthorized-access"), (404, "amqp:not-found"), (400, None)]
)
def test_e4_a_token_that_is_refused_has_a_condition_though_the_node_names_none(
    status: int, condition: str | None
) -> None:
    async def scenario() -> None:
        async with scripted(Purse(), retry_policy=NO_RETRY) as (peer, factory):
            Clerk(peer, lambda _request: Response(status=status))
            with pytest.raises(MessagingError) as caught:
                await sent(factory)
            assert caught.value.condition == condition

    run(scenario())


@pytest.mark.parametrize("failure", [RuntimeError("the vault is closed"), ValueError("odd"), UnauthorizedError("odd")])
def test_a_provider_that_fails_is_told_at_once_with_its_reason(failure: Exception) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with scripted(Purse(failure=failure)) as (_, factory):
            started_s = loop.time()
            with pytest.raises(UnauthorizedError, match=str(failure)) as caught:
                await sent(factory)
            assert caught.value.entity == "orders"
            assert loop.time() - started_s < 1

    run(scenario())


def test_a_provider_that_hangs_is_given_up_after_a_while() -> None:
    class Slow(TokenProvider):
        async def get_token(self, audience: str) -> Token:  # noqa: ARG002 (there is none for any)
            await asyncio.sleep(1e6)
            raise AssertionError

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with scripted(Slow()) as (_, factory):
            with pytest.raises(MessagingTimeoutError):
                await sent(factory)
            assert loop.time() <= 61

    run(scenario())


def test_a_put_that_is_not_answered_is_tried_again() -> None:
    async def scenario() -> None:
        async with scripted(Purse()) as (peer, factory):
            answers = iter([None, Response()])
            clerk = Clerk(peer, lambda _request: next(answers, Response()))
            task = asyncio.create_task(sent(factory))
            await asyncio.sleep(5)
            peer.last.beat()
            await task
            assert len(clerk.requests) == 2

    run(scenario())


def test_nothing_is_renewed_on_a_connection_that_is_lost() -> None:
    async def scenario() -> None:
        purse = Purse()
        async with scripted(purse) as (peer, factory):
            await sent(factory)
            peer.last.hang_up()
            await settled()
            assert len(asyncio.all_tasks()) == 1
            await asyncio.sleep(2 * HOUR_S)
            assert len(purse.audiences) == 1
            await sent(factory)
            assert len(purse.audiences) == 2

    run(scenario())


def test_whoever_waits_for_a_token_when_the_factory_is_closed_is_told() -> None:
    async def scenario() -> None:
        async with scripted(Purse()) as (peer, factory):
            clerk = Clerk(peer, lambda _request: None)
            task = asyncio.create_task(sent(factory))
            await until(lambda: clerk.requests)
            await factory.close()
            with pytest.raises(MessagingError) as caught:
                await task
            assert not isinstance(caught.value, MessagingCommunicationError)

    run(scenario())


def test_whoever_asks_as_a_token_is_refused_is_not_forgotten_with_that_token() -> None:
    async def scenario() -> None:
        purse = Purse(failure=RuntimeError("the vault is closed"))
        async with connected() as (_, connection):
            authorization = Authorization(connection, purse)
            first = asyncio.create_task(authorization.authorize("orders"))
            await asyncio.sleep(0)  # now it has begun
            await asyncio.sleep(0)  # now it has failed, and nobody has heard of it
            purse.failure = None
            await authorization.authorize("orders")
            with pytest.raises(UnauthorizedError):
                await first
            await authorization.close()
            assert len(asyncio.all_tasks()) == 1

    run(scenario())
