"""Links that messages are sent on, with a peer that does what no namespace should."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from pairbus.client.amqp.sending_link import SendingLink
from pairbus.client.errors import (
    ClosedError,
    EntityNotFoundError,
    InternalServerError,
    MessageSizeExceededError,
    MessagingCommunicationError,
    MessagingError,
    MessagingTimeoutError,
    QuotaExceededError,
    ServerBusyError,
)
from pairbus.dialect.annotations import MAX_MESSAGE_BATCH_SIZE
from pairbus.wire import (
    ACCEPTED,
    RELEASED,
    Configuration,
    Error,
    LinkDrained,
    Modified,
    Received,
    Rejected,
    ULong,
)
from tests.client.amqp_peer import Peer, connected, run, settled, until

ATTEMPT_S: Final = 15
PAYLOAD: Final = bytes(100_000)
BOUND_BYTES: Final = 1_000_000


@asynccontextmanager
async def attached(peer: Peer | None = None, **settings: Any) -> AsyncIterator[tuple[Peer, SendingLink]]:
    async with connected(peer, **settings) as (chosen, connection):
        link = SendingLink(connection, "orders")
        await link.attached(ATTEMPT_S)
        await settled()
        yield chosen, link
        await link.close()


def numbered(count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(count)]


# Order, credit and confirmation


def test_messages_are_pipelined_in_order() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            peer.outcome = lambda _delivery: None
            futures = [link.send(payload) for payload in numbered(500)]
            await settled()
            assert peer.bodies == numbered(500)
            assert link.in_flight == 500
            assert not any(future.done() for future in futures)
            peer.settle(peer.received)
            await asyncio.gather(*futures)
            assert link.in_flight == 0

    run(scenario())


def test_in_flight_messages_never_exceed_credit() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.credit = 0
        async with attached(peer) as (_, link):
            futures = [link.send(payload) for payload in numbered(10)]
            await settled()
            assert not peer.received
            for total in (3, 4, 10):
                peer.sender.flow(total - len(peer.received))
                peer.flush()
                await settled()
                assert len(peer.received) == total
                assert [future.done() for future in futures] == [True] * total + [False] * (10 - total)
            assert peer.bodies == numbered(10)
            assert peer.last.violation is None

    run(scenario())


def test_revoked_credit_is_not_used() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.credit = 0
        async with attached(peer) as (_, link):
            peer.sender.flow(5)
            peer.sender.flow(0)
            peer.flush()
            await settled()
            future = link.send(b"body")
            await settled()
            assert not peer.received
            peer.sender.flow(1)
            peer.flush()
            await future

    run(scenario())


def test_confirmations_arrive_in_ranges_any_order_and_two_steps() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            peer.outcome = lambda _delivery: None
            futures = [link.send(payload) for payload in numbered(9)]
            await settled()
            first, second, third = peer.received[:3], peer.received[3:6], peer.received[6:]
            peer.settle(third)
            await settled()
            assert [future.done() for future in futures] == [False] * 6 + [True] * 3
            peer.settle(first, Rejected(Error("amqp:resource-limit-exceeded", "full")))
            for delivery in second:  # not settled: then it is for us to do that
                delivery.link.update(delivery, ACCEPTED)
            peer.flush()
            await settled()
            assert all(delivery.settled for delivery in second)
            results = await asyncio.gather(*futures, return_exceptions=True)
            assert [type(result) for result in results[:3]] == [QuotaExceededError] * 3
            assert results[3:] == [None] * 6

    run(scenario())


@pytest.mark.parametrize(
    ("outcome", "kind", "text"),
    [
        (RELEASED, InternalServerError, "outcome: released"),
        (Modified(delivery_failed=True), InternalServerError, "outcome: modified"),
        (Rejected(), InternalServerError, "outcome: rejected"),
        (Rejected(Error("com.microsoft:server-busy", "slow down")), ServerBusyError, "slow down"),
        (Rejected(Error("contoso:odd")), MessagingError, "contoso:odd"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_outcome_other_than_accepted_is_error(outcome: object, kind: type[MessagingError], text: str) -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            peer.outcome = lambda _delivery: outcome
            with pytest.raises(kind, match=text) as caught:
                await link.send(b"body")
            assert caught.value.entity == "orders"
            peer.outcome = lambda _delivery: ACCEPTED
            await link.send(b"body")  # the link is as good as ever

    run(scenario())


def test_intermediate_state_is_not_an_outcome() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            peer.outcome = lambda _delivery: None
            future = link.send(b"body")
            await settled()
            [delivery] = peer.received
            delivery.link.update(delivery, Received(section_number=0, section_offset=0))
            peer.flush()
            await settled()
            assert not future.done()
            peer.settle([delivery])
            await future

    run(scenario())


# What is too much


def test_slow_reader_does_not_fill_transport() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.credit = 10_000
        async with attached(peer) as (_, link):
            peer.last.pause()
            futures = [link.send(PAYLOAD) for _ in range(10_000)]
            await settled()
            transport = link.connection._transport
            assert transport is not None
            assert transport.get_write_buffer_size() < BOUND_BYTES
            assert len(link.connection.engine.data_to_send()) < BOUND_BYTES
            for future in futures:
                future.cancel()
            peer.last.resume()
            await settled()
            assert len(peer.received) < 20
            assert peer.last.violation is None
            await link.send(b"the next one")
            assert peer.bodies[-1] == b"the next one"
            assert link.in_flight == 0

    run(scenario())


def test_queued_messages_are_sent_when_peer_reads_again() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            peer.last.pause()
            payloads = [b"%05d" % number + PAYLOAD for number in range(50)]
            futures = [link.send(payload) for payload in payloads]
            await settled()
            peer.last.resume()
            await asyncio.gather(*futures)
            assert peer.bodies == payloads

    run(scenario())


def test_peer_with_small_window_and_frames_gets_everything() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.configuration = Configuration(container_id="peer", max_frame_size=512, incoming_window=2)
        async with attached(peer) as (_, link):
            payloads = [b"%05d" % number + bytes(5_000) for number in range(20)]
            await asyncio.gather(*(link.send(payload) for payload in payloads))
            assert peer.bodies == payloads
            assert peer.last.violation is None

    run(scenario())


def test_message_beyond_limit_of_entity_is_rejected_before_sending() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.max_message_size = 1_000
        async with attached(peer) as (_, link):
            link.check_size(1_000)
            with pytest.raises(MessageSizeExceededError, match=r"1,001 bytes .* limit is 1,000") as caught:
                link.check_size(1_001)
            assert caught.value.entity == "orders"

    run(scenario())


@pytest.mark.parametrize(
    ("max_message_size", "reported", "batch_bytes"),
    [
        (None, None, 1 << 20),
        (1_000, None, 1_000),
        (256 << 10, None, 256 << 10),
        (512 << 10, None, 256 << 10),
        (1 << 20, None, 1 << 20),
        (100 << 20, None, 1 << 20),
        (100 << 20, ULong(5_000), 5_000),
        (1_000, "nonsense", 1_000),
        (1_000, ULong(0), 1_000),
    ],
)
def test_a7_batch_size_is_limit_of_namespace(max_message_size: int | None, reported: object, batch_bytes: int) -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.max_message_size = max_message_size
        peer.properties = {} if reported is None else {MAX_MESSAGE_BATCH_SIZE: reported}
        async with attached(peer) as (_, link):
            assert link.max_batch_bytes == batch_bytes

    run(scenario())


# Those who think better of it


def test_cancelled_queued_message_is_never_sent() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.credit = 0
        async with attached(peer) as (_, link):
            futures = [link.send(payload) for payload in numbered(6)]
            for future in futures[::2]:
                future.cancel()
            peer.sender.flow(100)
            peer.flush()
            await asyncio.gather(*futures[1::2])
            assert peer.bodies == numbered(6)[1::2]

    run(scenario())


def test_confirmation_of_cancelled_message_is_ignored() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            peer.outcome = lambda _delivery: None
            first, second = link.send(b"1"), link.send(b"2")
            await settled()
            first.cancel()
            peer.settle(peer.received)
            await second
            assert link.in_flight == 0

    run(scenario())


# What the peer does to the link


@pytest.mark.parametrize("has_reason", [True, False])
def test_detach_by_peer_fails_messages_in_flight(has_reason: bool) -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            peer.outcome = lambda _delivery: None
            futures = [link.send(payload) for payload in numbered(5)]
            await settled()
            peer.settle(peer.received[:2])
            peer.detach(peer.sender, Error("amqp:resource-deleted", "it is gone") if has_reason else None)
            results = await asyncio.gather(*futures, return_exceptions=True)
            assert results[:2] == [None, None]
            kind = EntityNotFoundError if has_reason else MessagingCommunicationError
            assert [type(result) for result in results[2:]] == [kind] * 3
            assert len({id(result) for result in results[2:]}) == 3
            assert type(link.error) is kind
            with pytest.raises(kind):
                await link.send(b"too late")
            assert link.connection.error is None

    run(scenario())


def test_session_end_by_peer_loses_link_but_not_connection() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            peer.outcome = lambda _delivery: None
            future = link.send(b"body")
            await settled()
            peer.received[0].link.session.end(error=Error("amqp:session:window-violation", "too much"))
            peer.flush()
            with pytest.raises(MessagingCommunicationError, match="too much"):
                await future
            other = SendingLink(link.connection, "orders")
            peer.outcome = lambda _delivery: ACCEPTED
            await other.attached(1)
            await other.send(b"body")

    run(scenario())


def test_lost_connection_fails_messages_in_flight() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            peer.outcome = lambda _delivery: None
            futures = [link.send(payload) for payload in numbered(3)]
            await settled()
            peer.last.hang_up()
            for future in futures:
                with pytest.raises(MessagingCommunicationError, match=r"'orders': .*lost"):
                    await future

    run(scenario())


# Time


def test_link_without_confirmations_times_out() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with attached() as (peer, link):
            peer.outcome = lambda _delivery: None
            started_s = loop.time()
            first = link.send(b"1")
            await asyncio.sleep(10)
            peer.last.beat()
            second = link.send(b"2")
            with pytest.raises(MessagingTimeoutError, match="confirmed within 15 s"):
                await first
            assert loop.time() - started_s == pytest.approx(ATTEMPT_S, abs=0.1)
            with pytest.raises(MessagingTimeoutError):
                await second
            assert link.error is not None
            assert link.connection.error is None

    run(scenario())


def test_link_with_confirmations_is_kept() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            peer.outcome = lambda _delivery: None
            futures = []
            for _ in range(100):
                futures.append(link.send(b"body"))
                await asyncio.sleep(1)
                if len(futures) > 10:
                    peer.settle([peer.received[len(futures) - 11]])
            peer.settle(peer.received[90:])
            await asyncio.gather(*futures)
            assert link.error is None

    run(scenario())


def test_link_without_credit_times_out() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.credit = 0
        async with attached(peer) as (_, link):
            future = link.send(b"body")
            await asyncio.sleep(1)
            peer.last.beat()
            with pytest.raises(MessagingTimeoutError, match="no credit"):
                await future
            assert link.error is not None
            assert link.connection.error is None

    run(scenario())


def test_silent_connection_fails_with_its_link() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            peer.last.is_deaf = True
            with pytest.raises(MessagingCommunicationError, match="no data received from"):
                await link.send(b"body")
            assert link.connection.error is not None

    run(scenario())


def test_idle_link_is_kept() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            await link.send(b"body")
            peer.outcome = lambda _delivery: None
            link.send(b"given up").cancel()
            await asyncio.sleep(100)
            assert link.error is None

    run(scenario())


# Its end


def test_messages_in_flight_at_close_raise_closed_error() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            peer.outcome = lambda _delivery: None
            future = link.send(b"body")
            await settled()
            await link.close()
            with pytest.raises(ClosedError):
                await future
            await until(lambda: not peer.all_links())
            assert link.connection.error is None

    run(scenario())


def test_close_waits_briefly_for_peer_that_does_not_detach() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with attached() as (peer, link):
            peer.last.is_deaf = True
            started_s = loop.time()
            await link.close()
            assert loop.time() - started_s < 10
            assert isinstance(link.error, ClosedError)

    run(scenario())


def test_first_message_after_pause_has_full_timeout() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            await link.send(b"1")
            for _ in range(10):
                await asyncio.sleep(50)
                peer.last.beat()
            peer.outcome = lambda _delivery: None
            future = link.send(b"2")
            await asyncio.sleep(14)
            assert not future.done()
            assert link.error is None
            peer.settle(peer.received[1:])
            await future

    run(scenario())


def test_message_never_confirmed_among_others_times_out() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with attached() as (peer, link):
            peer.outcome = lambda delivery: None if delivery.payload == b"forgotten" else ACCEPTED
            started_s = loop.time()
            forgotten = link.send(b"forgotten")
            while not forgotten.done():
                await link.send(b"other")
                await asyncio.sleep(1)
                assert loop.time() - started_s < 65
            with pytest.raises(MessagingTimeoutError, match="not confirmed"):
                await forgotten
            assert link.error is None

    run(scenario())


def test_drained_credit_is_returned() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.credit = 0
        async with attached(peer) as (_, link):
            peer.sender.flow(5, drain=True)
            peer.flush()
            await until(lambda: peer.seen(LinkDrained))
            assert peer.sender.credit == 0
            futures = [link.send(payload) for payload in numbered(3)]
            await settled()
            assert peer.received == []
            peer.sender.flow(5, drain=True)
            peer.flush()
            await asyncio.gather(*futures)
            await until(lambda: len(peer.seen(LinkDrained)) == 2)
            assert len(peer.received) == 3

    run(scenario())
