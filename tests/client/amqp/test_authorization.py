"""Tokens: put before the links attach, and renewed before they expire."""

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
    ClosedError,
    InvalidRequestError,
    MessagingCommunicationError,
    MessagingError,
    MessagingTimeoutError,
    ServerBusyError,
    UnauthorizedError,
)
from pairbus.client.factory import MessagingFactory
from pairbus.client.message import BrokeredMessage
from pairbus.client.settings import NO_RETRY
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


class BrokenNumber(float):
    """An expiry time that cannot be compared."""

    def __gt__(self, _other: object) -> bool:
        raise RuntimeError("this provider is broken")


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


def test_a8_token_is_put_before_attach() -> None:
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


def test_no_token_is_put_without_token_provider() -> None:
    async def scenario() -> None:
        async with scripted(None) as (peer, factory):
            await sent(factory)
            assert peer.requests == []

    run(scenario())


def test_each_entity_is_authorized_once() -> None:
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
def test_a8_token_is_renewed_before_it_expires(lifetime_s: int) -> None:
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


def test_token_with_very_long_lifetime_is_renewed() -> None:
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
def test_e3_expired_or_endless_token_is_put(expires_s: float) -> None:
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
    """Returns invalid tokens while ``parts`` is set."""

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
def test_e3_invalid_token_is_raised_and_next_one_requested(parts: dict[str, Any]) -> None:
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
def test_e3_invalid_token_does_not_end_renewal(parts: dict[str, Any]) -> None:
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


def test_failed_renewal_is_retried_within_half_a_minute_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
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

    with caplog.at_level("WARNING", "pairbus.client.amqp"):
        run(scenario())
    assert len([one for one in caplog.records if "token renewal failed" in one.getMessage()]) == 1


def test_link_is_reopened_with_new_token_after_expiry() -> None:
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
        (b"garbage", MessagingError, "malformed response"),
    ],
    ids=["401", "503", "404", "garbage"],
)
def test_a8_refused_token_error_names_entity(answer: Response | bytes, kind: type[MessagingError], text: str) -> None:
    async def scenario() -> None:
        async with scripted(Purse(), retry_policy=NO_RETRY) as (peer, factory):
            Clerk(peer, lambda _request: answer)
            with pytest.raises(kind, match=text) as caught:
                await sent(factory)
            assert caught.value.entity == "orders"
            Clerk(peer)
            await sent(factory)  # the next one is requested again

    run(scenario())


@pytest.mark.parametrize(
    ("status", "condition"), [(401, "amqp:unauthorized-access"), (404, "amqp:not-found"), (400, None)]
)
def test_e4_refused_token_error_has_condition(status: int, condition: str | None) -> None:
    async def scenario() -> None:
        async with scripted(Purse(), retry_policy=NO_RETRY) as (peer, factory):
            Clerk(peer, lambda _request: Response(status=status))
            with pytest.raises(MessagingError) as caught:
                await sent(factory)
            assert caught.value.condition == condition

    run(scenario())


@pytest.mark.parametrize("failure", [RuntimeError("the vault is closed"), ValueError("odd"), UnauthorizedError("odd")])
def test_error_of_token_provider_is_raised_with_reason(failure: Exception) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with scripted(Purse(failure=failure)) as (_, factory):
            started_s = loop.time()
            with pytest.raises(UnauthorizedError, match=str(failure)) as caught:
                await sent(factory)
            assert caught.value.entity == "orders"
            assert loop.time() - started_s < 1

    run(scenario())


def test_hanging_token_provider_times_out() -> None:
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


def test_unanswered_put_is_retried() -> None:
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


def test_tokens_are_not_renewed_on_lost_connection() -> None:
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


def test_waiting_for_token_raises_when_factory_is_closed() -> None:
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


def test_request_during_refusal_gets_new_token() -> None:
    async def scenario() -> None:
        purse = Purse(failure=RuntimeError("the vault is closed"))
        async with connected() as (_, connection):
            authorization = Authorization(connection, purse)
            first = asyncio.create_task(authorization.authorize("orders"))
            await asyncio.sleep(0)  # now it has begun
            await asyncio.sleep(0)  # now it has failed, and no caller knows
            purse.failure = None
            await authorization.authorize("orders")
            with pytest.raises(UnauthorizedError):
                await first
            await authorization.close()
            assert len(asyncio.all_tasks()) == 1

    run(scenario())


class Scripted(TokenProvider):
    """Gives tokens with these expiry times, one after the other."""

    def __init__(self, *expiries_s: float) -> None:
        self._expiries_s = iter(expiries_s)

    async def get_token(self, audience: str) -> Token:  # noqa: ARG002 (the tokens are the same for all)
        return Token(text="token", type=JWT, expires_s=next(self._expiries_s))


def test_unexpected_error_is_raised_and_logged_and_next_call_puts_another_token(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with scripted(Scripted(BrokenNumber(), time.time() + HOUR_S)) as (_, factory):
            started_s = loop.time()
            with pytest.raises(MessagingError, match="this provider is broken") as caught:
                await sent(factory)
            assert caught.value.entity == "orders"
            assert loop.time() - started_s < 1
            await sent(factory)
            assert loop.time() - started_s < 1

    run(scenario())
    [line] = [record for record in caplog.records if "token task failed" in record.message]
    assert line.levelname == "ERROR"
    assert "entity=orders" in line.message


def test_unexpected_error_of_renewal_is_logged_and_next_link_puts_another_token(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with connected() as (peer, connection):
            clerk = Clerk(peer)
            provider = Scripted(time.time() + 100, BrokenNumber(), time.time() + HOUR_S)
            authorization = Authorization(connection, provider)
            await authorization.authorize("orders")
            while loop.time() - clerk.times_s[0] < 80:
                await asyncio.sleep(20)
                peer.last.beat()
            assert "token task failed" in caplog.text
            await authorization.authorize("orders")
            assert len(clerk.requests) == 2
            await authorization.close()

    run(scenario())


def test_waiting_for_token_raises_when_authorization_is_closed_before_it_is_requested() -> None:
    async def scenario() -> None:
        async with connected() as (_, connection):
            authorization = Authorization(connection, Purse())
            waiting = asyncio.create_task(authorization.authorize("orders"))
            closing = asyncio.create_task(authorization.close())  # runs before the task that requests the token
            async with asyncio.timeout(1):
                with pytest.raises(ClosedError):
                    await waiting
            await closing

    run(scenario())
