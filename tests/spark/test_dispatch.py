"""Concurrent sends: in order for each entity, to several entities at once, bounded, complete or an error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from pairbus.client.errors import EntityNotFoundError, MessagingTimeoutError
from pairbus.client.message import BrokeredMessage, encode_brokered
from pairbus.client.received_message import ReceivedMessage
from pairbus.spark.sink import Dispatch, IdleLinks, MessageWriteError
from pairbus.wire import ACCEPTED, RELEASED, Delivery, Error, Rejected
from tests.client.amqp_peer import Peer, run, scripted, settled, until

MISSING: Final = Error("amqp:not-found", "there is no such entity")


@asynccontextmanager
async def dispatching(**settings: Any) -> AsyncIterator[tuple[Peer, Dispatch]]:
    async with scripted(**settings) as (peer, factory):
        dispatch = Dispatch(IdleLinks(factory, 20))
        try:
            yield peer, dispatch
        finally:
            await dispatch.close()


def payload(number: int, size_bytes: int = 0) -> bytes:
    return encode_brokered(BrokeredMessage(b"%d" % number + b" " * size_bytes, message_id=f"{number}"))


def numbers(peer: Peer) -> list[int]:
    return [int(ReceivedMessage(body).body) for body in peer.bodies]


@pytest.mark.parametrize("at_once", [1, 3, 12])
def test_d1_messages_of_an_entity_stay_in_order_on_retry(at_once: int) -> None:
    async def scenario() -> None:
        async with dispatching() as (peer, dispatch):
            peer.max_message_size = 2_000
            refused = [RELEASED] * 3
            taken: list[bytes] = []

            def outcome(delivery: Delivery) -> object:
                if len(peer.received) % 3 == 1 and refused:
                    return refused.pop()
                taken.append(delivery.payload)
                return ACCEPTED

            peer.outcome = outcome
            for first in range(0, 12, at_once):  # no two messages of this size fit into a batch
                await dispatch.put("orders", [payload(number, 1_200) for number in range(first, first + at_once)])
            assert await dispatch.finish() == {"orders": 12}
            assert not refused
            assert [int(ReceivedMessage(one).body) for one in taken] == [*range(12)]

    run(scenario())


def test_d1_unresponsive_entity_does_not_block_others() -> None:
    async def scenario() -> None:
        async with dispatching() as (peer, dispatch):
            silent = True
            peer.outcome = lambda delivery: None if silent and "slow" in delivery.link.name else ACCEPTED
            await dispatch.put("slow", [payload(1)])
            await dispatch.put("fast", [payload(2)])
            await dispatch.put("fast", [payload(3)])
            await until(lambda: 3 in numbers(peer))
            silent = False
            assert await dispatch.finish() == {"slow": 1, "fast": 2}

    run(scenario())


def test_entity_paths_are_case_insensitive_and_stay_in_order() -> None:
    async def scenario() -> None:
        async with dispatching() as (peer, dispatch):
            for number in range(6):
                await dispatch.put("orders" if number % 2 else "Orders", [payload(number)])
            assert await dispatch.finish() == {"orders": 3, "Orders": 3}
            assert numbers(peer) == [*range(6)]

    run(scenario())


def test_e3_bytes_in_flight_are_limited() -> None:
    async def scenario() -> None:
        async with dispatching() as (peer, dispatch):
            peer.max_message_size = 1 << 20
            is_open = asyncio.Event()
            peer.outcome = lambda _delivery: ACCEPTED if is_open.is_set() else None
            put = 0

            async def put_all() -> None:
                nonlocal put
                for number in range(40):
                    await dispatch.put(f"queue-{number}", [payload(number, 250_000)])
                    put += 1

            putting = asyncio.get_running_loop().create_task(put_all())
            await settled()
            assert put == (4 << 20) // 250_000
            is_open.set()  # unanswered messages are retried in time
            await putting
            assert sum((await dispatch.finish()).values()) == 40

    run(scenario())


def test_single_message_may_exceed_the_limit() -> None:
    async def scenario() -> None:
        async with dispatching() as (peer, dispatch):
            peer.max_message_size = 100 << 20
            await dispatch.put("orders", [payload(1, 5 << 20)])
            await dispatch.put("orders", [payload(2)])
            assert await dispatch.finish() == {"orders": 2}

    run(scenario())


def test_e4_error_states_sent_and_unsent_messages() -> None:
    async def scenario() -> None:
        async with dispatching() as (peer, dispatch):
            await dispatch.put("orders", [payload(1), payload(2)])
            await dispatch.finish()
            peer.outcome = lambda _delivery: Rejected(MISSING)
            await dispatch.put("gone", [payload(3)])
            with pytest.raises(MessageWriteError) as caught:
                await dispatch.finish()
            error = caught.value
            assert error.sent["orders"] == 2
            assert isinstance(error.causes["gone"], EntityNotFoundError)
            text = str(error)
            assert "'gone': there is no such entity" in text
            assert "2 were sent (2 to 'orders')" in text
            assert "restart the query" in text
            assert error.__cause__ is error.causes["gone"]

    run(scenario())


def test_no_send_is_started_after_a_failure() -> None:
    async def scenario() -> None:
        async with dispatching() as (peer, dispatch):
            peer.outcome = lambda _delivery: Rejected(MISSING)
            for number in range(5):
                await dispatch.put("gone", [payload(number)])
            with pytest.raises(MessageWriteError):
                await dispatch.finish()
            assert numbers(peer) == [0]
            with pytest.raises(MessageWriteError):
                await dispatch.put("orders", [payload(9)])
            assert numbers(peer) == [0]

    run(scenario())


def test_unresponsive_entity_fails_after_its_timeout() -> None:
    async def scenario() -> None:
        async with dispatching() as (peer, dispatch):
            peer.outcome = lambda _delivery: None
            await dispatch.put("orders", [payload(1)])
            with pytest.raises(MessageWriteError) as caught:
                await dispatch.finish()
            assert isinstance(caught.value.causes["orders"], MessagingTimeoutError)
            assert "0 were sent" in str(caught.value)

    run(scenario())


def test_many_failures_give_a_short_error() -> None:
    async def scenario() -> None:
        async with dispatching() as (peer, dispatch):
            peer.outcome = lambda _delivery: Rejected(MISSING)
            for number in range(30):
                await dispatch.put(f"queue-{number}", [payload(number)])
            with pytest.raises(MessageWriteError, match="and 25 more entities") as caught:
                await dispatch.finish()
            assert len(str(caught.value)) < 1_500

    run(scenario())


def test_close_does_not_wait_for_sends() -> None:
    async def scenario() -> None:
        async with dispatching() as (peer, dispatch):
            await dispatch.put("orders", [payload(9)])
            await dispatch.finish()
            before = asyncio.all_tasks()
            peer.outcome = lambda _delivery: None
            for number in range(3):  # one is in flight, and the others wait for it
                await dispatch.put("orders", [payload(number)])
            await settled()
            began_s = asyncio.get_running_loop().time()
            await dispatch.close()
            assert asyncio.get_running_loop().time() - began_s < 10
            assert asyncio.all_tasks() <= before

    run(scenario())
