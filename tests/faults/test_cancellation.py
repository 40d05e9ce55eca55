"""Operations that are cancelled at any moment, and factories that are closed at any moment."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

import pytest

from pairbus.client.errors import (
    ClosedError,
    FactoryFaultedError,
    MessageLockLostError,
    MessageNotFoundError,
    MessagingError,
)
from pairbus.client.message import BrokeredMessage
from pairbus.client.settings import ReceiveMode
from tests.faults.fault import Fault, Kind, Way
from tests.faults.operations import OPERATIONS, BusyFactory, entity_of, limit_s
from tests.faults.world import ORDERS, World, run
from tests.thoroughness import THOROUGH

STEP_S: Final = 0.0005
"""Half of what anything takes on the network: so every moment in between is met."""
STEPS: Final = 60
EACH: Final = 1 if THOROUGH else 4
"""Every how many steps one is tried."""
PROMPT_S: Final = 6.0
"""Nothing is wrong with the network, so nothing has to be waited for but the other end's goodbye."""


@pytest.mark.parametrize("is_new", [True, False], ids=["new", "warm"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_cancelled_at_any_step_leaves_the_client_unchanged(name: str, is_new: bool) -> None:
    async def scenario(world: World) -> None:
        desk = await BusyFactory.open(world)
        for step in range(0, STEPS, EACH):
            if is_new:
                world.proxy.apply(Fault(kind=Kind.CUT))
            task = asyncio.create_task(_do(desk, name))
            await asyncio.sleep(step * STEP_S)
            task.cancel()
            outcome = (await asyncio.gather(task, return_exceptions=True))[0]
            if isinstance(outcome, BaseException):
                kinds = (asyncio.CancelledError, MessageLockLostError, MessageNotFoundError)  # it was done before
                assert isinstance(outcome, kinds), f"step {step}: {outcome!r}"
            elif name == "accept session":
                await outcome.close()  # type: ignore[attr-defined]
            await world.timed(f"send after step {step}", desk.sender.send(BrokeredMessage(b"after")), PROMPT_S)

    run(scenario)


@pytest.mark.parametrize("prefetch", [0, 10])
@pytest.mark.parametrize("mode", list(ReceiveMode), ids=lambda mode: mode.name)
def test_cancelled_receive_loses_no_message(mode: ReceiveMode, prefetch: int) -> None:
    async def scenario(world: World) -> None:
        factory = world.factory()
        sender = await factory.create_message_sender(ORDERS)
        receiver = await factory.create_message_receiver(ORDERS, mode, prefetch_count=prefetch)
        for step in range(0, STEPS, EACH):
            sending = asyncio.create_task(sender.send(BrokeredMessage(b"", message_id=f"{step}")))
            receiving = asyncio.create_task(receiver.receive(1, timedelta(seconds=5)))
            await asyncio.sleep(step * STEP_S)
            receiving.cancel()
            await sending
            try:
                received = await receiving
            except asyncio.CancelledError:
                work = receiver.receive(1, timedelta(seconds=5))
                received = await world.timed(f"receive after step {step}", work, PROMPT_S)
            assert [message.message_id for message in received] == [f"{step}"], f"step {step}"
            if mode is ReceiveMode.PEEK_LOCK:
                assert received[0].delivery_count == 0
                await receiver.complete(received)

    run(scenario)


def test_many_cancelled_operations_do_not_affect_others() -> None:
    async def scenario(world: World) -> None:
        factory = world.factory()
        sender = await factory.create_message_sender(ORDERS)
        tasks = [asyncio.create_task(sender.send(BrokeredMessage(message_id=f"{number}"))) for number in range(100)]
        await asyncio.sleep(5 * STEP_S)  # while it connects
        for task in tasks[::2]:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes[::2])
        assert outcomes[1::2] == [None] * 50
        assert len(world.proxy.relays) == 1

    run(scenario)


@pytest.mark.parametrize("name", OPERATIONS)
def test_factory_closed_at_any_step_ends_pending_operations(name: str) -> None:
    for step in range(0, STEPS, 4):
        run(lambda world, step=step: _close_at(world, name, step, is_fault=False))  # type: ignore[misc]


@pytest.mark.parametrize("name", ["send", "receive", "complete", "peek"])
def test_c17_factory_faulted_at_any_step_ends_pending_operations(name: str) -> None:
    for step in range(0, STEPS, 4):
        run(lambda world, step=step: _close_at(world, name, step, is_fault=True))  # type: ignore[misc]


@pytest.mark.parametrize("name", OPERATIONS)
def test_factory_closed_during_an_outage_ends_pending_operations(name: str) -> None:
    async def scenario(world: World) -> None:
        desk = await BusyFactory.open(world)
        world.proxy.apply(Fault(kind=Kind.STALL, way=Way.BOTH))
        task = asyncio.create_task(_do(desk, name))
        await asyncio.sleep(20)
        await world.timed("close", desk.factory.close(), 60)
        await _expect_closed(world, task, name)

    run(scenario)


@pytest.mark.parametrize("how", ["cancelled", "twice at once"])
def test_close_that_is_cancelled_or_repeated_releases_everything(how: str) -> None:
    async def scenario(world: World) -> None:
        for step in range(0, STEPS, 2):
            desk = await BusyFactory.open(world)
            await desk.prefetching.receive(1, timedelta())
            closing = asyncio.create_task(desk.factory.close())
            await asyncio.sleep(step * STEP_S)
            if how == "cancelled":
                closing.cancel()
            await world.timed("close", desk.factory.close(), PROMPT_S)
            if how != "cancelled":
                assert closing.done()
            await asyncio.gather(closing, return_exceptions=True)
            assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()], f"step {step}"

    run(scenario)


@pytest.mark.parametrize("name", OPERATIONS)
def test_timeout_of_an_operation_is_respected(name: str) -> None:
    async def scenario(world: World) -> None:
        desk = await BusyFactory.open(world)
        world.proxy.apply(Fault(kind=Kind.STALL, way=Way.BOTH))
        start_s = world.loop.time()
        with pytest.raises(TimeoutError) as caught:
            await asyncio.wait_for(_do(desk, name), 1.5)
        assert not isinstance(caught.value, MessagingError)
        assert world.loop.time() == pytest.approx(start_s + 1.5, abs=0.01)
        await world.timed("send", desk.sender.send(BrokeredMessage()), 60)

    run(scenario)


async def _close_at(world: World, name: str, step: int, *, is_fault: bool) -> None:
    desk = await BusyFactory.open(world)
    world.proxy.apply(Fault(kind=Kind.CUT))
    task = asyncio.create_task(_do(desk, name))
    await asyncio.sleep(step * STEP_S)
    if is_fault:
        desk.factory.fault(RuntimeError("the other one is gone"))
    await world.timed("close", desk.factory.close(), PROMPT_S)
    await _expect_closed(world, task, name)
    with pytest.raises(FactoryFaultedError if is_fault else ClosedError):
        await desk.sender.send(BrokeredMessage())


async def _expect_closed(world: World, task: asyncio.Task[object], name: str) -> None:
    """It is done, or it says that it was closed; and that at once."""
    try:
        await world.timed(f"{name} after the close", asyncio.wait_for(task, limit_s(name)), 1.0)
    except MessagingError as error:
        assert isinstance(error, ClosedError | MessageLockLostError), repr(error)  # noqa: PT017 (or it was done)
        assert error.entity in {entity_of(name), None}  # noqa: PT017


async def _do(desk: BusyFactory, name: str) -> object:
    return await OPERATIONS[name](desk)
