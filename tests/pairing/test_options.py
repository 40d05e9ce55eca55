"""Pairing a namespace: options, rejected arguments, and the effect of a pair."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final

import pytest

from pairbus.broker import AuthorizationRule, Right
from pairbus.client.endpoint import Endpoint
from pairbus.client.errors import (
    ClosedError,
    EntityAlreadyExistsError,
    FactoryFaultedError,
    InvalidRequestError,
    MessagingCommunicationError,
    MessagingError,
    MessagingTimeoutError,
    ServerBusyError,
    UnauthorizedError,
)
from pairbus.client.factory import MessagingFactory
from pairbus.client.management.descriptions import QueueDescription
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.client.message import BrokeredMessage
from pairbus.client.settings import NO_RETRY, MessagingFactorySettings
from pairbus.client.token_provider import SharedAccessKeyTokenProvider, TokenProvider
from pairbus.dialect.connection_string import parse_connection_string
from pairbus.pairing import (
    FAILURE_RULES,
    FailureVerdict,
    NamespacePair,
    PairedNamespaceOptions,
    SendAvailabilityPairedNamespaceOptions,
    SyphonSettings,
    SyphonStatus,
    TimeToLive,
)
from pairbus.testing import RunningNamespace, running_namespace
from tests.client.stage import play
from tests.faults.namespace import KEY
from tests.simulation.pair_world import PairWorld, run
from tests.waiting import eventually_async

ONE_TRY: Final = MessagingFactorySettings(operation_timeout=timedelta(seconds=1), retry_policy=NO_RETRY)
SOON: Final = {"operation_timeout": timedelta(seconds=20)}
PRIMARY: Final = "amqp://contoso.example"
SECONDARY: Final = "amqp://fabrikam.example"
QUEUES: Final = tuple(f"contoso/x-servicebus-transfer/{index}" for index in range(3))


def options(secondary: str = SECONDARY, manager: str | None = None, **given: Any) -> Any:
    """Return options for a secondary that need not be reachable."""
    return SendAvailabilityPairedNamespaceOptions(
        NamespaceManager.create(manager or secondary, None, ONE_TRY), MessagingFactory.create(secondary), **given
    )


def options_in(world: PairWorld, **given: Any) -> SendAvailabilityPairedNamespaceOptions:
    manager = given.pop("manager", None) or world.secondary_manager(**SOON)
    world.managers.append(manager)
    factory = given.pop("factory", None) or world.secondary_factory(**SOON)
    return SendAvailabilityPairedNamespaceOptions(manager, factory, given.pop("count", 3), **given)


def diverted(world: PairWorld) -> int:
    """Return the number of messages in the backlog."""
    return sum(world.secondary.info(path).ready_count for path in QUEUES)


# Defaults


def test_c3_defaults_are_the_documented_ones() -> None:
    manager, factory = NamespaceManager.create(SECONDARY), MessagingFactory.create(SECONDARY)
    pair_options = SendAvailabilityPairedNamespaceOptions(manager, factory)
    assert isinstance(pair_options, PairedNamespaceOptions)
    assert pair_options.secondary_namespace_manager is manager
    assert pair_options.messaging_factory is factory
    assert pair_options.backlog_queue_count == 10
    assert pair_options.failover_interval == timedelta(minutes=1)
    assert pair_options.enable_syphon is False
    assert pair_options.ping_interval == timedelta(minutes=1)
    assert pair_options.attempt_timeout == timedelta(seconds=5)
    assert pair_options.failure_rules is FAILURE_RULES
    assert pair_options.preserve_session_order is False
    assert pair_options.syphon == SyphonSettings()
    assert pair_options.syphon.long_poll == timedelta(minutes=15)
    assert pair_options.syphon.time_to_live is TimeToLive.FULL


def test_c3_five_options_are_positional() -> None:
    manager, factory = NamespaceManager.create(SECONDARY), MessagingFactory.create(SECONDARY)
    pair_options = SendAvailabilityPairedNamespaceOptions(manager, factory, 3, timedelta(seconds=7), True)
    assert (pair_options.backlog_queue_count, pair_options.failover_interval, pair_options.enable_syphon) == (
        3,
        timedelta(seconds=7),
        True,
    )


# Invalid arguments


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"backlog_queue_count": 0}, "backlog_queue_count must be 1 to 10,000, got 0"),
        ({"backlog_queue_count": -1}, "backlog_queue_count must be 1 to 10,000, got -1"),
        ({"backlog_queue_count": 10_001}, "backlog_queue_count must be 1 to 10,000, got 10001"),
        ({"failover_interval": timedelta(microseconds=-1)}, "failover_interval must be 0:00:00 to 1:00:00, got -1 day"),
        (
            {"failover_interval": timedelta(minutes=60, microseconds=1)},
            "failover_interval must be 0:00:00 to 1:00:00, got 1:00:00.000001",
        ),
        ({"ping_interval": timedelta(milliseconds=999)}, "ping_interval must be .*, got 0:00:00.999"),
        ({"ping_interval": timedelta()}, "must be 0:00:01 to 0:30:00"),
        ({"ping_interval": timedelta(minutes=30, seconds=1)}, "ping_interval must be 0:00:01 to 0:30:00, got 0:30:01"),
        ({"attempt_timeout": timedelta(milliseconds=99)}, "attempt_timeout must be "),
        ({"attempt_timeout": timedelta(hours=2)}, "attempt_timeout must be .*, got 2:00:00"),
        ({"primary_name": ""}, "primary_name must not be empty.*got ''"),
        ({"primary_name": "/contoso"}, "primary_name must not .*got '/contoso'"),
        ({"primary_name": "con?toso"}, "primary_name must not contain '[?]', got 'con[?]toso'"),
    ],
    ids=repr,
)
def test_c4_value_out_of_range_is_rejected_with_the_range(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        options(**given)


@pytest.mark.parametrize(
    "given",
    [
        {"backlog_queue_count": 1},
        {"backlog_queue_count": 10_000},
        {"failover_interval": timedelta()},
        {"failover_interval": timedelta(minutes=60)},
        {"ping_interval": timedelta(seconds=1)},
        {"ping_interval": timedelta(minutes=30)},
        {"attempt_timeout": timedelta(milliseconds=100)},
        {"attempt_timeout": timedelta(minutes=60)},
        {"failure_rules": {}},
        {"failure_rules": MappingProxyType({MessagingError: FailureVerdict.COUNTS})},
        {"syphon": SyphonSettings(max_messages=1)},
    ],
    ids=repr,
)
def test_c4_value_at_the_end_of_a_range_is_accepted(given: dict[str, Any]) -> None:
    pair_options = options(**given)
    assert {name: getattr(pair_options, name) for name in given} == given


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"backlog_queue_count": "10"}, "backlog_queue_count must be int, got '10' of type str"),
        ({"backlog_queue_count": 2.0}, "backlog_queue_count must be int"),
        ({"backlog_queue_count": True}, "backlog_queue_count must be int, got True of type bool"),
        ({"backlog_queue_count": None}, "backlog_queue_count must be int"),
        ({"failover_interval": 60}, "failover_interval must be timedelta, got 60 of type int"),
        ({"failover_interval": None}, "failover_interval must be timedelta"),
        ({"ping_interval": 1.5}, "ping_interval must be timedelta"),
        ({"attempt_timeout": "5 s"}, "attempt_timeout must be timedelta"),
        ({"enable_syphon": 1}, "enable_syphon must be bool, got 1 of type int"),
        ({"enable_syphon": None}, "enable_syphon must be bool"),
        ({"preserve_session_order": "yes"}, "preserve_session_order must be bool"),
        ({"primary_name": 5}, "primary_name must be str or None"),
        ({"failure_rules": None}, "failure_rules must be a mapping"),
        (
            {"failure_rules": {ServerBusyError: True}},
            "failure_rules must map subclasses of MessagingError to FailureVerdict",
        ),
        ({"syphon": {}}, "syphon must be SyphonSettings or None"),
        ({"syphon_engine": None}, "syphon_engine must be str"),
    ],
    ids=repr,
)
def test_c4_value_of_another_type_is_rejected_with_the_type(given: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        options(**given)


@pytest.mark.parametrize("wrong", [None, SECONDARY, Endpoint.parse(SECONDARY)], ids=repr)
def test_c4_manager_and_factory_must_have_the_right_types(wrong: Any) -> None:
    manager, factory = NamespaceManager.create(SECONDARY), MessagingFactory.create(SECONDARY)
    with pytest.raises(TypeError, match="secondary_namespace_manager must be NamespaceManager"):
        SendAvailabilityPairedNamespaceOptions(wrong, factory)
    with pytest.raises(TypeError, match="messaging_factory must be MessagingFactory"):
        SendAvailabilityPairedNamespaceOptions(manager, wrong)
    swapped: Any = SendAvailabilityPairedNamespaceOptions
    with pytest.raises(TypeError, match="secondary_namespace_manager must be NamespaceManager"):
        swapped(factory, manager)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"long_poll": timedelta(milliseconds=999)}, ValueError, "long_poll must be "),
        ({"long_poll": timedelta(days=2)}, ValueError, "long_poll must be 1 second to 1 day, got 2 days"),
        ({"long_poll": 900}, TypeError, "long_poll must be timedelta"),
        ({"max_messages": 0}, ValueError, "max_messages must be >= 1, got 0"),
        ({"max_messages": True}, TypeError, "max_messages must be int"),
        ({"time_to_live": "full"}, TypeError, "time_to_live must be TimeToLive"),
    ],
    ids=repr,
)
def test_c4_syphon_settings_are_validated(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        SyphonSettings(**given)


# Namespaces that can be paired


def pair(primary: str, pair_options: PairedNamespaceOptions[NamespacePair]) -> None:
    async def scenario() -> None:
        async with MessagingFactory.create(primary) as factory:
            await factory.pair_namespace(pair_options)

    play(scenario())


@pytest.mark.parametrize(
    ("primary", "secondary"),
    [
        (PRIMARY, PRIMARY),
        (PRIMARY, "amqp://CONTOSO.example"),
        (PRIMARY, "amqp://contoso.example."),
        (PRIMARY, "amqp://Contoso.Example:5672"),
        (PRIMARY, "http://contoso.example:5672/"),
        ("sb://contoso.example", "amqps://contoso.example:5671"),
        ("sb://contoso.example", "contoso.example"),
        ("amqp://localhost:5672", "amqp://127.0.0.1:5672"),
        ("amqp://127.0.0.1:5672", "amqp://LOCALHOST"),
        ("amqp://localhost:5672", "amqp://[::1]:5672"),
        ("amqp://[::1]:5672", "amqp://[0:0:0:0:0:0:0:1]:5672"),
        ("sb://contoso.example", "amqp://contoso.example"),
    ],
)
def test_c4_pairing_a_namespace_with_itself_is_rejected_in_any_spelling(primary: str, secondary: str) -> None:
    with pytest.raises(ValueError, match=r"must be of the secondary namespace, got .*, which is the primary"):
        pair(primary, options(secondary))


def test_c4_namespaces_on_one_host_can_be_paired() -> None:
    async def scenario() -> None:
        with running_namespace("contoso") as first, running_namespace("fabrikam") as second:
            text = second.connection_string
            async with (
                MessagingFactory.from_connection_string(first.connection_string) as primary,
                MessagingFactory.from_connection_string(text) as factory,
                NamespaceManager.from_connection_string(text) as manager,
            ):
                await primary.pair_namespace(SendAvailabilityPairedNamespaceOptions(manager, factory, 1))
                assert [queue.path for queue in await manager.get_queues()] == [
                    "contoso/x-servicebus-transfer/0",
                    f"localhost-{first.port}/x-pairbus-name/contoso",
                ]

    play(scenario())


@pytest.mark.parametrize(
    ("primary", "secondary"), [(PRIMARY, SECONDARY), ("amqp://localhost:5672", "amqp://localhost:5673")]
)
def test_c4_manager_of_the_primary_is_rejected(primary: str, secondary: str) -> None:
    with pytest.raises(ValueError, match=r"must be of the secondary namespace, got .*, which is the primary"):
        pair(primary, options(secondary, manager=primary))


def test_c4_manager_and_factory_of_different_namespaces_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"must be of the same namespace, got amqp://northwind.example and "):
        pair(PRIMARY, options(manager="amqp://northwind.example"))


@pytest.mark.parametrize("spelling", ["FABRIKAM.example", "fabrikam.example."])
def test_c4_manager_may_spell_the_host_differently(spelling: str) -> None:
    async def scenario(world: PairWorld) -> None:
        endpoint = world.secondary_network.endpoint
        assert endpoint.host == "fabrikam.example"
        names: Any = world.loop
        names.names[spelling] = "127.0.0.1"
        manager = world.manager_at(replace(endpoint, host=spelling))
        await world.primary_factory().pair_namespace(options_in(world, manager=manager))

    run(scenario)


@pytest.mark.parametrize("wrong", [None, "fabrikam", {}], ids=repr)
def test_c4_options_of_another_type_are_rejected(wrong: Any) -> None:
    with pytest.raises(TypeError, match="options must be PairedNamespaceOptions"):
        pair(PRIMARY, wrong)


def test_c4_unknown_engine_is_rejected_before_any_request() -> None:
    async def scenario(world: PairWorld) -> None:
        primary = world.primary_factory()
        with pytest.raises(ValueError, match=r"there is no syphon engine 'steam'; there are: .*in-process"):
            await primary.pair_namespace(options_in(world, enable_syphon=True, syphon_engine="steam"))
        assert await world.secondary_manager().get_queues() == []
        await primary.pair_namespace(options_in(world))

    run(scenario)


# Repeated pairing


def test_c4_second_pairing_of_a_factory_is_rejected() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, pair_options = world.primary_factory(), options_in(world)
        await primary.pair_namespace(pair_options)
        for again in (pair_options, options_in(world)):
            with pytest.raises(InvalidRequestError, match=r"contoso.example.* is already paired"):
                await primary.pair_namespace(again)

    run(scenario)


def test_c4_concurrent_second_pairing_of_a_factory_is_rejected() -> None:
    async def scenario(world: PairWorld) -> None:
        primary = world.primary_factory()
        outcomes = await asyncio.gather(
            *(primary.pair_namespace(options_in(world)) for _ in range(3)), return_exceptions=True
        )
        assert [type(outcome) for outcome in outcomes] == [NamespacePair, InvalidRequestError, InvalidRequestError]

    run(scenario)


def test_c4_paired_factory_is_rejected_as_a_secondary() -> None:
    async def scenario(world: PairWorld) -> None:
        first, second = world.primary_factory(), world.secondary_factory()
        await first.pair_namespace(options_in(world, factory=second))
        other = SendAvailabilityPairedNamespaceOptions(world.primary_manager(), first)
        with pytest.raises(InvalidRequestError, match=r"contoso.example.* is paired itself"):
            await world.secondary_factory().pair_namespace(other)

    run(scenario)


def test_c4_secondary_factory_cannot_be_paired() -> None:
    async def scenario(world: PairWorld) -> None:
        first, second = world.primary_factory(), world.secondary_factory()
        await first.pair_namespace(options_in(world, factory=second))
        other = SendAvailabilityPairedNamespaceOptions(world.primary_manager(), world.primary_factory())
        with pytest.raises(InvalidRequestError, match=r"fabrikam.example.* is the secondary of a pair"):
            await second.pair_namespace(other)

    run(scenario)


def test_c4_factories_cannot_be_the_secondary_of_each_other() -> None:
    async def scenario(world: PairWorld) -> None:
        first, second = world.primary_factory(), world.secondary_factory()
        there = options_in(world, factory=second)
        back = SendAvailabilityPairedNamespaceOptions(world.primary_manager(), first)
        outcomes = await asyncio.gather(
            first.pair_namespace(there), second.pair_namespace(back), return_exceptions=True
        )
        assert [type(outcome) for outcome in outcomes].count(InvalidRequestError) >= 1
        assert not (first.pairing and second.pairing)

    run(scenario)


def test_factory_can_be_the_secondary_of_several_primaries() -> None:
    async def scenario(world: PairWorld) -> None:
        second = world.secondary_factory()
        for _ in range(3):
            await world.primary_factory().pair_namespace(options_in(world, factory=second))

    run(scenario)


def test_secondary_is_released_when_its_primary_is_closed() -> None:
    async def scenario(world: PairWorld) -> None:
        first, second = world.primary_factory(), world.secondary_factory()
        await first.pair_namespace(options_in(world, factory=second))
        await first.close()
        assert not second.is_closed
        other = SendAvailabilityPairedNamespaceOptions(world.primary_manager(), world.primary_factory())
        await second.pair_namespace(other)

    run(scenario)


# Effect


async def fail_over(world: PairWorld) -> None:
    """Make the primary unreachable: with a zero interval the first send fails over."""
    world.primary_network.refuse()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["sender", "queue client", "topic client"])
def test_c3_pairing_applies_to_senders_created_before_and_after(when: str, kind: str) -> None:
    async def scenario(world: PairWorld) -> None:
        world.primary.create_queue("orders")
        world.primary.create_topic("news", ["all"])
        primary = world.primary_factory()
        clients = [await make(primary, kind)] if when == "before" else []
        for one in clients:
            await one.send(BrokeredMessage(b"it has a link already"))
        await primary.pair_namespace(options_in(world, failover_interval=timedelta()))
        clients = clients or [await make(primary, kind)]
        await fail_over(world)
        for one in clients:
            await one.send(BrokeredMessage(b"1"))
            await one.send([BrokeredMessage(b"2"), BrokeredMessage(b"3")])
            await one.send_batch([BrokeredMessage(b"4")])
        assert diverted(world) == 4

    run(scenario)


async def make(factory: MessagingFactory, kind: str) -> Any:
    match kind:
        case "sender":
            return await factory.create_message_sender("orders")
        case "queue client":
            return await factory.create_queue_client("orders")
        case _:
            return await factory.create_topic_client("news")


def test_c2_receivers_receive_only_from_the_primary() -> None:
    async def scenario(world: PairWorld) -> None:
        world.primary.create_queue("orders")
        primary = world.primary_factory()
        receiver = await primary.create_message_receiver("orders")
        pair = await primary.pair_namespace(options_in(world))
        queue = await primary.create_queue_client("orders")
        await queue.send(BrokeredMessage(b"before"))
        pair.engage()
        await queue.send(BrokeredMessage(b"diverted"))
        assert [bytes(one.body) for one in await receiver.receive(10)] == [b"before"]
        assert await queue.receive(10, timedelta(seconds=2)) == []
        assert diverted(world) == 1

    run(scenario)


def test_c3_unpaired_factory_is_not_affected() -> None:
    async def scenario(world: PairWorld) -> None:
        world.primary.create_queue("orders")
        await world.primary_factory().pair_namespace(options_in(world, failover_interval=timedelta()))
        sender = await world.primary_factory(**SOON).create_message_sender("orders")
        await fail_over(world)
        with pytest.raises(MessagingTimeoutError):
            await sender.send(BrokeredMessage())
        assert diverted(world) == 0

    run(scenario)


@pytest.mark.parametrize("there", [0, 2, 5])
def test_c3_options_have_the_number_of_backlog_queues(there: int) -> None:
    async def scenario(world: PairWorld) -> None:
        for index in range(there):
            world.secondary.create_queue(f"contoso/x-servicebus-transfer/{index}")
        pair_options = options_in(world, count=3)
        pair = await world.primary_factory().pair_namespace(pair_options)
        assert pair_options.backlog_queue_count == 3
        assert tuple(queue.path for queue in pair.status().backlog_queues) == QUEUES
        assert len(await world.secondary_manager().get_queues()) == max(3, there)

    run(scenario)


def test_c5_primary_name_can_be_given() -> None:
    async def scenario(world: PairWorld) -> None:
        await world.primary_factory().pair_namespace(options_in(world, count=1, primary_name="main"))
        assert [queue.path for queue in await world.secondary_manager().get_queues()] == [
            "main/x-servicebus-transfer/0"
        ]

    run(scenario)


def test_c3_pairing_is_complete_when_the_call_returns() -> None:
    async def scenario(world: PairWorld) -> None:
        world.primary.create_queue("orders")
        primary = world.primary_factory()
        pair = await primary.pair_namespace(options_in(world, failover_interval=timedelta()))
        assert primary.pairing is pair
        await fail_over(world)
        relays = len(world.secondary_network.relays)
        sender = await primary.create_message_sender("orders")
        await world.timed("send", sender.send(BrokeredMessage()), 1.0)
        assert len(world.secondary_network.relays) == relays  # the link to the backlog was open

    run(scenario)


@pytest.mark.parametrize(("attempt_s", "takes_s"), [(2.0, 2.0), (5.0, 5.0), (600.0, 20.0)])
def test_c6_attempt_timeout_applies_to_both_namespaces(attempt_s: float, takes_s: float) -> None:
    async def scenario(world: PairWorld) -> None:
        world.primary.create_queue("orders")
        primary, second = world.primary_factory(**SOON), world.secondary_factory(**SOON)
        sender = await primary.create_message_sender("orders")
        await sender.send(BrokeredMessage())
        pair_options = options_in(
            world, factory=second, failover_interval=timedelta(), attempt_timeout=timedelta(seconds=attempt_s)
        )
        await primary.pair_namespace(pair_options)
        assert (primary.send_attempt_s, second.send_attempt_s) == (takes_s, takes_s)
        world.primary_network.stall()
        began_s = world.loop.time()
        await sender.send(BrokeredMessage())
        assert takes_s <= world.loop.time() - began_s < takes_s + 0.1
        assert diverted(world) == 1

    run(scenario)


def test_c3_failed_pairing_restores_the_attempt_timeout() -> None:
    async def scenario(world: PairWorld) -> None:
        world.secondary.create_topic(QUEUES[0])
        primary, second = world.primary_factory(), world.secondary_factory()
        before = primary.send_attempt_s, second.send_attempt_s
        with pytest.raises(EntityAlreadyExistsError):
            await primary.pair_namespace(options_in(world, factory=second))
        assert (primary.send_attempt_s, second.send_attempt_s) == before

    run(scenario)


# Unreachable namespaces


@pytest.mark.parametrize("what", ["refuse", "stall", "hide", "killed"])
def test_c3_primary_can_be_paired_while_it_is_down(what: str) -> None:
    async def scenario(world: PairWorld) -> None:
        spoil(world.primary_network, what) if what != "killed" else world.primary.kill()
        primary = world.primary_factory(**SOON)
        pair_options = options_in(world, failover_interval=timedelta())
        # A primary that does not respond has the time of one attempt to announce its name.
        await world.timed(
            "pair", primary.pair_namespace(pair_options), pair_options.attempt_timeout.total_seconds() + 0.1
        )
        sender = await primary.create_message_sender("orders")
        await sender.send(BrokeredMessage())
        assert diverted(world) == 1

    run(scenario)


def spoil(network: Any, what: str) -> None:
    getattr(network, what)()


@pytest.mark.parametrize("what", ["refuse", "stall", "hide", "killed"])
def test_c3_secondary_that_is_down_raises_and_the_factory_can_be_paired_later(what: str) -> None:
    async def scenario(world: PairWorld) -> None:
        spoil(world.secondary_network, what) if what != "killed" else world.secondary.kill()
        primary, second = world.primary_factory(**SOON), world.secondary_factory(**SOON)
        pair_options = options_in(world, factory=second)
        with pytest.raises((MessagingTimeoutError, MessagingCommunicationError)):
            await world.timed("pair", primary.pair_namespace(pair_options), 20.1)
        assert primary.pairing is None
        world.secondary_network.heal()
        if what == "killed":
            world.secondary.start()
        assert isinstance(await primary.pair_namespace(pair_options), NamespacePair)

    run(scenario)


def test_c3_secondary_that_accepts_no_sends_raises() -> None:
    async def scenario(world: PairWorld) -> None:
        unreachable = replace(world.secondary_network.endpoint, port=5)  # a closed port
        primary, second = world.primary_factory(**SOON), world.factory_at(unreachable, **SOON)
        with pytest.raises(MessagingError) as caught:
            await world.timed("pair", primary.pair_namespace(options_in(world, factory=second)), 20.0)
        assert caught.value.is_transient
        await primary.pair_namespace(options_in(world))

    run(scenario)


def test_c5_disabled_backlog_queues_do_not_prevent_pairing() -> None:
    async def scenario(world: PairWorld) -> None:
        for path in QUEUES:
            world.secondary.create_queue(path)
        for path in QUEUES[1:]:
            world.secondary.disable(path)
        primary = world.primary_factory()
        pair = await primary.pair_namespace(options_in(world))
        pair.engage()
        for _ in range(5):
            await (await primary.create_message_sender("orders")).send(BrokeredMessage())
        assert world.secondary.info(QUEUES[0]).ready_count == 5

    run(scenario)


def test_c3_backlog_queues_that_cannot_be_created_raise() -> None:
    async def scenario(world: PairWorld) -> None:
        world.secondary.create_topic(QUEUES[1])
        primary, pair_options = world.primary_factory(), options_in(world)
        with pytest.raises(EntityAlreadyExistsError, match="x-servicebus-transfer/1"):
            await primary.pair_namespace(pair_options)
        world.secondary.delete(QUEUES[1])
        await primary.pair_namespace(pair_options)

    run(scenario)


@pytest.mark.parametrize("why", ["no queues", "no engine", "no way"])
def test_c3_secondary_is_released_after_a_failed_pairing(why: str) -> None:
    async def scenario(world: PairWorld) -> None:
        first, second = world.primary_factory(**SOON), world.secondary_factory(**SOON)
        manager = world.secondary_manager(**SOON)
        if why == "no queues":
            world.secondary.create_topic(QUEUES[0])
        elif why == "no way":
            second = world.factory_at(replace(second.endpoint, port=5), **SOON)
        pair_options = options_in(
            world, factory=second, manager=manager, enable_syphon=why == "no engine", syphon_engine="steam"
        )
        with pytest.raises((MessagingError, ValueError)):
            await first.pair_namespace(pair_options)
        back = SendAvailabilityPairedNamespaceOptions(world.primary_manager(), world.primary_factory(), 1)
        await second.pair_namespace(back)

    run(scenario)


def test_c20_partitioned_backlog_queues_are_rejected_for_session_order() -> None:
    async def scenario(world: PairWorld) -> None:
        manager = world.secondary_manager()
        await manager.create_queue(QueueDescription(QUEUES[2], enable_partitioning=True))
        primary = world.primary_factory()
        with pytest.raises(ValueError, match="requires backlog queues without partitions, got "):
            await primary.pair_namespace(options_in(world, preserve_session_order=True))
        await primary.pair_namespace(options_in(world))

    run(scenario)


# Keys, on real servers


def rule(name: str, *rights: Right) -> AuthorizationRule:
    return AuthorizationRule(name=name, rights=rights, primary_key=f"{name}-1", secondary_key=f"{name}-2")


RULES: Final = (
    rule("sender", Right.SEND),
    rule("listener", Right.LISTEN),
    rule("manager", Right.MANAGE, Right.SEND, Right.LISTEN),
)


@pytest.fixture(scope="module")
def primary_namespace() -> Iterator[RunningNamespace]:
    with running_namespace("contoso", queues=["orders"]) as running:
        yield running


@pytest.fixture(scope="module")
def secondary_namespace() -> Iterator[RunningNamespace]:
    with running_namespace("fabrikam") as running:
        text = parse_connection_string(running.connection_string)
        root = rule(str(text.key_name), Right.MANAGE, Right.SEND, Right.LISTEN)
        root = replace(root, primary_key=running.key)
        running.call(lambda host: host.use_namespace().set_authorization_rules([root, *RULES], host.now_ms()))
        yield running


def endpoint_of(namespace: RunningNamespace) -> Endpoint:
    return Endpoint("localhost", namespace.port, tls=False)


@pytest.mark.parametrize(
    ("manages", "sends", "message"),
    [
        (("manager", "wrong"), ("manager", "manager-1"), "check the key or token"),
        (("nobody", "manager-1"), ("manager", "manager-1"), "check the key or token"),
        (("sender", "sender-1"), ("manager", "manager-1"), "Manage"),
        (("listener", "listener-1"), ("manager", "manager-1"), "Manage"),
        (("manager", "manager-1"), ("manager", "wrong"), "check the key or token"),
        (("manager", "manager-1"), ("listener", "listener-1"), "Send"),
    ],
    ids=["wrong key", "wrong name", "sender", "listener", "wrong key to send", "listener sends"],
)
def test_c3_missing_claim_raises_and_the_factory_can_be_paired_with_another_key(
    primary_namespace: RunningNamespace,
    secondary_namespace: RunningNamespace,
    manages: tuple[str, str],
    sends: tuple[str, str],
    message: str,
) -> None:
    there = endpoint_of(secondary_namespace)

    async def scenario() -> None:
        async with (
            MessagingFactory.from_connection_string(primary_namespace.connection_string) as primary,
            MessagingFactory.create(there, TokenProvider.from_key(*sends)) as wrong,
            MessagingFactory.create(there, TokenProvider.from_key("sender", "sender-2")) as right,
        ):
            manager = NamespaceManager.create(there, TokenProvider.from_key(*manages))
            with pytest.raises(UnauthorizedError, match=message) as caught:
                await primary.pair_namespace(SendAvailabilityPairedNamespaceOptions(manager, wrong))
            assert not caught.value.is_transient
            assert primary.pairing is None
            await manager.close()
            manager = NamespaceManager.create(there, TokenProvider.from_key("manager", "manager-2"))
            pair = await primary.pair_namespace(SendAvailabilityPairedNamespaceOptions(manager, right, 2))
            sender = await primary.create_message_sender("orders")
            await sender.send(BrokeredMessage(b"straight"))
            pair.engage("orders")
            await sender.send(BrokeredMessage(b"diverted"))
            assert sum((await pair.backlog_depth()).values()) >= 1
            await manager.close()

    play(scenario())


def test_c3_key_without_listen_raises_if_a_syphon_is_enabled(
    primary_namespace: RunningNamespace, secondary_namespace: RunningNamespace
) -> None:
    there = endpoint_of(secondary_namespace)

    async def scenario() -> None:
        async with (
            MessagingFactory.from_connection_string(primary_namespace.connection_string) as primary,
            MessagingFactory.create(there, TokenProvider.from_key("sender", "sender-1")) as second,
        ):
            manager = NamespaceManager.create(there, TokenProvider.from_key("manager", "manager-1"))
            with pytest.raises(UnauthorizedError, match="Listen"):
                await primary.pair_namespace(
                    SendAvailabilityPairedNamespaceOptions(manager, second, 2, enable_syphon=True)
                )
            pair = await primary.pair_namespace(SendAvailabilityPairedNamespaceOptions(manager, second, 2))
            assert pair.status().syphon is None
            await manager.close()

    play(scenario())


def test_c14_enabled_syphon_delivers_the_backlog() -> None:
    async def scenario(world: PairWorld) -> None:
        world.primary.create_queue("orders")
        primary = world.primary_factory()
        pair_options = options_in(world, enable_syphon=True, syphon=SyphonSettings(max_messages=5))
        pair = await primary.pair_namespace(pair_options)
        sender = await primary.create_message_sender("orders")
        pair.engage("orders")
        await sender.send([BrokeredMessage() for _ in range(20)])
        assert sum((await pair.backlog_depth()).values()) == 20
        pair.release("orders")
        await eventually_async(lambda: world.primary.info("orders").ready_count == 20)
        await eventually_async(lambda: syphon_of(pair).syphoned == 20)
        assert syphon_of(pair).engine == "in-process"
        await primary.close()
        await pair_options.messaging_factory.close()

    run(scenario)


def syphon_of(pair: NamespacePair) -> SyphonStatus:
    syphon = pair.status().syphon
    assert syphon is not None
    return syphon


def test_c3_factory_can_be_paired_after_its_revoked_key_is_restored() -> None:
    async def scenario(world: PairWorld) -> None:
        old = rule("old", Right.MANAGE, Right.SEND, Right.LISTEN)
        world.secondary.call(lambda namespace, now_ms: namespace.set_authorization_rules([KEY, old], now_ms))
        key = SharedAccessKeyTokenProvider("old", "old-1", clock=world.wall_s)
        there = world.secondary_network.endpoint
        second = MessagingFactory.create(there, key)
        world.factories.append(second)
        pair_options = options_in(world, manager=NamespaceManager.create(there, key), factory=second)
        world.secondary.call(lambda namespace, now_ms: namespace.set_authorization_rules([KEY], now_ms))
        primary = world.primary_factory()
        with pytest.raises(UnauthorizedError):
            await primary.pair_namespace(pair_options)
        world.secondary.call(lambda namespace, now_ms: namespace.set_authorization_rules([KEY, old], now_ms))
        await primary.pair_namespace(pair_options)

    run(scenario)


# Factories that end during pairing


def test_c3_closed_factory_cannot_be_paired() -> None:
    async def scenario(world: PairWorld) -> None:
        primary = world.primary_factory()
        await primary.close()
        with pytest.raises(ClosedError):
            await primary.pair_namespace(options_in(world))
        primary, second = world.primary_factory(), world.secondary_factory()
        await second.close()
        with pytest.raises(ClosedError, match="fabrikam"):
            await primary.pair_namespace(options_in(world, factory=second))
        await primary.pair_namespace(options_in(world))

    run(scenario)


def test_c3_closed_manager_raises() -> None:
    async def scenario(world: PairWorld) -> None:
        manager, primary = world.secondary_manager(), world.primary_factory()
        await manager.close()
        with pytest.raises(ClosedError, match="manager"):
            await primary.pair_namespace(options_in(world, manager=manager))
        await primary.pair_namespace(options_in(world))

    run(scenario)


MOMENTS_MS: Final = (0, 1, 3, 5, 8, 12, 20, 30, 50)


async def begin(world: PairWorld, primary: MessagingFactory, second: MessagingFactory) -> asyncio.Task[NamespacePair]:
    return asyncio.create_task(primary.pair_namespace(options_in(world, factory=second)))


@pytest.mark.parametrize("after_ms", MOMENTS_MS)
def test_c3_factory_closed_during_pairing_raises_and_releases_its_secondary(after_ms: int) -> None:
    async def scenario(world: PairWorld) -> None:
        primary, second = world.primary_factory(), world.secondary_factory()
        pairing = await begin(world, primary, second)
        await asyncio.sleep(after_ms / 1_000)
        was_done = pairing.done()
        await primary.close()
        await asyncio.wait((pairing,))
        if was_done:
            assert isinstance(pairing.result(), NamespacePair)
        else:
            assert isinstance(pairing.exception(), ClosedError)
        assert not second.is_closed
        back = SendAvailabilityPairedNamespaceOptions(world.primary_manager(), world.primary_factory(), 1)
        await second.pair_namespace(back)

    run(scenario)


def test_c3_factory_faulted_during_pairing_raises() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, second = world.primary_factory(), world.secondary_factory()
        pairing = await begin(world, primary, second)
        await asyncio.sleep(0.005)
        primary.fault(ValueError("the test wants that"))
        with pytest.raises(FactoryFaultedError, match="the test wants that"):
            await pairing
        assert not second.is_closed

    run(scenario)


@pytest.mark.parametrize("after_ms", MOMENTS_MS)
def test_c3_secondary_closed_during_pairing_raises_and_another_can_be_used(after_ms: int) -> None:
    async def scenario(world: PairWorld) -> None:
        primary, second = world.primary_factory(), world.secondary_factory()
        pairing = await begin(world, primary, second)
        await asyncio.sleep(after_ms / 1_000)
        was_done = pairing.done()
        await second.close()
        await asyncio.wait((pairing,))
        if not was_done:
            assert isinstance(pairing.exception(), ClosedError)
            await primary.pair_namespace(options_in(world))

    run(scenario)


@pytest.mark.parametrize("after_ms", MOMENTS_MS)
def test_c3_cancelled_pairing_can_be_repeated(after_ms: int) -> None:
    async def scenario(world: PairWorld) -> None:
        primary, second = world.primary_factory(), world.secondary_factory()
        before = asyncio.all_tasks()
        pairing = await begin(world, primary, second)
        await asyncio.sleep(after_ms / 1_000)
        was_done = not pairing.cancel()
        await asyncio.wait((pairing,))
        if was_done:
            return
        assert pairing.cancelled()
        assert primary.pairing is None
        assert isinstance(await primary.pair_namespace(options_in(world, factory=second)), NamespacePair)
        await primary.close()
        await second.close()
        for manager in world.managers:
            await manager.close()
        await asyncio.sleep(1)
        assert {task for task in asyncio.all_tasks() - before if not is_of_the_world(world, task)} == set()

    run(scenario)


def is_of_the_world(world: PairWorld, task: asyncio.Task[Any]) -> bool:
    return any(task in proxy.tasks for proxy in world.proxies) or any(task in one.tasks for one in world.namespaces)


def test_c3_pairing_does_not_affect_pending_sends(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: PairWorld) -> None:
        world.primary.create_queue("orders")
        primary = world.primary_factory()
        sender = await primary.create_message_sender("orders")
        sending = [asyncio.create_task(sender.send(BrokeredMessage())) for _ in range(10)]
        await asyncio.sleep(0.002)
        await primary.pair_namespace(options_in(world))
        sending += [asyncio.create_task(sender.send(BrokeredMessage())) for _ in range(10)]
        await asyncio.gather(*sending)
        await eventually_async(lambda: world.primary.info("orders").ready_count == 20)
        assert diverted(world) == 0

    with caplog.at_level(logging.WARNING):
        run(scenario)
    assert not caplog.records
