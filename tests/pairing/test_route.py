"""Routes of paired senders: all senders use the same one, and both have the same limits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from pairbus.broker import PREMIUM, QueueDescription
from pairbus.client.entity_clients import QueueClient
from pairbus.client.entity_link import batch_bytes
from pairbus.client.errors import (
    InvalidMessageError,
    MessageSizeExceededError,
    MessagingCommunicationError,
    MessagingError,
)
from pairbus.client.message import BrokeredMessage, encode_brokered
from pairbus.client.sender import MessageSender
from pairbus.dialect.transfer import RESERVED, divert, header_bytes
from pairbus.pairing import EntityState
from tests.pairing.scenes import (
    ATTEMPT_S,
    ORDERS,
    Scene,
    SentBytes,
    backlog_path,
    begin,
    letter,
    letters,
    paired,
    seconds,
    set_limits,
    texts,
    until,
)
from tests.simulation.pair_world import PairWorld, run

KILOBYTE: Final = 1024
LIMIT: Final = 256 * KILOBYTE
HEADER_LIMIT: Final = 64 * KILOBYTE
LATER: Final = datetime(2030, 1, 1, tzinfo=UTC)
SHAPES: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "full": {
        "session_id": "s" * 128,
        "time_to_live": seconds(1_000_000),
        "scheduled_enqueue_time": LATER,
        "application_properties": {"n": 1},
    },
}


# C9: every sender of the factory diverts, and the primary gets only pings.


def test_c9_failed_over_entity_gets_only_pings() -> None:
    async def scenario(world: PairWorld) -> None:
        world.primary.create_topic("news", ["all"])
        factory = world.primary_factory()
        early = await factory.create_message_sender(ORDERS)  # created before the pair
        scene = await paired(world, factory=factory, ping_s=30)
        senders: list[MessageSender | QueueClient] = [
            early,
            await scene.sender(),
            await scene.sender("ORDERS"),
            await factory.create_queue_client(ORDERS),
            await scene.sender("news"),
            await factory.create_topic_client("news"),
        ]
        world.primary_network.refuse()
        await asyncio.gather(*(sender.send(letter("first")) for sender in senders))
        await scene.heal()
        scene.primary.seen.clear()
        for _ in range(10):  # the primary works again, and was not pinged yet
            await asyncio.gather(*(sender.send(letter("later")) for sender in senders))
            await asyncio.gather(*(sender.send(letters(2)) for sender in senders))
            await asyncio.gather(*(sender.send_batch(letters(2)) for sender in senders))
            await asyncio.sleep(2)
        assert scene.primary.seen == []
        assert len(await scene.backlog()) == len(senders) * (1 + 10 * 5)
        await asyncio.sleep(15)
        assert sorted(one.path for one in scene.primary.seen) == ["news", ORDERS]
        assert all(one.is_ping for one in scene.primary.seen)
        scene.primary.seen.clear()
        await asyncio.gather(*(sender.send(letter("home")) for sender in senders))
        assert scene.primary.bodies == len(senders) * [b"home"]

    run(scenario)


def test_c9_unpaired_factory_is_not_affected() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        scene.pair.engage()
        unpaired = await world.primary_factory().create_message_sender(ORDERS)
        await unpaired.send(letter("unpaired"))
        await (await scene.sender()).send(letter("ours"))
        assert (scene.primary.bodies, scene.secondary.bodies) == ([b"unpaired"], [b"ours"])

    run(scenario)


def test_c9_senders_closed_or_created_during_an_outage_divert_as_well() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        world.primary_network.refuse()
        for number in range(5):
            async with await scene.sender() as sender:
                await sender.send(letter(str(number)))
        assert sorted(await scene.bodies()) == texts(5)
        assert scene.entity().failures == 1

    run(scenario)


# C11: reserved property names.


@pytest.mark.parametrize("is_diverting", [False, True])
@pytest.mark.parametrize("name", sorted(RESERVED))
def test_c11_reserved_application_property_is_rejected_on_both_routes(name: str, is_diverting: bool) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        sender = await scene.sender()
        if is_diverting:
            scene.pair.engage()
        for value in ("text", 1, None, True):
            bad = BrokeredMessage(b"bad", application_properties={"mine": 1, name: value})
            with pytest.raises(InvalidMessageError, match=name):
                await sender.send(bad)
            with pytest.raises(InvalidMessageError, match=name):
                await sender.send([letter(), bad])
            with pytest.raises(InvalidMessageError, match=name):
                await sender.send_batch([letter(), bad])
        assert scene.primary.seen == scene.secondary.seen == []
        unpaired = await world.primary_factory().create_message_sender(ORDERS)
        await unpaired.send(BrokeredMessage(b"", application_properties={name: "text"}))

    run(scenario)


def test_c11_scheduled_message_with_a_reserved_property_is_rejected() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        sender = await scene.sender()
        with pytest.raises(InvalidMessageError, match="x-ms-path"):
            await sender.schedule(BrokeredMessage(b"", application_properties={"x-ms-path": "elsewhere"}), LATER)

    run(scenario)


def test_c9_schedule_raises_while_failed_over() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        sender = await scene.sender()
        client = await scene.factory.create_queue_client(ORDERS)
        scene.pair.engage()
        for one in (sender, client):
            with pytest.raises(MessagingCommunicationError, match="scheduled_enqueue_time"):
                await one.schedule(letter(), LATER)
            with pytest.raises(MessagingCommunicationError):
                await one.schedule(letters(2), LATER)
        assert world.primary.info(ORDERS).scheduled_count == 0
        await sender.send(letter("diverted", scheduled_enqueue_time=LATER))
        scene.pair.release()
        assert await sender.schedule(letter(), LATER)
        assert world.primary.info(ORDERS).scheduled_count == 1
        assert await scene.bodies() == [b"diverted"]

    run(scenario)


# C12: a message that is accepted while the primary works is accepted in an outage.


@pytest.mark.parametrize("shape", SHAPES)
def test_c12_both_routes_have_the_same_message_size_limit(shape: str) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=1)
        await _both_ways(scene, [_diverted_to(size, **SHAPES[shape]) for size in range(LIMIT - 2, LIMIT + 1)])
        too_large = [_diverted_to(size, **SHAPES[shape]) for size in range(LIMIT + 1, LIMIT + 4)]
        barely = [_encoded_to(size, **SHAPES[shape]) for size in range(LIMIT - 2, LIMIT + 3)]
        await _neither_way(scene, [*too_large, *barely])

    run(scenario)


def test_c12_message_too_large_for_the_backlog_is_rejected_with_a_reason() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        message = _encoded_to(LIMIT)
        await (await world.primary_factory().create_message_sender(ORDERS)).send(message)
        with pytest.raises(MessageSizeExceededError, match=r"262,144.*backlog") as caught:
            await (await scene.sender()).send(message)
        assert caught.value.entity == ORDERS
        assert not caught.value.is_transient

    run(scenario)


def test_c12_limit_of_the_secondary_applies_if_it_is_lower() -> None:
    async def scenario(world: PairWorld) -> None:
        set_limits(world.primary, PREMIUM)
        scene = await paired(world, count=1)
        await _both_ways(scene, [_diverted_to(size) for size in range(LIMIT - 1, LIMIT + 1)])
        await _neither_way(scene, [_diverted_to(LIMIT + 1), BrokeredMessage(bytes(500_000))])

    run(scenario)


def test_c12_limit_of_the_smallest_backlog_queue_applies() -> None:
    async def scenario(world: PairWorld) -> None:
        small = QueueDescription(max_message_bytes=100 * KILOBYTE, max_delivery_count=1_000)
        world.secondary.create_queue(backlog_path(1), small)
        scene = await paired(world)
        await _both_ways(scene, [_diverted_to(100 * KILOBYTE)])
        await _neither_way(scene, [_diverted_to(100 * KILOBYTE + 1)])

    run(scenario)


def test_c12_message_too_large_for_the_primary_is_not_diverted() -> None:
    async def scenario(world: PairWorld) -> None:
        world.primary.create_queue(ORDERS, QueueDescription(max_message_bytes=100 * KILOBYTE))
        scene = await paired(world)
        await (await scene.sender()).send(letter("the limit is known from now on"))
        await _neither_way(scene, [_encoded_to(100 * KILOBYTE + 1)])

    run(scenario)


@pytest.mark.parametrize("shape", SHAPES)
def test_c12_both_routes_have_the_same_limit_for_properties(shape: str) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=1)
        fitting = [_header_to(size, **SHAPES[shape]) for size in range(HEADER_LIMIT - 1, HEADER_LIMIT + 1)]
        await _both_ways(scene, fitting)
        await _neither_way(
            scene, [_header_to(size, **SHAPES[shape]) for size in range(HEADER_LIMIT + 1, HEADER_LIMIT + 3)]
        )

    run(scenario)


@pytest.mark.parametrize("is_premium", [False, True], ids=["standard", "premium"])
@pytest.mark.parametrize("count", [1, 2, 50])
def test_c12_both_routes_have_the_same_batch_size_limit(count: int, is_premium: bool) -> None:
    async def scenario(world: PairWorld) -> None:
        if is_premium:
            set_limits(world.primary, PREMIUM)
        scene = await paired(world, count=1)
        sender = await scene.sender()
        limit_bytes = LIMIT if count == 1 else LIMIT - 8 * count
        for size, is_fitting in (
            (limit_bytes - 1, True),
            (limit_bytes, True),
            (limit_bytes + 1, False),
            (limit_bytes + 2, False),
        ):
            for is_diverting in (False, True):
                batch = _batch_to(size, count)
                _switch(scene, is_diverting)
                if is_fitting:
                    await sender.send_batch(batch)
                else:
                    with pytest.raises(MessageSizeExceededError):
                        await sender.send_batch(batch)
        assert len(scene.primary.seen) == len(scene.secondary.seen) == 2 * count

    run(scenario)


def test_c12_list_is_repacked_for_the_backlog() -> None:
    async def scenario(world: PairWorld) -> None:
        set_limits(world.primary, PREMIUM)
        scene = await paired(world)
        sender = await scene.sender()
        messages = [BrokeredMessage(bytes(100_000), message_id=str(number)) for number in range(12)]
        await sender.send(messages)
        world.primary_network.refuse()
        await sender.send(messages)
        ids = [str(number) for number in range(12)]
        assert [message.message_id for message in await scene.messages()] == ids
        assert [message.message_id for message in await scene.backlog()] == ids

    run(scenario)


def test_c12_message_at_the_limit_is_delivered() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        scene.pair.engage()
        message = _diverted_to(LIMIT, session_id="s")
        await (await scene.sender()).send(message)
        await scene.deliver_all()
        (in_primary,) = await scene.messages()
        assert (in_primary.body, in_primary.session_id) == (message.body, "s")

    run(scenario)


# C18: no overhead while the primary works.


def test_c18_healthy_paired_sender_writes_the_bytes_of_an_unpaired_one() -> None:
    plain, paired_ = _recorded(is_paired=False), _recorded(is_paired=True)
    assert plain[0] == paired_[0]
    assert plain[1] == pytest.approx(paired_[1], abs=1e-6)


def _recorded(*, is_paired: bool) -> tuple[bytes, float]:
    """Return the bytes that a sender writes after its link is open, and how long that took."""
    found: list[tuple[bytes, float]] = []

    async def scenario(world: PairWorld) -> None:
        world.primary.create_queue(ORDERS)
        factory = world.primary_factory()
        if is_paired:
            await paired(world, factory=factory, interval_s=60)
        sender, client = await factory.create_message_sender(ORDERS), await factory.create_queue_client(ORDERS)
        await sender.send(letter("opens the link"))
        await client.send(letter("opens the link"))
        await asyncio.sleep(5 - world.loop.time())
        quiet = world.secondary_network.footprint
        sent_bytes, began_s = SentBytes(world.primary_network), world.loop.time()
        full = {**SHAPES["full"], "time_to_live": None}
        for _ in range(3):
            await sender.send(letter())
            await sender.send(letter("y", **full))
            await asyncio.gather(*(sender.send(one) for one in letters(20)))
            await sender.send(letters(100))
            await sender.send_batch(letters(5))
            await client.send(letter("z"))
        found.append((sent_bytes.all, world.loop.time() - began_s))
        assert world.secondary_network.footprint == quiet

    run(scenario)
    return found[0]


# Cancelled sends leave nothing behind.


@pytest.mark.parametrize("what", ["refuse", "drop", "stall"])
@pytest.mark.parametrize("step", range(12))
def test_send_cancelled_at_any_step_of_a_failover_does_not_affect_others(what: str, step: int) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, ping_s=1)
        sender, other = await scene.sender(), await scene.sender()
        await scene.spoil(what)
        first, last = begin(sender.send(letter("first"))), begin(sender.send(letters(3)))
        victims = [begin(sender.send(letter("victim"))), begin(other.send([letter("victim")]))]
        behind = begin(sender.send(letter("behind")))
        steps_s = 0.0005 * step
        await asyncio.sleep(steps_s if what == "refuse" else ATTEMPT_S - 0.001 + steps_s)
        for victim in victims:
            victim.cancel()
        await asyncio.gather(*victims, return_exceptions=True)
        assert all(victim.cancelled() or victim.exception() is None for victim in victims)
        await asyncio.gather(first, last, behind, other.send(letter("other")))
        bodies = await scene.bodies()
        assert sorted(body for body in bodies if body != b"victim") == sorted(
            [b"first", b"behind", b"other", *texts(3)]
        )
        assert bodies.count(b"victim") <= 2
        world.primary_network.cut()
        await scene.heal()
        await until(lambda: scene.state() is EntityState.HEALTHY)
        await sender.send(letter("home"))
        assert b"home" in await scene.delivered()

    run(scenario)


@pytest.mark.parametrize("is_cancelled_twice", [False, True])
def test_send_cancelled_while_failover_engages_is_cancelled(is_cancelled_twice: bool) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, interval_s=60)
        sender = await scene.sender()
        world.primary_network.stall()
        sending = begin(sender.send(letter()))
        await asyncio.sleep(1)
        scene.pair.engage()  # concurrently with the cancellation
        sending.cancel()
        if is_cancelled_twice:
            sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await sender.send(letter("next"))
        assert await scene.bodies() == [b"next"]

    run(scenario)


def test_timeout_of_the_caller_ends_a_send_to_the_backlog() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        sender = await scene.sender()
        scene.pair.engage()
        world.secondary_network.stall()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await sender.send(letter("given up"))
        world.secondary_network.cut()
        world.secondary_network.heal()
        await asyncio.sleep(30)
        await sender.send(letter("next"))
        assert await scene.bodies() == [b"next"]

    run(scenario)


@pytest.mark.parametrize("after_s", [0.0, 0.001, 2.0, 5.001, 5.003])
def test_factory_closed_during_failover_ends_its_sends(after_s: float) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        sender = await scene.sender()
        world.primary_network.stall()
        sending = [begin(sender.send(one)) for one in letters(3)]
        await asyncio.sleep(after_s)
        await scene.factory.close()
        outcomes = await asyncio.wait_for(asyncio.gather(*sending, return_exceptions=True), 10)
        assert all(outcome is None or isinstance(outcome, MessagingError) for outcome in outcomes)
        delivered = sum(outcome is None for outcome in outcomes)
        assert len(await scene.backlog()) >= delivered

    run(scenario)


# Helpers.


def _switch(scene: Scene, is_diverting: bool) -> None:
    if is_diverting:
        scene.pair.engage(ORDERS)
    else:
        scene.pair.release(ORDERS)


async def _both_ways(scene: Scene, messages: Sequence[BrokeredMessage]) -> None:
    sender = await scene.sender()
    for message in messages:
        for log, is_diverting in ((scene.primary, False), (scene.secondary, True)):
            _switch(scene, is_diverting)
            for what in (message, [message]):
                log.seen.clear()
                await sender.send(what)
                assert len(log.seen) == 1
                assert log.seen[0].message.message_id == message.message_id


async def _neither_way(scene: Scene, messages: Sequence[BrokeredMessage]) -> None:
    sender = await scene.sender()
    scene.primary.seen.clear()
    scene.secondary.seen.clear()
    for message in messages:
        for is_diverting in (False, True):
            _switch(scene, is_diverting)
            await _refused(sender, message)
    assert scene.primary.seen == scene.secondary.seen == []
    assert not scene.entity().failures


async def _refused(sender: MessageSender, message: BrokeredMessage) -> None:
    with pytest.raises(MessageSizeExceededError):
        await sender.send(message)
    with pytest.raises(MessageSizeExceededError):
        await sender.send([letter(), message])
    with pytest.raises(MessageSizeExceededError):
        await sender.send_batch([message])


def _sized(body: int, **rest: Any) -> BrokeredMessage:
    return BrokeredMessage(bytes(body), message_id="m", **rest)


def _encoded_to(size: int, **rest: Any) -> BrokeredMessage:
    """Return a message with an encoded size of ``size`` bytes."""
    spare = len(encode_brokered(_sized(LIMIT, **rest))) - LIMIT
    message = _sized(size - spare, **rest)
    assert len(encode_brokered(message)) == size
    return message


def _diverted_to(size: int, **rest: Any) -> BrokeredMessage:
    """Return a message with a diverted size of ``size`` bytes."""
    spare = len(divert(encode_brokered(_sized(LIMIT, **rest)), ORDERS)) - LIMIT
    message = _sized(size - spare, **rest)
    assert len(divert(encode_brokered(message), ORDERS)) == size
    return message


def _header_to(size: int, **rest: Any) -> BrokeredMessage:
    """Return a message with ``size`` bytes of properties in its diverted form."""
    own = rest.pop("application_properties", {})
    message = BrokeredMessage(b"body", message_id="m", **rest)
    message.application_properties = {**own, "p": "x" * 1_000}
    spare = header_bytes(divert(encode_brokered(message), ORDERS)) - 1_000
    message.application_properties["p"] = "x" * (size - spare)
    excess = header_bytes(divert(encode_brokered(message), ORDERS)) - size  # a longer map has a longer header
    message.application_properties["p"] = "x" * (size - spare - excess)
    assert header_bytes(divert(encode_brokered(message), ORDERS)) == size
    return message


def _batch_to(size: int, count: int) -> list[BrokeredMessage]:
    """Return messages whose diverted forms have ``size`` bytes together."""
    each = [size // count] * (count - 1)
    messages = [_diverted_to(one) for one in [*each, size - sum(each)]]
    diverted = [len(divert(encode_brokered(message), ORDERS)) for message in messages]
    assert batch_bytes(diverted) == size + 8 * count
    return messages
