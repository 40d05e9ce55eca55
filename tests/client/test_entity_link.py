"""The sending link to one entity: callers are served in order, and none waits longer than its timeout."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import chain
from typing import Any, Final

import pytest

from pairbus.client.entity_link import EntityLink, SendBatch
from pairbus.client.errors import ClosedError, MessagingError, MessagingTimeoutError, UnauthorizedError
from pairbus.client.message import BrokeredMessage, encode_brokered
from pairbus.wire import ACCEPTED, RELEASED, Delivery, Error, Rejected
from tests.client.amqp_peer import Peer, batches, run, scripted, settled

ATTEMPT_S: Final = 5.0
LIMIT: Final = 2_000
HALF: Final = 1_200
"""Of this size no two fit into a batch."""


# The line.


@pytest.mark.parametrize("count", [2, 30])
def test_c8_queued_sends_at_hanging_peer_all_timeout(count: int) -> None:
    async def scenario() -> None:
        async with _entity_link() as (peer, entity_link):
            peer.attaches = False
            trying = [_begin(entity_link.attempt(_batch(number))) for number in range(count)]
            assert await _duration(*trying) == pytest.approx(ATTEMPT_S, abs=0.1)
            for task in trying:
                with pytest.raises(MessagingTimeoutError, match="within 5 s"):
                    task.result()

    run(scenario())


def test_c8_later_caller_has_its_own_timeout() -> None:
    async def scenario() -> None:
        async with _entity_link() as (peer, entity_link):
            peer.attaches = False
            took_s: list[float] = []

            async def attempt(number: int) -> None:
                await asyncio.sleep(number)
                began_s = asyncio.get_running_loop().time()
                with pytest.raises(MessagingTimeoutError):
                    await entity_link.attempt(_batch(number))
                took_s.append(asyncio.get_running_loop().time() - began_s)

            await asyncio.gather(*(attempt(number) for number in range(8)))
            assert took_s == pytest.approx([ATTEMPT_S] * 8, abs=0.1)

    run(scenario())


def test_c8_wait_for_hanging_connection_is_limited() -> None:
    async def scenario() -> None:
        async with _entity_link() as (peer, entity_link):
            peer.opens = False
            trying = [_begin(entity_link.attempt(_batch(number))) for number in range(10)]
            assert await _duration(*trying) == pytest.approx(ATTEMPT_S, abs=0.1)
            assert all(isinstance(task.exception(), MessagingTimeoutError) for task in trying)

    run(scenario())


def test_e3_refusal_is_raised_to_every_queued_caller() -> None:
    async def scenario() -> None:
        async with _entity_link() as (peer, entity_link):
            peer.refusals.extend([Error("amqp:unauthorized-access", "no")] * 5)
            outcomes = await asyncio.gather(
                *(entity_link.attempt(_batch(number)) for number in range(5)), return_exceptions=True
            )
            assert [type(outcome) for outcome in outcomes] == [UnauthorizedError] * 5

    run(scenario())


def test_queued_messages_are_sent_in_order() -> None:
    async def scenario() -> None:
        async with _entity_link() as (peer, entity_link):
            first = [_begin(entity_link.attempt(_batch(number))) for number in range(10)]
            await asyncio.sleep(0)
            assert entity_link.ready is None
            later = [_begin(entity_link.attempt(_batch(number))) for number in range(10, 20)]
            await asyncio.gather(*first, *later)
            await entity_link.attempt(_batch(20))
            assert _numbers(peer) == [*range(21)]

    run(scenario())


def test_later_send_does_not_overtake_queued_sends() -> None:
    async def scenario() -> None:
        async with _entity_link() as (peer, entity_link):
            trying = [_begin(entity_link.attempt(_batch(number))) for number in range(5)]
            await asyncio.sleep(0)
            opening = entity_link._current._opening
            assert opening is not None
            opening.add_done_callback(lambda _: trying.append(_begin(entity_link.attempt(_batch(5)))))
            await asyncio.wait((opening,))
            await settled()
            assert len(trying) == 6
            await asyncio.gather(*trying)
            assert _numbers(peer) == [*range(6)]

    run(scenario())


@pytest.mark.parametrize("victim", [0, 1, 3])
def test_cancelled_queued_send_does_not_block_others(victim: int) -> None:
    async def scenario() -> None:
        async with _entity_link() as (peer, entity_link):
            trying = [_begin(entity_link.attempt(_batch(number))) for number in range(4)]
            await asyncio.sleep(0)
            trying[victim].cancel()
            await asyncio.wait(trying)
            assert _numbers(peer) == [number for number in range(4) if number != victim]
            assert entity_link.ready is not None

    run(scenario())


def test_e3_queued_send_raises_when_link_is_closed() -> None:
    async def scenario() -> None:
        async with _entity_link() as (peer, entity_link):
            peer.attaches = False
            trying = [_begin(entity_link.attempt(_batch(number))) for number in range(4)]
            await asyncio.sleep(1)
            began_s = asyncio.get_running_loop().time()
            await entity_link.close()
            outcomes = await asyncio.gather(*trying, return_exceptions=True)
            assert asyncio.get_running_loop().time() - began_s <= ATTEMPT_S
            assert [type(outcome) for outcome in outcomes] == [ClosedError] * 4
            with pytest.raises(ClosedError):
                await entity_link.attempt(_batch(5))
            assert peer.received == []

    run(scenario())


def test_e2_reopened_link_is_shared() -> None:
    async def scenario() -> None:
        async with _entity_link() as (peer, entity_link):
            await entity_link.attempt(_batch(0))
            peer.last.hang_up()
            await settled()
            await asyncio.gather(*(entity_link.send(_batch(number)) for number in range(1, 6)))
            assert _numbers(peer) == [*range(6)]

    run(scenario())


# Batches in turn.


def test_c20_in_turn_batch_waits_for_confirmation_of_previous_one() -> None:
    async def scenario() -> None:
        async with _entity_link() as (peer, entity_link):
            peer.outcome = lambda _delivery: None
            batch = _batch(*range(4), in_turn=True)
            trying = _begin(entity_link.attempt(batch))
            for number in range(4):
                await settled()
                assert _numbers(peer) == [*range(number + 1)]
                assert len(batch.unconfirmed) == 4 - number
                peer.settle(peer.received[-1:])
            await trying
            assert batch.unconfirmed == []

    run(scenario())


def test_batches_are_pipelined_by_default() -> None:
    async def scenario() -> None:
        async with _entity_link() as (peer, entity_link):
            peer.outcome = lambda _delivery: None
            trying = _begin(entity_link.attempt(_batch(*range(4))))
            await settled()
            assert _numbers(peer) == [*range(4)]
            peer.settle(peer.received)
            await trying

    run(scenario())


def test_c20_in_turn_messages_that_fit_are_sent_together_in_order() -> None:
    async def scenario() -> None:
        async with _entity_link() as (peer, entity_link):
            await entity_link.attempt(_batch(*range(30), size=300, in_turn=True))
            assert _numbers(peer) == [*range(30)]
            assert len(batches(peer)) < 10

    run(scenario())


@pytest.mark.parametrize("refused", range(4))
def test_c20_in_turn_batches_after_a_refused_one_wait_for_it(refused: int) -> None:
    async def scenario() -> None:
        async with _entity_link() as (peer, entity_link):
            taken: list[int] = []

            def outcome(delivery: Delivery) -> object:
                number = _numbers(peer)[-1]
                assert peer.received[-1] is delivery
                if number == refused and len(peer.received) == refused + 1:
                    return RELEASED
                taken.append(number)
                return ACCEPTED

            peer.outcome = outcome
            batch = _batch(*range(4), in_turn=True)
            with pytest.raises(MessagingError):
                await entity_link.attempt(batch)
            assert batch.unconfirmed == [_payload(number) for number in range(refused, 4)]
            await entity_link.attempt(batch)
            assert taken == [*range(4)]

    run(scenario())


def test_c20_in_turn_permanent_refusal_ends_send() -> None:
    async def scenario() -> None:
        async with _entity_link() as (peer, entity_link):
            outcomes: list[object] = [ACCEPTED, Rejected(Error("amqp:unauthorized-access", "no"))]
            peer.outcome = lambda _delivery: outcomes.pop(0)
            with pytest.raises(UnauthorizedError):
                await entity_link.send(_batch(*range(4), in_turn=True))
            await settled()
            assert _numbers(peer) == [0, 1]

    run(scenario())


def test_c20_in_turn_send_resumes_after_lost_connection() -> None:
    async def scenario() -> None:
        async with _entity_link() as (peer, entity_link):
            peer.outcome = lambda _delivery: ACCEPTED if len(peer.received) != 3 else None
            sending = _begin(entity_link.send(_batch(*range(6), in_turn=True)))
            await settled()
            peer.last.hang_up()
            await sending
            assert _numbers(peer) == [0, 1, 2, 2, 3, 4, 5]

    run(scenario())


def test_c20_in_turn_cancelled_send_sends_nothing_more() -> None:
    async def scenario() -> None:
        async with _entity_link() as (peer, entity_link):
            peer.outcome = lambda _delivery: ACCEPTED if len(peer.received) < 2 else None
            batch = _batch(*range(4), in_turn=True)
            sending = _begin(entity_link.send(batch))
            await settled()
            sending.cancel()
            await asyncio.wait((sending,))
            peer.outcome = lambda _delivery: ACCEPTED
            await settled()
            assert _numbers(peer) == [0, 1]
            assert len(batch.unconfirmed) == 3

    run(scenario())


# Helpers.


@asynccontextmanager
async def _entity_link() -> AsyncIterator[tuple[Peer, EntityLink]]:
    peer = Peer()
    peer.max_message_size = LIMIT
    async with scripted(peer=peer) as (_, factory):
        factory.limit_send_attempts(ATTEMPT_S)
        entity_link = EntityLink(factory, "orders")
        yield peer, entity_link
        await entity_link.close()


def _begin(work: Any) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(work)


async def _duration(*tasks: asyncio.Task[Any]) -> float:
    began_s = asyncio.get_running_loop().time()
    await asyncio.wait(tasks)
    return asyncio.get_running_loop().time() - began_s


def _payload(number: int, size: int = HALF) -> bytes:
    return encode_brokered(BrokeredMessage(bytes(size), message_id=f"{number}"))


def _batch(*numbers: int, size: int = HALF, in_turn: bool = False) -> SendBatch:
    batch = SendBatch([_payload(number, size) for number in numbers])
    batch.in_turn = in_turn
    return batch


def _numbers(peer: Peer) -> list[int]:
    """The messages that the peer was sent, in order."""
    known = {_payload(number, size): number for number in range(40) for size in (HALF, 300)}
    return [known[payload] for payload in chain(*batches(peer))]
