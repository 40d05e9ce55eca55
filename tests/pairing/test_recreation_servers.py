"""Backlog queues that an operator deletes under a pair of real servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any, Final

import pytest

from pairbus.broker import AuthorizationRule, Right
from pairbus.client.errors import BacklogUnavailableError, EntityNotFoundError, UnauthorizedError
from pairbus.client.factory import MessagingFactory
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.client.message import BrokeredMessage
from pairbus.client.token_provider import TokenProvider
from pairbus.dialect.paths import backlog_path
from pairbus.pairing import NamespacePair, SendAvailabilityPairedNamespaceOptions
from pairbus.pairing.backlog import backlog_description
from pairbus.server.host import NamespaceHost
from pairbus.testing import RunningNamespace, running_namespace
from tests.client.stage import factory_of, make_queue, play
from tests.waiting import eventually_async

NUMBERS: Final = count()
QUEUES: Final = 3
MANY: Final = 60
"""Number of senders with which each queue is used: the probability of an unused one is 1e-10."""

EVERYTHING: Final = (Right.MANAGE, Right.SEND, Right.LISTEN)


@pytest.fixture(scope="module")
def contoso() -> Iterator[RunningNamespace]:
    with running_namespace("contoso") as namespace:
        yield namespace


@pytest.fixture(scope="module")
def fabrikam() -> Iterator[RunningNamespace]:
    with running_namespace("fabrikam") as namespace:
        yield namespace


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A pair, and a manager of its secondary."""

    name: str
    queue: str
    factory: MessagingFactory
    pair: NamespacePair
    operator: NamespaceManager

    def path(self, index: int) -> str:
        return backlog_path(self.name, index)

    async def delete(self, *indexes: int) -> None:
        for index in indexes:
            await self.operator.delete_queue(self.path(index))

    @property
    def used(self) -> list[bool]:
        return [one.is_used for one in self.pair.status().backlog_queues]

    @property
    def recreated(self) -> list[int]:
        return [one.recreated for one in self.pair.status().backlog_queues]

    async def divert(self, texts: list[str]) -> None:
        """Send each message with another sender, concurrently."""
        senders = [await self.factory.create_message_sender(self.queue) for _ in texts]
        await asyncio.gather(*(one.send(BrokeredMessage(text)) for one, text in zip(senders, texts, strict=True)))
        for sender in senders:
            await sender.close()

    async def received(self, amount: int) -> list[str]:
        """Receive messages from the queue of the primary; return their texts."""
        found: list[str] = []
        async with await self.factory.create_message_receiver(self.queue) as receiver:
            while len(found) < amount:
                messages = await receiver.receive(amount, timedelta(seconds=30))
                await receiver.complete(messages)
                found += [message.text() for message in messages]
        return sorted(found)


@asynccontextmanager
async def paired(
    contoso: RunningNamespace, fabrikam: RunningNamespace, timeout_s: float = 30.0, **options: Any
) -> AsyncIterator[Scene]:
    """Create a pair with a separate key for the management of the secondary."""
    name = f"contoso{next(NUMBERS)}"
    _allow(fabrikam, *EVERYTHING)
    queue = make_queue(contoso)
    key = TokenProvider.from_key("app", "first")
    async with (
        NamespaceManager.from_connection_string(fabrikam.connection_string) as operator,
        NamespaceManager.create(operator.endpoint, key) as manager,
        factory_of(fabrikam) as secondary,
        factory_of(contoso, operation_timeout=timedelta(seconds=timeout_s)) as primary,
    ):
        pair = await primary.pair_namespace(
            SendAvailabilityPairedNamespaceOptions(
                manager, secondary, QUEUES, timedelta(), primary_name=name, **options
            )
        )
        yield Scene(name=name, queue=queue, factory=primary, pair=pair, operator=operator)


def _allow(namespace: RunningNamespace, *rights: Right) -> None:
    def set_rights(host: NamespaceHost) -> None:
        others = [one for one in host.use_namespace().authorization_rules(host.now_ms()) if one.name != "app"]
        app = AuthorizationRule(name="app", rights=rights, primary_key="first", secondary_key="second")
        host.use_namespace().set_authorization_rules([*others, app], host.now_ms())

    namespace.call(set_rights)


@pytest.mark.parametrize("deleted", [(1,), (0, 1, 2)], ids=["one", "all"])
def test_c10_queues_deleted_while_failed_over_are_created_again(
    contoso: RunningNamespace, fabrikam: RunningNamespace, deleted: tuple[int, ...]
) -> None:
    async def scenario() -> None:
        async with paired(contoso, fabrikam) as scene:
            await asyncio.to_thread(contoso.stop)
            try:
                await scene.divert(["first"] * MANY)
                depths = await scene.pair.backlog_depth()
                lost = sum(depths[scene.path(index)] for index in deleted)
                await scene.delete(*deleted)
                await scene.divert(["second"] * MANY)
                await eventually_async(lambda: all(scene.used))
                assert sum((await scene.pair.backlog_depth()).values()) == 2 * MANY - lost
                assert [scene.recreated[index] for index in deleted] == [1] * len(deleted)
                for index in deleted:
                    description = await scene.operator.get_queue(scene.path(index))
                    wanted = backlog_description(scene.path(index))
                    assert description.max_delivery_count == wanted.max_delivery_count
                    assert description.max_size_in_megabytes == wanted.max_size_in_megabytes
                    assert description.default_message_time_to_live == wanted.default_message_time_to_live
            finally:
                await asyncio.to_thread(contoso.start)

    play(scenario())


@pytest.mark.parametrize("deleted", [(1,), (0, 1, 2)], ids=["one", "all"])
def test_c14_queues_deleted_while_healthy_are_recreated_for_the_next_outage_and_drained(
    contoso: RunningNamespace, fabrikam: RunningNamespace, deleted: tuple[int, ...]
) -> None:
    async def scenario() -> None:
        async with paired(contoso, fabrikam, enable_syphon=True) as scene:
            for turn in range(2):
                await scene.delete(*deleted)
                await eventually_async(lambda: all(scene.recreated[index] == turn + 1 for index in deleted))  # noqa: B023
                await eventually_async(lambda: all(scene.used))
                scene.pair.engage()
                texts = [f"{turn}-{number:02}" for number in range(20)]
                await scene.divert(texts)
                scene.pair.release()
                assert await scene.received(20) == texts

    play(scenario())


def test_c10_queues_deleted_unnoticed_are_recreated_by_the_next_diversion(
    contoso: RunningNamespace, fabrikam: RunningNamespace
) -> None:
    async def scenario() -> None:
        async with paired(contoso, fabrikam) as scene:
            await scene.divert(["direct"] * 5)
            await scene.delete(*range(QUEUES))
            await asyncio.to_thread(contoso.stop)
            try:
                await scene.divert([str(number) for number in range(20)])
            finally:
                await asyncio.to_thread(contoso.start)
            assert sum(scene.recreated) >= 1
            assert scene.pair.status().diverted == 20

    play(scenario())


def test_c10_sends_succeed_without_manage_and_the_cause_is_reported(
    contoso: RunningNamespace, fabrikam: RunningNamespace
) -> None:
    async def scenario() -> None:
        async with paired(contoso, fabrikam) as scene:
            _allow(fabrikam, Right.SEND, Right.LISTEN)
            scene.pair.engage()
            await scene.delete(1)
            await scene.divert(["diverted"] * MANY)
            assert scene.used == [True, False, True]
            await eventually_async(lambda: _refused(scene, 1))
            assert scene.recreated == [0, 0, 0]
            _allow(fabrikam, *EVERYTHING)
            await eventually_async(lambda: all(scene.used))
            assert scene.recreated == [0, 1, 0]
            assert sum((await scene.pair.backlog_depth()).values()) == MANY

    play(scenario())


def test_c10_send_without_manage_and_queues_raises_every_cause(
    contoso: RunningNamespace, fabrikam: RunningNamespace
) -> None:
    async def scenario() -> None:
        async with paired(contoso, fabrikam, 3.0, attempt_timeout=timedelta(seconds=1)) as scene:
            _allow(fabrikam, Right.SEND, Right.LISTEN)
            scene.pair.engage()
            await scene.delete(*range(QUEUES))
            with pytest.raises(BacklogUnavailableError, match="Manage") as caught:
                await scene.divert(["lost"])
            assert [*caught.value.causes] == [scene.path(index) for index in range(QUEUES)]
            await eventually_async(lambda: all(_refused(scene, index) for index in range(QUEUES)))

    play(scenario())


def _refused(scene: Scene, index: int) -> bool:
    """Return whether the status of a queue says that it was deleted, and that this key cannot create it."""
    cause = scene.pair.status().backlog_queues[index].cause
    return isinstance(cause, EntityNotFoundError) and isinstance(cause.__cause__, UnauthorizedError)
