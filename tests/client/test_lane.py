"""The way of messages to one entity: who comes first goes first, and nobody stands in line longer than he may."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import chain
from typing import Any, Final

import pytest

from pairbus.client.errors import ClosedError, MessagingError, MessagingTimeoutError, UnauthorizedError
from pairbus.client.lane import Lane
from pairbus.client.message import BrokeredMessage, encode_brokered
from pairbus.client.parcel import Parcel
from pairbus.wire import ACCEPTED, RELEASED, Delivery, Error, Rejected
from tests.client.amqp_peer import Peer, batches, run, scripted, settled

ATTEMPT_S: Final = 5.0
LIMIT: Final = 2_000
HALF: Final = 1_200
"""Of this size no two fit into a batch."""


# The line.


@pytest.mark.parametrize("count", [2, 30])
def test_c8_many_in_line_at_a_peer_that_hangs_all_end_in_time(count: int) -> None:
    async def scenario() -> None:
        async with _lane() as (peer, lane):
            peer.attaches = False
            trying = [_begin(lane.attempt(_parcel(number))) for number in range(count)]
            assert await _duration(*trying) == pytest.approx(ATTEMPT_S, abs=0.1)
            for task in trying:
                with pytest.raises(MessagingTimeoutError, match="within 5 s"):
                    task.result()

    run(scenario())


def test_c8_whoever_comes_later_has_his_own_time() -> None:
    async def scenario() -> None:
        async with _lane() as (peer, lane):
            peer.attaches = False
            took_s: list[float] = []

            async def attempt(number: int) -> None:
                await asyncio.sleep(number)
                began_s = asyncio.get_running_loop().time()
                with pytest.raises(MessagingTimeoutError):
                    await lane.attempt(_parcel(number))
                took_s.append(asyncio.get_running_loop().time() - began_s)

            await asyncio.gather(*(attempt(number) for number in range(8)))
            assert took_s == pytest.approx([ATTEMPT_S] * 8, abs=0.1)

    run(scenario())


def test_c8_a_connection_that_hangs_is_waited_for_no_longer() -> None:
    async def scenario() -> None:
        async with _lane() as (peer, lane):
            peer.opens = False
            trying = [_begin(lane.attempt(_parcel(number))) for number in range(10)]
            assert await _duration(*trying) == pytest.approx(ATTEMPT_S, abs=0.1)
            assert all(isinstance(task.exception(), MessagingTimeoutError) for task in trying)

    run(scenario())


def test_e3_what_is_refused_is_told_to_everybody_in_line() -> None:
    async def scenario() -> None:
        async with _lane() as (peer, lane):
            peer.refusals.extend([Error("amqp:unauthorized-access", "no")] * 5)
            outcomes = await asyncio.gather(
                *(lane.attempt(_parcel(number)) for number in range(5)), return_exceptions=True
            )
            assert [type(outcome) for outcome in outcomes] == [UnauthorizedError] * 5

    run(scenario())


def test_messages_go_in_the_order_in_which_they_came_into_the_line() -> None:
    async def scenario() -> None:
        async with _lane() as (peer, lane):
            first = [_begin(lane.attempt(_parcel(number))) for number in range(10)]
            await asyncio.sleep(0)
            assert lane.ready is None
            later = [_begin(lane.attempt(_parcel(number))) for number in range(10, 20)]
            await asyncio.gather(*first, *later)
            await lane.attempt(_parcel(20))
            assert _numbers(peer) == [*range(21)]

    run(scenario())


def test_nobody_overtakes_those_who_are_still_in_line_when_there_is_a_link() -> None:
    async def scenario() -> None:
        async with _lane() as (peer, lane):
            trying = [_begin(lane.attempt(_parcel(number))) for number in range(5)]
            await asyncio.sleep(0)
            opening = lane._slot._opening
            assert opening is not None
            opening.add_done_callback(lambda _: trying.append(_begin(lane.attempt(_parcel(5)))))
            await asyncio.wait((opening,))
            await settled()
            assert len(trying) == 6
            await asyncio.gather(*trying)
            assert _numbers(peer) == [*range(6)]

    run(scenario())


@pytest.mark.parametrize("victim", [0, 1, 3])
def test_whoever_leaves_the_line_holds_nobody_up(victim: int) -> None:
    async def scenario() -> None:
        async with _lane() as (peer, lane):
            trying = [_begin(lane.attempt(_parcel(number))) for number in range(4)]
            await asyncio.sleep(0)
            trying[victim].cancel()
            await asyncio.wait(trying)
            assert _numbers(peer) == [number for number in range(4) if number != victim]
            assert lane.ready is not None

    run(scenario())


def test_e3_whoever_stands_in_line_is_told_that_the_lane_was_closed() -> None:
    async def scenario() -> None:
        async with _lane() as (peer, lane):
            peer.attaches = False
            trying = [_begin(lane.attempt(_parcel(number))) for number in range(4)]
            await asyncio.sleep(1)
            began_s = asyncio.get_running_loop().time()
            await lane.close()
            outcomes = await asyncio.gather(*trying, return_exceptions=True)
            assert asyncio.get_running_loop().time() - began_s <= ATTEMPT_S
            assert [type(outcome) for outcome in outcomes] == [ClosedError] * 4
            with pytest.raises(ClosedError):
                await lane.attempt(_parcel(5))
            assert peer.received == []

    run(scenario())


def test_e2_a_link_that_is_there_again_is_used_by_all() -> None:
    async def scenario() -> None:
        async with _lane() as (peer, lane):
            await lane.attempt(_parcel(0))
            peer.last.hang_up()
            await settled()
            await asyncio.gather(*(lane.send(_parcel(number)) for number in range(1, 6)))
            assert _numbers(peer) == [*range(6)]

    run(scenario())


# Batches in turn.


def test_c20_in_turn_a_batch_is_sent_when_the_one_before_it_is_confirmed() -> None:
    async def scenario() -> None:
        async with _lane() as (peer, lane):
            peer.outcome = lambda _delivery: None
            parcel = _parcel(*range(4), in_turn=True)
            trying = _begin(lane.attempt(parcel))
            for number in range(4):
                await settled()
                assert _numbers(peer) == [*range(number + 1)]
                assert len(parcel.unconfirmed) == 4 - number
                peer.settle(peer.received[-1:])
            await trying
            assert parcel.unconfirmed == []

    run(scenario())


def test_otherwise_all_batches_are_sent_at_once() -> None:
    async def scenario() -> None:
        async with _lane() as (peer, lane):
            peer.outcome = lambda _delivery: None
            trying = _begin(lane.attempt(_parcel(*range(4))))
            await settled()
            assert _numbers(peer) == [*range(4)]
            peer.settle(peer.received)
            await trying

    run(scenario())


def test_c20_in_turn_messages_that_fit_go_together_in_order() -> None:
    async def scenario() -> None:
        async with _lane() as (peer, lane):
            await lane.attempt(_parcel(*range(30), size=300, in_turn=True))
            assert _numbers(peer) == [*range(30)]
            assert len(batches(peer)) < 10

    run(scenario())


@pytest.mark.parametrize("refused", range(4))
def test_c20_in_turn_what_comes_after_one_that_was_refused_waits_for_it(refused: int) -> None:
    async def scenario() -> None:
        async with _lane() as (peer, lane):
            taken: list[int] = []

            def outcome(delivery: Delivery) -> object:
                number = _numbers(peer)[-1]
                assert peer.received[-1] is delivery
                if number == refused and len(peer.received) == refused + 1:
                    return RELEASED
                taken.append(number)
                return ACCEPTED

            peer.outcome = outcome
            parcel = _parcel(*range(4), in_turn=True)
            with pytest.raises(MessagingError):
                await lane.attempt(parcel)
            assert parcel.unconfirmed == [_payload(number) for number in range(refused, 4)]
            await lane.attempt(parcel)
            assert taken == [*range(4)]

    run(scenario())


def test_c20_in_turn_what_is_refused_for_good_ends_it_and_nothing_follows() -> None:
    async def scenario() -> None:
        async with _lane() as (peer, lane):
            outcomes: list[object] = [ACCEPTED, Rejected(Error("amqp:unauthorized-access", "no"))]
            peer.outcome = lambda _delivery: outcomes.pop(0)
            with pytest.raises(UnauthorizedError):
                await lane.send(_parcel(*range(4), in_turn=True))
            await settled()
            assert _numbers(peer) == [0, 1]

    run(scenario())


def test_c20_in_turn_after_a_lost_connection_it_goes_on_where_it_was() -> None:
    async def scenario() -> None:
        async with _lane() as (peer, lane):
            peer.outcome = lambda _delivery: ACCEPTED if len(peer.received) != 3 else None
            sending = _begin(lane.send(_parcel(*range(6), in_turn=True)))
            await settled()
            peer.last.hang_up()
            await sending
            assert _numbers(peer) == [0, 1, 2, 2, 3, 4, 5]

    run(scenario())


def test_c20_in_turn_whoever_is_cancelled_has_sent_no_more_than_was_begun() -> None:
    async def scenario() -> None:
        async with _lane() as (peer, lane):
            peer.outcome = lambda _delivery: ACCEPTED if len(peer.received) < 2 else None
            parcel = _parcel(*range(4), in_turn=True)
            sending = _begin(lane.send(parcel))
            await settled()
            sending.cancel()
            await asyncio.wait((sending,))
            peer.outcome = lambda _delivery: ACCEPTED
            await settled()
            assert _numbers(peer) == [0, 1]
            assert len(parcel.unconfirmed) == 3

    run(scenario())


# Helpers.


@asynccontextmanager
async def _lane() -> AsyncIterator[tuple[Peer, Lane]]:
    peer = Peer()
    peer.max_message_size = LIMIT
    async with scripted(peer=peer) as (_, factory):
        factory.limit_send_attempts(ATTEMPT_S)
        lane = Lane(factory, "orders")
        yield peer, lane
        await lane.close()


def _begin(work: Any) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(work)


async def _duration(*tasks: asyncio.Task[Any]) -> float:
    began_s = asyncio.get_running_loop().time()
    await asyncio.wait(tasks)
    return asyncio.get_running_loop().time() - began_s


def _payload(number: int, size: int = HALF) -> bytes:
    return encode_brokered(BrokeredMessage(bytes(size), message_id=f"{number}"))


def _parcel(*numbers: int, size: int = HALF, in_turn: bool = False) -> Parcel:
    parcel = Parcel([_payload(number, size) for number in numbers])
    parcel.in_turn = in_turn
    return parcel


def _numbers(peer: Peer) -> list[int]:
    """The messages that the peer was sent, in order."""
    known = {_payload(number, size): number for number in range(40) for size in (HALF, 300)}
    return [known[payload] for payload in chain(*batches(peer))]
